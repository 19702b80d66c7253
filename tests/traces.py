"""Traces to look at: of an engine that ran, and of one that never did."""

from __future__ import annotations

from simulator import Job

from nanoserve import Request, SamplingParams, SlotTrace, StaticBatchEngine, serve
from nanoserve.ledger import Cell

ABC = [Job(4, 3), Job(6, 5), Job(2, 2)]  # prompts and outputs of design.md


def run(lm, jobs, seats=3, kind=StaticBatchEngine, **options):
    """Serve jobs that end by their limits; returns the trace."""
    if kind is StaticBatchEngine:
        options["max_num_seqs"] = seats
    engine = kind(lm, **options)
    requests = [
        Request([7] * job.prompt, SamplingParams(job.outputs, ignore_eos=True),
                arrival_step=job.arrival)
        for job in jobs
    ]  # fmt: skip
    serve(engine, requests)
    return engine.trace


def synthetic(passes, slots, tenancy=7, history=None):
    """A trace without a model: each slot serves one request after another."""
    trace = SlotTrace("synthetic", slots, 64, history=history)
    here, next_token = {}, 0
    for number in range(passes):
        cells, told = [], []
        for slot in range(slots):
            age = (number + slot) % tenancy
            if age == 0 or slot not in here:
                here[slot] = trace.add(f"r{number}.{slot}", 3, tenancy, number)
                cells.append(Cell(slot, here[slot], "prefill", 3, 0, 1, 3))
                born = number
            else:
                born = trace.requests[here[slot]].arrival
                kv = 3 + number - born
                cells.append(Cell(slot, here[slot], "decode", 1, 0, 1, kv))
            told.append((slot, age == tenancy - 1))
        trace.record(cells)
        for slot, ends in told:
            trace.token(here[slot], next_token % 100)
            next_token += 1
            if ends:
                trace.finish(here[slot], "length")
                del here[slot]
    return trace
