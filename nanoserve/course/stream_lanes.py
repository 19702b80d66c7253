"""Lanes of streams: who got a token when, on a clock that counts the tokens fed.

Lesson 12 needs a clock on which a pass with a long prompt takes longer than one
without. Seconds differ from machine to machine; the tokens a pass feeds do not, and
where a pass is bound by arithmetic they are what its time follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from textwrap import wrap

from .. import look, picture
from ..ledger import Run
from ..metrics import Timeline, passes_of
from ..trace import SlotTrace

WORDS = {
    "title": "{name}: {passes} passes, {tokens} tokens fed, at most {most} in a pass",
    "lane": "{request}: first token {ttft} after it came, longest gap {gap}",
    "short": "{request}: first token {ttft} after it came",
    "silent": "{request}: no token",
    "gap": "longest gap {gap}",
    "fed": "tokens fed, pass by pass: {fed}",
    "prefill": "reads its prompt",
    "wait": "waits for its next token",
    "token": "a token comes",
    "steps": "the lanes as text",
}
LEFT, TOP, LANE, WIDTH, RIGHT = 40, 34, 30, 720, 150


def fed_by_pass(trace: SlotTrace) -> list[int]:
    """How many tokens each pass fed, all rows together."""
    fed = [0] * trace.passes
    for run in trace.runs:
        for number in range(run.start, run.end):
            fed[number] += run.fed
    return fed


def timelines(trace: SlotTrace) -> dict[str, Timeline]:
    """Each request's times on the clock of tokens fed; a token comes as its pass ends.

    For a trace whose clock does not jump.
    """
    clock = [0, *accumulate(fed_by_pass(trace))]
    found = {}
    for index, (first, came) in passes_of(trace).items():
        if first is not None:
            record = trace.requests[index]
            tokens = tuple(clock[number + 1] for number in came)
            line = Timeline(clock[record.arrival], clock[first], tokens)
            found[record.request_id] = line
    return found


class StreamLanes:
    """One lane a request, for each trace of ``traces`` by name, all to one scale.

    A column is a pass, as wide as the tokens it feeds. Displays itself.
    """

    def __init__(self, traces: Mapping[str, SlotTrace]) -> None:
        self.traces = dict(traces)
        totals = [sum(fed_by_pass(trace)) for trace in self.traces.values()]
        self.scale = WIDTH / max([1, *totals])

    def text(self) -> str:
        return "\n\n".join("\n".join(_told(*each)) for each in self.traces.items())

    def svg(self) -> str:
        body: list[str] = []
        top = 0
        for name, trace in self.traces.items():
            body += self._panel(name, trace, top)
            top += TOP + LANE * len(trace.requests) + 14
        height = top + 28
        body.append(_legend(height - 14))
        indices = {i for trace in self.traces.values() for i in trace.requests}
        hues = [look.hue(index) for index in indices]
        label = "; ".join(_title(*each) for each in self.traces.items())
        return picture.sheet(LEFT + WIDTH + RIGHT, height, label, body, hues)

    def _panel(self, name: str, trace: SlotTrace, top: int) -> Iterator[str]:
        yield picture.write(LEFT, top + 20, _title(name, trace), look.INK, "start")
        clock = [0, *accumulate(fed_by_pass(trace))]
        lanes = {index: n for n, index in enumerate(trace.requests)}
        times = timelines(trace)
        for index, lane in lanes.items():
            y = top + TOP + LANE * lane
            line = trace.requests[index].request_id
            yield picture.write(LEFT - 10, y + 15, line, look.INK, "end")
            if line in times and times[line].itl:
                words = WORDS["gap"].format(gap=max(times[line].itl))
                place = LEFT + WIDTH + 8
                yield picture.write(place, y + 15, words, look.FAINT, "start")
        for run in trace.runs:
            yield from self._run(run, clock, top + TOP + LANE * lanes[run.request])

    def _run(self, run: Run, clock: list[int], y: float) -> Iterator[str]:
        hue = look.hue(run.request)
        reads = run.state == "prefill"
        # chunks stand apart; waiting is one stretch, cut by the tokens only
        edge = f'stroke="{look.PAPER if reads else hue}" stroke-width=".8"'
        for number in range(run.start, run.end):
            x = LEFT + self.scale * clock[number]
            end = LEFT + self.scale * clock[number + 1]
            pale = "" if reads else 'fill-opacity=".2" '
            yield picture.rect(x, y, end - x, LANE - 10, hue, pale + edge)
            if run.emitted:
                yield picture.rect(end - 1.6, y - 3, 1.6, LANE - 4, look.INK)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        titles = "; ".join(_title(*each) for each in self.traces.items())
        return picture.still(self.svg(), titles, self.text(), WORDS["steps"])


def _title(name: str, trace: SlotTrace) -> str:
    fed = fed_by_pass(trace)
    most = max(fed, default=0)
    return WORDS["title"].format(
        name=name, passes=len(fed), tokens=f"{sum(fed):,}", most=most
    )


def _told(name: str, trace: SlotTrace) -> Iterator[str]:
    """The title, a line a request, and what each pass fed."""
    yield _title(name, trace)
    times = timelines(trace)
    for record in trace.requests.values():
        line = times.get(record.request_id)
        key = "silent"
        ttft = gap = 0.0
        if line and line.tokens:
            key, ttft = ("lane" if line.itl else "short"), line.ttft
            gap = max(line.itl, default=0)
        yield WORDS[key].format(request=record.request_id, ttft=ttft, gap=gap)
    fed = ", ".join(map(str, fed_by_pass(trace)))
    yield from wrap(WORDS["fed"].format(fed=fed), 78, subsequent_indent="  ")


def _legend(y: float) -> str:
    x, parts = float(LEFT), []
    for key, fill, more in (
        ("prefill", look.FAINT, ""),
        ("wait", look.FAINT, 'fill-opacity=".2"'),
    ):
        edge = f'stroke="{look.FAINT}" stroke-width=".8" {more}'
        parts.append(picture.rect(x, y - 10, 18, 12, fill, edge))
        parts.append(picture.write(x + 24, y, WORDS[key], look.INK, "start"))
        x += 44 + 6.7 * len(WORDS[key])
    parts.append(picture.rect(x, y - 12, 1.6, 16, look.INK))
    parts.append(picture.write(x + 8, y, WORDS["token"], look.INK, "start"))
    return "".join(parts)
