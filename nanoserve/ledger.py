"""The bill: what slots did, counted. Nothing else counts.

A :class:`Cell` is one row of one pass, a :class:`Run` many alike, and a
:class:`SlotLedger` sums them up, for a trace as for a replay without a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

State = Literal["prefill", "decode", "finished"]


class Cell(NamedTuple):
    """One row of one pass.

    ``fed`` tokens had their K and V written, ``pads`` were computed beside them,
    ``emitted`` new tokens came out; afterwards ``kv`` tokens are held in the slot.
    Of a prefill after a preemption, ``recomputed`` tokens were fed before already, and
    ``answer`` counts those of the answer that were not.
    """

    slot: int
    request: int
    state: State
    fed: int
    pads: int
    emitted: int
    kv: int
    recomputed: int = 0
    answer: int = 0


@dataclass
class Run:
    """``passes`` alike cells of one slot, from pass ``start`` (the first is 0).

    ``kv`` is what the slot holds after the first of them; each further pass adds
    ``fed``.
    """

    slot: int
    request: int
    state: State
    start: int
    passes: int
    fed: int
    pads: int
    emitted: int
    kv: int
    recomputed: int = 0
    answer: int = 0

    @property
    def end(self) -> int:
        """One past its last pass."""
        return self.start + self.passes

    def goes_on_as(self, cell: Cell, now: int) -> bool:
        """Is ``cell``, in pass ``now``, one more of the same?"""
        grown = self.kv + self.passes * self.fed
        mine = (self.slot, self.request, self.state, self.fed, self.pads, self.emitted)
        preempted = (self.recomputed, self.answer)
        return self.end == now and (*mine, grown, *preempted) == cell

    def reserved(self, passes: int, block_size: int) -> int:
        """KV token-steps of the blocks it filled, in its first ``passes`` passes."""
        held = (self.kv + self.fed * number for number in range(passes))
        return sum(-(-tokens // block_size) * block_size for tokens in held)


@dataclass
class SlotLedger:
    """The bill. A *slot-step* is one slot in one pass; KV is counted in token-steps,
    after each pass. ``recomputed_tokens`` were fed a second time, after a preemption:
    they are no prompt tokens."""

    max_num_seqs: int
    passes: int = 0
    total_slot_steps: int = 0
    useful_slot_steps: int = 0
    wasted_slot_steps: int = 0
    prompt_tokens: int = 0
    pad_tokens: int = 0
    generated_tokens: int = 0
    recomputed_tokens: int = 0
    kv_reserved_token_steps: int = 0
    kv_live_token_steps: int = 0
    kv_finished_token_steps: int = 0

    @property
    def idle_slot_steps(self) -> int:
        """Seats without a row."""
        return self.max_num_seqs * self.passes - self.total_slot_steps

    @property
    def empty_seats(self) -> int:
        """Seats that made nothing: idle, or held by a finished request."""
        return self.idle_slot_steps + self.wasted_slot_steps

    @property
    def wasted_fraction(self) -> float:
        return _ratio(self.wasted_slot_steps, self.total_slot_steps)

    @property
    def slot_utilization(self) -> float:
        return _ratio(self.useful_slot_steps, self.max_num_seqs * self.passes)

    def count(self, run: Run, passes: int) -> None:
        """Add the first ``passes`` passes of ``run``."""
        self.total_slot_steps += passes
        # kv, kv + fed, kv + 2 fed, ..
        held = run.kv * passes + run.fed * (passes * (passes - 1) // 2)
        if run.state == "finished":
            self.wasted_slot_steps += passes
            self.kv_finished_token_steps += held
            return
        self.useful_slot_steps += passes
        self.kv_live_token_steps += held
        self.generated_tokens += run.emitted * passes
        self.pad_tokens += run.pads * passes
        if run.state == "prefill":
            self.recomputed_tokens += run.recomputed * passes
            self.prompt_tokens += (run.fed - run.recomputed - run.answer) * passes


def _ratio(part: int, whole_: int) -> float:
    return part / whole_ if whole_ else 0.0
