"""Recorded traffic and drawn traffic."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from random import Random
from statistics import fmean, pstdev

import pytest
import real_traffic
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import InvalidInputError, traffic
from nanoserve.traffic import (
    Arrival,
    Fixed,
    LogNormal,
    Quantiles,
    Uniform,
    bursty,
    drawn,
    poisson,
)

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
GOOD = "2023-11-16 18:17:03.9799600,4808,10"


def written(tmp_path, *lines, head=HEAD, **options):
    path = tmp_path / "trace.csv"
    text = "\n".join([head, *lines]) + "\n"
    path.write_text(text, **{"encoding": "utf-8", **options})
    return path


# --- recorded ---


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_a_trace_is_read_with_or_without_a_byte_order_mark(tmp_path, encoding, newline):
    lines = [GOOD, "2023-11-16 18:17:05.4799600,3180,8"]
    path = written(tmp_path, *lines, encoding=encoding, newline=newline)
    assert traffic.read_trace(path) == [Arrival(0.0, 4808, 10), Arrival(1.5, 3180, 8)]
    assert traffic.read_trace(str(path))[0].prompt == 4808


def test_columns_are_found_by_name(tmp_path):
    path = written(
        tmp_path, "8,x,2023-11-16,3", head="GeneratedTokens,id,TIMESTAMP,ContextTokens"
    )
    assert traffic.read_trace(path) == [Arrival(0.0, 3, 8)]


def test_requests_are_in_the_order_of_their_times(tmp_path):
    path = written(
        tmp_path,
        "2023-11-16 18:00:02,2,2",
        "2023-11-16 18:00:00,1,1",
        "2023-11-16 18:00:02,3,3",
    )
    assert traffic.read_trace(path) == [
        Arrival(0, 1, 1),
        Arrival(2, 2, 2),
        Arrival(2, 3, 3),
    ]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("2023-11-16 18:17:04,x,8", "line 3: ContextTokens='x': must be an integer"),
        ("2023-11-16 18:17:04,5,0", "line 3: GeneratedTokens='0': must be an integer"),
        ("2023-11-16 18:17:04,-5,1", "line 3: ContextTokens='-5': must be"),
        ("2023-11-16 18:17:04,5.0,1", "line 3: ContextTokens='5.0': must be"),
        ("2023-11-16 18:17:04,1_0,1", "line 3: ContextTokens='1_0': must be"),
        ("2023-11-16 18:17:04,٣,1", "line 3: ContextTokens='٣': must be"),
        ("2023-11-16 18:17:04,,1", "line 3: ContextTokens='': must be"),
        ("yesterday,5,1", "line 3: TIMESTAMP='yesterday': must be like 2023"),
        ("2023-11-16 18:17:04,5", "line 3=.*: must have 3 fields"),
        ("2023-11-16 18:17:04,5,1,9", "line 3=.*: must have 3 fields"),
        ("", "line 3=.*: must have 3 fields"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named_with_its_line(tmp_path, bad, message):
    path = written(tmp_path, GOOD, bad, GOOD)
    with pytest.raises(InvalidInputError, match=f"trace.csv {message}"):
        traffic.read_trace(path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ("TIMESTAMP,ContextTokens", "line 1=.*: has no column GeneratedTokens"),
        ("", "line 1=.*: has no column TIMESTAMP"),
    ],
)
def test_a_column_that_is_missing_is_named(tmp_path, head, message):
    with pytest.raises(InvalidInputError, match=message):
        traffic.read_trace(written(tmp_path, GOOD, head=head))


def test_a_trace_of_nothing_is_refused(tmp_path):
    with pytest.raises(InvalidInputError, match=r"trace='trace.csv': has no requests"):
        traffic.read_trace(written(tmp_path))


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InvalidInputError, match="must be text in UTF-8"):
        traffic.read_trace(path)


def test_a_field_without_an_end_is_one_line(tmp_path):
    path = written(tmp_path, GOOD, '"' + "5" * 200_000)
    with pytest.raises(InvalidInputError, match="trace.csv line 3: field larger"):
        traffic.read_trace(path)


@pytest.mark.parametrize(
    ("name", "rows", "span", "prompt", "output"),
    [
        (
            "conv", 19366, 3501.7,
            (1154.7, 1020, 2735, 4142, 14050), (211.1, 129, 424, 601, 1000),
        ),
        (
            "code", 8819, 3435.9,
            (2047.8, 1469, 5194, 7436, 7437), (27.9, 13, 55, 252, 1899),
        ),
    ],
)  # fmt: skip
def test_real_traffic_is_what_was_published(name, rows, span, prompt, output):
    """Mean, p50, p90, p99 and the longest, of ../shared/data/README.md."""
    trace = real_traffic.trace(name)
    stored = traffic.summarise(trace)
    assert (stored["rows"], stored["span_seconds"]) == (rows, span)
    for kind, (mean, *percentiles) in (("prompt", prompt), ("output", output)):
        points = dict(map(tuple, stored[kind]["percentiles"]))
        assert stored[kind]["mean"] == mean
        assert [points[share] for share in (50, 90, 99, 100)] == percentiles


@pytest.mark.parametrize("name", ["azure-llm-2023-code", "azure-llm-2023-conv"])
def test_a_summary_that_comes_along_says_whose_it_is(name):
    path = Path(__file__).parents[1] / "data" / "traffic" / f"{name}.json"
    stored = json.loads(path.read_text("utf-8"))
    assert stored["attribution"]["licence"] == "CC-BY-4.0"
    assert "Azure Public Dataset" in stored["attribution"]["source"]
    summary = traffic.summary(name)
    assert summary.rows == stored["rows"]
    for kind, quantiles in (("prompt", summary.prompt), ("output", summary.output)):
        random = Random(5)
        tokens = sorted(quantiles.draw(random) for _ in range(4001))
        half = dict(map(tuple, stored[kind]["percentiles"]))[50]
        assert tokens[2000] == pytest.approx(half, rel=0.1)
        assert fmean(tokens) == pytest.approx(stored[kind]["mean"], rel=0.1)


def test_the_summaries_are_those_of_the_traces():
    for name in ("code", "conv"):
        path = (
            Path(__file__).parents[1] / "data/traffic" / f"azure-llm-2023-{name}.json"
        )
        stored = json.loads(path.read_text("utf-8"))
        del stored["attribution"]
        assert stored == traffic.summarise(real_traffic.trace(name))


def test_a_summary_that_is_not_here_is_refused():
    with pytest.raises(InvalidInputError, match="name='mine': is not in"):
        traffic.summary("mine")


# --- lengths ---

DISTRIBUTIONS = st.one_of(
    st.builds(Fixed, st.integers(1, 99)),
    st.integers(1, 50).flatmap(
        lambda low: st.builds(Uniform, st.just(low), st.integers(low, 99))
    ),
    st.builds(LogNormal, st.floats(0.1, 99), st.floats(0.1, 3), st.integers(1, 99)),
    st.lists(st.integers(1, 99), min_size=2, max_size=5).map(
        lambda tokens: Quantiles(
            tuple((i / (len(tokens) - 1), t) for i, t in enumerate(sorted(tokens)))
        )
    ),
)


@given(lengths=DISTRIBUTIONS, seed=st.integers(0, 9))
def test_a_length_is_within_its_limits_and_repeats_with_its_seed(lengths, seed):
    tokens = [lengths.draw(random) for random in [Random(seed)] for _ in range(50)]
    assert all(1 <= each <= 99 and isinstance(each, int) for each in tokens)
    again = Random(seed)
    assert tokens == [lengths.draw(again) for _ in range(50)]


def test_uniform_takes_both_ends():
    random = Random(0)
    assert {Uniform(3, 5).draw(random) for _ in range(60)} == {3, 4, 5}


def test_log_normal_has_its_median_in_the_middle_and_a_tail():
    random = Random(1)
    tokens = sorted(LogNormal(100, 1.0, 10_000).draw(random) for _ in range(4001))
    assert tokens[2000] == pytest.approx(100, rel=0.08)
    assert sum(each > 272 for each in tokens) / 4001 == pytest.approx(0.159, abs=0.02)
    assert max(LogNormal(100, 1.0, 300).draw(random) for _ in range(500)) == 300


def test_quantiles_spread_evenly_between_their_points():
    random = Random(2)
    lengths = Quantiles(((0, 10), (0.5, 20), (0.75, 20), (1, 100)))
    tokens = [lengths.draw(random) for _ in range(8000)]
    share = Counter(
        "low" if each < 20 else "twenty" if each == 20 else "high" for each in tokens
    )
    # half of the last tenth of the first stretch, and a little of the last, round to 20
    assert share["low"] / 8000 == pytest.approx(0.475, abs=0.02)
    assert share["high"] / 8000 == pytest.approx(0.25, abs=0.02)
    assert (min(tokens), max(tokens)) == (10, 100)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Fixed(0), "tokens=0: must be"),
        (lambda: Uniform(0, 3), "low=0: must be"),
        (lambda: Uniform(4, 3), "high=3: must be an integer of at least 4"),
        (lambda: LogNormal(0, 1, 9), "median=0: must be above 0"),
        (lambda: LogNormal(5, float("nan"), 9), "sigma=nan: must be above 0"),
        (lambda: LogNormal(5, 1, 0), "high=0: must be"),
        (lambda: Quantiles(((0, 1),)), "shares must rise from 0 to 1"),
        (lambda: Quantiles(((0, 1), (0.5, 2))), "shares must rise from 0 to 1"),
        (lambda: Quantiles(((0, 1), (0.5, 2), (0.5, 3), (1, 4))), "shares must rise"),
        (lambda: Quantiles(((0, 0), (1, 4))), "must not fall, and be 1 at least"),
        (lambda: Quantiles(((0, 5), (1, 4))), "must not fall, and be 1 at least"),
        (lambda: poisson(0, 3, seed=1), "rate=0: must be above 0"),
        (lambda: poisson(1, -3, seed=1), "count=-3: must be"),
        (lambda: bursty(1, 3, seed=1, burstiness=0), "burstiness=0: must be above 0"),
    ],
)
def test_what_is_no_distribution_is_refused(make, message):
    with pytest.raises(InvalidInputError, match=message):
        make()


# --- arrivals ---


def test_poisson_arrivals_come_at_their_rate_with_gaps_as_spread_as_they_are_long():
    times = poisson(8, 4000, seed=7)
    gaps = [after - before for before, after in zip([0, *times], times, strict=False)]
    assert times == sorted(times)
    assert fmean(gaps) == pytest.approx(1 / 8, rel=0.05)
    assert pstdev(gaps) == pytest.approx(fmean(gaps), rel=0.06)


def test_bursts_have_the_same_rate_and_more_spread():
    """The deviation of a gamma distribution of shape a is its mean / sqrt(a)."""
    times = bursty(8, 8000, seed=7, burstiness=0.25)
    gaps = [after - before for before, after in zip([0, *times], times, strict=False)]
    assert fmean(gaps) == pytest.approx(1 / 8, rel=0.06)
    assert pstdev(gaps) == pytest.approx(2 * fmean(gaps), rel=0.08)


def test_arrivals_repeat_with_their_seed():
    assert poisson(8, 20, seed=7) == poisson(8, 20, seed=7)
    assert poisson(8, 20, seed=7) != poisson(8, 20, seed=8)
    assert poisson(8, 20, seed=7) == poisson(8, 30, seed=7)[:20]


def test_the_traffic_of_the_chapter_on_static_batching():
    trace = drawn(poisson(8, 100, seed=7), Uniform(32, 96), Uniform(16, 48), seed=7)
    assert len(trace) == 100
    assert {32 <= each.prompt <= 96 and 16 <= each.output <= 48 for each in trace} == {
        True
    }
    assert trace[-1].seconds == pytest.approx(100 / 8, rel=0.3)
    assert len({each.prompt for each in trace}) > 30
