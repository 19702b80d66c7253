"""A trace as text and as a still picture. Both are the same bytes for the same trace.

One row a slot, one column a pass, read from left to right like a score.
"""

from __future__ import annotations

import base64
import functools
from collections.abc import Iterable, Iterator
from html import escape
from typing import Any
from unicodedata import category

from . import look, miniature
from .ledger import Run, SlotLedger
from .trace import SlotTrace

# --- as text ---

GRID_PASSES = 16  # as many columns stand side by side in 80 characters
MOST_CELLS = 48  # a longer trace is told by runs, not by cells


def text(trace: SlotTrace) -> str:
    """The steps, slot by slot, then the bill; plain text of at most 80 columns or so.

    A short trace shows every cell with the token it made; a long one its runs.
    """
    steps = _grid(trace) if trace.passes <= MOST_CELLS else _run_lines(trace)
    head = f"{trace.engine}: {trace.max_num_seqs} slots, {trace.passes} passes"
    return "\n".join([head, *steps, "", *_request_lines(trace), "", *bill(trace)])


def bill(trace: SlotTrace, passes: int | None = None) -> list[str]:
    """The ledger in words; passes and empty seats lead."""
    sums = trace.ledger(passes)
    seats = sums.max_num_seqs * sums.passes
    fed_again = sums.recomputed_tokens
    again = f", {fed_again:,} fed again" if fed_again else ""
    return [
        f"passes        {sums.passes:>7,}",
        f"empty seats   {sums.empty_seats:>7,} of {seats:,}"
        f" ({sums.idle_slot_steps:,} idle, {sums.wasted_slot_steps:,} finished)",
        f"slot-steps    {sums.total_slot_steps:>7,}: {sums.useful_slot_steps:,} useful,"
        f" {sums.wasted_slot_steps:,} wasted ({sums.wasted_fraction:.1%})",
        f"tokens        {sums.generated_tokens:>7,} made, {sums.prompt_tokens:,}"
        f" of prompts, {sums.pad_tokens:,} pads{again}",
        f"KV in use     {kv_share(sums):>7.1%} of what is reserved"
        f" (finished: {kv_share(sums, finished=True):.1%})",
    ]


def kv_share(sums: SlotLedger, finished: bool = False) -> float:
    held = sums.kv_finished_token_steps if finished else sums.kv_live_token_steps
    return held / sums.kv_reserved_token_steps if sums.kv_reserved_token_steps else 0.0


def sentence(trace: SlotTrace, number: int) -> str:
    """Pass ``number`` (from 0) in words, for a screen reader.

    The player says the same (``sentence`` in widgets/read.js).
    """
    here = {run.slot: run for run in trace.runs if run.start <= number < run.end}
    if trace.max_num_seqs > look.MOST_TOLD:
        return _sums(trace, list(here.values()), number)
    made = _tokens_made(trace)
    slots = range(trace.max_num_seqs)
    told = [_words(trace, slot, here.get(slot), number, made) for slot in slots]
    return look.say(
        "pass_is", number=number + 1, slots=look.WORDS["joined_by"].join(told)
    )


def _sums(trace: SlotTrace, here: list[Run], number: int) -> str:
    states = [run.state for run in here]
    return look.say(
        "pass_many",
        number=number + 1,
        decode=states.count("decode"),
        prefill=states.count("prefill"),
        finished=states.count("finished"),
        idle=trace.max_num_seqs - len(here),
        ends=sum(_ends(trace, run, number) for run in here),
    )


def _words(
    trace: SlotTrace,
    slot: int,
    run: Run | None,
    number: int,
    made: dict[tuple[int, int], str],
) -> str:
    if run is None:
        return look.say("slot_idle", slot=slot)
    record = trace.requests[run.request]
    said = look.say(f"slot_{run.state}", slot=slot, request=record.request_id)
    token = made.get((run.request, number))
    if token is not None:
        said = look.say("slot_token", said=said, token=token)
    if _ends(trace, run, number):
        said = look.say("slot_ends", said=said, reason=record.finish_reason)
    return said


def _ends(trace: SlotTrace, run: Run, number: int) -> bool:
    """Is this the last pass in which the request does anything?"""
    return run.state != "finished" and (
        trace.requests[run.request].finished == number + 1
    )


def _grid(trace: SlotTrace) -> list[str]:
    cells = _cells(trace)
    width = max([len(cell) for cell in cells.values()] + [4])
    margin = len(f"slot {trace.max_num_seqs - 1}")
    per_block = max(1, min(GRID_PASSES, (78 - margin) // (width + 1)))
    lines = []
    for first in range(0, trace.passes, per_block):
        numbers = range(first, min(first + per_block, trace.passes))
        head = " ".join(f"{number + 1:<{width}}" for number in numbers)
        lines += ["", f"{'pass':<{margin}} {head}".rstrip()]
        for slot in range(trace.max_num_seqs):
            row = " ".join(f"{cells.get((slot, n), '.'):<{width}}" for n in numbers)
            lines.append(f"{f'slot {slot}':<{margin}} {row}".rstrip())
    signs = ["A[x] prefill, made x", "x decode, made x", "A-- finished", ". idle"]
    if _resumed(trace):
        signs.insert(2, "A:x back, made x")
    return [*lines, "", "   ".join(signs)]


def _resumed(trace: SlotTrace) -> set[tuple[int, int]]:
    """(slot, pass) where a request sits down in the midst of its answer: it was
    swapped out, and nothing else in the row would say whose it is."""
    begins = (run for run, _ in tenancies(trace) if run.state == "decode")
    return {(run.slot, run.start) for run in begins}


def _cells(trace: SlotTrace) -> dict[tuple[int, int], str]:
    """(slot, pass) -> what stands there."""
    made, resumed = _tokens_made(trace), _resumed(trace)
    cells = {}
    for run in trace.runs:
        name = plain(trace.requests[run.request].request_id)[:8]
        for number in range(run.start, run.end):
            token = made.get((run.request, number), "")[:8]
            cells[run.slot, number] = {
                "prefill": f"{name}[{token}]",
                "decode": token or "?",
                "finished": f"{name}--",
            }[run.state]
            if (run.slot, number) in resumed:
                cells[run.slot, number] = f"{name}:{token}"
    return cells


def _run_lines(trace: SlotTrace) -> list[str]:
    lines = []
    for slot in range(trace.max_num_seqs):
        runs = [run for run in trace.runs if run.slot == slot]
        told = [
            f"{plain(trace.requests[run.request].request_id)} {run.state} {_span(run)}"
            for run in runs
        ]
        lines += _wrap(f"slot {slot}: ", told or ["idle"])
    return ["", *lines]


def _wrap(head: str, items: list[str], width: int = 78) -> list[str]:
    lines, line = [], head
    for item in items:
        if len(line) + len(item) > width and line.strip() != head.strip():
            lines.append(line.rstrip())
            line = " " * len(head)
        line += item + "; "
    return [*lines, line.rstrip("; ")]


def _span(run: Run) -> str:
    return f"{run.start + 1}" + (f"-{run.end}" if run.passes > 1 else "")


def _request_lines(trace: SlotTrace, most: int = 16) -> list[str]:
    lines = []
    for record in list(trace.requests.values())[:most]:
        end = record.finish_reason or "not ended"
        lines.append(
            f"{plain(record.request_id)}: {record.prompt_tokens} in, "
            f"{len(record.token_ids)} of at most {record.max_tokens} out, {end}"
        )
    more = len(trace.requests) - most
    return lines + ([f"and {more} more"] if more > 0 else [])


def _tokens_made(trace: SlotTrace) -> dict[tuple[int, int], str]:
    """(request, pass) -> the text of the token made there."""
    words = functools.cache(lambda token: piece(trace.piece_of(token)))
    return {(index, number): words(token) for index, number, token in trace.emissions()}


def piece(words: str) -> str:
    """A token's text as a picture writes it: never empty, never two lines."""
    return plain(words.replace("\n", "\\n").strip()) or "' '"


def plain(words: str, most: int = 40) -> str:
    """Words that fit in a line and in XML, which has no room for control characters."""
    if len(words) > most:
        words = words[: most - 1] + "…"
    bad = ("Cc", "Cn", "Cs", "Zl", "Zp")  # controls, half surrogates, line breaks
    return "".join("\ufffd" if category(each) in bad else each for each in words)


def title(trace: SlotTrace) -> str:
    """Which engine, how many slots and passes; a player is called so too."""
    slots, passes = trace.max_num_seqs, f"{trace.passes:,}"
    return look.say("title", engine=trace.engine, slots=slots, passes=passes)


def mime_bundle(trace: SlotTrace) -> dict[str, Any]:
    """What a notebook stores of a trace."""
    return still(svg(trace), title(trace), text(trace), look.WORDS["steps"])


def still(drawn: str, alt: str, told: str, summary: str) -> dict[str, Any]:
    """What a notebook stores of any still: an SVG, and the same told as text, which
    folds out under ``summary``. The SVG goes in as an image: JupyterLab drops inline
    SVG from notebooks it does not trust, and GitHub from all."""
    image = base64.b64encode(drawn.encode()).decode()
    source = f"data:image/svg+xml;base64,{image}"
    return {
        "text/plain": told,
        "text/html": f'<img alt="{escape(alt)}" src="{source}">'
        f"<details><summary>{escape(summary)}</summary>"
        f"<pre>{escape(told)}</pre></details>",
    }


# --- as a picture ---

LEFT, TOP, ROW, WIDEST = 64, 34, 32, 848
HALO = 'font-weight="bold" stroke="#fff" stroke-width="3" paint-order="stroke"'


def svg(trace: SlotTrace) -> str:
    """One SVG, 920 units wide at most, on its own paper."""
    column = min(44.0, WIDEST / max(trace.passes, 1))
    grid = column * trace.passes
    width = max(LEFT + grid + 12, 560)
    height = TOP + ROW * trace.max_num_seqs + 44
    label = (
        f"{trace.engine}, {trace.max_num_seqs} slots, {trace.passes} passes: "
        f"{trace.ledger().empty_seats} empty seats"
    )
    cells = miniature.body if column < 1 else _cells_drawn
    body = [
        *_axis(trace, column),
        *_seats(trace, grid),
        *cells(trace, column),
        _legend(height - 16),
    ]
    hues = [look.hue(run.request) for run in trace.runs]
    return sheet(width, height, label, body, hues)


def sheet(
    width: float, height: float, label: str, body: Iterable[str], hues: Iterable[str]
) -> str:
    """An SVG on its own paper; ``body`` may use the patterns of ``hues``."""
    said = escape(label)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" '
        f'width="{width:.0f}" height="{height}" role="img" aria-label="{said}" '
        f'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">',
        f"<title>{said}</title>",
        _patterns({*hues, look.FAINT}),
        f'<rect width="100%" height="100%" rx="6" fill="{look.PAPER}"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _patterns(hues: Iterable[str]) -> str:
    """A hatch for pads and a cross for what is finished and held, in each hue."""
    parts = ["<defs>"]
    for hue in sorted(hues):
        parts.append(
            f'<pattern id="held-{hue[1:]}" width="8" height="8" '
            f'patternUnits="userSpaceOnUse"><path d="M0 0L8 8M8 0L0 8" '
            f'stroke="{hue}" stroke-width="1" opacity=".6"/></pattern>'
            f'<pattern id="pad-{hue[1:]}" width="5" height="5" '
            f'patternUnits="userSpaceOnUse"><rect width="5" height="5" fill="#fff"/>'
            f'<path d="M-1 6L6 -1M-1 1L1 -1M4 6L6 4" stroke="{hue}" '
            f'stroke-width="1.5"/></pattern>'
        )
    return "".join([*parts, "</defs>"])


def _axis(trace: SlotTrace, column: float) -> Iterator[str]:
    """Pass numbers above, as many as there is room for; slot names at the left."""
    yield write(LEFT - 10, TOP - 10, "pass", look.FAINT, "end")
    stride = next(n for n in _strides() if n * column >= 26)
    for number in range(trace.passes):
        if number == 0 or (number + 1) % stride == 0:
            x = LEFT + column * (number + 0.5)
            yield write(x, TOP - 10, str(number + 1), look.FAINT, "middle")
    for slot in range(trace.max_num_seqs):
        yield write(LEFT - 10, row_y(slot) + 18, f"slot {slot}", look.INK, "end")


def _strides() -> Iterator[int]:
    scale = 1
    while True:
        yield from (scale, 2 * scale, 5 * scale)
        scale *= 10


def _seats(trace: SlotTrace, width: float) -> Iterator[str]:
    """An outline for each slot: what stays empty of it is idle."""
    edge = f'stroke="{look.FAINT}" stroke-width=".8" stroke-dasharray="3 3"'
    for slot in range(trace.max_num_seqs):
        yield rect(LEFT, row_y(slot), width, ROW - 6, "none", edge)


def _cells_drawn(trace: SlotTrace, column: float) -> Iterator[str]:
    for run in trace.runs:
        yield from _run(run, column)
    yield from _tokens(trace, column)
    yield from _names(trace, column)


def _run(run: Run, column: float) -> Iterator[str]:
    hue = look.hue(run.request)
    x, y, height = LEFT + column * run.start, row_y(run.slot), ROW - 6
    width = column * run.passes
    edge = f'stroke="{hue}" stroke-width=".8"'
    if run.state == "finished":
        yield rect(x, y, width, height, look.PAPER)
        yield rect(x, y, width, height, f"url(#held-{hue[1:]})", edge)
    elif run.state == "decode":
        yield rect(x, y, width, height, hue, f'fill-opacity=".28" {edge}')
    else:
        # pads are real compute: they take their share of the prefill's cell
        padded = height * run.pads / (run.pads + run.fed)
        yield rect(x, y, width, height, hue, edge)
        if run.pads:
            yield rect(x, y, width, padded, f"url(#pad-{hue[1:]})", edge)


def _tokens(trace: SlotTrace, column: float) -> Iterator[str]:
    """The token each decode made, where there is room to read it."""
    if column < 22:
        return
    made = _tokens_made(trace)
    for run in trace.runs:
        for number in range(run.start, run.end):
            if run.state == "decode":
                token = short(made.get((run.request, number), ""), column - 3)
                x = LEFT + column * (number + 0.5)
                yield write(x, row_y(run.slot) + 17, token, look.INK, "middle")


def _names(trace: SlotTrace, column: float) -> Iterator[str]:
    """Whose slot it is, at the start of each tenancy, if that is wide enough."""
    for first, end in tenancies(trace):
        room = column * (end - first.start) - 6
        if room >= 7:
            name = plain(trace.requests[first.request].request_id)
            name = short(name, min(room, 200))
            x, y = LEFT + column * first.start + 5, row_y(first.slot) + 17
            yield write(x, y, name, look.INK, "start", HALO)


def tenancies(trace: SlotTrace) -> Iterator[tuple[Run, int]]:
    """(first run, end) for each stretch of one request in one slot.

    Where single cells can be read, the name belongs to the first cell alone.
    """
    last: dict[int, int] = {}
    ends = {(run.slot, run.request): run.end for run in trace.runs}
    for run in trace.runs:
        if last.get(run.slot) != run.request:
            last[run.slot] = run.request
            yield run, ends[run.slot, run.request]


def _legend(y: float) -> str:
    x, parts, faint = float(LEFT), [], look.FAINT[1:]
    samples = [
        ("prefill", look.FAINT, ""),
        ("decode", look.FAINT, 'fill-opacity=".28"'),
        ("pad", f"url(#pad-{faint})", ""),
        ("finished", f"url(#held-{faint})", ""),
        ("idle", "none", 'stroke-dasharray="3 3"'),
    ]
    for state, fill, more in samples:
        word = look.WORDS[state]
        edge = f'stroke="{look.FAINT}" stroke-width=".8" {more}'
        parts.append(rect(x, y - 10, 18, 12, fill, edge))
        parts.append(write(x + 24, y, word, look.INK, "start"))
        x += 40 + 6.7 * len(word)
    return "".join(parts)


def row_y(slot: int) -> int:
    return TOP + ROW * slot


def short(label: str, room: float) -> str:
    most = max(1, int(room / 6.6))
    return label if len(label) <= most else label[: most - 1] + "…"


def rect(
    x: float, y: float, width: float, height: float, fill: str, more: str = ""
) -> str:
    return (
        f'<rect x="{x:.2f}" y="{y:.2f}" width="{max(width, 0.2):.2f}" '
        f'height="{height:.2f}" fill="{fill}" {more}/>'
    )


def write(
    x: float, y: float, words: str, fill: str, anchor: str, more: str = ""
) -> str:
    return (
        f'<text x="{x:.2f}" y="{y:.2f}" fill="{fill}" text-anchor="{anchor}" '
        f"{more}>{escape(words)}</text>"
    )
