"""From logits to one token a row. Always in float32.

Each row has its own generator, so that a seeded answer does not depend on its
neighbours. ``torch.multinomial`` over a whole batch would share one, and would raise
for everybody when one row is not finite.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from .request import Request, SamplingParams


def generator_for(request: Request) -> torch.Generator | None:
    """A request's own source of randomness; ``None`` when it is greedy."""
    if request.params.temperature == 0:
        return None
    generator = torch.Generator()  # on the CPU, so that a GPU draws the same numbers
    if request.params.seed is None:
        generator.seed()
    else:
        generator.manual_seed(_folded(request.params.seed))
    return generator


def _folded(seed: int) -> int:
    """The CPU's generator reads 32 bits: 2**32 would draw what 0 draws."""
    return seed if seed < 2**32 else zlib.crc32(seed.to_bytes(8, "little"))


def check_finite(logits: Tensor) -> list[bool]:
    """For each row of ``logits`` [rows, vocab]: may a token be drawn from it?

    A row with a NaN or an infinity may not: ``argmax`` of NaN is token 0, which
    looks like an answer.
    """
    finite: list[bool] = torch.isfinite(logits).all(dim=-1).tolist()
    return finite


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    generators: Sequence[torch.Generator | None],
) -> list[int]:
    """One token id for each row of ``logits``, float32 [rows, vocab].

    On a tie the lowest id wins.
    """
    scores = logits.float()
    if any(generators):
        scores = torch.stack(
            [
                row if generator is None else perturbed(row, param, generator)
                for row, param, generator in zip(
                    scores, params, generators, strict=True
                )
            ]
        )
    tokens: list[int] = scores.argmax(dim=-1).tolist()
    return tokens


def perturbed(
    row: Tensor, params: SamplingParams, generator: torch.Generator
) -> Tensor:
    """Scores [vocab] whose largest is a fair draw: log p plus Gumbel noise.

    The draw is an argmax, as greedy is, so two runs part only at a near-tie of the
    two best scores. Source: the Gumbel-max trick (Gumbel, 1954; Maddison et al.,
    2014).
    """
    # the largest becomes 0 first: 30 / 1e-40 would be infinite, and inf - inf is NaN
    scaled = (row - row.max()) / max(params.temperature, 1e-30)
    kept = top_p_filter(top_k_filter(scaled, params.top_k), params.top_p)
    noise = torch.empty(row.shape).exponential_(generator=generator)
    return kept - noise.to(row.device).clamp(min=1e-30).log()


def top_k_filter(row: Tensor, top_k: int) -> Tensor:
    """Keep the ``top_k`` largest of a row [vocab]; the rest become -inf."""
    if top_k == 0 or top_k >= row.numel():
        return row
    kept = row.topk(top_k).indices  # by index: ties at the k-th must not add a token
    return torch.full_like(row, -torch.inf).scatter(0, kept, row[kept])


def top_p_filter(row: Tensor, top_p: float) -> Tensor:
    """Keep the likeliest tokens of a row [vocab] that together reach ``top_p``."""
    if top_p == 1.0:  # by rounding, a sum over 50,000 tokens would drop the tail
        return row
    ordered, order = row.sort(descending=True, stable=True)
    share = ordered.softmax(dim=-1)
    # what stands before a token, not with it: the one that reaches top_p is kept
    kept = share.cumsum(dim=-1) - share < top_p
    kept[0] = True  # 1e-50 is 0 in float32, and nothing is below that
    kept = order[kept]
    return torch.full_like(row, -torch.inf).scatter(0, kept, row[kept])
