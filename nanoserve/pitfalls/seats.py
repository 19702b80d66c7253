"""Bugs of continuous batching: a batch that is formed anew, and blocks that are shared.

Padding plays no part here. Each of these is silent for as long as nobody leaves early
or nobody needs a second block.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..paging import PagedCache
from ..sequence import Sequence as Row
from .bug import bug

places, release = PagedCache.places, PagedCache.release

# --- engine.slots_of ---


def unchecked_places(
    self: PagedCache, slot: int, start: int, end: int
) -> slice | Tensor:
    """Of a slot that holds nothing: where it would begin."""
    if self.tables[slot]:
        return places(self, slot, start, end)
    origin = slot * self.blocks // len(self.tables) * self.block_size
    return slice(origin + start, origin + end)


@bug(
    "engine.slots_of",
    also={"paging.places": unchecked_places},
    paged=True,
    symptom="All is well until a request ends before its neighbours. Then the others "
    "forget what they were asked, or go on with each other's words.",
    cause="The batch is closed up, row 2 becomes row 1, and the cache stays as it was: "
    "rows are counted where slots should be named.",
    fix="A request keeps its slot, whatever its row in this pass.",
    report="https://github.com/tenstorrent/tt-xla/pull/5799",
)
def rows_compacted(rows: list[Row]) -> list[int]:
    return list(range(len(rows)))


# --- paging.release ---


@bug(
    "paging.release",
    paged=True,
    symptom="When memory is short, a request answers with a neighbour's words.",
    cause="The blocks go back to the pool and stay in the slot's table too. The slot's "
    "next tenant writes into them, and so does whoever the pool gives them to.",
    fix="Clear the table when its blocks are given back.",
    report="https://github.com/gittensor-ai-lab/sparkinfer/pull/146",
)
def stale_block(self: PagedCache, slot: int) -> None:
    table = list(self.tables[slot])
    release(self, slot)
    self.tables[slot].extend(table)


# --- paging.places ---


@bug(
    "paging.places",
    paged=True,
    symptom="Short requests are right. Whoever needs a second block goes astray.",
    cause="The block is looked up for the token before: the first token of each block "
    "lands in the block it follows, on top of a token that is still needed.",
    fix="`table[token // block_size]`, at the boundary too.",
    report="https://github.com/EricLBuehler/mistral.rs/pull/552",
)
def block_off_by_one(
    self: PagedCache, slot: int, start: int, end: int
) -> slice | Tensor:
    tokens, size = torch.arange(start, end), self.block_size
    blocks = torch.tensor(self.tables[slot])[(tokens - 1).clamp(min=0) // size]
    return (blocks * size + tokens % size).to(self.keys.device)
