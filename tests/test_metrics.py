"""Metrics against counts by hand, in passes and in seconds."""

from __future__ import annotations

from dataclasses import replace

import laws
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import (
    ContinuousBatchEngine,
    InvalidInputError,
    Request,
    SamplingParams,
    SequentialEngine,
    StaticBatchEngine,
    metrics,
    serve,
)
from nanoserve.metrics import Spread, Timeline, measure, percentile


def ask(limit, **more):
    return Request([5, 6, 7], SamplingParams(limit, ignore_eos=True), **more)


# --- percentiles ---


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        ([4, 1, 3, 2], 95, 4),  # of four, not the third
        ([4, 1, 3, 2], 75, 3),
        ([4, 1, 3, 2], 50, 2),
        ([4, 1, 3, 2], 51, 3),
        ([4, 1, 3, 2], 0, 1),
        ([4, 1, 3, 2], 100, 4),
        ([7], 1, 7),
        (range(1, 21), 95, 19),
        (range(1, 101), 99, 99),
        (range(1, 1001), 99.9, 999),  # 999.0000000000001 in floats
        (range(1, 101), 7, 7),
    ],
)
def test_percentiles_are_nearest_rank(values, percent, expected):
    assert percentile(values, percent) == expected


@given(st.lists(st.integers(), min_size=1), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values, percent):
    found = percentile(values, percent)

    def share(limit):
        return 100 * sum(each <= limit for each in values)

    assert share(found) >= percent * len(values)
    below = [each for each in values if each < found]
    assert not below or share(max(below)) < percent * len(values)


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], -1), ([1], 100.1)])
def test_what_has_no_percentile_is_refused(values, percent):
    with pytest.raises(InvalidInputError, match="values=|percent="):
        percentile(values, percent)


# --- one request ---

LINE = Timeline(arrived=10.0, started=12.0, tokens=(15.0, 16.0, 20.0, 21.0))


def test_the_times_of_one_request_by_hand():
    assert LINE.queueing == 2
    assert LINE.ttft == 5  # from arrival, not from the start
    assert LINE.tpot == 2  # 6 seconds for the 3 after the first
    assert LINE.itl == [1, 4, 1]
    assert LINE.end_to_end == 11


def test_one_token_has_no_time_per_token():
    line = Timeline(0.0, 1.0, (3.0,))
    assert (line.ttft, line.tpot, line.itl) == (3, None, [])
    assert line.meets(ttft=3, tpot=0)


@pytest.mark.parametrize(
    ("ttft", "tpot", "kept"), [(5, 2, True), (4.9, 2, False), (5, 1.9, False)]
)
def test_both_limits_must_be_kept(ttft, tpot, kept):
    assert LINE.meets(ttft, tpot) is kept


# --- a run ---


def test_a_run_by_hand():
    lines = [
        Timeline(0.0, 0.0, (1.0, 2.0, 3.0)),
        Timeline(0.0, 1.0, (2.0, 6.0)),
        Timeline(4.0, 6.0, (8.0,)),
        Timeline(5.0, 5.0, ()),  # aborted before its first token
    ]
    run = measure(lines, limits=(2.0, 1.0))
    assert (run.requests, run.unanswered, run.tokens, run.span) == (4, 1, 6, 8)
    assert run.throughput == 6 / 8
    assert run.goodput == 1 / 8  # the first; the second is slow, the third is late
    assert run.ttft == Spread(7 / 3, 2, 4, 4, 4, 4)
    assert run.tpot == Spread(2.5, 1, 4, 4, 4, 4)
    assert run.itl == Spread(2, 1, 4, 4, 4, 4)  # 1, 1, 4: pooled, not per request
    assert run.queueing == Spread(1, 1, 2, 2, 2, 2)
    assert run.end_to_end == Spread(13 / 3, 4, 6, 6, 6, 6)


def test_without_limits_there_is_no_goodput():
    assert measure([LINE]).goodput is None


def test_of_nothing_there_is_nothing():
    run = measure([], limits=(1, 1))
    assert (run.requests, run.tokens, run.throughput, run.goodput) == (0, 0, 0, 0)
    assert run.ttft is run.itl is run.end_to_end is None


# --- in passes ---


def test_a_static_batch_in_passes(llama):
    engine = StaticBatchEngine(llama, 2)
    serve(engine, [ask(3), ask(1), ask(2, arrival_step=1)])
    assert metrics.in_passes(engine.trace) == [
        Timeline(0, 0, (1, 2, 3)),
        Timeline(0, 0, (1,)),
        Timeline(1, 3, (4, 5)),  # it waits for the whole batch
    ]


def test_a_continuous_batch_in_passes(llama):
    engine = ContinuousBatchEngine(llama, 2)
    serve(engine, [ask(3), ask(1), ask(2, arrival_step=1), ask(1, arrival_step=9)])
    assert metrics.in_passes(engine.trace) == [
        Timeline(0, 0, (1, 2, 3)),
        Timeline(0, 0, (1,)),
        Timeline(1, 1, (2, 3)),
        Timeline(9, 9, (10,)),  # the clock jumped
    ]


def test_a_chunked_prefill_is_late_with_its_first_token_and_a_preemption_is_a_gap(
    llama,
):
    long = Request([7] * 8, SamplingParams(2, ignore_eos=True))
    engine = ContinuousBatchEngine(llama, 2, max_num_batched_tokens=3)
    serve(engine, [long])
    assert metrics.in_passes(engine.trace) == [Timeline(0, 0, (3, 4))]
    engine = ContinuousBatchEngine(llama, 2, kv_blocks=6, block_size=1)
    serve(engine, [ask(4), ask(3)])
    first, second = metrics.in_passes(engine.trace)
    assert first.itl == [1, 1, 1]
    assert second.queueing == 0
    assert second.itl == [4, 1], "three passes of the first, then its own"


def test_an_abort_has_no_more_tokens_than_it_got(llama):
    engine = ContinuousBatchEngine(llama, 1)
    for limit in (5, 5):
        engine.add_request(ask(limit))
    engine.step()
    engine.abort("A")
    engine.abort("B")
    engine.step()
    left = [Timeline(0, 0, (1,), answered=False), Timeline(0, 0, (), answered=False)]
    assert metrics.in_passes(engine.trace) == left


def test_who_ended_as_an_error_was_not_in_time():
    """An engine that breaks at its second token had the best goodput of all."""
    broken = replace(LINE, answered=False)
    assert LINE.meets(100, 100) and not broken.meets(100, 100)
    assert metrics.measure([broken, broken], limits=(100, 100)).goodput == 0


def test_a_trace_that_forgets_has_no_timelines(llama):
    engine = StaticBatchEngine(llama, 1)
    engine.trace.history = 5
    with pytest.raises(InvalidInputError, match="history=5"):
        metrics.in_passes(engine.trace)


# --- in seconds ---


@pytest.mark.parametrize("kind", [SequentialEngine, StaticBatchEngine])
def test_seconds_are_those_of_the_results(llama, kind):
    engine = kind(llama)
    with laws.seconds_are_passes(llama):
        for limit in (3, 1, 4):
            engine.add_request(ask(limit))
        rows = engine.live()
        results = serve(engine, [])
    lines = metrics.in_seconds(rows)
    for line, result in zip(lines, results.values(), strict=True):
        assert line.queueing == result.queue_seconds
        assert line.ttft == result.ttft_seconds
        assert line.tpot == result.tpot_seconds
        assert line.end_to_end == result.elapsed_seconds
        assert len(line.tokens) == result.generated_tokens
