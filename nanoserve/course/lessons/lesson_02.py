"""Lesson 02, The rectangle: padding a batch, and the share of pads in it."""

from __future__ import annotations

from typing import Any

from ...pitfalls.comparison import letter
from ..exercises import Exercise, Guess, Lesson
from ..rows import Cell, Row

WORDS: dict[str, Any] = {
    "title": "The rectangle",
    "row": "row {letter}",
    "mask of": "mask of row {letter}",
    "prompt": "prompt",
    "pad_batch": {
        "title": "Pad a batch",
        "hint": "First find `width`, the length of the longest prompt. Then, for each "
        "prompt, make a list of `width - len(prompt)` pads (`[pad_id] * 3` is three of "
        "them) and put it before or behind the prompt. The mask is made from the same "
        "two lengths, and needs to look at no id.",
        "pads to a maximum": "{row} is padded to a fixed width. The widest prompt of "
        "*this* batch is wide enough; every column beyond it is computed for nobody.",
        "mask by id": "{row} calls a token a pad because of its id. Here the pad's id "
        "stands in the prompt as a real token, as it does in every chat when `<eos>` "
        "serves as the pad. Who is real follows from the *lengths*.",
        "wrong side": "{row} is padded on the other side. `left` says where the pads "
        "go: before the prompt.",
        "side of the mask": "{row} does not fit its ids: the pads went to one side, "
        "and the mask says the other.",
        "mask upside down": "{row} is upside down. In a mask of this course, and in "
        "`attention_mask`, True (or 1) means a *real* token.",
    },
    "pad_share": {
        "title": "Pad share",
        "hint": "How many cells does the rectangle have? Rows times width. How many of "
        "them hold a token of somebody?",
        "over real tokens": "That is pads for each *real* token. The share is asked "
        "of all that is computed: pads and real tokens together. (A share never "
        "exceeds 1; yours can.)",
        "mean of rows": "That is pads for each real token, row by row, and then the "
        "mean: a row of one token outweighs all others. Count cells of the whole "
        "rectangle.",
        "real share": "That is the share of the real tokens. Asked is the rest.",
        "count": "That is the number of pads. Which share of the rectangle is it?",
        "percent": "That is a percentage. Give a share, from 0 to 1: half is 0.5.",
    },
    "pad_share_in_batches": {
        "title": "Pad share of a stream",
        "hint": "`lengths[start : start + size]` is one batch, for `start` in "
        "`range(0, len(lengths), size)`. Add up all cells of all rectangles, and "
        "divide once, at the end.",
        "last batch lost": "The last batch is missing. It is shorter than the others, "
        "and its prompts are served all the same.",
        "last batch filled": "The last batch was counted as if it were full. It has "
        "fewer rows, and nobody computes rows that are not there.",
        "mean of batches": "That is the mean of the batches' shares: a small batch "
        "counts as much as a huge one. What is paid for are cells: add them up first, "
        "divide once.",
        "one rectangle": "All were padded to the longest prompt of the whole stream. "
        "Each batch is as wide as its *own* longest.",
    },
    "pads_needed": {
        "question": "Three prompts of 2, 4 and 3 tokens are to become one rectangle. "
        "How many pads does it take?",
        "nudge": "All rows become as wide as the longest. What does each one lack?",
        "cells": "12 cells has the rectangle. Nine of them hold tokens.",
        "why": "The rectangle is 3 x 4 = 12 cells, and there are 9 tokens. The first "
        "prompt lacks 2, the third 1.",
    },
    "one_long_prompt": {
        "question": "A prompt of 100 tokens is batched with 7 prompts of one token "
        "each. How many pads does that make?",
        "nudge": "Each of the short rows becomes 100 wide. How many pads is that for "
        "one of them?",
        "without minus one": "Nearly: each short row has one token of its own, and "
        "lacks 99.",
        "all rows": "Eight rows there are, but the long one lacks nothing.",
        "why": "(100 - 1) x (8 - 1) = 693: each of the 7 short rows lacks 99.",
    },
    "conversations": {
        "question": "Real conversations, in the order in which they came, 8 prompts a "
        "batch: about how many percent of the rectangle are pads? Write `10`, `30` or "
        "`60`.",
        "nudge": "How often do eight people ask questions of nearly one length?",
        "too few": "That would take prompts of much the same length. Here the longest "
        "of eight is, on average, two and a half times as long as the mean.",
        "why": "60 %: more pads than prompts. The longest of eight sets the width.",
    },
}


# --- pad a batch ---


def pad_batch(prompts, pad_id, side):
    """Make a rectangle of prompts: lists of token ids, none empty.

    side is "left" (the pads stand before the prompt) or "right". The
    width is that of the longest prompt. Return ids and mask:
    pad_batch([[101, 102], [201, 202, 203, 204]], 0, "right") is
    ids    [[101, 102, 0, 0], [201, 202, 203, 204]]
    mask   [[True, True, False, False], [True, True, True, True]]
    The mask is True where a prompt's own token stands.
    """
    width = max(len(prompt) for prompt in prompts)
    ids, mask = [], []
    for prompt in prompts:
        pads = [pad_id] * (width - len(prompt))
        real, unreal = [True] * len(prompt), [False] * len(pads)
        ids.append(pads + prompt if side == "left" else prompt + pads)
        mask.append(unreal + real if side == "left" else real + unreal)
    return ids, mask


def pad_cases():
    return [
        ([[101, 102], [201, 202, 203, 204]], 0, "right"),
        ([[101, 102], [201, 202, 203, 204]], 0, "left"),
        ([[5, 2, 7], [8]], 2, "left"),  # the pad's id stands in a prompt
        ([[5], [6, 7, 2], [8, 9]], 2, "right"),
        ([[1, 4, 4], [1, 5, 6]], 0, "left"),
        ([[7]], 3, "right"),
    ]


def rectangle(prompts, pad_id, side, width):
    """Right, but as wide as if there were one more prompt, of that width."""
    ids, mask = pad_batch([*prompts, [pad_id] * width], pad_id, side)
    return ids[:-1], mask[:-1]


def padded_to(width):
    def pads_to_a_maximum(prompts, pad_id, side):
        return rectangle(prompts, pad_id, side, width)

    return pads_to_a_maximum


def pads_one_too_wide(prompts, pad_id, side):
    width = max(map(len, prompts)) + 1
    return rectangle(prompts, pad_id, side, width)


def masks_by_id(prompts, pad_id, side):
    ids, _ = pad_batch(prompts, pad_id, side)
    return ids, [[token != pad_id for token in row] for row in ids]


def pads_the_other_side(prompts, pad_id, side):
    return pad_batch(prompts, pad_id, "left" if side == "right" else "right")


def pads_left_always(prompts, pad_id, side):
    return pad_batch(prompts, pad_id, "left")


def pads_right_always(prompts, pad_id, side):
    return pad_batch(prompts, pad_id, "right")


def masks_right_always(prompts, pad_id, side):
    ids, _ = pad_batch(prompts, pad_id, side)
    return ids, pad_batch(prompts, pad_id, "right")[1]


def masks_left_always(prompts, pad_id, side):
    ids, _ = pad_batch(prompts, pad_id, side)
    return ids, pad_batch(prompts, pad_id, "left")[1]


def masks_the_other_side(prompts, pad_id, side):
    ids, _ = pad_batch(prompts, pad_id, side)
    return ids, pads_the_other_side(prompts, pad_id, side)[1]


def masks_the_pads(prompts, pad_id, side):
    ids, mask = pad_batch(prompts, pad_id, side)
    return ids, [[not real for real in row] for row in mask]


def draw_rectangle(arguments, answer):
    """Every row's ids, pads hatched, then every row's mask."""
    prompts, _, side = arguments
    ids, mask = answer
    label = WORDS["mask of"]
    return [
        *(row_of_ids(number, row, prompts, side) for number, row in enumerate(ids)),
        *(Row.of(label.format(letter=letter(n)), row) for n, row in enumerate(mask)),
    ]


def row_of_ids(number, ids, prompts, side):
    """Hatched is where a pad belongs, whatever stands there."""
    width, length = max(map(len, prompts)), len(prompts[number])
    first = width - length if side == "left" else 0
    states = ["prompt" if first <= c < first + length else "pad" for c in range(width)]
    states += ["pad"] * len(ids)  # too wide
    cells = [Cell(token, state) for token, state in zip(ids, states, strict=False)]
    return Row(WORDS["row"].format(letter=letter(number)), tuple(cells))


def given_prompt(arguments, number):
    prompts = arguments[0]
    return [Row.of(WORDS["prompt"], prompts[number % len(prompts)], "prompt")]


PAD_BATCH = Exercise(
    reference=pad_batch,
    words=WORDS["pad_batch"],
    cases=pad_cases,
    mistakes={
        "pads to a maximum": (
            pads_one_too_wide,
            *(padded_to(width) for width in (5, 6, 8, 10, 16, 32, 64, 128, 512)),
        ),
        "mask by id": (masks_by_id,),
        "wrong side": (pads_the_other_side, pads_left_always, pads_right_always),
        "side of the mask": (
            masks_the_other_side,
            masks_right_always,
            masks_left_always,
        ),
        "mask upside down": (masks_the_pads,),
    },
    minutes=8,
    draw=draw_rectangle,
    given=given_prompt,
)


# --- pad share ---


def pad_share(lengths):
    """Which share of one padded rectangle is pads, from 0 to 1.

    lengths are the tokens of its prompts. pad_share([2, 4]) is 0.25:
    the rectangle has 2 x 4 = 8 cells, and 2 of them are pads.
    """
    cells = len(lengths) * max(lengths)
    return (cells - sum(lengths)) / cells


def share_cases():
    lists = ([2, 4], [1, 4, 4], [5, 5, 5], [7], [100, 1, 1, 1], [3, 9, 6])
    return [(lengths,) for lengths in lists]


def pads_of(lengths):
    return len(lengths) * max(lengths) - sum(lengths)


def share_over_real(lengths):
    return pads_of(lengths) / sum(lengths)


def share_mean_of_rows(lengths):
    width = max(lengths)
    return sum((width - length) / length for length in lengths) / len(lengths)


def share_of_the_real(lengths):
    return sum(lengths) / (len(lengths) * max(lengths))


def share_in_percent(lengths):
    return 100 * pad_share(lengths)


PAD_SHARE = Exercise(
    reference=pad_share,
    words=WORDS["pad_share"],
    cases=share_cases,
    mistakes={
        "over real tokens": (share_over_real,),
        "mean of rows": (share_mean_of_rows,),
        "real share": (share_of_the_real,),
        "count": (pads_of,),
        "percent": (share_in_percent,),
    },
    minutes=3,
)


# --- * pad share of a stream ---


def pad_share_in_batches(lengths, size):
    """Which share is pads when a stream of prompts is served in batches.

    lengths are the tokens of the prompts, in the order they came.
    The first `size` of them form the first batch, and so on; the last
    batch may have fewer. Each is padded to its own longest prompt.
    pad_share_in_batches([2, 4, 3], 2) is 2 / 11: the rectangles have
    2 x 4 + 1 x 3 = 11 cells, and 2 of them are pads.
    """
    cells = 0
    for start in range(0, len(lengths), size):
        batch = lengths[start : start + size]
        cells += len(batch) * max(batch)
    return (cells - sum(lengths)) / cells


def stream_cases():
    return [
        ([2, 4, 6, 3], 2),
        ([2, 4, 3], 2),
        ([1, 9, 2, 2, 30, 10], 2),
        ([5, 1, 1, 8, 2, 1, 6], 3),
        ([4, 6], 8),
        ([7, 7, 7], 1),
    ]


def batches_of(lengths, size):
    return [lengths[i : i + size] for i in range(0, len(lengths), size)]


def stream_of(batches):
    cells = sum(len(batch) * max(batch) for batch in batches)
    return (cells - sum(map(sum, batches))) / cells if cells else 0


def stream_last_lost(lengths, size):
    full = [each for each in batches_of(lengths, size) if len(each) == size]
    return stream_of(full)


def stream_last_filled(lengths, size):
    cells = sum(size * max(batch) for batch in batches_of(lengths, size))
    return (cells - sum(lengths)) / cells


def stream_mean(lengths, size):
    shares = [pad_share(batch) for batch in batches_of(lengths, size)]
    return sum(shares) / len(shares)


def stream_one_rectangle(lengths, size):
    return pad_share(lengths)


PAD_SHARE_IN_BATCHES = Exercise(
    reference=pad_share_in_batches,
    words=WORDS["pad_share_in_batches"],
    cases=stream_cases,
    mistakes={
        "last batch lost": (stream_last_lost,),
        "last batch filled": (stream_last_filled,),
        "mean of batches": (stream_mean,),
        "one rectangle": (stream_one_rectangle,),
    },
    minutes=8,
    starred=True,
)


# --- questions before running ---

PADS_NEEDED = Guess("pads_needed", 3, WORDS["pads_needed"], wrong=[(12, "cells")])
ONE_LONG_PROMPT = Guess(
    "one_long_prompt",
    693,
    WORDS["one_long_prompt"],
    wrong=[(700, "without minus one"), (792, "all rows"), (800, "all rows")],
)
CONVERSATIONS = Guess(
    "conversations",
    60,
    WORDS["conversations"],
    wrong=[(10, "too few"), (30, "too few")],
)

LESSON = Lesson(
    "02",
    WORDS["title"],
    exercises=(PAD_BATCH, PAD_SHARE, PAD_SHARE_IN_BATCHES),
    guesses=(PADS_NEEDED, ONE_LONG_PROMPT, CONVERSATIONS),
)
