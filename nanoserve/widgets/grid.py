"""Grids of small cells, each with a mark: one table of marks for stills and for pages.

A mark is SVG in a unit square, with ``{hue}``, ``{ink}``, ``{paper}`` and ``{quiet}``
for colours. It becomes a pattern as large as a cell, and a run of equal cells one
rectangle: so a grid of a thousand cells stays small. No mark rests on colour alone.
``grid.js`` does the same in a page, from the same table.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from .. import look, picture

BOX = '<rect x=".05" y=".05" width=".9" height=".9" rx=".08" style="fill:{%s}%s"/>'
EDGE = '<rect x=".1" y=".1" width=".8" height=".8" rx=".08" style="{line}"/>'
HATCH = '<path d="M.05 .5L.5 .05M.05 .95L.95 .05M.5 .95L.95 .5" style="{line}"/>'

MARKS = {
    # who sees whom
    "seen": BOX % ("hue", ";opacity:.75"),
    "itself": BOX % ("hue", ";opacity:.25"),
    "later": '<circle cx=".5" cy=".5" r=".06" style="fill:{quiet};opacity:.6"/>',
    "pad": HATCH,
    "leak": BOX % ("hue", ";opacity:.35")
    + '<path d="M.25 .25L.75 .75M.75 .25L.25 .75" style="{thick}"/>',
    "lost": '<rect x=".1" y=".1" width=".8" height=".8" style="{dashed}"/>'
    '<path d="M.3 .5H.7" style="{thick}"/>',
    # what a number is
    "finite": BOX % ("hue", ";opacity:{tint}"),
    "zero": '<circle cx=".5" cy=".5" r=".09" style="fill:{quiet}"/>',
    "lowest": '<path d="M.2 .78H.8" style="{line}"/>',
    "minus-inf": '<path d="M.25 .3L.5 .75L.75 .3" style="{line}"/>',
    "plus-inf": '<path d="M.25 .7L.5 .25L.75 .7" style="{line}"/>',
    "nan": BOX
    % ("ink", "")
    + '<path d="M.3 .3L.7 .7M.7 .3L.3 .7" style="fill:none;stroke:{paper};'
    'stroke-width:.12"/>',
    "not-yet": EDGE.replace("{line}", "{faint}"),
}
# strokes, so that a mark is readable above
STROKES = {
    "line": "fill:none;stroke:{quiet};stroke-width:.08",
    "faint": "fill:none;stroke:{quiet};stroke-width:.05;opacity:.35",
    "thick": "fill:none;stroke:{ink};stroke-width:.13",
    "dashed": "fill:none;stroke:{ink};stroke-width:.09;stroke-dasharray:.2 .12",
}


def marks() -> dict[str, str]:
    """The table with the strokes written out, as a page needs it."""
    return {name: _filled(mark, STROKES) for name, mark in MARKS.items()}


def _filled(template: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", value)
    return template


class Sheet:
    """A still picture in the making, on its own paper."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.patterns: dict[str, str] = {}
        self.width = self.height = 0.0

    def grid(
        self,
        lines: Sequence[Sequence[str]],
        x: float,
        y: float,
        size: float,
        hue: str,
    ) -> None:
        """Lines of marks by name, cells ``size`` wide, from ``x``, ``y`` on."""
        for place, line in enumerate(lines):
            at = 0
            for mark, cells in groupby(line):
                count = len(list(cells))
                if mark:
                    name = self._pattern(mark, x, y, size, hue)
                    left, top = x + at * size, y + place * size
                    box = picture.rect(left, top, count * size, size, f"url(#{name})")
                    self.parts.append(box)
                at += count
            self.reach(x + at * size, y + (place + 1) * size)

    def write(
        self,
        words: str,
        x: float,
        y: float,
        anchor: str = "start",
        colour: str = look.INK,
        more: str = "",
    ) -> None:
        self.parts.append(picture.write(x, y, words, colour, anchor, more))
        wide = 6.7 * len(words) if anchor == "start" else 0
        if "rotate" not in more:
            self.reach(x + wide, y + 4)

    def box(self, x: float, y: float, width: float, height: float, more: str) -> None:
        self.parts.append(picture.rect(x, y, width, height, "none", more))
        self.reach(x + width, y + height)

    def mark(self, name: str, x: float, y: float, size: float, hue: str) -> None:
        self.grid([[name]], x, y, size, hue)

    def reach(self, x: float, y: float) -> None:
        self.width, self.height = max(self.width, x), max(self.height, y)

    def _pattern(self, mark: str, x: float, y: float, size: float, hue: str) -> str:
        key = f"{mark}|{x}|{y}|{size}|{hue}"
        if key not in self.patterns:
            name = f"m{len(self.patterns)}"
            colours = {
                "hue": hue,
                "ink": look.INK,
                "paper": look.PAPER,
                "quiet": look.FAINT,
                "tint": ".4",
            }
            inner = _filled(marks()[mark], colours)
            self.patterns[key] = (
                f'<pattern id="{name}" x="{_n(x)}" y="{_n(y)}" width="{_n(size)}" '
                f'height="{_n(size)}" patternUnits="userSpaceOnUse">'
                f'<g transform="scale({_n(size)})">{inner}</g></pattern>'
            )
        return self.patterns[key].split('"')[1]

    def svg(self, title: str) -> str:
        """All of it, with a margin of 12."""
        width, height = round(self.width + 12), round(self.height + 12)
        defs = f"<defs>{''.join(self.patterns.values())}</defs>"
        return picture.sheet(width, height, title, [defs, *self.parts], [])


def _n(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def for_script() -> dict[str, Any]:
    """What a page needs beside ``look.for_script``."""
    return {**look.for_script(), "marks": marks()}
