"""Static batching: one padded prefill, then decode, until the last has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import admission, attention, engine, padding
from .batch import DecodeRows, PaddedPrefill
from .cache import SlotCache
from .sequence import Stint

if TYPE_CHECKING:
    from .checkpoint import LanguageModel


class StaticBatchEngine(engine.Engine):
    """A batch is formed once and runs until its last request has ended.

    See :class:`nanoserve.admission.Static`. ``max_num_seqs`` slots of
    ``max_model_len`` tokens each are held ready. Raises ``InvalidInputError``.
    """

    name = "static"
    rule: admission.Rule = admission.Static()
    cache: SlotCache

    def __init__(
        self,
        lm: LanguageModel,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        padding_side: str = "left",
    ) -> None:
        padding.check_side(padding_side)
        super().__init__(lm, max_num_seqs, max_model_len)
        self.padding_side = padding_side
        self.cache = SlotCache(lm.model, self.max_num_seqs, self.max_model_len)

    def plan(self) -> list[Stint]:
        """Newcomers' whole prompts, or else a token of everybody's."""
        # told by what is stored, not by who came just now: a prefill that was
        # interrupted (Ctrl-C, out of memory) is then simply run again
        newcomers = [row for row in self.running if not row.kv_length]
        return [Stint(row, row.unfed) for row in newcomers or self.running]

    def forward(self, stints: list[Stint]) -> Tensor:
        prefill = stints[0].state == "prefill"
        return self._prefill(stints) if prefill else self._decode(stints)

    def _prefill(self, stints: list[Stint]) -> Tensor:
        """All prompts of a new batch in one padded rectangle."""
        rows = [stint.row for stint in stints]
        ids, mask = padding.pad_batch(
            [row.prompt for row in rows], self.lm.pad_token_id, self.padding_side
        )
        ids, mask = ids.to(self.lm.device), mask.to(self.lm.device)  # [rows, width]
        for stint in stints:
            stint.pads = mask.shape[1] - stint.fed
        positions = padding.positions(mask)
        keep = attention.keep_mask(mask)
        batch = PaddedPrefill(self.cache, engine.slots_of(rows), mask, keep)
        hidden = self.lm.model(ids.flatten(), positions.flatten(), batch)
        return engine.last_logits(self.lm, hidden, mask)

    def _decode(self, stints: list[Stint]) -> Tensor:
        """One token for every row, finished ones too."""
        rows = [stint.row for stint in stints]
        lengths = [row.kv_length for row in rows]
        live = [not row.finished for row in rows]
        batch = DecodeRows(self.cache, engine.slots_of(rows), lengths, live)
        # a finished row goes on with its own last token; its answer is dropped
        ids = torch.tensor([row.last_token for row in rows], device=self.lm.device)
        positions = torch.tensor(lengths, device=self.lm.device)
        return self.lm.model.logits(self.lm.model(ids, positions, batch))


class SequentialEngine(StaticBatchEngine):
    """One request at a time: a static batch of one."""

    name = "sequential"

    def __init__(self, lm: LanguageModel, max_model_len: int | None = None) -> None:
        super().__init__(lm, max_num_seqs=1, max_model_len=max_model_len)
