"""Rows of cells, for the one failing case that a check shows.

The grammar is that of every picture here: pads hatched, what has finished crossed,
idle an empty dashed outline, prompt full and generated pale. All of it is inline
style, since a notebook that is not trusted loses its ``<style>``; without any style a
table of words is left. Tints are translucent: they suit a light page and a dark one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import zip_longest
from typing import Any

from .. import look
from . import values

WRONG = "#d55e00"  # vermilion; a wrong cell also has a thick outline and bold text
MOST_CELLS = 16


@dataclass(frozen=True)
class Cell:
    """``state`` is "prompt", "generated", "pad", "finished", "idle" or none of them."""

    value: Any
    state: str = ""
    wrong: bool = False

    @property
    def text(self) -> str:
        return values.brief(self.value)

    def equals(self, other: Cell) -> bool:
        return values.same(self.value, other.value)


NOTHING = Cell("", "idle")


@dataclass(frozen=True)
class Row:
    label: str
    cells: tuple[Cell, ...]

    @classmethod
    def of(cls, label: str, cell_values: Sequence[Any], state: str = "") -> Row:
        return cls(label, tuple(Cell(value, state) for value in cell_values))


def of_value(value: Any, label: str = "") -> list[Row]:
    """Nested lists as rows of cells: [[1, 2], [3]] is "row 0" and "row 1"."""
    if isinstance(value, list) and value and all(isinstance(v, list) for v in value):
        return [
            each
            for number, inner in enumerate(value)
            for each in of_value(
                inner, f"{label}, {number}" if label else f"row {number}"
            )
        ]
    return [Row.of(label, value if isinstance(value, list) else [value])]


def first_difference(
    expected: list[Row], got: list[Row]
) -> tuple[int, Row, Row] | None:
    """Number, expected and ours of the first rows that differ, wrong cells marked."""
    for number, (want, have) in enumerate(zip_longest(expected, got)):
        want = want or Row(have.label, ())
        marked = mark(want, have or Row(want.label, ()))
        if any(cell.wrong for cell in marked.cells):
            return number, want, marked
    return None


def mark(want: Row, have: Row) -> Row:
    """``have``, its wrong cells marked; a cell that is missing is wrong and empty."""
    pairs = zip_longest(want.cells, have.cells)
    cells = []
    for right, mine in pairs:
        shown = mine or NOTHING
        wrong = right is None or mine is None or not right.equals(mine)
        cells.append(Cell(shown.value, shown.state, wrong))
    return Row(have.label, tuple(cells))


def window(rows: Sequence[Row]) -> list[Row]:
    """Of long rows the stretch around the first wrong cell, the same in all."""
    wrongs = [i for each in rows for i, cell in enumerate(each.cells) if cell.wrong]
    first = max(0, min(wrongs, default=0) - MOST_CELLS // 2)
    return [_cut(each, first) for each in rows]


def _cut(each: Row, first: int) -> Row:
    cells = each.cells[first : first + MOST_CELLS]
    before = (Cell("…"),) if first else ()
    after = (Cell("…"),) if len(each.cells) > first + MOST_CELLS else ()
    return Row(each.label, before + cells + after)


# --- as text ---


def as_text(rows: Sequence[Row]) -> list[str]:
    """Aligned lines, with carets below what is wrong."""
    rows = window(rows)
    margin = max(len(each.label) for each in rows)
    columns = zip_longest(*(each.cells for each in rows))
    widths = [max(len(cell.text) for cell in column if cell) for column in columns]
    lines = []
    for each in rows:
        lines.append(_line(each.label, margin, each, widths, lambda cell: cell.text))
        if any(cell.wrong for cell in each.cells):
            carets = _line("", margin, each, widths, _carets)
            lines.append(carets)
    return lines


def _line(
    label: str, margin: int, each: Row, widths: list[int], show: Callable[[Cell], str]
) -> str:
    cells = zip(each.cells, widths, strict=False)  # a shorter row ends earlier
    shown = "  ".join(f"{show(cell):<{width}}" for cell, width in cells)
    return f"  {label:<{margin}}  {shown}".rstrip()


def _carets(cell: Cell) -> str:
    return "^" * max(len(cell.text), 1) if cell.wrong else ""


# --- as HTML ---


def as_html(rows: Sequence[Row]) -> str:
    body = "".join(_tr(each) for each in window(rows))
    return (
        '<table style="border-collapse:separate;border-spacing:3px;margin:6px 0;'
        f'font-family:monospace;font-size:13px"><tbody>{body}</tbody></table>'
    )


def _tr(each: Row) -> str:
    head = (
        '<th scope="row" style="text-align:left;padding:3px 12px 3px 0;border:none;'
        f'font-weight:normal;opacity:.8">{escape(each.label)}</th>'
    )
    cells = "".join(_td(cell) for cell in each.cells)
    return f'<tr style="background-color:transparent">{head}{cells}</tr>'


def _td(cell: Cell) -> str:
    title = f' title="{escape(WORD[cell.state])}"' if cell.state else ""
    style = "text-align:center;min-width:20px;padding:3px 7px;" + STYLE[cell.state]
    if cell.wrong:
        style += f";outline:3px solid {WRONG};font-weight:bold"
    text = escape(cell.text) or "&nbsp;"
    return f'<td{title} style="{style}">{text}</td>'


def tint(colour: str, alpha: float) -> str:
    """#0072b2 and 0.4 -> rgba(0,114,178,0.4), which shows the page through."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def _stripes(*degrees: int) -> str:
    # linear, not repeating-linear: JupyterLab's sanitizer drops the other
    ink, none = tint(look.FAINT, 0.4), "transparent"
    stops = f"{ink} 12%,{none} 12%,{none} 50%,{ink} 50%,{ink} 62%,{none} 62%,{none}"
    return (
        "background-image:"
        + ",".join(f"linear-gradient({turn}deg,{stops})" for turn in degrees)
        + ";background-size:8px 8px"
    )


_EDGE = f"border:1px solid {tint(look.FAINT, 0.7)}"
STYLE = {
    "": _EDGE,
    "prompt": f"{_EDGE};background-color:{tint(look.hue(0), 0.4)}",
    "generated": f"{_EDGE};background-color:{tint(look.hue(0), 0.14)}",
    "pad": f"{_EDGE};{_stripes(135)}",
    "finished": f"{_EDGE};{_stripes(45, 135)}",
    "idle": f"border:1px dashed {tint(look.FAINT, 0.7)}",
}
WORD = {
    "prompt": look.WORDS["prefill"],
    "generated": look.WORDS["decode"],
    "pad": look.WORDS["pad"],
    "finished": look.WORDS["finished"],
    "idle": look.WORDS["idle"],
}
