"""Lesson 08, The bill: what is counted, who shares a batch, when a batch leaves."""

# mypy: disable-error-code="var-annotated"
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...errors import invalid
from ..exercises import Exercise, Guess, Lesson

WORDS: dict[str, Any] = {
    "title": "The bill",
    "says": "answer {answer} to prompt {prompt}",
    "ledger": {
        "title": "The ledger",
        "hint": "Put the states of all passes into one long list and count in it. "
        "Which two states are useful? Pads are tokens, and are added up by themselves.",
        "idle as wasted": "An idle slot counts as wasted in yours. *Wasted* is what is "
        "computed for nobody; for an idle slot nothing is computed. Both are empty "
        "seats, and only one costs arithmetic.",
        "pads as slot-steps": "The pads are added to the slot-steps. A slot-step is "
        "one slot in one pass, however many tokens are fed to it: pads have their own "
        "place in the bill.",
        "prefill not counted": "The prefill is missing from the useful ones. It reads "
        "the prompt *and* makes the first token: without it an answer of n tokens "
        "would have n - 1 slot-steps.",
        "finished as useful": "A finished slot counts as useful in yours. Its row is "
        "computed, but what comes out belongs to nobody.",
    },
    "answer_all": {
        "title": "A batch plan",
        "hint": "Sort the *numbers* of the requests, not the requests: "
        "`sorted(range(len(requests)), key=...)`. Go through them `size` at a time, "
        "also through what is left at the end, and put each answer into the place of "
        "its number.",
        "answers left sorted": "All answers are there, in the order in which they were "
        "served. But each belongs to somebody: this way one gets the answer of "
        "another.",
        "last batch lost": "Some answers are missing at the end: the last batch was "
        "not full, and nobody served it. (`range(0, n - size + 1, size)` stops too "
        "early, and so does `zip`.)",
        "waits for ever": "Somebody has no answer, `None`: those who would have been "
        "in the last batch. It never got full, so they wait still.",
    },
    "batch_now": {
        "title": "A batcher with a time window",
        "hint": "Two questions, and one yes is enough. Are there `size` or more? Has "
        "the *first* of them waited for `window` passes? Then as many leave as there "
        "are seats, or as there are people.",
        "timer from the newest": "You ask how long the *newest* has waited. Each one "
        "who comes sets that clock back, and the oldest may wait for ever.",
        "never fires": "The time is up, and nobody leaves. When few people come, the "
        "batch is never full: then the window is what they wait for.",
        "ignores full": "The batch is full, and it still waits for the time. Nobody "
        "else can join it, so that gains nothing.",
        "more than seats": "More leave than there are seats.",
        "a pass too late": "Who came in pass 3 has waited for 4 passes when pass 7 is "
        "about to run. That is a window of 4, and it is up.",
        "always": "That is no window: whoever is there leaves at once.",
    },
    "seats_in_a_hundred": {
        "question": "A static batch of 32 slots serves real traffic, code. Of each 100 "
        "seats (slots x passes), in about how many is a token made that somebody "
        "reads?",
        "nudge": "Lesson 07 had 10, 500 and 50 in one batch, and 37 of 100. Here are "
        "32 in a batch.",
        "most": "That is what one hopes for. But the longest of 32 answers sets the "
        "pace for all of them.",
        "half": "With 2 or 3 slots it would be about that many. The more answers "
        "there are in a batch, the longer the longest of them.",
        "why": "About 12: half of the answers have 13 tokens or fewer, and the longest "
        "of 32 has more than 200, on average.",
    },
    "sorting_helps": {
        "question": "Before they are batched, the requests are sorted by the length of "
        'their *prompts*. What gets small: `"pads"`, `"empty seats"` or `"both"`?',
        "nudge": "What does a prompt's length say about the length of its answer?",
        "seats": "Seats go empty when answers end at different times. The sorting "
        "looks at prompts.",
        "both": "It would, if a long prompt meant a long answer. Does it? The table "
        "below has two kinds of traffic.",
        "why": "The prompts of a batch are alike then, so there is little to pad. The "
        "answers are about as unlike as before.",
    },
    "window_in_a_rush": {
        "question": "A batcher waits for up to 32 passes for a batch to fill. Now "
        "8 requests arrive in the same moment, for 8 seats. How many passes do they "
        "wait?",
        "nudge": "Who else could come in?",
        "window": "That is how long *one* would wait that stays alone. These are 8, "
        "and the batch is full.",
        "why": "A full batch leaves at once. The window is for the quiet hours.",
    },
}


# --- the ledger ---


def ledger(passes):
    """Add up a run.

    passes  for each pass what each slot did, as (state, pads): the state
            is "prefill", "decode", "finished" or "idle", and pads is how
            many pad tokens were computed in that slot.
            [[("prefill", 2), ("prefill", 0)],
             [("decode", 0), ("finished", 0)]]
    Return four numbers: useful slot-steps (a token was made), wasted
    ones (computed for nobody), idle ones, and pad tokens: [3, 1, 0, 2].
    """
    states = [state for each in passes for state, pads in each]
    useful = states.count("prefill") + states.count("decode")
    pads = sum(pads for each in passes for state, pads in each)
    return [useful, states.count("finished"), states.count("idle"), pads]


P, D, F, I = ("prefill", 0), ("decode", 0), ("finished", 0), ("idle", 0)  # noqa: E741


def ledger_cases():
    return [
        ([[P, P], [D, F], [D, F]],),
        ([[P, I], [D, I]],),
        ([[("prefill", 2), P, ("prefill", 5)], [D, D, F]],),
        ([[("prefill", 2), P, I], [F, D, I], [F, D, I], [I, I, P]],),
        ([],),
    ]


def counted(useful, wasted, idle, pads_to=None):
    """A ledger in which these states count as these."""

    def rule(passes):
        cells = [cell for each in passes for cell in each]
        sums = [
            sum(state in kind for state, _ in cells) for kind in (useful, wasted, idle)
        ]
        pads = sum(pads for _, pads in cells)
        if pads_to is not None:
            sums[pads_to] += pads
        return [*sums, pads]

    return rule


MADE = ("prefill", "decode")
LEDGER = Exercise(
    reference=ledger,
    words=WORDS["ledger"],
    cases=ledger_cases,
    mistakes={
        "idle as wasted": (
            counted(MADE, ("finished", "idle"), ("idle",)),
            counted(MADE, ("finished", "idle"), ()),
        ),
        "pads as slot-steps": (
            counted(MADE, ("finished",), ("idle",), pads_to=0),
            counted(MADE, ("finished",), ("idle",), pads_to=1),
        ),
        "prefill not counted": (counted(("decode",), ("finished",), ("idle",)),),
        "finished as useful": (
            counted((*MADE, "finished"), ("finished",), ("idle",)),
            counted((*MADE, "finished"), (), ("idle",)),
        ),
    },
    minutes=5,
)


# --- a batch plan ---


def answer_all(requests, size, serve):
    """Answer all requests in static batches of at most `size`.

    requests  (prompt tokens, answer tokens) of each, in order of arrival:
              suppose that somebody has foretold the answers' lengths
    serve     runs one batch, such as serve([(4, 3), (6, 5)]), and gives
              its answers, in the order of that batch
    You choose who shares a batch. A batch costs its rectangles: all its
    prompts are padded to the longest, and all its rows run until the
    longest answer is done. Return one answer a request, in the order of
    `requests`.
    """
    numbers = range(len(requests))
    line = sorted(numbers, key=lambda number: sum(requests[number]))
    answers = {}
    for start in range(0, len(line), size):
        batch = line[start : start + size]
        served = serve([requests[number] for number in batch])
        answers.update(zip(batch, served, strict=True))
    return [answers[number] for number in numbers]


class Serve:
    """Stands in for the engine: it answers a batch, and refuses one that is none."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __repr__(self) -> str:
        return "serve"

    def __call__(self, batch: Sequence[tuple[int, int]]) -> list[str]:
        if not 1 <= len(batch) <= self.size:
            raise invalid("batch", len(batch), f"must be 1 to {self.size} requests")
        return [WORDS["says"].format(prompt=p, answer=a) for p, a in batch]


def plan_cases():
    asked = [(6, 40), (9, 3), (2, 38), (7, 5), (30, 4)]
    plans = [(asked[:4], 2), (asked, 2), (asked, 4), (asked[:2], 3), (asked[:3], 1)]
    return [(requests, size, Serve(size)) for requests, size in plans]


def in_line(key):
    """The requests' numbers, sorted."""

    def sort(requests):
        return sorted(range(len(requests)), key=lambda number: key(*requests[number]))

    return sort


ORDERS = {
    "arrival": lambda requests: list(range(len(requests))),
    "prompt": in_line(lambda prompt, answer: prompt),
    "answer": in_line(lambda prompt, answer: answer),
    "sum": in_line(lambda prompt, answer: prompt + answer),
    "most": in_line(max),
}


def planned(order, *, last=True, restored=True):
    """A plan in this order, with a part of it left out."""

    def plan(requests, size, serve):
        line = order(requests)
        end = len(line) if last else len(line) // size * size
        batches = [line[at : min(at + size, end)] for at in range(0, end, size)]
        served = [serve([requests[n] for n in batch]) for batch in batches]
        answers = [answer for batch in served for answer in batch]
        if not restored:
            return answers
        given = dict(zip(line, answers, strict=False))
        return [given.get(number) for number in range(len(requests))]

    return plan


def without_the_missing(order):
    def plan(requests, size, serve):
        answers = planned(order, last=False)(requests, size, serve)
        return [each for each in answers if each is not None]

    return plan


ANSWER_ALL = Exercise(
    reference=answer_all,
    words=WORDS["answer_all"],
    cases=plan_cases,
    mistakes={
        "answers left sorted": tuple(
            planned(order, restored=False)
            for name, order in ORDERS.items()
            if name != "arrival"
        ),
        "last batch lost": tuple(
            lost
            for order in ORDERS.values()
            for lost in (
                without_the_missing(order),
                planned(order, last=False, restored=False),
            )
        ),
        "waits for ever": tuple(
            planned(order, last=False) for order in ORDERS.values()
        ),
    },
    minutes=10,
)


# --- * a batcher with a time window ---


def batch_now(waiting, now, size, window):
    """How many leave now, as a batch? All seats are free.

    waiting  when each of those who wait arrived, the oldest first, in
             passes: [3, 5, 6]
    now      the pass that is about to run
    A batch leaves when it is full, which is `size`, or when its oldest
    member has waited for `window` passes. Return how many go: the first
    so many of those who wait. 0: they wait on.
    """
    full = len(waiting) >= size
    late = len(waiting) > 0 and now - waiting[0] >= window
    return min(len(waiting), size) if full or late else 0


def window_cases():
    return [
        ([3, 5, 6], 7, 3, 100),
        ([3, 5, 6], 7, 4, 4),
        ([3, 5, 6], 6, 4, 4),
        ([3, 5, 6], 7, 4, 100),
        ([1, 2, 3, 4, 5], 5, 2, 100),
        ([], 9, 4, 4),
        ([0, 8, 9], 9, 4, 5),
        ([7], 7, 1, 50),
        ([1, 2], 9, 4, 5),
    ]


def leaves(full, late, most=min):
    """A batcher that leaves on these two conditions."""

    def rule(waiting, now, size, window):
        here = len(waiting)
        go = bool(here) and (full(here, size) or late(waiting, now, window))
        return most(here, size) if go else 0

    return rule


def is_full(here, size):
    return here >= size


def is_late(waiting, now, window):
    return now - waiting[0] >= window


def newest_is_late(waiting, now, window):
    return now - waiting[-1] >= window


def late_by_one_more(waiting, now, window):
    return now - waiting[0] > window


def never(*_):
    return False


def ever(*_):
    return True


def all_who_wait(here, size):
    return here


BATCH_NOW = Exercise(
    reference=batch_now,
    words=WORDS["batch_now"],
    cases=window_cases,
    mistakes={
        "timer from the newest": (leaves(is_full, newest_is_late),),
        "never fires": (leaves(is_full, never),),
        "ignores full": (leaves(never, is_late),),
        "more than seats": (leaves(is_full, is_late, all_who_wait),),
        "a pass too late": (leaves(is_full, late_by_one_more),),
        "always": (leaves(ever, ever),),
    },
    minutes=8,
    starred=True,
)


# --- questions before running ---

SEATS_IN_A_HUNDRED = Guess(
    "seats_in_a_hundred",
    12,
    WORDS["seats_in_a_hundred"],
    wrong=[
        *((many, "most") for many in (70, 75, 80, 85, 90, 95, 100)),
        *((many, "half") for many in (30, 33, 37, 40, 50, 60)),
    ],
)
SORTING_HELPS = Guess(
    "sorting_helps",
    "pads",
    WORDS["sorting_helps"],
    wrong=[("empty seats", "seats"), ("both", "both")],
)
WINDOW_IN_A_RUSH = Guess(
    "window_in_a_rush", 0, WORDS["window_in_a_rush"], wrong=[(32, "window")]
)

LESSON = Lesson(
    "08",
    WORDS["title"],
    exercises=(LEDGER, ANSWER_ALL, BATCH_NOW),
    guesses=(SEATS_IN_A_HUNDRED, SORTING_HELPS, WINDOW_IN_A_RUSH),
)
