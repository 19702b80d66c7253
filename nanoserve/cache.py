"""The KV cache: one slot a seat, preallocated, scrubbed when its tenant leaves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .model import Decoder


class Seats:
    """Slots to be taken, the lowest first, and each given back once."""

    def __init__(self, slots: int) -> None:
        self._free = set(range(slots))

    def take(self) -> int:
        """Seat a new tenant in the lowest free slot."""
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    @property
    def free_slots(self) -> int:
        return len(self._free)

    def check_taken(self, slot: int) -> None:
        if slot in self._free:
            raise RuntimeError(f"slot {slot} is released twice")


class SlotCache(Seats):
    """K and V for ``slots`` requests of up to ``capacity`` tokens each.

    A token stands at column = its position. ``keys`` and ``values`` are
    [layers, slots, kv_heads, capacity, head_dim] in the model's dtype, on its device.
    ``lengths[slot]`` is how many columns the tenant has written.
    """

    def __init__(self, model: Decoder, slots: int, capacity: int) -> None:
        super().__init__(slots)
        config = model.config
        weight = next(model.parameters())
        shape = (config.num_layers, slots, config.num_kv_heads, capacity)
        # zeros, not empty: what nobody has written is read too, masked, and
        # 0 x NaN is NaN. On the CPU untouched zeros take no memory.
        self.keys = torch.zeros(
            *shape, config.head_dim, dtype=weight.dtype, device=weight.device
        )
        self.values = torch.zeros_like(self.keys)
        self.capacity = capacity
        self.lengths = [0] * slots

    def release(self, slot: int) -> None:
        """Give a slot back and zero what its tenant wrote, no more.

        The next tenant reads these columns before it has written them. They are
        masked, which is enough while they are finite; one NaN left behind would
        poison it.
        """
        self.check_taken(slot)
        self.keys[:, slot, :, : self.lengths[slot]] = 0
        self.values[:, slot, :, : self.lengths[slot]] = 0
        self.lengths[slot] = 0
        self._free.add(slot)

    def write(
        self, layer: int, slots: Tensor, columns: Tensor, k: Tensor, v: Tensor
    ) -> None:
        """Put N tokens' ``k`` and ``v`` [N, kv_heads, head_dim] where they belong:
        ``slots`` and ``columns`` are int64 [N]."""
        self.keys[layer, slots, :, columns] = k
        self.values[layer, slots, :, columns] = v

    def read(
        self, layer: int, slots: Sequence[int], width: int
    ) -> tuple[Tensor, Tensor]:
        """The first ``width`` columns of ``slots``: twice
        [slots, kv_heads, width, head_dim]. Neighbouring slots are not copied."""
        first, last = slots[0], slots[-1]
        rows: slice | list[int] = list(slots)
        if list(slots) == list(range(first, last + 1)):
            rows = slice(first, last + 1)
        return self.keys[layer, rows, :, :width], self.values[layer, rows, :, :width]
