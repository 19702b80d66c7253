"""Lesson 10, Continuous batching: who joins, when, and in whose place."""

# mypy: disable-error-code="var-annotated"
from __future__ import annotations

from typing import Any

from ..exercises import Exercise, Guess, Lesson

WORDS: dict[str, Any] = {
    "title": "Continuous batching",
    "admit": {
        "title": "The rule of admission",
        "hint": "How many seats are free? As many of those who wait may sit down, "
        "from the front of the line. A slice takes them, and takes fewer where fewer "
        "are there.",
        "only when all are free": "Nobody joins while anybody is seated: that is the "
        "static rule. A free seat is given to the next in line *now*, whoever else "
        "still runs.",
        "one a pass": "One joins, and another seat stays empty until the next pass. "
        "All seats that are free are given away.",
        "newest first": "The last in line is seated first. On a busy server who came "
        "early would then wait for ever.",
        "overfills": "More join than seats are free. Those who run hold theirs: count "
        "them, too.",
        "with the seated": "Those who run are in the answer as well. Asked is only "
        "who *joins*.",
    },
    "first_token_passes": {
        "title": "When does each answer begin?",
        "hint": "Keep a list with one number for each seat: the first pass in which it "
        "is free. The next in line takes the seat that is free first, and holds it for "
        "as many passes as it makes tokens.",
        "batch by batch": "That is a static batch: all seats are given away anew when "
        "the longest answer is done. Here each seat goes on by itself.",
        "seats in turn": "You gave the seats out in turn, first to last and again. "
        "The next in line takes the seat that is free *first*, whichever it is.",
        "a pass for nobody": "A pass too late for those who waited. Who makes the last "
        "token in pass 3 has left when pass 4 begins, and the next in line is in it.",
        "counted from 0": "You count the passes from 0. The first pass of the run is "
        "pass 1.",
        "last token": "Those are the passes of the *last* tokens. The prefill makes "
        "the first one, in the pass in which a request sits down.",
    },
    "next_in_line": {
        "title": "Shortest first, and nobody forgotten",
        "hint": "Sort with a key of two parts. `(0, arrival)` for who has waited long "
        "enough and `(1, tokens)` for all others: tuples are compared part by part, "
        "and Python's sort leaves equal ones in the order in which they stood.",
        "no aging": "Somebody has waited for `patience` passes and is still overtaken "
        "by a shorter one. While short ones keep coming, that goes on for ever.",
        "in order of arrival": "That is first come, first served. Among those who have "
        "not waited for long, the *shortest* comes first.",
        "longest first": "The longest comes first: then all the short ones wait for "
        "it.",
        "the shortest of the old": "Those who have waited long enough come first, and "
        "among *them* the order is that of arrival. Sorted by length, the longest of "
        "them could still be overtaken again and again.",
        "a pass too late": "Who has waited for just `patience` passes is old enough.",
        "overfills": "More names than free seats.",
    },
    "passes_at_least": {
        "question": "24 requests want 10, 500 and 50 tokens, 8 of each: 4,480 tokens "
        "in all. With 3 slots, how many passes does it take *at least*, if no seat is "
        "ever empty?",
        "nudge": "A pass with three full seats makes three tokens.",
        "down": "1,493 passes make 4,479 tokens. One is still missing.",
        "one": "That would be one seat. There are three.",
        "static": "That is what a static batch takes, 8 times 500: its seats are not "
        "full.",
        "why": "Three tokens a pass: 4,480 / 3 is 1,493 and a third, so 1,494 passes.",
    },
    "d_joins": {
        "question": "Three slots. A will make 6 tokens, B 11 and C 4, and D waits. A "
        "seat is given on as soon as it is free. In which pass does D get its first "
        "token? (The first pass is 1.)",
        "nudge": "Who ends first, and in which pass is that one still computed?",
        "with C": "In pass 4 C makes its fourth and last token. It is still in its "
        "seat.",
        "later": "C has made all its tokens after pass 4. What would D wait for?",
        "static": "Pass 12 is when B, the last of the batch, has left. That was static "
        "batching.",
        "why": "C makes its last token in pass 4 and leaves. In pass 5 D sits there, "
        "and its prefill makes its first token.",
    },
    "who_pays": {
        "question": "Instead of the first in line, the *shortest* request takes the "
        "free seat. The mean waiting gets shorter. And the longest waiting of all: "
        '`"shorter"`, `"longer"` or `"the same"`?',
        "nudge": "Think of a long request while short ones keep coming.",
        "shorter": "For most it does get shorter. But who is it that they overtake?",
        "same": "The seats are as full as before, so the sum of work is the same. But "
        "it is not done in the same order.",
        "why": "Each short one that comes overtakes the long ones again. Someone pays "
        "for a better mean, and it is they.",
    },
}


# --- admit ---


def admit(waiting, running, max_num_seqs):
    """Who takes a seat before the next pass?

    waiting       who waits, in order of arrival:      ["D", "E", "F"]
    running       who has a seat and has not finished: ["A", "B"]
    max_num_seqs  how many seats there are:            4
    Each free seat goes to the next in line. Return those who join, in
    order: ["D", "E"].
    """
    free = max_num_seqs - len(running)
    return waiting[:free]


def admit_cases():
    return [
        (["D"], ["A", "B"], 3),
        (["D", "E", "F"], ["A", "B"], 4),
        (["A", "B", "C"], [], 2),
        (["D", "E"], ["A", "B", "C"], 3),
        ([], ["A"], 3),
        (["B"], ["A"], 8),
        (["F", "D", "E"], ["B"], 3),
    ]


def static_admit(waiting, running, max_num_seqs):
    return [] if running else waiting[:max_num_seqs]


def admits_one(waiting, running, max_num_seqs):
    return waiting[:1] if len(running) < max_num_seqs else []


def admits_newest(waiting, running, max_num_seqs):
    free = max_num_seqs - len(running)
    return waiting[::-1][:free]


def admits_newest_in_order(waiting, running, max_num_seqs):
    free = max_num_seqs - len(running)
    return waiting[-free:] if free else []


def admits_all(waiting, running, max_num_seqs):
    return waiting


def admits_all_seats(waiting, running, max_num_seqs):
    return waiting[:max_num_seqs]


def admits_all_if_one_is_free(waiting, running, max_num_seqs):
    return waiting if len(running) < max_num_seqs else []


def admits_one_too_many(waiting, running, max_num_seqs):
    return waiting[: max_num_seqs - len(running) + 1]


def with_the_seated(waiting, running, max_num_seqs):
    return [*running, *admit(waiting, running, max_num_seqs)]


ADMIT = Exercise(
    reference=admit,
    words=WORDS["admit"],
    cases=admit_cases,
    mistakes={
        "only when all are free": (static_admit,),
        "one a pass": (admits_one,),
        "newest first": (admits_newest, admits_newest_in_order),
        "overfills": (
            admits_all,
            admits_all_seats,
            admits_all_if_one_is_free,
            admits_one_too_many,
        ),
        "with the seated": (with_the_seated,),
    },
    minutes=4,
)


# --- first-token passes ---


def first_token_passes(tokens_to_make, max_num_seqs):
    """In which pass does each request get its first token?

    tokens_to_make[i] is how many tokens request i makes, one a pass; the
    prefill makes the first. All wait from the beginning, first come,
    first served, and a seat goes to the next in line in the very pass
    after its tenant has made its last token. The first pass is 1:
    first_token_passes([3, 1, 4], 2) is [1, 1, 2].
    """
    free_from = [1] * max_num_seqs  # of each seat, its first free pass
    first = []
    for tokens in tokens_to_make:
        seat = free_from.index(min(free_from))
        first.append(free_from[seat])
        free_from[seat] += tokens
    return first


def first_token_cases():
    return [
        ([3, 1, 4], 2),
        ([6, 11, 4, 4, 9], 3),
        ([3, 5, 2, 4, 1], 2),
        ([10, 500, 50] * 2, 3),
        ([4, 2, 3], 1),
        ([2, 2], 4),
    ]


def batch_by_batch(tokens_to_make, max_num_seqs):
    first, begins = [], 1
    for at in range(0, len(tokens_to_make), max_num_seqs):
        batch = tokens_to_make[at : at + max_num_seqs]
        first += [begins] * len(batch)
        begins += max(batch)
    return first


def seats_in_turn(tokens_to_make, max_num_seqs):
    free_from, first = [1] * max_num_seqs, []
    for number, tokens in enumerate(tokens_to_make):
        seat = number % max_num_seqs
        first.append(free_from[seat])
        free_from[seat] += tokens
    return first


def a_pass_for_nobody(tokens_to_make, max_num_seqs):
    return first_token_passes([tokens + 1 for tokens in tokens_to_make], max_num_seqs)


def counted_from_0(tokens_to_make, max_num_seqs):
    return [first - 1 for first in first_token_passes(tokens_to_make, max_num_seqs)]


def last_tokens(tokens_to_make, max_num_seqs):
    firsts = first_token_passes(tokens_to_make, max_num_seqs)
    pairs = zip(firsts, tokens_to_make, strict=True)
    return [first + tokens - 1 for first, tokens in pairs]


FIRST_TOKEN_PASSES = Exercise(
    reference=first_token_passes,
    words=WORDS["first_token_passes"],
    cases=first_token_cases,
    mistakes={
        "batch by batch": (batch_by_batch,),
        "seats in turn": (seats_in_turn,),
        "a pass for nobody": (a_pass_for_nobody,),
        "counted from 0": (counted_from_0,),
        "last token": (last_tokens,),
    },
    minutes=8,
)


# --- * shortest first, with aging ---


def next_in_line(waiting, now, free_seats, patience):
    """Who takes the free seats: the shortest first, and nobody forgotten.

    waiting  (name, arrival, tokens to make), in order of arrival:
             [("A", 0, 90), ("B", 4, 7), ("C", 5, 3)]
    now      the pass that is about to run; A has waited now - 0 passes
    Who has waited `patience` passes or more comes first, in order of
    arrival; then the others, the shortest first, and of equals who came
    first. Return the names of those who sit down, in that order:
    ["C", "B"] for now = 6, 2 free seats and a patience of 50.
    """

    def rank(request):
        name, arrival, tokens = request
        old = now - arrival >= patience
        return (0, arrival) if old else (1, tokens)

    line = sorted(waiting, key=rank)
    return [name for name, arrival, tokens in line[:free_seats]]


def line_cases():
    line = [("A", 0, 90), ("B", 4, 7), ("C", 5, 3), ("D", 5, 7)]
    return [
        (line[:3], 6, 2, 50),
        (line, 6, 3, 50),
        (line, 20, 2, 20),
        (line, 55, 3, 50),
        (line, 19, 1, 20),
        ([("A", 2, 60), ("B", 3, 40), ("C", 9, 1)], 30, 2, 25),
        (line, 6, 0, 50),
        ([], 6, 2, 50),
    ]


def ranked(key, *, over=0, late=0, aged=lambda arrival, tokens: (0, arrival)):
    """A rule like the right one, with one part of it replaced."""

    def rule(waiting, now, free_seats, patience):
        def rank(request):
            _, arrival, tokens = request
            old = now - arrival >= patience + late
            return aged(arrival, tokens) if old else (1, key(arrival, tokens))

        line = sorted(waiting, key=rank)
        return [name for name, *_ in line[: free_seats + over]]

    return rule


def shortest(arrival, tokens):
    return tokens


def everybody(waiting, now, free_seats, patience):
    return next_in_line(waiting, now, len(waiting), patience)


no_aging = ranked(shortest, late=10**9)
by_arrival = ranked(lambda arrival, tokens: arrival)
longest_first = ranked(lambda arrival, tokens: -tokens)
shortest_of_the_old = ranked(shortest, aged=lambda arrival, tokens: (0, tokens))
too_late = ranked(shortest, late=1)
one_too_many = ranked(shortest, over=1)

NEXT_IN_LINE = Exercise(
    reference=next_in_line,
    words=WORDS["next_in_line"],
    cases=line_cases,
    mistakes={
        "no aging": (no_aging,),
        "in order of arrival": (by_arrival,),
        "longest first": (longest_first,),
        "the shortest of the old": (shortest_of_the_old,),
        "a pass too late": (too_late,),
        "overfills": (everybody, one_too_many),
    },
    minutes=10,
    starred=True,
)


# --- questions before running ---

PASSES_AT_LEAST = Guess(
    "passes_at_least",
    1494,
    WORDS["passes_at_least"],
    wrong=[(1493, "down"), (4480, "one"), (4000, "static")],
)
D_JOINS = Guess(
    "d_joins",
    5,
    WORDS["d_joins"],
    wrong=[(4, "with C"), (6, "later"), (7, "later"), (12, "static")],
)
WHO_PAYS = Guess(
    "who_pays",
    "longer",
    WORDS["who_pays"],
    wrong=[("shorter", "shorter"), ("the same", "same")],
)

LESSON = Lesson(
    "10",
    WORDS["title"],
    exercises=(ADMIT, FIRST_TOKEN_PASSES, NEXT_IN_LINE),
    guesses=(PASSES_AT_LEAST, D_JOINS, WHO_PAYS),
)
