"""Weights in the order in which a CPU reads them best.

A decode pass multiplies each matrix by a handful of tokens, so it lives from how fast
the matrix comes out of memory. PyTorch's own product for float32 on the CPU (MKL)
copies pieces of it into a better order every time it is called. oneDNN can do that
once, at load. How much that gives is measured by ``data/smollm2_speed.py`` and stands
in ``data/results/smollm2_speed.json``.

PyTorch's compiler does the same to frozen weights, through the same two operators
(torch/_inductor/fx_passes/mkldnn_fusion.py). They are not public: where they are
missing or refuse, weights stay as they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Below this a matrix fits into a core's cache, and its order matters little.
SMALLEST = 2**18
ROWS = 8  # oneDNN asks for how many rows to prepare; what it chooses for 8 suits all


class Packed(nn.Parameter):
    """A weight in oneDNN's order. PyTorch can neither copy such a tensor ("unsupported
    memory format") nor pickle or cast it. Nobody writes to it, so a copy of a model
    shares it; a pickle holds it plain, and ``unpack`` comes before a cast."""

    def __deepcopy__(self, memo: object) -> Packed:
        return self

    def __reduce_ex__(self, protocol: object) -> tuple:
        return pack, (unpack(self),)


def pack(weight: Tensor) -> Tensor:
    """``weight`` [out, in] reordered, or itself where there is nothing to gain."""
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return weight
    if weight.numel() < SMALLEST or not torch.backends.mkldnn.is_available():
        return weight
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)
        linear(weight.new_zeros(1, weight.shape[1]), packed)
    except (AttributeError, NotImplementedError, RuntimeError):
        return weight  # another PyTorch, another processor
    return Packed(packed, requires_grad=False)


def unpack(weight: Tensor) -> Tensor:
    """The plain weight [out, in] again."""
    if not weight.is_mkldnn:
        return weight
    return nn.Parameter(weight.to_dense(), requires_grad=False)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] times a plain or a packed ``weight``: [..., out]."""
    if weight.is_mkldnn:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return F.linear(x, weight, bias)
