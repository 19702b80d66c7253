"""Who comes when, and how long it takes: recorded traffic, and traffic that is drawn.

Everything drawn comes from Python's own generator and a seed, so that it is the same
on every machine.
"""

from __future__ import annotations

import csv
import json
import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any, NamedTuple, Protocol

from . import metrics
from .errors import InvalidInputError, invalid
from .request import positive, whole

TIME, PROMPT, OUTPUT = "TIMESTAMP", "ContextTokens", "GeneratedTokens"


class Arrival(NamedTuple):
    """One request of a trace: seconds since the first, tokens in, tokens out."""

    seconds: float
    prompt: int
    output: int


# --- recorded ---


def read_trace(path: str | os.PathLike[str]) -> list[Arrival]:
    """A trace from a CSV with the columns TIMESTAMP, ContextTokens, GeneratedTokens,
    in the order of its times.

    The format is that of the Azure Public Dataset; a byte-order mark is skipped.
    Raises ``InvalidInputError`` naming the line of the first bad row.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(_rows(csv.reader(file), path.name))
    except UnicodeDecodeError:
        raise invalid("trace", path.name, "must be text in UTF-8") from None
    if not rows:
        raise invalid("trace", path.name, "has no requests")
    rows.sort(key=lambda row: row[0])
    first = rows[0][0]
    return [Arrival((at - first).total_seconds(), *tokens) for at, *tokens in rows]


def _rows(reader: Any, name: str) -> Iterator[tuple[datetime, int, int]]:
    try:
        heads: list[str] = next(reader, [])
        for column in (TIME, PROMPT, OUTPUT):
            if column not in heads:
                raise invalid(f"{name} line 1", heads, f"has no column {column}")
        at = [heads.index(column) for column in (TIME, PROMPT, OUTPUT)]
        for row in reader:
            where = f"{name} line {reader.line_num}"
            if len(row) != len(heads):
                raise invalid(where, row, f"must have {len(heads)} fields")
            time, prompt, output = (row[column] for column in at)
            yield (
                _moment(f"{where}: {TIME}", time),
                _tokens(f"{where}: {PROMPT}", prompt),
                _tokens(f"{where}: {OUTPUT}", output),
            )
    except csv.Error as error:
        raise InvalidInputError(f"{name} line {reader.line_num}: {error}") from None


def _moment(field: str, value: str) -> datetime:
    try:
        # of two ways to write the same moment only one could be compared with others
        return datetime.fromisoformat(value).replace(tzinfo=None)
    except ValueError:
        raise invalid(field, value, "must be like 2023-11-16 18:17:03.97") from None


def _tokens(field: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and int(value)):
        raise invalid(field, value, "must be an integer of at least 1")
    return int(value)


# --- lengths ---


class Distribution(Protocol):
    """Where a length comes from."""

    def draw(self, random: Random) -> int:
        """Tokens, at least 1."""


@dataclass(frozen=True)
class Fixed:
    tokens: int

    def __post_init__(self) -> None:
        whole("tokens", self.tokens, at_least=1)

    def draw(self, random: Random) -> int:
        return self.tokens


@dataclass(frozen=True)
class Uniform:
    """From ``low`` to ``high``, both included."""

    low: int
    high: int

    def __post_init__(self) -> None:
        whole("low", self.low, at_least=1)
        whole("high", self.high, at_least=self.low)

    def draw(self, random: Random) -> int:
        return random.randint(self.low, self.high)


@dataclass(frozen=True)
class LogNormal:
    """Half of them below ``median``, and a long tail: sigma 1 puts one in six above
    2.7 times the median. No longer than ``high``."""

    median: float
    sigma: float
    high: int

    def __post_init__(self) -> None:
        positive("median", self.median)
        positive("sigma", self.sigma)
        whole("high", self.high, at_least=1)

    def draw(self, random: Random) -> int:
        tokens = random.lognormvariate(math.log(self.median), self.sigma)
        return max(1, round(min(tokens, self.high)))


@dataclass(frozen=True)
class Quantiles:
    """As recorded: ``points`` are (share, tokens), shares from 0 to 1; between two of
    them lengths are spread evenly."""

    points: tuple[tuple[float, int], ...]

    def __post_init__(self) -> None:
        shares, tokens = [p[0] for p in self.points], [p[1] for p in self.points]
        rising = all(a < b for a, b in pairwise(shares))
        if len(shares) < 2 or (shares[0], shares[-1]) != (0, 1) or not rising:
            raise invalid("points", shares, "shares must rise from 0 to 1")
        if tokens[0] < 1 or sorted(tokens) != tokens:
            raise invalid("points", tokens, "tokens must not fall, and be 1 at least")

    def draw(self, random: Random) -> int:
        share = random.random()
        shares = [point[0] for point in self.points]
        upper = max(bisect_left(shares, share), 1)
        (below, low), (above, high) = self.points[upper - 1 : upper + 1]
        return round(low + (high - low) * (share - below) / (above - below))


# --- arrivals ---


def poisson(rate: float, count: int, *, seed: int) -> list[float]:
    """Seconds at which ``count`` independent users come, ``rate`` a second on
    average."""
    return bursty(rate, count, seed=seed, burstiness=1.0)


def bursty(
    rate: float, count: int, *, seed: int, burstiness: float = 0.25
) -> list[float]:
    """The same average in bursts: gaps are drawn from a gamma distribution of shape
    ``burstiness``; 1 is Poisson, less is burstier (vLLM's benchmark calls it so)."""
    whole("count", count, at_least=0)
    rate, shape = positive("rate", rate), positive("burstiness", burstiness)
    random = Random(seed)
    gaps = (random.gammavariate(shape, 1 / (rate * shape)) for _ in range(count))
    return list(accumulate(gaps))


def drawn(
    seconds: Iterable[float], prompt: Distribution, output: Distribution, *, seed: int
) -> list[Arrival]:
    """A request for each of ``seconds``, its lengths drawn.

    The trace of the chapter on static batching is
    ``drawn(poisson(8, n, seed=7), Uniform(32, 96), Uniform(16, 48), seed=7)``.
    """
    random = Random(seed)
    return [Arrival(at, prompt.draw(random), output.draw(random)) for at in seconds]


# --- what is kept of a trace that is not ours to pass on ---

# in percent; denser at the end, or drawn outputs would be longer than recorded ones
TAIL = (90, 92, 94, 95, 96, 97, 98, 99, 99.5, 99.9, 99.95, 100)
SHARES = (0, 1, 5, 10, 20, 30, 40, 50, 60, 70, 80, *TAIL)


@dataclass(frozen=True)
class Summary:
    """How much came, how fast, and how long: enough to draw traffic like it."""

    rows: int
    span_seconds: float
    prompt: Quantiles
    output: Quantiles

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.rows / self.span_seconds


def summarise(arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """The summary of a trace, JSON-ready; ``summary`` reads it."""
    return {
        "rows": len(arrivals),
        "span_seconds": round(arrivals[-1].seconds - arrivals[0].seconds, 1),
        "prompt": _lengths([each.prompt for each in arrivals]),
        "output": _lengths([each.output for each in arrivals]),
    }


def _lengths(tokens: list[int]) -> dict[str, Any]:
    return {
        "mean": round(fmean(tokens), 1),
        "percentiles": [[share, metrics.percentile(tokens, share)] for share in SHARES],
    }


def summary(name: str) -> Summary:
    """A summary that comes with the package: "azure-llm-2023-code" or "..-conv"."""
    package = Path(__file__).parent
    for data in (package / "data", package.parent / "data"):
        path = data / "traffic" / f"{name}.json"
        if path.is_file():
            stored = json.loads(path.read_text("utf-8"))
            lengths = (_quantiles(stored[kind]) for kind in ("prompt", "output"))
            return Summary(stored["rows"], stored["span_seconds"], *lengths)
    raise invalid("name", name, f"is not in {package.parent / 'data' / 'traffic'}")


def _quantiles(stored: dict[str, Any]) -> Quantiles:
    points = stored["percentiles"]
    return Quantiles(tuple((share / 100, tokens) for share, tokens in points))
