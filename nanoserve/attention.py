"""Who may look at whom, and the looking.

Masks are boolean and say what is *kept*. They are combined with ``&`` and filled in
once, inside the softmax: two float masks that are added (``min + min``) become
``-inf``, and a boolean one that is added counts as 0 and 1.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def keep_mask(mask: Tensor, step: int = 0) -> Tensor:
    """Which columns each query of a padded rectangle may see.

    ``mask`` is the prompt's, bool [batch, width]. Step 0: bool
    [batch, 1, width, width], causal and real. Step t: bool
    [batch, 1, 1, width + t], the prompt's real columns and every column since: the
    mask grows by one column a step.

    A pad query sees itself. Nobody reads its answer, but a row of the softmax with
    nothing to see is 0 / 0.
    """
    batch, width = mask.shape
    if step:
        grown = torch.ones(batch, step, dtype=torch.bool, device=mask.device)
        return torch.cat([mask, grown], dim=1)[:, None, None]  # [batch, 1, 1, width+t]
    causal = torch.ones(width, width, dtype=torch.bool, device=mask.device).tril()
    itself = torch.eye(width, dtype=torch.bool, device=mask.device)
    return ((causal & mask[:, None, :]) | itself)[:, None]  # [batch, 1, width, width]


def keep_stored(lengths: Tensor, width: int) -> Tensor:
    """Which columns one query a row may see in its slot: what its row has stored.

    ``lengths`` int64 [rows]. Returns bool [rows, 1, 1, width]. Beyond its length a slot
    holds zeros, or whatever a tenant left behind.
    """
    columns = torch.arange(width, device=lengths.device)
    return (columns < lengths[:, None])[:, None, None]


def keep_chunk(start: int, count: int, device: torch.device) -> Tensor:
    """What ``count`` new tokens may see that follow ``start`` stored ones: these, and
    of each other those before. Bool [1, 1, count, start + count]."""
    keep = torch.ones(count, start + count, dtype=torch.bool, device=device)
    return keep.tril(start)[None, None]


def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Attention through PyTorch's fused kernel.

    ``q`` [batch, heads, queries, head_dim]; ``k`` and ``v`` [batch, kv_heads, keys,
    head_dim]; ``keep`` bool [batch, 1, queries, keys]. Returns q's shape and dtype.

    No query may have an all-False row: kernels do not agree on what that means
    (zeros, NaN or the mean of v). K and V must be finite everywhere, masked or not,
    since 0 x NaN is NaN.
    """
    q, keep, shape = _fold(q, k, keep)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep).reshape(shape)


def attend_readable(
    q: Tensor, k: Tensor, v: Tensor, keep: Tensor
) -> tuple[Tensor, Tensor]:
    """The same by hand, for the lessons. Also returns the weights, float32
    [batch, heads, queries, keys]."""
    batch, heads, queries, head_dim = q.shape
    folded, keep, shape = _fold(q, k, keep)
    scores = folded.float() @ k.float().transpose(-1, -2) / head_dim**0.5
    # the lowest finite number, not -inf: a row of -inf everywhere is NaN
    scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    weights = scores.softmax(dim=-1)
    out = (weights @ v.float()).to(v.dtype).reshape(shape)
    return out, weights.reshape(batch, heads, queries, -1)


def _fold(q: Tensor, k: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, torch.Size]:
    """Let the query heads that share a KV head stand as more queries of that head.

    So grouped-query attention needs no copy of K and V: at decode, 9 heads over
    3 KV heads ran 2 to 5 times quicker than with the heads repeated.
    """
    batch, heads, queries, head_dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    if group == 1:
        return q, keep, q.shape
    if queries > 1:  # one query's mask broadcasts over its group as it is
        keep = keep.expand(batch, group, queries, -1).reshape(batch, 1, -1, k.shape[2])
    return q.reshape(batch, kv_heads, group * queries, head_dim), keep, q.shape
