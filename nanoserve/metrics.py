"""What users feel: time to the first token, the gaps after it, and who was in time.

All times here are of one clock, host seconds or passes; the two never mix.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from .errors import invalid
from .trace import SlotTrace

if TYPE_CHECKING:  # which opens torch; `nanoserve replay` need not wait for that
    from .sequence import Sequence as Row

T = TypeVar("T", int, float)

UNANSWERED = ("error", "abort")


def percentile(values: Iterable[T], percent: float) -> T:
    """The smallest value that at least ``percent`` of ``values`` do not exceed.

    Nearest-rank: always one of the values, so that a p99 is somebody's. Of four values
    the p95 is the fourth. Raises ``InvalidInputError`` for no values.
    """
    ordered = sorted(values)
    if not ordered:
        raise invalid("values", ordered, "needs one value at least")
    if not 0 <= percent <= 100:
        raise invalid("percent", percent, "must be from 0 to 100")
    # exact: in floats 99.9 % of 1,000 is a little more than 999
    rank = math.ceil(Fraction(str(percent)) * len(ordered) / 100)
    return ordered[max(rank, 1) - 1]


@dataclass(frozen=True)
class Timeline:
    """One request: when it arrived, when its prefill began, when each token came, and
    whether it was answered: an error or an abort may leave some tokens, too."""

    arrived: float
    started: float
    tokens: tuple[float, ...]
    answered: bool = True

    @property
    def queueing(self) -> float:
        return self.started - self.arrived

    @property
    def ttft(self) -> float:
        """Time to first token, from arrival."""
        return self.tokens[0] - self.arrived

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first: (last - first) / (n - 1)."""
        gaps = len(self.tokens) - 1
        return (self.tokens[-1] - self.tokens[0]) / gaps if gaps else None

    @property
    def itl(self) -> list[float]:
        """Inter-token latency: every gap between two tokens."""
        return [after - before for before, after in pairwise(self.tokens)]

    @property
    def end_to_end(self) -> float:
        return self.tokens[-1] - self.arrived

    def meets(self, ttft: float, tpot: float) -> bool:
        """Was it answered, and within both limits? A single token has no TPOT to be
        late with."""
        in_time = self.ttft <= ttft and (self.tpot is None or self.tpot <= tpot)
        return self.answered and in_time


@dataclass(frozen=True)
class Spread:
    """Some times: their mean and nearest-rank percentiles."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread | None:
        if not times:
            return None
        ranks = (percentile(times, percent) for percent in (50, 90, 95, 99, 100))
        return cls(math.fsum(times) / len(times), *ranks)


@dataclass(frozen=True)
class Metrics:
    """The metrics of a run. ``None``: nothing of the kind occurred.

    ``unanswered``  requests that ended without a token; they are in no other number
    ``throughput``  tokens per unit of time, from the first arrival to the last token
    ``goodput``     requests per unit of time that kept both limits; ``None``: no limits
    """

    requests: int
    unanswered: int
    tokens: int
    span: float
    queueing: Spread | None
    ttft: Spread | None
    tpot: Spread | None
    itl: Spread | None
    end_to_end: Spread | None
    throughput: float
    goodput: float | None


def measure(
    timelines: Iterable[Timeline], limits: tuple[float, float] | None = None
) -> Metrics:
    """Sum up a run. ``limits`` are those of TTFT and TPOT, for the goodput."""
    everyone = list(timelines)
    rows = [row for row in everyone if row.tokens]
    first = min((row.arrived for row in everyone), default=0.0)
    span = max((row.tokens[-1] for row in rows), default=first) - first
    tokens = sum(len(row.tokens) for row in rows)
    in_time = sum(row.meets(*limits) for row in rows) if limits else 0
    return Metrics(
        requests=len(everyone),
        unanswered=len(everyone) - len(rows),
        tokens=tokens,
        span=span,
        queueing=Spread.of([row.queueing for row in rows]),
        ttft=Spread.of([row.ttft for row in rows]),
        tpot=Spread.of([row.tpot for row in rows if row.tpot is not None]),
        itl=Spread.of([gap for row in rows for gap in row.itl]),
        end_to_end=Spread.of([row.end_to_end for row in rows]),
        throughput=tokens / span if span else 0.0,
        goodput=(in_time / span if span else 0.0) if limits else None,
    )


def in_passes(trace: SlotTrace) -> list[Timeline]:
    """Each request's times on the clock of passes: a token comes as its pass ends.

    Raises ``InvalidInputError`` for a trace that keeps only its last passes.
    """
    if trace.history is not None:
        raise invalid("history", trace.history, "this trace has forgotten its passes")
    return [
        Timeline(
            trace.requests[index].arrival,
            trace.requests[index].arrival if first is None else trace.clock_of(first),
            tuple(trace.clock_of(number) + 1 for number in came),
            trace.requests[index].finish_reason not in UNANSWERED,
        )
        for index, (first, came) in passes_of(trace).items()
    ]


def passes_of(trace: SlotTrace) -> dict[int, tuple[int | None, list[int]]]:
    """For each request, by its index: the pass in which it began (``None``: in none),
    and those in which its tokens came."""
    starts: dict[int, int] = {}
    for run in trace.runs:
        starts.setdefault(run.request, run.start)
    came: dict[int, list[int]] = {index: [] for index in trace.requests}
    for index, number, _ in trace.emissions():
        came[index].append(number)
    return {index: (starts.get(index), came[index]) for index in trace.requests}


def in_seconds(rows: Iterable[Row]) -> list[Timeline]:
    """The times of sequences that have ended (``engine.live()`` before the run)."""
    return [
        Timeline(
            row.arrived_at or 0.0,
            row.started_at or row.arrived_at or 0.0,
            tuple(row.token_times),
            row.finish_reason not in UNANSWERED,
        )
        for row in rows
    ]
