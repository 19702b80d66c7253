"""A still chart of a few lines, for what is measured over the batch size or the load.

Each line has its colour, its dashes and its name at its end, so that none rests on
colour alone. It displays itself, with its numbers as text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from . import look, picture
from .errors import invalid
from .request import real

WORDS = {"steps": "the numbers as text"}
LEFT, TOP, WIDTH, HEIGHT, NAMES = 84, 48, 470, 230, 170
DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 4", "1 5")


class LineChart:
    """``lines`` gives the values of each name, one for each of ``ticks``.

    ``form`` writes a value ("{:.0%}"). With ``log`` the values, above 0, stand by
    their powers of ten, else from 0 on. Raises ``InvalidInputError`` for a value that
    has no place there.
    """

    def __init__(
        self,
        title: str,
        ticks: Sequence[float],
        lines: dict[str, Sequence[float]],
        *,
        across: str,
        form: str = "{:,}",
        log: bool = False,
    ) -> None:
        if not lines or not len(ticks):
            raise invalid("lines", lines, "needs one line of one value at least")
        for name, line in lines.items():
            _check(name, line, len(ticks), log)
        self.title, self.ticks, self.lines = title, ticks, lines
        self.across, self.form, self.log = across, form, log

    def text(self) -> str:
        """A row a line, a column a tick."""
        rows = [[self.across, *map(str, self.ticks)]]
        for name, line in self.lines.items():
            rows.append([name, *map(self.form.format, line)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        told = []
        for name, *cells in rows:
            numbers = "  ".join(map(str.rjust, cells, widths[1:]))
            told.append(f"{name:<{widths[0]}}  {numbers}")
        return "\n".join([self.title, *told])

    def marks(self) -> list[float]:
        """The values at which the vertical axis is marked."""
        values = [value for line in self.lines.values() for value in line]
        if self.log:
            low = math.floor(math.log10(min(values)))
            high = math.ceil(math.log10(max(values)))
            return [10**power for power in range(low, max(high, low + 1) + 1)]
        step = 10 ** math.floor(math.log10(max(values) or 1))
        top = math.ceil(max(values) / step)
        return [step * number for number in range(max(top, 1) + 1)]

    def svg(self) -> str:
        body = [
            picture.write(LEFT, 22, self.title, look.INK, "start"),
            *self._axes(),
            *self._drawn(),
        ]
        lowest = max(self._labels().values()) + 20
        tall = max(TOP + HEIGHT + 44, math.ceil(lowest))
        return picture.sheet(LEFT + WIDTH + NAMES, tall, self.title, body, [])

    def _x(self, number: int) -> float:
        return LEFT + WIDTH * number / max(len(self.ticks) - 1, 1)

    def _y(self, value: float) -> float:
        marks = self.marks()
        scale = math.log10 if self.log else float
        low, high = scale(marks[0]), scale(marks[-1])
        return TOP + HEIGHT * (1 - (scale(value) - low) / (high - low))

    def _axes(self) -> Iterator[str]:
        for mark in self.marks():
            y, words = self._y(mark), self.form.format(mark)
            yield picture.rect(LEFT, y, WIDTH, 0.4, look.FAINT, 'fill-opacity=".4"')
            yield picture.write(LEFT - 8, y + 4, words, look.FAINT, "end")
        for number, tick in enumerate(self.ticks):
            place = self._x(number), TOP + HEIGHT + 18
            yield picture.write(*place, str(tick), look.FAINT, "middle")
        place = LEFT + WIDTH / 2, TOP + HEIGHT + 36
        yield picture.write(*place, self.across, look.INK, "middle")

    def _labels(self) -> dict[str, float]:
        """How high each name stands: at the end of its line, or just below another."""
        ends = {name: self._y(line[-1]) for name, line in self.lines.items()}
        return apart(ends, 14)

    def _drawn(self) -> Iterator[str]:
        labels = self._labels()
        for number, (name, line) in enumerate(self.lines.items()):
            hue, dash = look.hue(number), DASHES[number % len(DASHES)]
            points = [(self._x(at), self._y(value)) for at, value in enumerate(line)]
            path = " ".join(f"{x:.2f},{y:.2f}" for x, y in points)
            yield (
                f'<polyline points="{path}" fill="none" stroke="{hue}" '
                f'stroke-width="2" stroke-dasharray="{dash}"/>'
            )
            for x, y in points:
                yield f'<circle cx="{x:.2f}" cy="{y:.2f}" r="3" fill="{hue}"/>'
            x = LEFT + WIDTH + 10
            yield picture.write(x, labels[name] + 4, name, look.INK, "start")

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return picture.still(self.svg(), self.title, self.text(), WORDS["steps"])

    def __repr__(self) -> str:
        return self.text()


def _check(name: str, line: Sequence[float], count: int, log: bool) -> None:
    if len(line) != count:
        raise invalid(name, len(line), f"must have {count} values")
    for value in line:
        if not math.isfinite(real(value)) or value < 0:
            raise invalid(name, value, "must be a finite number, 0 or more")
        if log and value == 0:
            raise invalid(name, value, "must be above 0")


def apart(heights: dict[str, float], least: float) -> dict[str, float]:
    """Move labels down until none stands nearer than ``least`` to the one above."""
    placed: dict[str, float] = {}
    for name in sorted(heights, key=heights.__getitem__):
        above = max(placed.values(), default=-math.inf)
        placed[name] = max(heights[name], above + least)
    return placed
