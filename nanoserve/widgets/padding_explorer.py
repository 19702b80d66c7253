"""The padding explorer: prompts of one's own, and the rectangle they are padded to."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any, ClassVar

from .. import look
from ..checkpoint import LanguageModel
from ..generate import Prompt
from . import cells, padding_scene
from .instrument import Instrument

WORDS = {
    "name": "Padding explorer",
    "title": "padding on the {side}",
    "tensors": "the same as tensors",
    "size": "{rows} prompts · width {width} · {cells} cells",
    "left": "left",
    "right": "right",
    "side": "pads on the",
    "prompts": "prompts, one a line",
    # the rectangle
    "cells": "The rectangle, cell by cell",
    "row": "row {row}",
    "column": "column",
    "token": "token",
    "id": "id",
    "mask": "mask",
    "position": "position",
    "next": "next",
    "pads": "{count} pads",
    "one_pad": "1 pad",
    "share": "{pads} of {cells} cells are pads: {share}",
    "prompt_mark": "prompt",
    "pad_mark": "pad",
    "last_mark": "last real token: its logits choose the next",
    "generated_mark": "the next token",
    # in words
    "same_last": "Each row's last real token stands in column {columns}.",
    "last_columns": "The last real tokens stand in the columns {columns}.",
    "summary": "Pads on the {side}: {share}. {last}",
    "nexts": "The next tokens will stand at the positions {positions}.",
    "cell_real": "row {row}, column {column}: {token}, id {id}, mask 1, "
    "position {position}",
    "cell_last": "{cell}; the last real token, its logits choose the next",
    "cell_pad": "row {row}, column {column}: a pad, id {id}, mask 0; the {position} "
    "as its position is read by nobody",
    "cell_next": "row {row}: the next token goes into column {column} and stands at "
    "position {position}",
}
MARKS = [
    ("prompt", WORDS["prompt_mark"]),
    ("pad", WORDS["pad_mark"]),
    ("frame", WORDS["last_mark"]),
    ("generated", WORDS["generated_mark"]),
]


def say(key: str, **values: object) -> str:
    return WORDS[key].format(**values)


class PaddingExplorer(Instrument):
    """Prompts padded to one rectangle: ids, mask, positions, and who is a pad.

    ``prompts`` are texts or lists of token ids. Beside a kernel others can be typed,
    one a line; the side can be changed everywhere. Raises ``InvalidInputError`` for
    no prompt, an empty one, a word the model does not know, and for more than a
    picture holds (16 prompts of 96 tokens).
    """

    name: ClassVar[str] = "padding-explorer"

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Prompt],
        *,
        padding_side: str = "left",
    ) -> None:
        super().__init__(lm=lm, prompts=prompts, padding_side=padding_side)

    def build(self, **settings: Any) -> dict[str, Any]:
        made = padding_scene.scene(**settings)
        return {"title": say("title", side=WORDS[settings["padding_side"]]), **made}

    def text(self, scene: dict[str, Any]) -> str:
        return text(scene)

    def svg(self, scene: dict[str, Any]) -> str:
        return svg(scene)

    def typed(self, lines: str) -> list[Prompt]:
        return padding_scene.typed(lines)


# --- in words ---


def drawn(scene: dict[str, Any]) -> dict[str, Any]:
    """The rectangle of the side that is asked for."""
    shown: dict[str, Any] = scene["sides"][scene["opens"]["side"]]
    return shown


def summary(scene: dict[str, Any]) -> str:
    """The picture in two sentences; the explorer says the same in JavaScript."""
    last = [str(column) for column in drawn(scene)["last"]]
    key = "last_columns" if len(set(last)) > 1 else "same_last"
    side = WORDS[scene["opens"]["side"]]
    told = say(key, columns=last[0] if key == "same_last" else ", ".join(last))
    return say("summary", side=side, share=told_share(scene), last=told)


def told_share(scene: dict[str, Any]) -> str:
    return say("share", **{key: scene[key] for key in ("pads", "cells", "share")})


def told_pads(count: int) -> str:
    return WORDS["one_pad"] if count == 1 else say("pads", count=count)


def text(scene: dict[str, Any]) -> str:
    """The rectangle in plain text, at most 80 columns; last real tokens in brackets."""
    heads = [WORDS["column"]]
    for name in scene["names"]:
        heads.append(f"{name}  {WORDS['token']}")
        heads += [f"   {WORDS[each]}" for each in ("id", "mask", "position")]
    *columns, following = _columns(scene)
    tail = say("nexts", positions=", ".join(following[4::4]))
    return "\n".join(
        [*wrap(summary(scene), 80), *cells.blocks(heads, columns), "", *wrap(tail, 80)]
    )


def _columns(scene: dict[str, Any]) -> list[list[str]]:
    """The lines of all rows, column by column, and last where the next will stand."""
    shown = drawn(scene)
    width = len(shown["ids"][0])
    table = [_column(scene, shown, column) for column in range(width)]
    following = [WORDS["next"]]
    for position in shown["next"]:
        following += ["", "", "", str(position)]
    return [*table, following]


def _column(scene: dict[str, Any], shown: dict[str, Any], column: int) -> list[str]:
    lines = [str(column)]
    for row, last in enumerate(shown["last"]):
        id_, real, position = (
            shown[name][row][column] for name in ("ids", "mask", "positions")
        )
        token = scene["tokens"][str(id_)]
        lines += [f"[{token}]" if column == last else token]
        lines += [str(id_), str(real), str(position)]
    return lines


# --- as a still ---

LABEL, TOP, BAND, CELL = 96, 30, 72, 30


def svg(scene: dict[str, Any]) -> str:
    """One SVG on its own paper: per row its tokens, mask and positions."""
    columns, rows = _columns(scene), len(scene["names"])
    edges = cells.edges(LABEL, columns)
    bottom = TOP + BAND * rows
    still = cells.Still()
    still.write(LABEL - 10, TOP - 8, WORDS["column"], "end", look.FAINT)
    for column, (x, end) in zip(columns, pairwise(edges), strict=True):
        still.write((x + end) / 2, TOP - 8, column[0], fill=look.FAINT)
    for row in range(rows):
        _band(still, scene, row, edges)
    _share(still, scene, bottom + 6)
    still.legend(14, bottom + 50, MARKS)
    width = max(edges[-1] + 70, cells.legend_width(MARKS) + 28)
    return still.svg(width, bottom + 64, scene["title"])


def _band(
    still: cells.Still, scene: dict[str, Any], row: int, edges: list[float]
) -> None:
    """One prompt: token and id, then mask, then position, column by column."""
    shown, hue, y = drawn(scene), look.hue(row), TOP + BAND * row
    still.name(14, y + 4, scene["names"][row], hue)
    for line, key in ((46, "mask"), (60, "position")):
        still.write(LABEL - 10, y + line, WORDS[key], "end", look.FAINT)
    *columns, (x, end) = pairwise(edges)
    for column, place in enumerate(columns):
        values = [shown[key][row][column] for key in ("ids", "mask", "positions")]
        _cell(still, scene, place, y, hue, *values)
        if column == shown["last"][row]:
            still.box("frame", look.INK, place[0], y, place[1] - place[0], BAND - 7)
    still.box("generated", hue, x + 1, y, end - x - 2, CELL)
    for line, value in ((46, 1), (60, shown["next"][row])):
        still.write((x + end) / 2, y + line, value)
    still.write(end + 8, y + 19, told_pads(shown["mask"][row].count(0)), "start")


def _cell(
    still: cells.Still,
    scene: dict[str, Any],
    place: tuple[float, float],
    y: float,
    hue: str,
    token: int,
    real: int,
    position: int,
) -> None:
    x, middle, wide = place[0] + 1, sum(place) / 2, place[1] - place[0] - 2
    still.box("prompt" if real else "pad", hue, x, y, wide, CELL)
    if real:
        still.write(middle, y + 14, scene["tokens"][str(token)])
        still.write(middle, y + 26, token, more=cells.SMALL)
    for line, value in ((46, real), (60, position)):
        still.write(middle, y + line, value, fill=look.INK if real else look.FAINT)


def _share(still: cells.Still, scene: dict[str, Any], y: float) -> None:
    """Who fills the rectangle, on one bar: each row's tokens, then all pads."""
    mask = drawn(scene)["mask"]
    unit, x = 220 / scene["cells"], 14.0
    parts = [("prompt", look.hue(row), sum(real)) for row, real in enumerate(mask)]
    for kind, hue, count in [*parts, ("pad", look.FAINT, scene["pads"])]:
        if count:
            still.box(kind, hue, x, y, unit * count - 1, 16)
        x += unit * count
    still.write(x + 10, y + 12, told_share(scene), "start", more=cells.BOLD)
