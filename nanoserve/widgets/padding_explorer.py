"""The padding explorer: prompts of one's own, and the rectangle they are padded to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import Any, ClassVar

from torch import Tensor

from .. import look, padding
from ..checkpoint import LanguageModel
from ..errors import invalid
from ..generate import Prompt
from ..pitfalls.comparison import letter
from . import cells
from .instrument import Instrument

MOST_ROWS, MOST_TOKENS = 16, 96  # a picture of more is no picture
IDS = re.compile(r"\[\s*\d+(\s*,\s*\d+)*\s*\]")  # a prompt given as token ids

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
        return scene(**settings)

    def text(self, scene: dict[str, Any]) -> str:
        return text(scene)

    def svg(self, scene: dict[str, Any]) -> str:
        return svg(scene)

    def typed(self, lines: str) -> list[Prompt]:
        return typed(lines)


# --- the scene ---


def scene(
    lm: LanguageModel, prompts: Sequence[Prompt], padding_side: str = "left"
) -> dict[str, Any]:
    """What is drawn: both rectangles, as ``padding`` makes them now.

    ``names``   of the rows
    ``tokens``  what an id says
    ``sides``   for "left" and "right": ``ids``, ``mask``, ``positions`` [rows, width],
                ``last``, the last real column, and ``next``, the position of the first
                new token, [rows]
    ``pads``, ``cells``, ``share``   how many of how many, and that as a percentage

    Raises ``InvalidInputError``, one line, for a prompt that cannot be shown.
    """
    padding.check_side(padding_side)
    encoded = [_encoded(lm, *each) for each in enumerate(_counted(prompts), 1)]
    sides = {side: _rectangle(lm, encoded, side) for side in padding.SIDES}
    mask = sides[padding_side]["mask"]
    total = sum(map(len, mask))
    pads = total - sum(map(sum, mask))
    ids = sorted({token for row in sides[padding_side]["ids"] for token in row})
    return {
        "title": say("title", side=WORDS[padding_side]),
        "opens": {"side": padding_side, "row": None, "column": None},
        "prompts": [str(prompt) for prompt in prompts],
        "names": [letter(row) for row in range(len(prompts))],
        "tokens": {str(token): cells.piece(lm, token) for token in ids},
        "sides": sides,
        "pads": pads,
        "cells": total,
        "share": f"{pads / total:.1%}",
    }


def _rectangle(
    lm: LanguageModel, encoded: list[list[int]], side: str
) -> dict[str, Any]:
    ids, mask = padding.pad_batch(encoded, lm.pad_token_id, side)  # [rows, width]
    shown: dict[str, Tensor] = {
        "ids": ids,
        "mask": mask.int(),
        "positions": padding.positions(mask),
        "last": padding.last_column(mask),  # [rows]
        "next": padding.positions(mask, 1)[:, 0],  # [rows]
    }
    return {name: values.tolist() for name, values in shown.items()}


def _counted(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise invalid("prompts", prompts, "must be a list of prompts")
    if not 1 <= len(prompts) <= MOST_ROWS:
        limit = f"1 to {MOST_ROWS} of them fit into a picture"
        raise invalid("prompts", f"{len(prompts)} prompts", limit)
    return prompts


def _encoded(lm: LanguageModel, number: int, prompt: Prompt) -> list[int]:
    """Token ids of a prompt; a word that the model never saw is refused by name."""
    field = f"prompt {number}"
    if isinstance(prompt, str) and not prompt.strip():
        raise invalid(field, prompt, "is empty: it needs one token")
    ids = lm.encode(prompt)
    if len(ids) > MOST_TOKENS:
        limit = f"has {len(ids)} tokens; {MOST_TOKENS} fit into a picture"
        raise invalid(field, prompt, limit)
    if isinstance(prompt, str):
        for word in _unknown(lm, prompt):
            raise invalid(field, word, f"is not in the vocabulary of {lm.name}")
    return ids


def _unknown(lm: LanguageModel, text: str) -> Iterator[str]:
    """The words that the tokenizer replaces because it has no id for them."""
    unknown = lm.tokenizer.unk_token_id
    if unknown is None or unknown in lm.eos_token_ids:  # GPT-2's means nothing
        return
    read = lm.tokenizer(text, return_offsets_mapping=True)
    for token, (start, end) in zip(read.input_ids, read.offset_mapping, strict=True):
        if token == unknown and text[start:end] != lm.tokenizer.unk_token:
            yield text[start:end]


def typed(lines: str) -> list[Prompt]:
    """What a text field holds: one prompt a line, a list of ids as Python writes it.

    The line that somebody is about to begin is no prompt yet.
    """
    return [
        json.loads(line) if IDS.fullmatch(line.strip()) else line
        for line in lines.rstrip().split("\n")
    ]


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
