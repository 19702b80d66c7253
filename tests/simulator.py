"""A static batch on paper: who sits where in each pass, by lists and nothing else.

The trace, the ledger and the pictures are held against this. It shares no code with
the package, stores every cell of every pass, and counts by going over them.
"""

from __future__ import annotations

from collections.abc import Sequence
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
