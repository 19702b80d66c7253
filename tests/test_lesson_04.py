"""Lesson 04: its exercises, as learners may answer them, and what it says of rows.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

import pytest
import run_all
import torch

from nanoserve import attention, load, padding, pitfalls
from nanoserve.course import checks, lessons, panels, trial, values
from nanoserve.course.lessons import lesson_04

EXERCISES = lessons.exercises()
LESSON = lessons.all_lessons()["04"]
LEFT = torch.tensor([[False, True, True], [True, True, True]])

# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    (
        "keep_mask",
        (LEFT,),
        [[[1, 0, 0], [0, 1, 0], [0, 1, 1]], [[1, 0, 0], [1, 1, 0], [1, 1, 1]]],
    ),
    ("last_real_token", (LEFT,), [2, 2]),
    ("last_real_token", (LEFT.flip(1),), [1, 2]),
    ("grow_mask", (LEFT, 1), [[0, 1, 1, 1], [1, 1, 1, 1]]),
    ("grow_mask", (LEFT.flip(1)[:1], 2), [[1, 1, 0, 1, 1]]),
]
ANSWERS = {
    "keys_seen": 2,
    "dropped_rows": {"A", "C"},
    "column_read": 1,
    "forgetful_rows": {"A", "B", "C"},
    "future_weight": "smaller",
    "lost_tokens": 1,
}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


def by_loops(mask, sees):
    """Query by query, as somebody writes it who trusts no broadcasting."""
    batch, width = mask.shape
    keep = [
        [[bool(sees(mask[b], q, k)) for k in range(width)] for q in range(width)]
        for b in range(batch)
    ]
    return keep


def causal_only(mask):
    return by_loops(mask, lambda row, q, k: k <= q)


def transposed(mask):
    return by_loops(mask, lambda row, q, k: (k <= q and row[q]) or k == q)


def pads_see_nothing(mask):
    return by_loops(mask, lambda row, q, k: k <= q and row[k] and row[q])


# What course.md lists and what else is likely, written as a learner might.
LISTED = [
    ("keep_mask", "causal only", causal_only),
    ("keep_mask", "transposed", transposed),
    ("keep_mask", "masks pad queries", pads_see_nothing),
    ("last_real_token", "last column", lambda mask: [-1 for _ in mask]),
    ("last_real_token", "last column", lambda mask: [len(row) - 1 for row in mask]),
    ("last_real_token", "sum - 1", lambda mask: [int(row.sum()) - 1 for row in mask]),
    ("grow_mask", "not grown", lambda mask, step: mask.clone()),
    ("grow_mask", "zeros", lambda mask, step: torch.nn.functional.pad(mask, (0, step))),
    (
        "grow_mask",
        "first row only",
        lambda mask, step: [
            row.tolist() + [number == 0] * step for number, row in enumerate(mask)
        ],
    ),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


def test_the_failing_row_and_query_are_named():
    verdict = checks.check(EXERCISES["keep_mask"], causal_only)
    assert verdict.lines[0].startswith("Row B, query 1 sees pads")
    told = repr(panels.of_verdict(verdict))
    assert "mask      False  True  True" in told
    sum_one = checks.check(EXERCISES["last_real_token"], lesson_04.reads_sum_minus_one)
    assert sum_one.lines[0].startswith("Row A is what `sum - 1` gives under left")


def test_hiding_pad_queries_and_letting_them_see_themselves_passes():
    """It is right too: what a pad sees besides itself is nobody's business."""

    def keep_mask(mask):
        return by_loops(
            mask, lambda row, q, k: (k <= q and row[k] and row[q]) or k == q
        )

    assert checks.check(EXERCISES["keep_mask"], keep_mask).status == "passed"


def test_the_packages_own_functions_pass():
    def keep_mask(mask):
        return attention.keep_mask(mask)[:, 0]

    def grow_mask(mask, step):
        return attention.keep_mask(mask, step)[:, 0, 0]

    own = {"keep_mask": keep_mask, "grow_mask": grow_mask}
    own["last_real_token"] = padding.last_column
    for name, function in own.items():
        assert checks.check(EXERCISES[name], function).status == "passed"


# ---- what the lesson says, on any canary -----------------------------------------

ASKED = ["count from 1 to 5", "copy t h e l o n g e s t", "repeat x 5 times"]


def wrong_logits(model, bug):
    rows = pitfalls.compare(load(model, device="cpu"), ASKED, bug).rows
    return {letter for letter, row in zip("ABC", rows) if row.largest_error > 1e-4}  # noqa: B905


@pytest.mark.parametrize("model", ["canary", "canary-rope"])
@pytest.mark.parametrize(
    ("bug", "guess"),
    [
        ("mask-dropped", "dropped_rows"),
        ("mask-not-grown", "forgetful_rows"),
        ("sum-minus-one", "dropped_rows"),
    ],
)
def test_the_rows_that_go_wrong_are_those_the_lesson_names(model, bug, guess):
    assert wrong_logits(model, bug) == lessons.guesses()[guess].answer


def test_two_tokens_are_kept_and_one_is_lost():
    guesses = lessons.guesses()
    row = torch.tensor([[False] * 4 + [True] * 3])
    assert int(lesson_04.keep_mask(row)[0, 5].sum()) == guesses["keys_seen"].answer
    column = torch.tensor([[False, False, False, True, True]])
    assert lesson_04.reads_sum_minus_one(column).tolist() == [
        guesses["column_read"].answer
    ]
    lm = load("canary", device="cpu")
    chat = lm.encode("copy a b <answer> a b <eos> repeat x 5 times")
    assert chat.count(lm.tokenizer.eos_token_id) == guesses["lost_tokens"].answer


# ---- the lesson, with a learner's answers in place -------------------------------


def keep_mask(mask):
    return by_loops(mask, lambda row, q, k: (k <= q and row[k]) or k == q)


def last_real_token(mask):
    return [float(max(i for i, real in enumerate(row) if real)) for row in mask]


def grow_mask(mask, step):
    return [[*map(int, row), *[1] * step] for row in mask]


@pytest.mark.slow
def test_the_lesson_runs_with_answers_in_another_form(fresh_kernel):
    run_all.with_answers("04", keep_mask, last_real_token, grow_mask)


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    asked = [*LESSON.exercises, *LESSON.guesses]
    assert run_all.with_wrong_answers("04") == len(asked)
