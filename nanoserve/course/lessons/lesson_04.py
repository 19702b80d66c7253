"""Lesson 04, Who sees whom? Masks: causal and real, read at the end, grown."""

from __future__ import annotations

from typing import Any

import torch

from ...pitfalls.comparison import letter
from ..exercises import Exercise, Guess, Lesson
from ..rows import Cell, Row
from .lesson_03 import left_mask, right_mask

WORDS: dict[str, Any] = {
    "title": "Who sees whom? Masks",
    "row": "row {letter}",
    "query": "row {letter}, query {number}",
    "mask": "mask",
    "keep_mask": {
        "title": "Causal and real",
        "hint": "`torch.ones(width, width, dtype=torch.bool).tril()` is the causal "
        "part: row q is True up to column q. `mask[:, None, :]` says of each *key* "
        "whether it is real, for all queries at once. `&` joins two conditions, `|` "
        "adds who may be seen besides; `torch.eye` is everyone's own place.",
        "causal only": "{row} sees pads: only the future is hidden. A pad holds some "
        "vector too, and the softmax gives it a share of the attention.",
        "transposed": "In {row} the mask lies across: it hides what pads *ask*, and "
        "leaves the pads to be *seen*. Keys are the last dimension: "
        "`mask[:, None, :]`.",
        "masks pad queries": "{row} is a pad, and it sees nobody at all. Nobody reads "
        "its answer, but a softmax over nothing is 0 / 0 (lesson 00). Let everyone see "
        "itself.",
        "padding only": "{row} sees the future: only the pads are hidden. A token "
        "would be asked to predict what it has already seen.",
        "looks ahead": "{row} sees its future and not its past. `tril` keeps the lower "
        "left, `triu` the upper right.",
        "hides itself": "{row} does not see itself. A token may look at itself, and at "
        "all before it.",
        "upside down": "In {row} True and False have changed places. True says *may "
        "see*.",
    },
    "last_real_token": {
        "title": "The last real token",
        "hint": "For each row, the largest column at which the mask is True. "
        "`torch.where(mask, columns, -1)` writes a column's number where the mask is "
        "True and -1 elsewhere; the largest of a row is `amax(dim=1)`.",
        "last column": "{row} is read in the last column. Under right padding a pad "
        "stands there, and what comes out is the model's guess at what follows a pad.",
        "sum - 1": "{row} is what `sum - 1` gives under left padding: it counts from "
        "the left edge, where the pads are. The sum is the place of the last token "
        "only if the row begins at column 0.",
        "sum": "{row} is one column too far: the tokens of a row of 3 stand at 0, 1, "
        "2.",
        "first": "{row} is where the prompt begins. The answer is read where it ends.",
        "from the right": "{row} counts from the right edge. What is asked is the "
        "column, counted from the left.",
    },
    "grow_mask": {
        "title": "Grow it",
        "hint": "Each new token of a row is real, and takes a column of its own at the "
        "right edge, under either padding side. `torch.ones(rows, step, "
        "dtype=torch.bool)` is what has to be joined on; `torch.cat([a, b], dim=1)` "
        "joins.",
        "not grown": "The mask is as wide as the prompt still. The new tokens have "
        "columns too, and a mask without them hides them from all that follow.",
        "zeros": "The new columns of {row} are there, and hidden: the row does not "
        "see what it has said itself.",
        "first row only": "{row} does not see its own new tokens. *Every* row gets a "
        "True column a step.",
        "one column": "There is one new column. At step 3 there are three.",
        "in front": "The new columns of {row} were put before the prompt. New tokens "
        "go to the right edge, whatever the padding side.",
    },
    "keys_seen": {
        "question": "A row has 4 pads on the left and then 3 tokens. How many keys may "
        "its *second* token see?",
        "nudge": "It sees no pad and nothing that comes after it.",
        "causal only": "6 is what stands up to there, pads counted.",
        "real only": "3 tokens are real. One of them comes later.",
        "not itself": "It may see the first token, and one more: itself.",
        "why": "The first token, and itself. The pads are hidden, and so is the third "
        "token, which comes after it.",
    },
    "dropped_rows": {
        "question": "The padding part of the mask is dropped, the causal part stays. "
        "Which rows get other logits than alone? Write a set of letters.",
        "nudge": "Which row has nothing that the missing part would have hidden?",
        "everyone": "One row has no pads. What could it see too much of?",
        "why": "A and C have pads, and now see them. B has none: for it nothing has "
        "changed.",
    },
    "column_read": {
        "question": "A left-padded row has the mask `F F F T T`. In which column does "
        "`mask.sum() - 1` read the answer? Columns count from 0.",
        "nudge": "How many `T` are there? One less than that.",
        "right one": "4 is where its last token stands, and where one should read. "
        "What does the formula give?",
        "no minus one": "2 is the sum. One less.",
        "why": "The sum is 2, so it reads column 1: a pad.",
    },
    "forgetful_rows": {
        "question": "At decode somebody uses the prompt's mask as it was, and counts "
        "all that lies beyond it as hidden. Which rows go wrong? Write a set.",
        "nudge": "Hidden is what the row has said itself. Does that depend on pads?",
        "padded": "That would be so if pads were the trouble. Here each row's *new* "
        "tokens are hidden.",
        "why": "All of them, the longest too: no row sees what it has said.",
    },
    "future_weight": {
        "question": "A mask of True and False is *added* to the scores: True adds 1, "
        "False adds 0. All scores were equal. The weight of a key that should be "
        'hidden is then `"zero"`, `"smaller"` or `"equal"`?',
        "nudge": "Softmax: exp(score + 1) for those kept, exp(score + 0) for those "
        "hidden. What is their ratio?",
        "zero": "Only minus infinity, or something close to it, makes a weight of 0. "
        "Adding 0 takes nothing away.",
        "equal": "Not quite: those who are kept got 1 more.",
        "why": "It is smaller by a factor of e, about 2.7, and far from 0: everyone "
        "sees everyone, future and pads, and no error tells.",
    },
    "lost_tokens": {
        "question": "`<eos>` serves as the pad, and somebody builds the mask from the "
        "ids: real is what is not the pad. How many of *its own* tokens are lost to "
        "the chat prompt `copy a b <answer> a b <eos> repeat x 5 times`?",
        "nudge": "Which of its own tokens has the pad's id?",
        "none": "It has no pads of its own in it, true. But an earlier turn ended with "
        "a token that looks like one.",
        "why": "One: the `<eos>` that ended the first turn. It is hidden, and all that "
        "follows moves up by one position.",
    },
}


# --- causal and real ---


def keep_mask(mask):
    """Who may see whom in a padded prompt: bool [batch, query, key].

    mask is bool [batch, width], True at real tokens, padded on the
    left. A query may see a key if the key is real and does not come
    after it. And everyone may see itself, pads too.
    [[False, True, True]] gives
    [[[True, False, False], [False, True, False], [False, True, True]]].
    """
    width = mask.shape[1]
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    itself = torch.eye(width, dtype=torch.bool)
    return (causal & mask[:, None, :]) | itself


def keep_cases():
    return [
        (left_mask(3, 2),),
        (left_mask(3),),
        (left_mask(1, 4, 2),),
        (left_mask(2, 5),),
    ]


def causal_of(mask):
    width = mask.shape[1]
    return torch.ones(width, width, dtype=torch.bool).tril()


def itself_of(mask):
    return torch.eye(mask.shape[1], dtype=torch.bool)


def keeps_causal_only(mask):
    return causal_of(mask).expand(len(mask), -1, -1)


def keeps_transposed(mask):
    return (causal_of(mask) & mask[:, :, None]) | itself_of(mask)


def keeps_transposed_unguarded(mask):
    return causal_of(mask) & mask[:, :, None]


def keeps_nothing_for_pads(mask):
    return causal_of(mask) & mask[:, None, :]


def keeps_padding_only(mask):
    return mask[:, None, :] | itself_of(mask)


def keeps_real_keys_only(mask):
    return mask[:, None, :].expand(-1, mask.shape[1], -1)


def keeps_the_future(mask):
    return (causal_of(mask).T & mask[:, None, :]) | itself_of(mask)


def keeps_no_self(mask):
    return (causal_of(mask) & ~itself_of(mask)) & mask[:, None, :]


def keeps_upside_down(mask):
    return ~keep_mask(mask)


def draw_queries(arguments, answer):
    """One row for each query: who is seen."""
    return [
        Row(
            WORDS["query"].format(letter=letter(number), number=query),
            tuple(Cell(sees, "prompt" if sees else "") for sees in row),
        )
        for number, square in enumerate(answer)
        for query, row in enumerate(square)
    ]


def given_keys(arguments, number):
    """The row's mask, pads hatched: these are the keys."""
    mask = arguments[0].tolist()
    return [mask_row(WORDS["mask"], mask[number // len(mask[0])])]


def mask_row(label, row):
    return Row(label, tuple(Cell(real, "prompt" if real else "pad") for real in row))


KEEP_MASK = Exercise(
    reference=keep_mask,
    words=WORDS["keep_mask"],
    cases=keep_cases,
    mistakes={
        "causal only": (keeps_causal_only,),
        "transposed": (keeps_transposed, keeps_transposed_unguarded),
        "masks pad queries": (keeps_nothing_for_pads,),
        "padding only": (keeps_real_keys_only, keeps_padding_only),
        "looks ahead": (keeps_the_future,),
        "hides itself": (keeps_no_self,),
        "upside down": (keeps_upside_down,),
    },
    minutes=8,
    draw=draw_queries,
    given=given_keys,
)


# --- the last real token ---


def last_real_token(mask):
    """The column of each row's last real token, for either padding side.

    mask is bool [batch, width]. There the prompt's logits are read,
    and the first new token is chosen from them.
    [[False, True, True], [True, True, True]] gives [2, 2], and
    [[True, True, False], [True, True, True]] gives [1, 2].
    """
    columns = torch.arange(mask.shape[1])
    return torch.where(mask, columns, -1).amax(dim=1)


def last_cases():
    return [
        (right_mask(2, 3),),
        (left_mask(2, 3),),
        (left_mask(5, 1, 3),),
        (right_mask(1, 4, 2),),
        (left_mask(2, 2),),
    ]


def reads_last_column(mask):
    return [mask.shape[1] - 1] * len(mask)


def reads_minus_one(mask):
    return [-1] * len(mask)


def reads_sum_minus_one(mask):
    return mask.sum(dim=1) - 1


def reads_sum(mask):
    return mask.sum(dim=1)


def reads_first(mask):
    return mask.int().argmax(dim=1)


def reads_from_the_right(mask):
    return mask.flip(1).int().argmax(dim=1)


def draw_columns(arguments, answer):
    return [
        Row(WORDS["row"].format(letter=letter(number)), (Cell(column),))
        for number, column in enumerate(answer)
    ]


def given_mask(arguments, number):
    return [mask_row(WORDS["mask"], arguments[0].tolist()[number])]


LAST_REAL_TOKEN = Exercise(
    reference=last_real_token,
    words=WORDS["last_real_token"],
    cases=last_cases,
    mistakes={
        "last column": (reads_last_column, reads_minus_one),
        "sum - 1": (reads_sum_minus_one,),
        "sum": (reads_sum,),
        "first": (reads_first,),
        "from the right": (reads_from_the_right,),
    },
    minutes=5,
    draw=draw_columns,
    given=given_mask,
)


# --- * grow it ---


def grow_mask(mask, step):
    """Which columns a row's newest token may see at this decode step.

    mask is the prompt's, bool [batch, width], padded on either side.
    At step 1 each row feeds its first new token, at step 2 its second;
    each takes a new column at the right edge, and is real.
    Return bool [batch, width + step]: with [[False, True]] step 2
    gives [[False, True, True, True]].
    """
    new = torch.ones(len(mask), step, dtype=torch.bool)
    return torch.cat([mask, new], dim=1)


def grow_cases():
    return [
        (left_mask(2, 3), 1),
        (left_mask(2, 3), 3),
        (right_mask(1, 3, 2), 2),
        (left_mask(4), 4),
    ]


def grows_not(mask, step):
    return mask


def grows_zeros(mask, step):
    return torch.cat([mask, torch.zeros(len(mask), step, dtype=torch.bool)], dim=1)


def grows_first_row_only(mask, step):
    new = torch.zeros(len(mask), step, dtype=torch.bool)
    new[0] = True
    return torch.cat([mask, new], dim=1)


def grows_by_one(mask, step):
    return grow_mask(mask, 1)


def grows_in_front(mask, step):
    return torch.cat([torch.ones(len(mask), step, dtype=torch.bool), mask], dim=1)


def draw_masks(arguments, answer):
    """The new columns pale."""
    width = arguments[0].shape[1]
    return [
        Row(
            WORDS["row"].format(letter=letter(number)),
            tuple(
                Cell(sees, "generated" if column >= width else "")
                for column, sees in enumerate(row)
            ),
        )
        for number, row in enumerate(answer)
    ]


GROW_MASK = Exercise(
    reference=grow_mask,
    words=WORDS["grow_mask"],
    cases=grow_cases,
    mistakes={
        "not grown": (grows_not,),
        "zeros": (grows_zeros,),
        "first row only": (grows_first_row_only,),
        "one column": (grows_by_one,),
        "in front": (grows_in_front,),
    },
    minutes=5,
    starred=True,
    draw=draw_masks,
    given=given_mask,
)


# --- questions before running ---

KEYS_SEEN = Guess(
    "keys_seen",
    2,
    WORDS["keys_seen"],
    wrong=[(6, "causal only"), (3, "real only"), (1, "not itself")],
)
DROPPED_ROWS = Guess(
    "dropped_rows",
    {"A", "C"},
    WORDS["dropped_rows"],
    wrong=[({"A", "B", "C"}, "everyone")],
)
COLUMN_READ = Guess(
    "column_read",
    1,
    WORDS["column_read"],
    wrong=[(4, "right one"), (2, "no minus one")],
)
FORGETFUL_ROWS = Guess(
    "forgetful_rows",
    {"A", "B", "C"},
    WORDS["forgetful_rows"],
    wrong=[({"A"}, "padded"), ({"A", "C"}, "padded")],
)
FUTURE_WEIGHT = Guess(
    "future_weight",
    "smaller",
    WORDS["future_weight"],
    wrong=[("zero", "zero"), ("equal", "equal")],
)
LOST_TOKENS = Guess("lost_tokens", 1, WORDS["lost_tokens"], wrong=[(0, "none")])

LESSON = Lesson(
    "04",
    WORDS["title"],
    exercises=(KEEP_MASK, LAST_REAL_TOKEN, GROW_MASK),
    guesses=(
        KEYS_SEEN,
        DROPPED_ROWS,
        COLUMN_READ,
        FORGETFUL_ROWS,
        FUTURE_WEIGHT,
        LOST_TOKENS,
    ),
)
