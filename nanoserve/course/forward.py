"""The model as lesson 06 needs it: it runs, remembers, and asks for all."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batch import Rectangle
from ..cache import SlotCache
from ..checkpoint import LanguageModel
from ..errors import invalid

MOST = 128  # columns that are remembered


class Forward:
    """A model and the K and V of all that it has read, a padded rectangle.

    ``forward(ids, positions, keep)`` reads ``ids`` int64 [rows, n]: the padded prompts
    first, then one token a row. ``positions`` has the same shape; ``keep`` is bool
    [rows, 1, n, columns], True where a query may look, over all columns read so far.
    Returns float32 logits [rows, n, vocab]. Raises ``InvalidInputError``.
    """

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self.columns = 0
        self.cache: SlotCache | None = None

    def __repr__(self) -> str:
        return "forward"

    def __deepcopy__(self, memo: Any) -> Forward:
        return Forward(self.lm)  # one that has read nothing: every case begins anew

    @torch.no_grad()
    def __call__(self, ids: Any, positions: Any, keep: Any) -> Tensor:
        ids, positions, keep = map(torch.as_tensor, (ids, positions, keep))
        self._check(ids, positions, keep)
        rows, width = ids.shape
        if self.cache is None:
            self.cache = SlotCache(self.lm.model, rows, MOST)
        self.columns += width
        batch = Rectangle(self.cache, keep.bool())
        hidden = self.lm.model(ids.flatten(), positions.flatten(), batch)
        return self.lm.model.logits(hidden).unflatten(0, (rows, width))

    def _check(self, ids: Tensor, positions: Tensor, keep: Tensor) -> None:
        if ids.dim() != 2 or (self.cache and len(ids) != len(self.cache.lengths)):
            raise invalid("ids", list(ids.shape), "must be [rows, n], the same rows")
        if positions.shape != ids.shape:
            raise invalid("positions", list(positions.shape), "must be as ids are")
        if positions.min() < 0:
            limit = "must be 0 or more, for a pad too: its position is read by nobody"
            raise invalid("positions", int(positions.min()), limit)
        wanted = [len(ids), 1, ids.shape[1], self.columns + ids.shape[1]]
        if list(keep.shape) != wanted:
            limit = f"must be {wanted}: [rows, 1, queries, all columns so far]"
            raise invalid("keep", list(keep.shape), limit)
        if wanted[-1] > MOST:
            raise invalid("columns", wanted[-1], f"must be {MOST} or fewer")
