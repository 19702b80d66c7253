"""The paged KV cache: blocks from one pool, and for each slot a table of its blocks.

A slot of fixed length holds room for the longest answer from the first token on.
Here a request holds what it has written, rounded up to a block; the rest serves
others. Source: PagedAttention (Kwon et al., SOSP 2023).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .cache import Seats
from .model import Decoder


class Stored(NamedTuple):
    """A request's K and V in host memory, [layers, kv_heads, tokens, head_dim] each."""

    keys: Tensor
    values: Tensor


class PagedCache(Seats):
    """K and V of all slots, in ``blocks`` blocks of ``block_size`` tokens.

    ``keys`` and ``values`` are [layers, kv_heads, blocks x block_size, head_dim] in the
    model's dtype, on its device. The tenant of a slot has its token c at *place*
    ``tables[slot][c // block_size] * block_size + c % block_size``.
    """

    def __init__(
        self, model: Decoder, slots: int, blocks: int, block_size: int
    ) -> None:
        super().__init__(slots)
        config, weight = model.config, next(model.parameters())
        shape = (config.num_layers, config.num_kv_heads, blocks * block_size)
        # zeros, as in SlotCache: on the CPU untouched zeros take no memory
        self.keys = torch.zeros(
            *shape, config.head_dim, dtype=weight.dtype, device=weight.device
        )
        self.values = torch.zeros_like(self.keys)
        self.blocks, self.block_size = blocks, block_size
        self.tables: list[list[int]] = [[] for _ in range(slots)]
        self._free_blocks = set(range(blocks))

    @property
    def free_blocks(self) -> int:
        return len(self._free_blocks)

    def blocks_for(self, tokens: int) -> int:
        return blocks_for(tokens, self.block_size)

    # --- blocks ---

    def reserve(self, slot: int, tokens: int) -> bool:
        """Give ``slot`` room for ``tokens`` in all. False: the pool has too few blocks
        left, and none was taken."""
        table = self.tables[slot]
        missing = self.blocks_for(tokens) - len(table)
        if missing > len(self._free_blocks):
            return False
        for _ in range(missing):
            table.append(self._next_block(slot))
            self._free_blocks.remove(table[-1])
        return True

    def _next_block(self, slot: int) -> int:
        """The neighbour of the slot's last block, if it is free.

        Neighbours are read without a copy, and on a CPU a copy costs as much as the
        attention itself. So each slot begins in its own part of the pool, and one that
        finds its way blocked goes on in the middle of the longest hole.
        """
        table = self.tables[slot]
        first = slot * self.blocks // len(self.tables)
        wanted = table[-1] + 1 if table else first
        if wanted in self._free_blocks:
            return wanted
        hole = longest_run(self._free_blocks)
        return hole[len(hole) // 2]

    def release(self, slot: int) -> None:
        """Give a slot and its blocks back, zeroed: what one tenant wrote is not for
        the next, least of all a NaN."""
        self.check_taken(slot)
        table = self.tables[slot]
        if table:
            places = self.places(slot, 0, len(table) * self.block_size)
            self.keys[:, :, places] = 0
            self.values[:, :, places] = 0
        self._free_blocks.update(table)
        table.clear()
        self._free.add(slot)

    # --- tokens ---

    def places(self, slot: int, start: int, end: int) -> slice | Tensor:
        """Where the tenant's tokens ``start`` to ``end`` stand: a slice while its
        blocks are neighbours, else int64 [end - start]."""
        table, size = self.tables[slot], self.block_size
        origin = table[0] * size
        if table == list(range(table[0], table[0] + len(table))):
            return slice(origin + start, origin + end)
        tokens = torch.arange(start, end)
        blocks = torch.tensor(table)[tokens // size]
        return (blocks * size + tokens % size).to(self.keys.device)

    def write(self, layer: int, places: Tensor, k: Tensor, v: Tensor) -> None:
        """Put N tokens' ``k`` and ``v`` [N, kv_heads, head_dim] to ``places`` [N]."""
        self.keys[layer].index_copy_(1, places, k.transpose(0, 1))
        self.values[layer].index_copy_(1, places, v.transpose(0, 1))

    def read(self, layer: int, places: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Twice [kv_heads, tokens, head_dim]. A slice is not copied."""
        return self.keys[layer][:, places], self.values[layer][:, places]

    # --- to host memory and back ---

    def swap_out(self, slot: int, tokens: int) -> Stored:
        """A copy of what the tenant of ``slot`` has written so far."""
        places = self.places(slot, 0, tokens)
        pair = (self.keys[:, :, places], self.values[:, :, places])
        return Stored(*(each.to("cpu", copy=True) for each in pair))

    def swap_in(self, slot: int, stored: Stored) -> None:
        """Write it back, to whatever blocks ``slot`` has now."""
        places = self.places(slot, 0, stored.keys.shape[2])
        self.keys[:, :, places] = stored.keys.to(self.keys.device)
        self.values[:, :, places] = stored.values.to(self.keys.device)


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens``; the last may be partly empty."""
    return -(-tokens // block_size)


def longest_run(numbers: set[int]) -> list[int]:
    """The longest run of neighbours among ``numbers``; of equal ones the first."""
    longest: list[int] = []
    run: list[int] = []
    for number in sorted(numbers):
        if run and run[-1] + 1 == number:
            run.append(number)
        else:
            run = [number]
        if len(run) > len(longest):
            longest = list(run)
    return longest
