"""Continuous batching: the batch is formed anew for every pass.

A pass reads the weights once, for a token of everyone who is in the midst of an
answer and for prompts, or chunks of prompts, beside them.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import admission, engine
from .batch import Packed
from .errors import invalid
from .paging import PagedCache, blocks_for
from .request import Request, real, whole
from .sequence import Sequence, Stint

if TYPE_CHECKING:
    from .checkpoint import LanguageModel

PREEMPTIONS = ("recompute", "swap")


class ContinuousBatchEngine(engine.Engine):
    """Who has finished leaves after the pass, and the next in line takes the seat.

    See :class:`nanoserve.admission.Continuous`.

    ``max_num_batched_tokens``  tokens a pass may feed: first one for each answer under
                                way, then prompts
    ``enable_chunked_prefill``  a prompt may be fed in pieces, as the budget allows
    ``kv_blocks``               blocks of K and V, of ``block_size`` tokens each. Unset:
                                as many as all slots can use; on a GPU no more than
                                ``gpu_memory_utilization`` of its memory leaves free
    ``preemption``              when blocks run out, the youngest goes back to the
                                queue. "recompute" drops its K and V and prefills all
                                its tokens again, "swap" keeps them in host memory

    **Nobody starves.** The seated are always the first in line, and the first of them
    is in every pass and never preempted. So a request ends within the sum, over it and
    all who came before it, of ``max_tokens + ceil((prompt + max_tokens) /
    max_num_batched_tokens)`` passes.

    Names and defaults are vLLM's. Raises ``InvalidInputError``.
    """

    name = "continuous"
    rule: admission.Rule = admission.Continuous()
    cache: PagedCache

    def __init__(
        self,
        lm: LanguageModel,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        max_num_batched_tokens: int = 2048,
        enable_chunked_prefill: bool = True,
        kv_blocks: int | None = None,
        block_size: int = 16,
        gpu_memory_utilization: float = 0.9,
        preemption: str = "recompute",
    ) -> None:
        block_size = whole("block_size", block_size, at_least=1)
        super().__init__(lm, max_num_seqs, max_model_len, block_size)
        self.max_num_batched_tokens = self._checked_budget(
            max_num_batched_tokens, enable_chunked_prefill
        )
        self.enable_chunked_prefill = enable_chunked_prefill
        if preemption not in PREEMPTIONS:
            raise invalid("preemption", preemption, f"must be one of {PREEMPTIONS}")
        self.preemption = preemption
        if kv_blocks is None:
            kv_blocks = self._default_blocks(block_size, gpu_memory_utilization)
        blocks = whole("kv_blocks", kv_blocks, at_least=1)
        self.cache = PagedCache(lm.model, self.max_num_seqs, blocks, block_size)

    # --- limits ---

    def _checked_budget(self, tokens: int, chunked: bool) -> int:
        name = "max_num_batched_tokens"
        whole(name, tokens, at_least=1)
        if tokens < self.max_num_seqs:
            limit = f"is below max_num_seqs={self.max_num_seqs}: a token for each"
            raise invalid(name, tokens, limit)
        if not chunked and tokens < self.max_model_len:
            limit = (
                f"is below max_model_len={self.max_model_len}: without chunked prefill "
                "a pass must hold the longest prompt"
            )
            raise invalid(name, tokens, limit)
        return int(tokens)

    def _default_blocks(self, block_size: int, utilization: float) -> int:
        name = "gpu_memory_utilization"
        if not 0 < real(utilization) <= 1:
            raise invalid(name, utilization, "must be above 0 and at most 1")
        most = self.max_num_seqs * blocks_for(self.max_model_len, block_size)
        if self.lm.device.type != "cuda":
            return most
        free, total = torch.cuda.mem_get_info(self.lm.device)
        left = free - (1 - utilization) * total
        blocks = int(left // (block_size * bytes_per_token(self.lm)))
        if blocks < 1:
            raise invalid(name, utilization, "leaves no memory for a block of K and V")
        return min(most, blocks)

    def check(self, request: Request) -> None:
        """Refuse, too, who could not run even with all blocks to itself."""
        super().check(request)
        # the last token is given out and never fed
        tokens = len(request.prompt_token_ids) + request.params.max_tokens - 1
        blocks = self.cache.blocks_for(tokens)
        if blocks > self.cache.blocks:
            raise invalid(
                "prompt + max_tokens - 1",
                tokens,
                f"needs {blocks} blocks of {self.cache.block_size} tokens, "
                f"more than kv_blocks={self.cache.blocks}",
            )

    # --- who is in the pass ---

    def admit(self) -> list[Sequence]:
        """Who is next in line, as far as tokens and blocks go. Nobody overtakes."""
        self._make_room()  # who is seated comes first
        budget = self.max_num_batched_tokens - sum(row.unfed for row in self.running)
        blocks = self.cache.free_blocks
        joining = []
        for row in self.rule.joins(self):
            least = 1 if self.enable_chunked_prefill else row.unfed
            wanted = self.cache.blocks_for(row.kv_length + row.unfed)
            if budget < least or blocks < wanted:
                break
            budget, blocks = budget - row.unfed, blocks - wanted
            joining.append(row)
        return joining

    def plan(self) -> list[Stint]:
        """A token for each answer under way, then prompts, within the budget.

        Only the last one seated can be in the midst of its prompt: nobody is admitted
        while there is no budget left. So the order of the seats is decode first.
        """
        budget, stints = self.max_num_batched_tokens, []
        for row in self.running:
            stints.append(Stint(row, min(row.unfed, budget)))
            budget -= stints[-1].fed
        return stints

    def forward(self, stints: list[Stint]) -> Tensor:
        for stint in stints:
            self.cache.reserve(stint.row.slot, stint.end)
        slots = engine.slots_of([stint.row for stint in stints])
        starts, counts = [s.start for s in stints], [s.fed for s in stints]
        batch = Packed(self.cache, slots, starts, counts)
        device = self.lm.device
        ids = torch.tensor([id for each in stints for id in each.tokens], device=device)
        positions = torch.tensor(
            [at for each in stints for at in range(each.start, each.end)], device=device
        )
        hidden = self.lm.model(ids, positions, batch)  # [tokens, hidden_size]
        ends = zip(accumulate(counts), stints, strict=True)
        last = [end - 1 for end, stint in ends if stint.due]
        return self.lm.model.logits(hidden[last])

    # --- when blocks run out ---

    def _make_room(self) -> None:
        """Blocks for what the seated feed next, from the oldest to the youngest."""
        for stint in self.plan():
            row = stint.row
            while row in self.running and not self.cache.reserve(row.slot, stint.end):
                self.preempt(self.running[-1])

    def preempt(self, row: Sequence) -> None:
        """Back to the queue, before all who came later. What it has said stays said,
        and its generator stands where it stood."""
        if self.preemption == "swap" and row.kv_length:
            row.swapped = self.cache.swap_out(row.slot, row.kv_length)
        else:
            row.kv_length = 0
        self._release([row])
        self.line_up(row)

    def _seat(self, newcomers: list[Sequence]) -> None:
        super()._seat(newcomers)
        for row in newcomers:
            if row.swapped is not None:
                self.cache.reserve(row.slot, row.kv_length)
                self.cache.swap_in(row.slot, row.swapped)
                row.swapped = None


def bytes_per_token(lm: LanguageModel) -> int:
    """K and V of one token in all layers."""
    config = lm.model.config
    numbers = kv_numbers(config.num_layers, config.num_kv_heads, config.head_dim)
    return numbers * lm.dtype.itemsize


def kv_numbers(layers: int, kv_heads: int, head_dim: int) -> int:
    """How many numbers the K and V of one token are, in all layers."""
    return 2 * layers * kv_heads * head_dim
