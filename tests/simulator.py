"""Batches on paper: who sits where in each pass, by lists and nothing else.

The trace, the ledger and the pictures are held against this. It shares no code with
the package, stores every cell of every pass, and counts by going over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Job(NamedTuple):
    prompt: int
    outputs: int  # how many tokens it makes in the end
    arrival: int = 0


class Seat(NamedTuple):
    job: int
    state: str
    fed: int
    pads: int
    emitted: int
    kv: int


def static(jobs: Sequence[Job], seats: int) -> list[tuple[int, dict[int, Seat]]]:
    """(clock, {slot: seat}) for each pass."""
    waiting = sorted(range(len(jobs)), key=lambda job: jobs[job].arrival)
    clock, passes = 0, []
    while waiting:
        clock = max(clock, jobs[waiting[0]].arrival)
        here = [job for job in waiting if jobs[job].arrival <= clock][:seats]
        waiting = [job for job in waiting if job not in here]
        width = max(jobs[job].prompt for job in here)
        for step in range(max(jobs[job].outputs for job in here)):
            row = {}
            for slot, job in enumerate(here):
                prompt, outputs, _ = jobs[job]
                if step == 0:
                    seat = Seat(job, "prefill", prompt, width - prompt, 1, prompt)
                elif step < outputs:
                    seat = Seat(job, "decode", 1, 0, 1, prompt + step)
                else:  # the last token was made, and never fed
                    seat = Seat(job, "finished", 0, 0, 0, prompt + outputs - 1)
                row[slot] = seat
            passes.append((clock, row))
            clock += 1
    return passes


def bill(
    passes: Sequence[tuple[int, dict[int, Seat]]], seats: int, capacity: int
) -> dict[str, int | float]:
    """Every count of the ledger, by its name."""
    every = [seat for _, row in passes for seat in row.values()]
    useful = [seat for seat in every if seat.state != "finished"]
    ended = [seat for seat in every if seat.state == "finished"]
    places = seats * len(passes)
    return {
        "passes": len(passes),
        "total_slot_steps": len(every),
        "useful_slot_steps": len(useful),
        "wasted_slot_steps": len(ended),
        "idle_slot_steps": places - len(every),
        "empty_seats": places - len(useful),
        "prompt_tokens": sum(seat.fed for seat in every if seat.state == "prefill"),
        "pad_tokens": sum(seat.pads for seat in every),
        "generated_tokens": sum(seat.emitted for seat in every),
        "recomputed_tokens": 0,
        "kv_reserved_token_steps": places * capacity,
        "kv_live_token_steps": sum(seat.kv for seat in useful),
        "kv_finished_token_steps": sum(seat.kv for seat in ended),
        "wasted_fraction": len(ended) / len(every) if every else 0.0,
        "slot_utilization": len(useful) / places if places else 0.0,
    }


# --- continuous batches ---


@dataclass(eq=False)
class Draft:
    """A request on paper: its lengths, and how far it has got."""

    prompt: int
    outputs: int
    name: str = ""
    made: int = 0
    kv: int = 0
    kv_most: int = 0

    @property
    def unfed(self) -> int:
        return self.prompt + self.made - self.kv


class Share(NamedTuple):
    draft: Draft
    fed: int
    again: int  # of these, how many were fed before
    emits: bool


@dataclass
class Continuous:
    """A continuous engine on paper.

    ``line`` is everybody who has not ended, in order of arrival; the seated are the
    first of it. Who keeps the seat is worked out at one go: as many of the seated,
    from the oldest on, as find room for all that they hold after the pass.
    """

    seats: int
    budget: int = 10**9
    blocks: int = 10**9
    size: int = 1
    swap: bool = False
    whole: bool = False  # prompts are not cut

    def __post_init__(self) -> None:
        self.line: list[Draft] = []
        self.seated: list[Draft] = []
        self.preemptions = 0

    def need(self, tokens: int) -> int:
        return (tokens + self.size - 1) // self.size

    def held(self) -> int:
        return sum(self.need(draft.kv) for draft in self.seated)

    def preempt_youngest(self) -> None:
        draft = self.seated.pop()
        self.preemptions += 1
        if not self.swap:
            draft.kv = 0

    def end(self, draft: Draft) -> None:
        for place in (self.line, self.seated):
            if draft in place:
                place.remove(draft)

    def form(self) -> list[tuple[Draft, int]]:
        """Who is in the next pass, and how many tokens each feeds."""
        shares, tokens, blocks = [], self.budget, self.blocks
        for draft in self.seated:
            feeds = min(draft.unfed, tokens)
            if blocks < self.need(draft.kv + feeds):
                break
            shares.append((draft, feeds))
            tokens -= feeds
            blocks -= self.need(draft.kv + feeds)
        while len(self.seated) > len(shares):
            self.preempt_youngest()
        for draft in self.line[len(self.seated) :]:
            blocks -= self.need(draft.kv + draft.unfed)
            full = len(self.seated) == self.seats
            short = tokens < (draft.unfed if self.whole else 1)
            if full or short or blocks < 0:
                break
            self.seated.append(draft)
            shares.append((draft, min(draft.unfed, tokens)))
            tokens -= shares[-1][1]
        return shares

    def step(self) -> list[Share]:
        """One pass: what everyone in it feeds."""
        return [self._feed(*share) for share in self.form()]

    def _feed(self, draft: Draft, feeds: int) -> Share:
        again = len(range(draft.kv, min(draft.kv + feeds, draft.kv_most)))
        emits = feeds == draft.unfed
        draft.kv += feeds
        draft.kv_most = max(draft.kv, draft.kv_most)
        draft.made += emits
        return Share(draft, feeds, again, emits)

    def leave(self) -> None:
        """After the pass: who has all its tokens goes."""
        for draft in [each for each in self.seated if each.made == each.outputs]:
            self.end(draft)
