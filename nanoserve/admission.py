"""Who joins and who leaves: the one thing in which the engines really differ.

A rule is two questions asked around each pass. It sees a :class:`Queue`, which knows
nothing of models: so the engines and ``nanoserve replay``, which counts passes without
a model, run the same rules.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Generic, Protocol, TypeVar

from .errors import invalid


class Member(Protocol):
    """What a rule may know of a request. Of two that arrive together, the one with
    the lower ``index`` came first."""

    arrival: int
    index: int

    @property
    def finished(self) -> bool: ...


M = TypeVar("M", bound=Member)


class Queue(Generic[M]):
    """Who waits, who has a seat, and what time it is."""

    def __init__(self, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs
        self.clock = 0  # in passes; it jumps over time in which nobody is here
        self.waiting: list[M] = []  # first come, first served
        self.running: list[M] = []  # who has a seat, finished or not

    def line_up(self, member: M) -> None:
        """Who comes back (it lost its seat) stands before all who came later."""
        insort(self.waiting, member, key=lambda each: (each.arrival, each.index))

    @property
    def free_seats(self) -> int:
        return self.max_num_seqs - len(self.running)

    def arrived(self, most: int | None = None) -> list[M]:
        """Who waits and has arrived by now, in order of arrival; the first ``most``."""
        here = bisect_right(self.waiting, self.clock, key=lambda each: each.arrival)
        return self.waiting[: here if most is None else min(here, most)]

    def seat(self, members: list[M]) -> None:
        """Out of the line and into the seats. Raises ``InvalidInputError`` when a
        rule lets in more than there is room for."""
        if len(members) > self.free_seats:
            limit = f"are to be seated, and {self.free_seats} seats are free"
            raise invalid("joins", len(members), limit)
        for member in members:
            self.waiting.remove(member)
            self.running.append(member)

    def skip_idle_time(self) -> None:
        """With nobody seated, let the clock jump to the next arrival."""
        if self.waiting and not self.running:
            self.clock = max(self.clock, self.waiting[0].arrival)


class Rule(Protocol):
    """A rule of admission."""

    def joins(self, queue: Queue[M]) -> list[M]:
        """Before a pass: who of ``queue.arrived()`` takes a seat, in order."""

    def leaves(self, queue: Queue[M]) -> list[M]:
        """After a pass: who of ``queue.running`` gives the seat back."""


class Static:
    """A batch is formed once and runs until its last request has ended.

    Who has finished keeps the seat, and the row is computed still. Who arrives one
    pass late waits for the whole batch.
    """

    def joins(self, queue: Queue[M]) -> list[M]:
        return [] if queue.running else queue.arrived(queue.free_seats)

    def leaves(self, queue: Queue[M]) -> list[M]:
        over = all(member.finished for member in queue.running)
        return list(queue.running) if over else []


class Continuous:
    """The batch is formed anew for every pass.

    Who has finished leaves at once, and the next in line takes the seat. Source:
    iteration-level scheduling (Yu et al., "Orca", OSDI 2022).
    """

    def joins(self, queue: Queue[M]) -> list[M]:
        return queue.arrived(queue.free_seats)

    def leaves(self, queue: Queue[M]) -> list[M]:
        return [member for member in queue.running if member.finished]
