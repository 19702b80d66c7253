"""What the model sees instead of padding and slots.

The model hands every layer's q, k and v to ``batch.attend``, flat: one line a token.
A batch knows where these tokens' K and V are kept and which columns each query may
see, and ends in the one ``attention.attend``. Four kinds of batch, one model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import attention
from .cache import SlotCache
from .paging import PagedCache


class Rectangle:
    """The lesson's batch: rows x width padded columns, stored as they stand.

    Row r of the batch is slot r of the cache, and column = padded column, pads and
    all. ``keep`` is bool [rows, 1, width, start + width].
    """

    def __init__(self, cache: SlotCache, keep: Tensor) -> None:
        self.cache, self.keep = cache, keep
        self.rows, _, self.width, self.end = keep.shape

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (_to_rows(x, self.rows, self.width) for x in (q, k, v))
        columns = slice(self.end - self.width, self.end)
        self.cache.keys[layer, :, :, columns] = k
        self.cache.values[layer, :, :, columns] = v
        keys, values = self.cache.read(layer, range(self.rows), self.end)
        return _to_flat(attention.attend(q, keys, values, self.keep))


class PaddedPrefill:
    """A static engine's first pass: pads are computed, and never stored.

    ``mask`` bool [rows, width] says who is real; row r's tokens go to columns
    0, 1, 2 .. of ``slots[r]``. Attention runs inside the rectangle, since nothing
    was stored before it.
    """

    def __init__(
        self, cache: SlotCache, slots: Sequence[int], mask: Tensor, keep: Tensor
    ) -> None:
        self.cache, self.mask, self.keep = cache, mask, keep
        lengths = mask.sum(dim=1).tolist()
        for slot, length in zip(slots, lengths, strict=True):
            # before the pass: a pass that is interrupted has written all the same
            cache.lengths[slot] = length
        columns = [torch.arange(length) for length in lengths]
        self.columns = torch.cat(columns).to(mask.device)  # [real tokens]
        rows = torch.tensor(slots, device=mask.device)[:, None].expand_as(mask)
        self.slots = rows[mask]  # [real tokens]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        real = self.mask.flatten()
        self.cache.write(layer, self.slots, self.columns, k[real], v[real])
        q, k, v = (_to_rows(x, *self.mask.shape) for x in (q, k, v))
        return _to_flat(attention.attend(q, k, v, self.keep))


class DecodeRows:
    """One token a row, each over its own slot.

    ``lengths[r]`` tokens of row r are stored already. A live row stores one more and
    sees it. A finished row is computed and its answer dropped: it stores nothing and
    sees what it holds, so that no query is left with nothing to see. Nobody looks
    beyond the longest live row.
    """

    def __init__(
        self,
        cache: SlotCache,
        slots: Sequence[int],
        lengths: Sequence[int],
        live: Sequence[bool],
    ) -> None:
        self.cache, self.slots = cache, list(slots)
        device = cache.keys.device
        rows = [row for row, alive in enumerate(live) if alive]
        for row in rows:
            cache.lengths[slots[row]] = lengths[row] + 1
        self.writers = torch.tensor(rows, device=device)  # [live rows]
        self.writer_slots = torch.tensor([slots[row] for row in rows], device=device)
        self.columns = torch.tensor([lengths[row] for row in rows], device=device)
        self.width = max(lengths[row] for row in rows) + 1
        seen = [length + alive for length, alive in zip(lengths, live, strict=True)]
        seen_by_row = torch.tensor(seen, device=device)
        self.keep = attention.keep_stored(seen_by_row, self.width)
        self.all_live = all(live)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self.all_live:
            k, v = k[self.writers], v[self.writers]
        self.cache.write(layer, self.writer_slots, self.columns, k, v)
        keys, values = self.cache.read(layer, self.slots, self.width)
        return attention.attend(q[:, :, None], keys, values, self.keep)[:, :, 0]


class Packed:
    """A continuous pass: decode rows and prefill chunks side by side, without pads.

    Row r feeds ``counts[r]`` tokens and has ``starts[r]`` stored; its blocks have room
    for both. Every linear layer sees all tokens at once. Only attention, in which each
    row looks at its own past, is asked row by row. Source: selective batching (Yu et
    al., "Orca", OSDI 2022).
    """

    def __init__(
        self,
        cache: PagedCache,
        slots: Sequence[int],
        starts: Sequence[int],
        counts: Sequence[int],
    ) -> None:
        self.cache, self.counts = cache, list(counts)
        device = cache.keys.device
        spans = [(s, s + n) for s, n in zip(starts, counts, strict=True)]
        places = [
            cache.places(slot, *span) for slot, span in zip(slots, spans, strict=True)
        ]
        self.new = torch.cat([_index(each, device) for each in places])  # [tokens]
        self.seen = [
            cache.places(slot, 0, end)
            for slot, (_, end) in zip(slots, spans, strict=True)
        ]
        self.keep = [
            attention.keep_chunk(start, count, device)
            for start, count in zip(starts, counts, strict=True)
        ]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        self.cache.write(layer, self.new, k, v)
        rows = zip(q.split(self.counts), self.seen, self.keep, strict=True)
        return torch.cat([self._row(layer, *row) for row in rows])

    def _row(self, layer: int, q: Tensor, seen: slice | Tensor, keep: Tensor) -> Tensor:
        """q [count, heads, head_dim] over this row's own tokens; likewise."""
        keys, values = self.cache.read(layer, seen)
        q, keys, values = q.transpose(0, 1)[None], keys[None], values[None]
        return _to_flat(attention.attend(q, keys, values, keep))


def _index(place: slice | Tensor, device: torch.device) -> Tensor:
    if isinstance(place, slice):
        return torch.arange(place.start, place.stop, device=device)
    return place


def _to_rows(x: Tensor, rows: int, width: int) -> Tensor:
    """[rows x width, heads, head_dim] to [rows, heads, width, head_dim]"""
    return x.unflatten(0, (rows, width)).transpose(1, 2)


def _to_flat(x: Tensor) -> Tensor:
    """[rows, heads, width, head_dim] to [rows x width, heads, head_dim]"""
    return x.transpose(1, 2).flatten(0, 1)
