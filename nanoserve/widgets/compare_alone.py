"""A batch beside the same prompts alone: token by token, and how far logits part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any, ClassVar

from .. import look
from ..checkpoint import LanguageModel
from ..generate import Prompt
from ..pitfalls import comparison
from . import cells, compare_scene
from .compare_scene import BOUNDS, NAN
from .instrument import Instrument

WORDS = {
    "name": "Batch beside alone",
    "title": "{bug}, {side} padding",
    "no_bug": "nothing planted",
    "left": "left",
    "right": "right",
    "token": "token",
    "alone": "alone",
    "batch": "batch",
    "error": "error",
    "rows": "The answers, row by row",
    "table": "all tokens as a table",
    "column_row": "row",
    "column_error": "logit error",
    # the playhead
    "steps": "token",
    "back": "One token back",
    "forward": "One token forward",
    "previous_event": "Previous token at which a row begins to differ",
    "next_event": "Next token at which a row begins to differ",
    "now": "token {number} of {steps}",
    # the legend
    "generated_mark": "generated",
    "first_mark": "first token that differs",
    "bare_mark": "after it: the two have read different texts",
    "bar_mark": "logit error by powers of ten: 1 is 1 to 10, = is below 1e-4",
    # how far the logits part: a class in words, and what stands on its bar
    "class_0": "below 1e-4",
    "class_1": "1e-4 to 0.001",
    "class_2": "0.001 to 0.01",
    "class_3": "0.01 to 0.1",
    "class_4": "0.1 to 1",
    "class_5": "1 to 10",
    "class_6": "10 or more",
    "class_7": "NaN",
    "class_8": "NaN, alone too",
    "bar_0": "=",
    "bar_1": "1e-4",
    "bar_2": ".001",
    "bar_3": ".01",
    "bar_4": ".1",
    "bar_5": "1",
    "bar_6": "10",
    "bar_7": "NaN",
    "bar_8": "NaN",
    # an answer that no EOS ends
    "ended_stop": "(stopped)",
    "ended_length": "(limit)",
    "ended_error": "(error)",
    "ended_abort": "(abort)",
    # which rows
    "differs": "Differs: {rows}.",
    "differs_row": "{row} from token {number}",
    "lucky": "Same tokens, other logits: {rows}.",
    "ill": "NaN alone too: {rows}.",
    "clean": "Clean: {rows}.",
    "joined_by": ", ",
    # a token in words
    "said": "token {number}: {rows}",
    "row_same": "{row} says {alone}, logit error {error}",
    "row_first": "{row} differs from here, alone {alone}, in the batch {batch}, "
    "logit error {error}",
    "row_after": "{row} has parted, alone {alone}, in the batch {batch}",
    "row_over": "{row} is over",
    "nothing": "nothing",
    "rows_joined_by": "; ",
}


MARKS = [
    ("generated", WORDS["generated_mark"]),
    ("frame", WORDS["first_mark"]),
    ("bare", WORDS["bare_mark"]),
]


def say(key: str, **values: object) -> str:
    return WORDS[key].format(**values)


class CompareAlone(Instrument):
    """A batch beside the same prompts alone: where each row parts, and how far.

    ``bug``, one of ``pitfalls.BUGS``, is planted around the batch and not around the
    prompts alone; with none, what is planted just now is in the batch. Both are greedy
    runs of at most ``max_new_tokens``. Raises ``InvalidInputError``, also for more
    than a picture holds (16 prompts, 96 tokens).
    """

    name: ClassVar[str] = "compare-alone"

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int = 16,
        padding_side: str = "left",
        bug: str | None = None,
    ) -> None:
        super().__init__(
            lm=lm,
            prompts=prompts,
            max_new_tokens=max_new_tokens,
            padding_side=padding_side,
            bug=bug,
        )

    def build(self, **settings: Any) -> dict[str, Any]:
        made = compare_scene.scene(**settings)
        for row in made["rows"]:
            _say_ends(row)
        side, bug = WORDS[settings["padding_side"]], settings["bug"]
        return {"title": say("title", bug=bug or WORDS["no_bug"], side=side), **made}

    def text(self, scene: dict[str, Any]) -> str:
        return text(scene)

    def svg(self, scene: dict[str, Any]) -> str:
        return svg(scene)


def _say_ends(row: dict[str, Any]) -> None:
    """Where an answer is cut short, let it say so in place of a token."""
    for side, end in zip(("alone", "batch"), row.pop("ends"), strict=True):
        if end:
            row[side].append(WORDS[f"ended_{end}"])


# --- in words ---


def summary(scene: dict[str, Any]) -> str:
    """Which rows stay clean and which do not, by name."""
    told = []
    for verdict in ("differs", "lucky", "ill", "clean"):
        rows = [row for row in scene["rows"] if row["verdict"] == verdict]
        names = WORDS["joined_by"].join(map(_named, rows))
        told += [say(verdict, rows=names)] if rows else []
    return " ".join(told)


def _named(row: dict[str, Any]) -> str:
    if row["differs"] is None:
        return str(row["name"])
    return say("differs_row", row=row["name"], number=row["differs"] + 1)


def text(scene: dict[str, Any]) -> str:
    """Both answers of each row in plain text, at most 80 columns."""
    lines = wrap(f"{scene['title']}. {summary(scene)}", 80)
    for row in scene["rows"]:
        lines += [
            "",
            f"{row['name']}  {comparison.abridged(row['prompt'], 76)}",
            *_row_lines(row),
        ]
    return "\n".join(lines)


def _row_lines(row: dict[str, Any]) -> Iterator[str]:
    heads = [f"   {WORDS[name]}" for name in ("token", "alone", "batch", "error")]
    steps = max(len(row["alone"]), len(row["batch"]))
    columns = [
        [
            str(step + 1),
            at(row["alone"], step),
            at(row["batch"], step),
            WORDS[f"bar_{row['errors'][step]}"] if step < len(row["errors"]) else "",
        ]
        for step in range(steps)
    ]
    lines = list(cells.blocks(heads, columns))
    yield from (line for line in lines if line)


def at(words: Sequence[str], step: int) -> str:
    return words[step] if step < len(words) else ""


# --- as a still ---

LABEL, TOP, LINE, BAR = 74, 52, 26, 18
BAND = 118  # the prompt, both answers, the strip of errors


def svg(scene: dict[str, Any]) -> str:
    """One SVG on its own paper: the whole run, each row's two answers and errors."""
    rows = scene["rows"]
    columns = [
        [at(row[side], step) for row in rows for side in ("alone", "batch")]
        for step in range(scene["steps"])
    ]
    edges, bottom = cells.edges(LABEL, columns), TOP + BAND * len(rows)
    still, told = cells.Still(), summary(scene)
    still.write(14, 20, told, "start", more=cells.BOLD)
    still.write(LABEL - 10, TOP - 10, WORDS["token"], "end", look.FAINT)
    for number, (x, end) in enumerate(pairwise(edges), 1):
        still.write((x + end) / 2, TOP - 10, number, fill=look.FAINT)
    for number, row in enumerate(rows):
        _band(still, row, number, edges)
    still.legend(14, bottom + 16, MARKS)
    still.write(14, bottom + 38, WORDS["bar_mark"], "start")
    words = max(len(told), len(WORDS["bar_mark"]), 80) * cells.LETTER + 28
    width = max(edges[-1] + 14, words, cells.legend_width(MARKS) + 28)
    return still.svg(width, bottom + 52, scene["title"])


def _band(
    still: cells.Still, row: dict[str, Any], number: int, edges: list[float]
) -> None:
    """One prompt: what it says alone, in the batch, and the errors below."""
    hue, y = look.hue(number), TOP + BAND * number
    still.name(14, y, row["name"], hue)
    still.write(LABEL, y + 15, comparison.abridged(row["prompt"], 76), "start")
    for line, key in ((45, "alone"), (71, "batch"), (96, "error")):
        still.write(LABEL - 10, y + line, WORDS[key], "end", look.FAINT)
    for step, (x, end) in enumerate(pairwise(edges)):
        _answers(still, row, step, (x, y + 28, end - x), hue)
    still.box("bar", look.FAINT, LABEL, y + 82 + BAR, edges[-1] - LABEL, 0.6)


def _answers(
    still: cells.Still,
    row: dict[str, Any],
    step: int,
    place: tuple[float, float, float],
    hue: str,
) -> None:
    """One token of both, and its error."""
    (x, y, wide), parted = place, row["differs"]
    alone, batch = at(row["alone"], step), at(row["batch"], step)
    astray = parted is not None and step >= parted
    if alone:
        still.box("generated", hue, x + 1, y, wide - 2, LINE - 3)
        still.write(x + wide / 2, y + 15, alone)
    if batch:
        kind = "bare" if astray else "generated"
        still.box(kind, hue, x + 1, y + LINE, wide - 2, LINE - 3)
        more = "" if batch == alone else cells.BOLD
        still.write(x + wide / 2, y + LINE + 15, batch, more=more)
    if step == parted:
        still.box("frame", look.INK, x, y - 2, wide, 2 * LINE + 1)
    if step < len(row["errors"]):
        _error(still, row["errors"][step], x, y + 54, wide)


def _error(still: cells.Still, error: int, x: float, y: float, wide: float) -> None:
    """A bar as high as its class, equal steps for powers of ten; crossed for NaN."""
    tall = BAR * min(error, len(BOUNDS)) / len(BOUNDS)
    kind, hue = ("crossed", look.INK) if error >= NAN else ("bar", look.FAINT)
    if tall:
        still.box(kind, hue, x + 4, y + BAR - tall, wide - 8, tall)
    words = WORDS[f"bar_{error}"]
    still.write(x + wide / 2, y + BAR + 11, words, more=cells.SMALL)
