"""What the padding explorer shows: a batch padded to either side, as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from .. import padding
from ..checkpoint import LanguageModel
from ..errors import invalid
from ..generate import Prompt
from ..pitfalls.comparison import letter
from .cells import piece
from .rectangle import counted

MOST_ROWS, MOST_TOKENS = 16, 96  # a picture of more is no picture
IDS = re.compile(r"\[\s*\d+(\s*,\s*\d+)*\s*\]")  # a prompt given as token ids


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
    asked = enumerate(counted(prompts, MOST_ROWS), 1)
    encoded = [_encoded(lm, number, prompt) for number, prompt in asked]
    sides = {side: _rectangle(lm, encoded, side) for side in padding.SIDES}
    mask = sides[padding_side]["mask"]
    total = sum(map(len, mask))
    pads = total - sum(map(sum, mask))
    ids = sorted({token for row in sides[padding_side]["ids"] for token in row})
    return {
        "opens": {"side": padding_side, "row": None, "column": None},
        "prompts": [str(prompt) for prompt in prompts],
        "names": [letter(row) for row in range(len(prompts))],
        "tokens": {str(token): piece(lm, token) for token in ids},
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
