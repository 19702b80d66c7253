"""Lesson 07, Static batching: new tokens, passes to come, and rows that leave."""

from __future__ import annotations

from typing import Any

import torch

from ...pitfalls.comparison import letter
from .. import values
from ..exercises import Exercise, Guess, Lesson
from ..rows import Cell, Row

WORDS: dict[str, Any] = {
    "title": "Static batching",
    "goes on": "goes on",
    "ended": "ended",
    "gets": "gets {token}",
    "before": "before",
    "row": "row",
    "apply_new_tokens": {
        "title": "Apply the new tokens",
        "hint": "Go through the rows one by one. Skip a row that has finished. Give "
        "any other row its token, and then look at that *one* token: is it `eos`?",
        "appends to finished": "{row} had ended, and it still gets a token. The model "
        "computes a row for it in every pass of a static batch, but what comes out "
        "belongs to nobody: an answer would go on after its end.",
        "eos in the prompt": "{row} ends because an `eos` stands somewhere in it. "
        "Here it stands in the prompt, after an earlier turn, as in every chat. Only "
        "the new token may end a row.",
        "one stop ends all": "{row} was sent home because another row got `eos`. Each "
        "row ends by its own token; the *batch* goes on until the last has.",
        "wakes the finished": "{row} had ended before, and now it goes on: `finished` "
        "was worked out from the new tokens alone. Who has ended stays ended.",
        "drops the eos": "The `eos` of {row} is lost. It is a token like any other: a "
        "pass was run for it. (It belongs to the row and not to the text that is "
        "shown.)",
    },
    "passes_to_come": {
        "title": "Passes to come",
        "hint": "In each pass *all* rows get a token, side by side. Which row is the "
        "last to need one?",
        "sum": "That is all tokens added up: the passes of one request after the "
        "other. In a batch one pass gives a token to every row.",
        "one more": "One too many. The prefill is no extra pass: it makes the first "
        "token, so an answer of n tokens takes n passes.",
        "mean": "That is the average. The batch cannot stop at the average row: it "
        "runs until its *last* row has ended, and the others wait in their seats.",
    },
    "drop_rows": {
        "title": "Drop the finished rows",
        "hint": "Make one list of the numbers of the rows that stay, and use it for "
        "both. A tensor can be indexed with a list: `keys[[0, 2]]` is its rows 0 and "
        "2.",
        "cache not moved": "{row} has its new name, but `keys` did not move with it: "
        "the request would read the K and V of another. No error would tell; the "
        "answer is just wrong.",
        "renumbered": "{row} has the right keys under a wrong name. The row's "
        "*number* changes when it moves up; the name stays with the request, or its "
        "tokens are sent to somebody else.",
        "keeps the finished": "{row} is one that has ended. Those who have *not* "
        "finished stay.",
    },
    "three_requests": {
        "question": "A will make 3 tokens, B 5 and C 2, in one static batch. How many "
        "passes does it take?",
        "nudge": "Each pass gives every row that still runs one token. When does the "
        "last row end?",
        "sum": "10 is the number of tokens. One pass can make three of them.",
        "one more": "6 would count the prefill as a pass that makes no token. It "
        "makes the first.",
        "why": "B needs 5 tokens, one a pass, and the batch ends with its last row.",
    },
    "who_holds_a_seat": {
        "question": "In pass 4 of that batch, who holds a seat and needs it no more? "
        'Write a set, such as `{"B"}`.',
        "nudge": "A makes its tokens in passes 1 to 3, C in passes 1 and 2.",
        "only C": "C it is, but not alone: A made its third and last token in pass 3.",
        "B": "B is the one that still works. Who has made all its tokens by then?",
        "nobody": "That would be so if a row left its seat when it ends. In a static "
        "batch nobody does, until all have.",
        "why": "A ended in pass 3 and C in pass 2. Both keep their seats, and their K "
        "and V, until B ends in pass 5.",
    },
    "eos_in_a_prompt": {
        "question": "The prompt of a chat holds an `<eos>`, at the end of an earlier "
        "turn. Has its row finished before it began? Write `True` or `False`.",
        "nudge": "Think of the second message that you send in any chat.",
        "why": "Only a *new* token ends a row. Otherwise no chat would get to its "
        "second answer.",
    },
    "keys_of_row_1": {
        "question": "The rows are A, B, C, in this order. B has ended, and its row is "
        "dropped. Whose K and V must row 1 hold now?",
        "nudge": "Who sits in row 1 when B has gone and the others have moved up?",
        "B": "B's are what lies there if nobody moves anything: then C reads the text "
        "of a stranger.",
        "why": "C has moved up into row 1, and its K and V must move with it.",
    },
}


# --- apply the new tokens ---


def apply_new_tokens(rows, finished, new_tokens, eos):
    """Give each row that has not finished its new token.

    rows        the tokens of each row, prompt first: [[5, 6], [7, 2]]
    finished    who ended in an earlier pass:         [False, True]
    new_tokens  what the model says in this pass:     [3, 4]
    eos         the token that ends an answer:        2
    Return rows and finished as they are after this pass:
    [[5, 6, 3], [7, 2]], [False, True]
    """
    for row, token in enumerate(new_tokens):
        if not finished[row]:
            rows[row].append(token)
            finished[row] = token == eos
    return rows, finished


EOS = 2  # the canary's, too


def apply_cases():
    return [
        ([[5, 6], [7, 8]], [False, False], [11, 12], EOS),
        ([[5, 6], [7, EOS]], [False, True], [11, 12], EOS),
        ([[5, 6], [7, 8], [9]], [False, False, False], [11, EOS, 13], EOS),
        ([[5, EOS, 6], [7, 8]], [False, False], [11, 12], EOS),
        ([[5, 6, EOS], [7, 8]], [True, False], [EOS, EOS], EOS),
        ([[5, EOS], [7, 8]], [False, False], [1, EOS], 1),
    ]


def appends_to_finished(rows, finished, new_tokens, eos):
    for row, token in enumerate(new_tokens):
        rows[row].append(token)
        finished[row] = finished[row] or token == eos
    return rows, finished


def stops_at_any_eos(rows, finished, new_tokens, eos):
    for row, token in enumerate(new_tokens):
        if not finished[row]:
            rows[row].append(token)
            finished[row] = eos in rows[row]
    return rows, finished


def stops_all(rows, finished, new_tokens, eos):
    for row, token in enumerate(new_tokens):
        if not finished[row]:
            rows[row].append(token)
    return rows, [done or eos in new_tokens for done in finished]


def stops_all_who_live(rows, finished, new_tokens, eos):
    """As before, but a finished row's own token is not looked at."""
    pairs = zip(finished, new_tokens, strict=True)
    stop = any(token == eos for done, token in pairs if not done)
    for row, token in enumerate(new_tokens):
        if not finished[row]:
            rows[row].append(token)
    return rows, [done or stop for done in finished]


def wakes_the_finished(rows, finished, new_tokens, eos):
    for row, token in enumerate(new_tokens):
        if not finished[row]:
            rows[row].append(token)
    return rows, [token == eos for token in new_tokens]


def wakes_and_appends(rows, finished, new_tokens, eos):
    for row, token in enumerate(new_tokens):
        rows[row].append(token)
    return rows, [token == eos for token in new_tokens]


def drops_the_eos(rows, finished, new_tokens, eos):
    for row, token in enumerate(new_tokens):
        if token == eos:
            finished[row] = True
        if not finished[row]:
            rows[row].append(token)
    return rows, finished


def draw_rows(arguments, answer):
    """One row a sequence: has it ended, then its tokens, the new one pale."""
    before = arguments[0]
    rows, finished = answer
    pairs = enumerate(zip(rows, finished, strict=True))
    return [
        row_of_tokens(f"{WORDS['row']} {letter(n)}", tokens, done, len(before[n]))
        for n, (tokens, done) in pairs
    ]


def row_of_tokens(label, tokens, done, known):
    state = Cell(WORDS["ended" if done else "goes on"], "finished" if done else "")
    cells = [
        Cell(token, "prompt" if column < known else "generated")
        for column, token in enumerate(tokens)
    ]
    return Row(label, (state, *cells))


def given_rows(arguments, number):
    rows, finished, new_tokens, _ = arguments
    tokens = rows[number]
    known = row_of_tokens(WORDS["before"], tokens, finished[number], len(tokens))
    new = Cell(WORDS["gets"].format(token=new_tokens[number]), "generated")
    return [Row(known.label, (*known.cells, new))]


APPLY_NEW_TOKENS = Exercise(
    reference=apply_new_tokens,
    words=WORDS["apply_new_tokens"],
    cases=apply_cases,
    mistakes={
        "appends to finished": (appends_to_finished,),
        "eos in the prompt": (stops_at_any_eos,),
        "one stop ends all": (stops_all, stops_all_who_live),
        "wakes the finished": (wakes_the_finished, wakes_and_appends),
        "drops the eos": (drops_the_eos,),
    },
    minutes=8,
    inputs="free",  # the engine writes into its rows too
    draw=draw_rows,
    given=given_rows,
)


# --- passes to come ---


def passes_to_come(tokens_to_make):
    """How many passes a static batch runs until its last row has ended.

    tokens_to_make[i] is how many tokens row i is going to make. Every
    pass gives each row that still runs one token; the prefill is the
    first pass, and makes the first token. passes_to_come([4]) is 4.
    """
    return max(tokens_to_make)


def passes_cases():
    lists = ([3, 5, 2], [4, 4], [10, 500, 50], [7], [1, 1, 1], [0, 3])
    return [(tokens,) for tokens in lists]


def passes_one_more(tokens_to_make):
    return max(tokens_to_make) + 1


def passes_mean(tokens_to_make):
    return sum(tokens_to_make) / len(tokens_to_make)


def passes_mean_floor(tokens_to_make):
    return sum(tokens_to_make) // len(tokens_to_make)


def passes_mean_ceiling(tokens_to_make):
    return -(-sum(tokens_to_make) // len(tokens_to_make))


def passes_mean_rounded(tokens_to_make):
    return round(passes_mean(tokens_to_make))


PASSES_TO_COME = Exercise(
    reference=passes_to_come,
    words=WORDS["passes_to_come"],
    cases=passes_cases,
    mistakes={
        "sum": (sum,),
        "one more": (passes_one_more,),
        "mean": (
            passes_mean,
            passes_mean_floor,
            passes_mean_ceiling,
            passes_mean_rounded,
        ),
    },
    minutes=3,
)


# --- * drop the finished rows ---


def drop_rows(names, finished, keys):
    """Take the finished rows out of the batch; the others move up.

    names     whose row it is, such as ["A", "B", "C"]
    finished  who has ended, such as   [False, True, False]
    keys      tensor [rows, tokens]: row 0 holds what A has written,
              row 1 what B has. A number stands for a whole K and V.
    Return the names and the keys of those who stay, in their order.
    """
    stay = [row for row, done in enumerate(finished) if not done]
    return [names[row] for row in stay], keys[stay]


def drop_cases():
    return [
        (list("ABC"), [False, True, False], keys_of(3)),
        (list("ABCD"), [True, True, False, False], keys_of(4)),
        (list("ABC"), [False, False, True], keys_of(3)),
        (["E", "B"], [False, False], keys_of(2)),
        (["D", "B", "F"], [True, False, True], keys_of(3)),
    ]


def keys_of(rows):
    """Row 0 is [11, 12, 13], row 1 is [21, 22, 23]: a key tells where it was."""
    return torch.tensor(
        [[10 * n + 1, 10 * n + 2, 10 * n + 3] for n in range(1, rows + 1)]
    )


def staying(finished):
    return [number for number, done in enumerate(finished) if not done]


def drops_names_only(names, finished, keys):
    stay = staying(finished)
    return [names[number] for number in stay], keys[: len(stay)]


def drops_no_keys(names, finished, keys):
    return [names[number] for number in staying(finished)], keys


def renumbers(names, finished, keys):
    stay = staying(finished)
    return names[: len(stay)], keys[stay]


def renumbers_from_zero(names, finished, keys):
    stay = staying(finished)
    return list(range(len(stay))), keys[stay]


def keeps_the_finished(names, finished, keys):
    stay = [number for number, done in enumerate(finished) if done]
    return [names[number] for number in stay], keys[stay]


def draw_batch(arguments, answer):
    """One row a request: its name, then its keys."""
    names, keys = answer
    most = max(len(names), len(keys))
    blank = [""] * most
    pairs = zip([*names, *blank][:most], [*keys, *blank][:most], strict=True)
    return [
        Row(f"{WORDS['row']} {number}", (Cell(name), *(Cell(key) for key in row_keys)))
        for number, (name, row_keys) in enumerate(pairs)
    ]


def given_batch(arguments, number):
    """All rows, since they move; who has ended is crossed."""
    names, finished, keys = arguments
    rows = zip(names, finished, values.plain(keys), strict=True)
    return [
        Row.of(f"{WORDS['before']} {n}", [name, *row_keys], "finished" if done else "")
        for n, (name, done, row_keys) in enumerate(rows)
    ]


DROP_ROWS = Exercise(
    reference=drop_rows,
    words=WORDS["drop_rows"],
    cases=drop_cases,
    mistakes={
        "cache not moved": (drops_names_only, drops_no_keys),
        "renumbered": (renumbers, renumbers_from_zero),
        "keeps the finished": (keeps_the_finished,),
    },
    minutes=8,
    starred=True,
    draw=draw_batch,
    given=given_batch,
)


# --- questions before running ---

THREE_REQUESTS = Guess(
    "three_requests",
    5,
    WORDS["three_requests"],
    wrong=[(10, "sum"), (6, "one more")],
)
WHO_HOLDS_A_SEAT = Guess(
    "who_holds_a_seat",
    {"A", "C"},
    WORDS["who_holds_a_seat"],
    wrong=[({"C"}, "only C"), ({"B"}, "B"), (set(), "nobody")],
)
EOS_IN_A_PROMPT = Guess("eos_in_a_prompt", False, WORDS["eos_in_a_prompt"])
KEYS_OF_ROW_1 = Guess("keys_of_row_1", "C", WORDS["keys_of_row_1"], wrong=[("B", "B")])

LESSON = Lesson(
    "07",
    WORDS["title"],
    exercises=(APPLY_NEW_TOKENS, PASSES_TO_COME, DROP_ROWS),
    guesses=(THREE_REQUESTS, WHO_HOLDS_A_SEAT, EOS_IN_A_PROMPT, KEYS_OF_ROW_1),
)
