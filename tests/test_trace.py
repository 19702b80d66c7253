"""The record of a run, and the bill: exact, and the same as on paper."""

from __future__ import annotations

import json
import tempfile

import pytest
import simulator
import strategies as draws
import tiny
from hypothesis import given
from hypothesis import strategies as st
from simulator import Job
from traces import ABC, run, synthetic

from nanoserve import (
    InvalidInputError,
    Request,
    SamplingParams,
    SequentialEngine,
    SlotTrace,
    StaticBatchEngine,
    load,
    serve,
)
from nanoserve.ledger import Cell
from nanoserve.trace import FORMAT


def bill_of(trace, passes=None):
    ledger = trace.ledger(passes)
    names = simulator.bill([], 1, 1)
    return {name: getattr(ledger, name) for name in names}


def cells_of(trace):
    """[{slot: seat}] of each pass, out of the trace's runs."""
    passes = [{} for _ in range(trace.passes)]
    for run_ in trace.runs:
        for nth in range(run_.passes):
            kv = run_.kv + nth * run_.fed
            passes[run_.start + nth][run_.slot] = simulator.Seat(
                run_.request, run_.state, run_.fed, run_.pads, run_.emitted, kv
            )
    return passes


# --- the bills of the design ---


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_bill_of_a_b_c(lm, side):
    ledger = run(lm, ABC, max_model_len=16, padding_side=side).ledger()
    assert ledger.passes == 5
    assert ledger.total_slot_steps == 15
    assert ledger.useful_slot_steps == 10
    assert ledger.wasted_slot_steps == 5
    assert ledger.wasted_fraction == pytest.approx(1 / 3)
    assert ledger.slot_utilization == pytest.approx(2 / 3)
    assert ledger.idle_slot_steps == 0
    assert ledger.pad_tokens == 6
    assert ledger.prompt_tokens == 12
    assert ledger.generated_tokens == 10
    assert ledger.kv_live_token_steps == 60
    assert ledger.kv_finished_token_steps == 21
    assert ledger.kv_reserved_token_steps == 5 * 3 * 16


def test_b_holds_6_after_its_prefill_and_10_at_its_end(llama):
    held = [row[1].kv for row in cells_of(run(llama, ABC))]
    assert held == [6, 7, 8, 9, 10]


def test_the_bill_of_10_500_and_50():
    jobs = [Job(4, 10), Job(6, 500), Job(2, 50)]
    with tempfile.TemporaryDirectory() as directory:
        path = tiny.tiny_checkpoint("gpt2", directory, n_positions=640, n_layer=1)
        ledger = run(load(path, device="cpu"), jobs).ledger()
    assert ledger.passes == 500
    assert ledger.total_slot_steps == 1500
    assert ledger.useful_slot_steps == 560
    assert ledger.wasted_slot_steps == 940
    assert f"{ledger.wasted_fraction:.1%}" == "62.7%"


def test_one_at_a_time_wastes_nothing_and_takes_longer(llama):
    ledger = run(llama, ABC, kind=SequentialEngine).ledger()
    assert ledger.passes == ledger.total_slot_steps == ledger.useful_slot_steps == 10
    assert ledger.wasted_slot_steps == ledger.idle_slot_steps == ledger.pad_tokens == 0


def test_seats_without_a_row_are_idle_not_wasted(llama):
    ledger = run(llama, ABC, seats=5).ledger()
    assert ledger.idle_slot_steps == 10
    assert ledger.wasted_slot_steps == 5
    assert ledger.empty_seats == 15
    assert ledger.slot_utilization == pytest.approx(10 / 25)


def test_a_trace_of_nothing_has_an_empty_bill(llama):
    assert bill_of(StaticBatchEngine(llama).trace) == simulator.bill([], 8, 256)


# --- any run, against a run on paper ---

JOBS = st.lists(
    st.builds(Job, st.integers(1, 12), st.integers(1, 8), st.integers(0, 15)),
    min_size=1,
    max_size=8,
)


@draws.examples(2)
@given(jobs=JOBS, seats=st.integers(1, 4))
def test_a_trace_is_the_run_on_paper_cell_by_cell(gpt2, jobs, seats):
    trace = run(gpt2, jobs, seats, max_model_len=20)
    paper = simulator.static(jobs, seats)
    assert cells_of(trace) == [row for _, row in paper]
    clocks = [trace.clock_of(number) for number in range(trace.passes)]
    assert clocks == [clock for clock, _ in paper]


@draws.examples(2)
@given(jobs=JOBS, seats=st.integers(1, 4))
def test_the_bill_after_each_pass_is_the_bill_on_paper(gpt2, jobs, seats):
    trace = run(gpt2, jobs, seats, max_model_len=20)
    paper = simulator.static(jobs, seats)
    for passes in range(len(paper) + 1):
        right = simulator.bill(paper[:passes], seats, 20)
        assert bill_of(trace, passes) == right
    assert bill_of(trace) == right, "the ledger kept as it grows is the same"


@given(jobs=JOBS)
def test_a_sequential_run_is_a_static_batch_of_one(gpt2, jobs):
    trace = run(gpt2, jobs, kind=SequentialEngine)
    assert cells_of(trace) == [row for _, row in simulator.static(jobs, 1)]


@given(requests=draws.mixed(), seats=st.integers(1, 3))
def test_the_bill_holds_whatever_ends_the_answers(llama, requests, seats):
    engine = StaticBatchEngine(llama, seats)
    results = list(serve(engine, requests).values())
    jobs = [Job(r.prompt_tokens, r.generated_tokens) for r in results]
    paper = simulator.static(jobs, seats)
    assert bill_of(engine.trace) == simulator.bill(paper, seats, 256)
    for record, result in zip(engine.trace.requests.values(), results, strict=True):
        assert record.token_ids == result.token_ids
        assert record.finish_reason == result.finish_reason


@given(jobs=JOBS, seats=st.integers(1, 4))
def test_each_token_is_found_at_the_pass_that_made_it(gpt2, jobs, seats):
    trace = run(gpt2, jobs, seats)
    made = {(job, number): token for job, number, token in trace.emissions()}
    right = {
        (seat.job, number)
        for number, (_, row) in enumerate(simulator.static(jobs, seats))
        for seat in row.values()
        if seat.emitted
    }
    assert made.keys() == right
    for job, record in trace.requests.items():
        mine = [token for (j, _), token in sorted(made.items()) if j == job]
        assert mine == record.token_ids


def test_a_request_ends_at_the_pass_that_made_its_last_token(llama):
    trace = run(llama, [*ABC, Job(3, 2)])
    assert [record.finished for record in trace.requests.values()] == [3, 5, 2, 7]


def test_the_bill_of_passes_that_have_not_run_is_refused(llama):
    for trace in (run(llama, ABC), StaticBatchEngine(llama).trace):
        for passes in (-1, trace.passes + 1, 1.0, "2"):
            with pytest.raises(InvalidInputError, match="passes="):
                trace.ledger(passes)


def test_a_ledger_is_a_copy(llama):
    trace = run(llama, ABC)
    trace.ledger().passes = 99
    assert trace.ledger().passes == 5


# --- long traces stay small ---


def test_alike_passes_are_one_run(llama):
    trace = run(llama, [Job(4, 200)])
    assert [(r.state, r.start, r.passes) for r in trace.runs] == [
        ("prefill", 0, 1),
        ("decode", 1, 199),
    ]


def test_a_pass_left_out_parts_two_runs():
    """A request may sit out a pass: another's prompt used up the budget."""
    trace = SlotTrace("synthetic", 1, 16)
    index = trace.add("A", 3, 9, 0)
    for cells in ([Cell(0, index, "decode", 1, 0, 1, 4)], []):
        trace.record(cells)
    trace.record([Cell(0, index, "decode", 1, 0, 1, 5)])
    assert [(run_.start, run_.passes) for run_ in trace.runs] == [(0, 1), (2, 1)]
    assert trace.ledger().idle_slot_steps == 1


def test_a_bounded_history_forgets_passes_but_not_the_bill():
    bounded, whole = synthetic(500, 4, history=20), synthetic(500, 4)
    assert bill_of(bounded) == bill_of(whole)
    assert len(whole.runs) > 500
    assert len(bounded.runs) < 100
    assert len(bounded.requests) < 60
    assert min(run_.end for run_ in bounded.runs) > 500 - 20 - 20
    last = [run_ for run_ in whole.runs if run_.end > 480]
    assert bounded.runs[-len(last) :] == last


def test_a_bounded_history_keeps_what_still_runs(llama):
    """A long answer must not push its waiting or running neighbours out."""
    engine = StaticBatchEngine(llama, 1)
    engine.trace.history = 2
    jobs = [Job(3, 9), Job(3, 9), Job(3, 9), Job(3, 9)]
    requests = [
        Request([7] * job.prompt, SamplingParams(job.outputs, ignore_eos=True))
        for job in jobs
    ]
    serve(engine, requests)
    assert engine.trace.requests[3].finish_reason == "length"
    assert engine.trace.ledger().generated_tokens == 36


def test_a_bounded_history_still_knows_which_token_was_made_when():
    bounded, whole = synthetic(500, 4, history=20), synthetic(500, 4)
    made = set(whole.emissions())
    kept = list(bounded.emissions())
    assert kept
    assert set(kept) <= made


def test_a_bounded_history_has_no_bill_of_its_first_passes():
    with pytest.raises(InvalidInputError, match="last passes"):
        synthetic(50, 2, history=5).ledger(7)


@pytest.mark.parametrize("history", [0, -1, 2.5, True])
def test_a_history_is_a_number_of_passes(history):
    with pytest.raises(InvalidInputError, match="history="):
        SlotTrace("static", 2, 16, history=history)


# --- there and back ---


@given(jobs=JOBS, seats=st.integers(1, 4))
def test_a_trace_comes_back_from_json_as_it_was(gpt2, jobs, seats):
    trace = run(gpt2, jobs, seats)
    stored = trace.to_dict()
    back = SlotTrace.from_dict(json.loads(json.dumps(stored)))
    assert back.to_dict() == stored
    assert back.text() == trace.text()
    assert back.svg() == trace.svg()
    for passes in range(trace.passes + 1):
        assert back.ledger(passes) == trace.ledger(passes)


def test_a_trace_that_came_back_can_go_on():
    whole = synthetic(30, 2)
    back = SlotTrace.from_dict(synthetic(20, 2).to_dict())
    index = back.add("new", 3, 9, 20)
    assert index not in synthetic(20, 2).requests
    back.record([Cell(0, index, "prefill", 3, 0, 1, 3)])
    assert back.passes == 21
    assert whole.ledger(20) == back.ledger(20)


def test_a_trace_that_came_back_goes_on_with_the_run_it_was_in():
    trace = SlotTrace("synthetic", 1, 16)
    index = trace.add("A", 3, 9, 0)
    trace.record([Cell(0, index, "decode", 1, 0, 1, 4)])
    back = SlotTrace.from_dict(trace.to_dict())
    for each in (trace, back):
        each.record([Cell(0, index, "decode", 1, 0, 1, 5)])
    assert back.to_dict() == trace.to_dict()


def test_a_trace_that_came_back_does_not_share_what_it_was_made_from():
    stored = synthetic(5, 1).to_dict()
    before = json.dumps(stored)
    back = SlotTrace.from_dict(stored)
    back.token(0, 3)
    back.runs[0].passes += 1
    assert json.dumps(stored) == before


def test_a_bounded_trace_comes_back_too():
    trace = synthetic(100, 3, history=10)
    back = SlotTrace.from_dict(json.loads(json.dumps(trace.to_dict())))
    assert back.to_dict() == trace.to_dict()
    assert back.history == 10


@pytest.mark.parametrize(
    "stored", [{}, {"format": "else"}, {"format": FORMAT + "0"}, None, [], "trace"]
)
def test_another_format_is_refused(stored):
    with pytest.raises(InvalidInputError, match=FORMAT):
        SlotTrace.from_dict(stored)
