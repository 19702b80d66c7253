"""Lesson 03, Where am I? Positions: from the mask, at prefill and at decode."""

from __future__ import annotations

import math
from typing import Any

import torch

from ...pitfalls.comparison import letter
from ..exercises import Exercise, Guess, Lesson
from ..rows import Cell, Row

WORDS: dict[str, Any] = {
    "title": "Where am I? Positions",
    "row": "row {letter}",
    "mask": "mask",
    "step": "step {step}",
    "prefill_positions": {
        "title": "Positions of a prompt",
        "hint": "`mask.cumsum(dim=1)` counts, column by column, how many real tokens "
        "there have been so far. The first real token gets 1 from it. And the pads?",
        "index": "{row} is numbered by its columns. Its first token does not stand at "
        "0, but behind as many places as there are pads. Only a row without pads is "
        "right.",
        "no minus one": "{row} begins at 1. Positions count from 0: the model was "
        "trained to see 0 under the first token.",
        "minus one at pads": "The real tokens of {row} are right, but its pads stand "
        "at -1. With RoPE that does no harm; in a table of positions there is no "
        "place -1, and the model ends in an IndexError.",
        "one at pads": "The real tokens of {row} are right, and a 1 under pads is "
        "harmless: `generate` of transformers writes it too. This exercise asks for "
        "0, only so that there is one answer.",
        "counts pads": "{row} counts its pads and not its tokens.",
    },
    "decode_position": {
        "title": "Position of a new token",
        "hint": "A row with 3 real tokens has them at 0, 1, 2. Where does its first "
        "new one stand, and its second? The width of the rectangle plays no part.",
        "column": "{row} goes on from the width of the rectangle, pads counted. Under "
        "left padding that is the new token's *column*; under right padding the same "
        "slip is called *continued from the padded length*. Both leave a gap between "
        "prompt and answer as long as the row's padding.",
        "padded length": "{row} goes on behind the padded width, and one place too "
        "far at that. Count the row's own tokens only.",
        "repeats the last": "The first new token of {row} stands where the last token "
        "of its prompt stands: a place is used twice. 3 tokens are at 0, 1, 2, so the "
        "next is at 3.",
        "one too far": "{row} leaves a place empty. The first new token (step 1) "
        "stands at the number of the prompt's tokens: 3 tokens are at 0, 1, 2, the "
        "next at 3.",
        "stands still": "The first new token of {row} is right, and all that follow "
        "stand on the same place. Each step goes on by one.",
    },
    "rope_score": {
        "title": "Two hands of a clock",
        "hint": "Turning (x, y) by an angle a gives (x cos a - y sin a, x sin a + y "
        "cos a). Turn both hands, each by its *own* position, and multiply: x times x "
        "plus y times y.",
        "query only": "Only the query was turned. Then its own position counts, and "
        "not how far it is from the key.",
        "no turn": "That is the product of the two as they were: not turned at all, or "
        "both by one and the same angle. Each hand has a position of its own.",
        "against each other": "The two were turned in opposite directions: what is "
        "left is the *sum* of the positions. Turn both the same way, and their "
        "difference is left.",
        "degrees": "The positions were taken for degrees. They are angles in radians, "
        "as `math.cos` and `torch.cos` take them.",
    },
    "first_position": {
        "question": "A row reads `<pad> <pad> <pad> copy a`. At which position does "
        "`copy` stand?",
        "nudge": "Alone, without pads, where would it stand?",
        "column": "3 is its *column* in the rectangle. Its position is its place in "
        "its own text.",
        "from one": "It is the first, yes, and positions count from 0.",
        "why": "It is the first token of its text. The pads belong to the batch, not "
        "to the text.",
    },
    "wrong_rows": {
        "question": "Each token's column is taken for its position, on a model with a "
        "table of positions. Which rows get other logits than alone? Write a set of "
        'letters, such as `{"B"}`.',
        "nudge": "For which rows is a token's column its position all the same?",
        "everyone": "Two rows have no pads. Where is their first token, and what is "
        "its position?",
        "right ones": "These are the two that stay right: they have no pads, so the "
        "column is the position.",
        "longest": "Nearly. There are two longest rows, and neither of them has pads.",
        "why": "A and D have pads. B and C are the two longest: in their rows column "
        "and position are the same.",
    },
    "wrong_rows_rope": {
        "question": "The same mistake on a model with RoPE. Which rows get other "
        "logits than alone? (A set again; the empty set is `set()`.)",
        "nudge": "All tokens of a row move by the same number of places, the new ones "
        "too. What happens to the *differences*?",
        "as before": "That was the answer for a table, which looks up each place by "
        "its number. RoPE knows only how far two tokens are apart.",
        "why": "None. A padded row is shifted as a whole, and every distance in it "
        "stays what it was.",
    },
    "first_wrong_token": {
        "question": "The prompt has true positions, and decode takes the column. Which "
        "new token is the first that can be wrong? Write 1 for the first.",
        "nudge": "From which pass does the first new token come?",
        "the first": "The first new token comes out of the prefill, and there all was "
        "right.",
        "why": "The prefill, all right, makes token 1. It is *fed* in the first decode "
        "pass, at a wrong place, and out of that comes token 2.",
    },
    "strange_pad": {
        "question": "Somebody pads with an id that the vocabulary does not hold, and "
        'masks it everywhere. What happens: `"nothing"`, `"wrong answers"` or '
        '`"crash"`?',
        "nudge": "What is the very first thing that a model does with an id?",
        "nothing": "That is what the mask promises, later on. But before anybody "
        "looks at anybody, each id is looked up in the embedding.",
        "wrong answers": "It would be wrong without a sound if the id stood for some "
        "other token. This one stands for none at all.",
        "why": "The embedding is a table with a row for each id. The pad is looked up "
        "like every token, and its row is not there.",
    },
}


# --- positions of a prompt ---


def prefill_positions(mask):
    """Where each token of a padded batch stands in its own text.

    mask is bool [batch, width], True at real tokens, and this batch is
    padded on the left. The first real token of a row stands at 0, the
    next at 1. Pads get 0: nobody looks at them, but a model may want
    to look their position up, and -1 is in no table.
    [[False, False, True, True]] gives [[0, 0, 0, 1]].
    """
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def left_mask(*lengths):
    """Row r has lengths[r] real tokens at the right edge."""
    width = max(lengths)
    columns = torch.arange(width)
    return torch.stack([columns >= width - length for length in lengths])


def right_mask(*lengths):
    return left_mask(*lengths).flip(1)


def prefill_cases():
    return [
        (left_mask(4, 2),),
        (left_mask(3, 5, 1),),
        (left_mask(3, 3),),
        (left_mask(1, 6, 2, 4),),
    ]


def columns_of(mask):
    return torch.arange(mask.shape[1]).expand(mask.shape)


def positions_by_index(mask):
    return columns_of(mask)


def positions_by_index_at_real(mask):
    return columns_of(mask) * mask


def positions_from_one(mask):
    return mask.cumsum(dim=1)


def positions_from_one_at_real(mask):
    return mask.cumsum(dim=1) * mask


def positions_minus_one(mask):
    return mask.cumsum(dim=1) - 1


def positions_one_at_pads(mask):
    return (mask.cumsum(dim=1) - 1).masked_fill(~mask, 1)


def positions_of_pads(mask):
    return (~mask).cumsum(dim=1)


def draw_positions(arguments, answer):
    """A row's positions, those of its pads hatched."""
    mask = arguments[0].tolist()
    return [
        Row(
            WORDS["row"].format(letter=letter(number)),
            tuple(
                Cell(position, "prompt" if real else "pad")
                for position, real in zip(row, mask[number], strict=True)
            ),
        )
        for number, row in enumerate(answer)
    ]


def given_mask(arguments, number):
    row = arguments[0].tolist()[number]
    cells = tuple(Cell(real, "prompt" if real else "pad") for real in row)
    return [Row(WORDS["mask"], cells)]


PREFILL_POSITIONS = Exercise(
    reference=prefill_positions,
    words=WORDS["prefill_positions"],
    cases=prefill_cases,
    mistakes={
        "index": (positions_by_index, positions_by_index_at_real),
        "no minus one": (positions_from_one, positions_from_one_at_real),
        "minus one at pads": (positions_minus_one,),
        "one at pads": (positions_one_at_pads,),
        "counts pads": (positions_of_pads,),
    },
    minutes=5,
    draw=draw_positions,
    given=given_mask,
)


# --- position of a new token ---


def decode_position(mask, step):
    """Where each row's new token stands in its own text, at this step.

    mask is the prompt's, bool [batch, width], padded on either side.
    Step 1 feeds each row its first new token, step 2 its second.
    Return one position for each row: with the mask
    [[False, False, True, True], [True, True, True, True]]
    step 1 gives [2, 4].
    """
    return mask.sum(dim=1) + step - 1


def decode_cases():
    return [
        (left_mask(2, 4), 1),
        (left_mask(2, 4), 2),
        (right_mask(3, 1, 5), 1),
        (right_mask(3, 1, 5), 4),
        (left_mask(3, 3), 3),
    ]


def by_width(more):
    def goes_on_from_the_width(mask, step):
        return [mask.shape[1] + more(step)] * len(mask)

    return goes_on_from_the_width


def by_length(more):
    def goes_on_from_the_length(mask, step):
        return mask.sum(dim=1) + more(step)

    return goes_on_from_the_length


def draw_new_positions(arguments, answer):
    return [
        Row(WORDS["row"].format(letter=letter(n)), (Cell(position, "generated"),))
        for n, position in enumerate(answer)
    ]


def given_mask_and_step(arguments, number):
    step = Cell(WORDS["step"].format(step=arguments[1]))
    (row,) = given_mask(arguments, number)
    return [Row(row.label, (*row.cells, step))]


DECODE_POSITION = Exercise(
    reference=decode_position,
    words=WORDS["decode_position"],
    cases=decode_cases,
    mistakes={
        "column": (by_width(lambda step: step - 1), by_width(lambda step: 0)),
        "padded length": (by_width(lambda step: step),),
        "repeats the last": (
            by_length(lambda step: step - 2),
            by_length(lambda step: -1),
        ),
        "one too far": (by_length(lambda step: step),),
        "stands still": (by_length(lambda step: 0),),
    },
    minutes=5,
    draw=draw_new_positions,
    given=given_mask_and_step,
)


# --- * two hands of a clock ---


def rope_score(query, key, query_position, key_position):
    """How much a query likes a key, under RoPE, in two dimensions.

    query and key are pairs of numbers (x, y): hands of a clock. Turn
    each by its own position, as an angle in radians, counterclockwise.
    Return their product then: x times x plus y times y, a number.
    """
    from math import cos, sin

    turned = []
    for (x, y), angle in ((query, query_position), (key, key_position)):
        turned.append(
            (x * cos(angle) - y * sin(angle), x * sin(angle) + y * cos(angle))
        )
    (qx, qy), (kx, ky) = turned
    return qx * kx + qy * ky


def rope_cases():
    return [
        ((1.0, 0.0), (1.0, 0.0), 1, 0),
        ((1.0, 2.0), (3.0, -1.0), 5, 2),
        ((1.0, 2.0), (3.0, -1.0), 25, 22),
        ((0.5, -1.0), (2.0, 2.0), 3, 3),
        ((2.0, 1.0), (1.0, 1.0), 4, 6),
    ]


def scored(query, key, query_angle, key_angle):
    return rope_score(query, key, query_angle, key_angle)


def turns_query_only(query, key, query_position, key_position):
    return scored(query, key, query_position, 0)


def turns_nothing(query, key, query_position, key_position):
    return scored(query, key, 0, 0)


def turns_against(query, key, query_position, key_position):
    return scored(query, key, query_position, -key_position)


def turns_by_difference_the_other_way(query, key, query_position, key_position):
    return scored(query, key, -query_position, key_position)


def turns_in_degrees(query, key, query_position, key_position):
    return scored(query, key, math.radians(query_position), math.radians(key_position))


ROPE_SCORE = Exercise(
    reference=rope_score,
    words=WORDS["rope_score"],
    cases=rope_cases,
    mistakes={
        "query only": (turns_query_only,),
        "no turn": (turns_nothing,),
        "against each other": (turns_against, turns_by_difference_the_other_way),
        "degrees": (turns_in_degrees,),
    },
    minutes=10,
    starred=True,
)


# --- questions before running ---

FIRST_POSITION = Guess(
    "first_position",
    0,
    WORDS["first_position"],
    wrong=[(3, "column"), (1, "from one")],
)
WRONG_ROWS = Guess(
    "wrong_rows",
    {"A", "D"},
    WORDS["wrong_rows"],
    wrong=[
        ({"A", "B", "C", "D"}, "everyone"),
        ({"B", "C"}, "right ones"),
        ({"A", "C", "D"}, "longest"),
        ({"A", "B", "D"}, "longest"),
    ],
)
WRONG_ROWS_ROPE = Guess(
    "wrong_rows_rope",
    set(),
    WORDS["wrong_rows_rope"],
    wrong=[({"A", "D"}, "as before")],
)
FIRST_WRONG_TOKEN = Guess(
    "first_wrong_token",
    2,
    WORDS["first_wrong_token"],
    wrong=[(1, "the first")],
)
STRANGE_PAD = Guess(
    "strange_pad",
    "crash",
    WORDS["strange_pad"],
    wrong=[("nothing", "nothing"), ("wrong answers", "wrong answers")],
)

LESSON = Lesson(
    "03",
    WORDS["title"],
    exercises=(PREFILL_POSITIONS, DECODE_POSITION, ROPE_SCORE),
    guesses=(
        FIRST_POSITION,
        WRONG_ROWS,
        WRONG_ROWS_ROPE,
        FIRST_WRONG_TOKEN,
        STRANGE_PAD,
    ),
)
