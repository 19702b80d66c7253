"""A still of a trace so long that a pass is narrower than a pixel.

What no eye can part is not drawn apart: pixel for pixel, each slot shows what it did
in the middle of that pixel. So the size depends on the picture, not on the trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape

from . import look, picture
from .ledger import State
from .trace import SlotTrace


@dataclass
class Stretch:
    """Passes ``start`` to ``end`` in which a slot does the same for one request."""

    slot: int
    request: int
    state: State
    start: int
    end: int


def body(trace: SlotTrace, column: float) -> Iterator[str]:
    """The cells and the names; ``column`` is a pass's width in pixels, below 1."""
    yield from _paths(stretches(trace, column), column)
    yield from _names(trace, column)


def stretches(trace: SlotTrace, column: float) -> list[Stretch]:
    """The runs, joined where they look alike.

    A prompt that is read in less than a pixel counts as part of its answer: drawn on
    its own, it would be a dark line at every second request, as the rounding falls.
    """
    runs = [Stretch(r.slot, r.request, r.state, r.start, r.end) for r in trace.runs]
    whole = _joined(runs)
    for each in whole:
        if each.state == "prefill" and (each.end - each.start) * column < 1:
            each.state = "decode"
    return _joined(whole)


def _joined(given: Iterable[Stretch]) -> list[Stretch]:
    last: dict[int, Stretch] = {}
    found = []
    for each in given:
        before = last.get(each.slot)
        if before and before == replace(each, start=before.start, end=each.start):
            before.end = each.end
        else:
            last[each.slot] = replace(each)
            found.append(last[each.slot])
    return found


def _paths(given: Iterable[Stretch], column: float) -> Iterator[str]:
    """One path for all boxes of a look, on whole pixels."""
    boxes = defaultdict(list)
    height = picture.ROW - 6
    for each in given:
        left, right = round(column * each.start), round(column * each.end)
        if left < right:
            x, y = picture.LEFT + left, picture.row_y(each.slot)
            box = f"M{x} {y}h{right - left}v{height}h{left - right}z"
            boxes[look.hue(each.request), each.state].append(box)
    for (hue, state), parts in sorted(boxes.items()):
        fill = {
            "prefill": f'fill="{hue}"',
            "decode": f'fill="{hue}" fill-opacity=".28"',
            "finished": f'fill="url(#held-{hue[1:]})"',
        }[state]
        yield f'<path {fill} stroke="{hue}" stroke-width=".8" d="{"".join(parts)}"/>'


def _names(trace: SlotTrace, column: float) -> Iterator[str]:
    """Only whole names: of thousands, a first letter tells nothing."""
    yield f'<g {picture.HALO} fill="{look.INK}">'
    for first, end in picture.tenancies(trace):
        name = picture.plain(trace.requests[first.request].request_id)
        if picture.short(name, column * (end - first.start) - 6) == name:
            x = round(picture.LEFT + column * first.start) + 5
            y = picture.row_y(first.slot) + 17
            yield f'<text x="{x}" y="{y}">{escape(name)}</text>'
    yield "</g>"
