"""What a scorecard is: a row a run, shown as a table, as charts, as JSON.

``scorecard.py`` fills it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from html import escape
from textwrap import fill
from typing import Any, Literal

from .errors import invalid
from .line_chart import LineChart
from .metrics import Metrics, Spread
from .pitfalls import Table
from .request import one_of

Unit = Literal["passes", "seconds"]
Limits = tuple[float, float]

HEADS = "load", "engine", "tokens", "TTFT", "TTFT p99", "ITL", "ITL p99", "seats"
WIDEST = (99, 12, *[99] * 7)  # a number is never shortened
CHARTS = {
    "throughput": "Throughput: tokens a {one}",
    "goodput": "Goodput: requests a {one} within both limits",
    "queueing": "Waiting for a seat: {of}, {time}",
    "ttft": "Time to first token: {of}, {time}",
    "tpot": "Time per output token: {of}, {time}",
    "itl": "Inter-token latency: {of}, {time}",
    "end_to_end": "Arrival to last token: {of}, {time}",
}
WORDS = {
    "caption": "Load and tokens a {one}; times in {time}, TTFT and ITL: means.",
    "limits": "Goodput: requests a {one} within a TTFT of {ttft} and a TPOT of {tpot}.",
    "across": "requests a {one}",
    "most": "the longest",
}
UNITS = {
    "passes": {"one": "pass", "time": "passes"},
    "seconds": {"one": "second", "time": "ms"},
}
SCALE = {"passes": 1, "seconds": 1000}  # seconds are shown as ms


@dataclass(frozen=True)
class Row:
    """One run. ``load`` is requests a unit of time, ``seats_used`` a fraction of all
    seats of the passes that ran."""

    engine: str
    load: float
    seats_used: float
    metrics: Metrics


@dataclass(frozen=True, repr=False)
class Scorecard:
    """What each engine did at each load; times are in ``unit``. Shows itself."""

    unit: Unit
    rows: list[Row]
    conditions: dict[str, str]
    limits: Limits | None = None  # of TTFT and TPOT, for the goodput

    def table(self) -> Table:
        lines = [self._cells(row) for row in self.rows]
        if self.limits is None:
            return Table(HEADS, lines, WIDEST[:-1])
        return Table((*HEADS, "goodput"), lines, WIDEST)

    def text(self) -> str:
        """The table, and below it the conditions; 80 columns at most."""
        told = (fill(each, 80, subsequent_indent="  ") for each in self._conditions())
        return "\n".join([self._caption(), "", self.table().text(), "", *told])

    def chart(self, what: str, of: str = "mean", *, log: bool = False) -> LineChart:
        """A line an engine, over the loads: of "throughput", "goodput", "queueing",
        "ttft", "tpot", "itl" or "end_to_end". Of times, ``of`` picks one: "mean",
        "p50", "p90", "p95", "p99" or "most". Raises ``InvalidInputError``."""
        one_of("what", what, CHARTS)
        one_of("of", of, [each.name for each in fields(Spread)])
        lines: dict[str, Sequence[float]] = {
            name: [
                self._drawn(row, what, of) for row in self.rows if row.engine == name
            ]
            for name in dict.fromkeys(row.engine for row in self.rows)
        }
        values = [value for line in lines.values() for value in line]
        if not values:
            raise invalid("rows", [], "needs one run at least")
        form = f"{{:,.{places(min(values) if log else max(values))}f}}"
        words = {**UNITS[self.unit], "of": WORDS.get(of, of)}
        return LineChart(
            CHARTS[what].format(**words),
            list(dict.fromkeys(row.load for row in self.rows)),
            lines,
            across=WORDS["across"].format(**words),
            form=form,
            log=log,
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready; times in ``unit``, not rounded. ``from_dict`` reads it."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> Scorecard:
        """Raises ``InvalidInputError`` for what ``to_dict`` did not write."""
        try:
            rows = [
                Row(**{**row, "metrics": _metrics(row["metrics"])})
                for row in stored["rows"]
            ]
            limits = stored["limits"] and tuple(stored["limits"])
            return cls(**{**stored, "rows": rows, "limits": limits})
        except (KeyError, TypeError):
            raise invalid("scorecard", stored, "is not what to_dict() gives") from None

    def _cells(self, row: Row) -> tuple[str, ...]:
        of, scale = row.metrics, SCALE[self.unit]
        times = [
            short(getattr(spread, name) * scale) if spread else "-"
            for spread in (of.ttft, of.itl)
            for name in ("mean", "p99")
        ]
        cells = [f"{row.load:g}", row.engine, short(of.throughput), *times]
        goodput = [] if of.goodput is None else [short(of.goodput)]
        return (*cells, f"{row.seats_used:.0%}", *goodput)

    def _drawn(self, row: Row, what: str, of: str) -> float:
        value = getattr(row.metrics, what)
        if value is None:
            raise invalid(what, None, f"{row.engine} has none at load {row.load:g}")
        if isinstance(value, Spread):
            return getattr(value, of) * SCALE[self.unit]
        return value

    def _caption(self) -> str:
        words = UNITS[self.unit]
        caption = WORDS["caption"].format(**words)
        if self.limits is None:
            return caption
        ttft, tpot = (f"{each * SCALE[self.unit]:g}" for each in self.limits)
        return f"{caption}\n{WORDS['limits'].format(**words, ttft=ttft, tpot=tpot)}"

    def _conditions(self) -> list[str]:
        return [f"{key}: {value}" for key, value in self.conditions.items()]

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        under = "<br>".join(escape(each) for each in self._conditions())
        html = f"<p>{escape(self._caption())}</p>{self.table().html()}<p>{under}</p>"
        return {"text/plain": self.text(), "text/html": html}


def _metrics(stored: dict[str, Any]) -> Metrics:
    read: dict[str, Any] = {
        name: Spread(**value) if isinstance(value, dict) else value
        for name, value in stored.items()
    }
    return Metrics(**read)


def places(value: float) -> int:
    """Digits after the point that leave two or three to read."""
    if 0 < value < 0.01:
        return 2 - math.floor(math.log10(value))
    return 0 if value >= 100 else 1 if value >= 10 else 2


def short(value: float) -> str:
    return f"{value:,.{places(value)}f}"
