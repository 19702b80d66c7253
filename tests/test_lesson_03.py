"""Lesson 03: its exercises, as learners may answer them, and what it says of RoPE.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import run_all
import torch

from nanoserve import generate_batch, load, padding, pitfalls
from nanoserve.course import checks, lessons, trial, values
from nanoserve.course.lessons import lesson_03

EXERCISES = lessons.exercises()
LESSON = lessons.all_lessons()["03"]
PADDED = torch.tensor([[False, False, True, True], [True] * 4])

# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    ("prefill_positions", (PADDED,), [[0, 0, 0, 1], [0, 1, 2, 3]]),
    ("decode_position", (PADDED, 1), [2, 4]),
    ("decode_position", (PADDED, 5), [6, 8]),
    ("decode_position", (PADDED.flip(1), 1), [2, 4]),
    ("rope_score", ((1.0, 0.0), (0.0, 1.0), 2, 2), 0),
    ("rope_score", ((1.0, 0.0), (0.0, 1.0), math.pi / 2, 0), 1),
    ("rope_score", ((2.0, 0.0), (0.0, 1.0), 0, math.pi / 2), -2),
]
ANSWERS = {
    "first_position": 0,
    "wrong_rows": {"A", "D"},
    "wrong_rows_rope": set(),
    "first_wrong_token": 2,
    "strange_pad": "crash",
}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


def no_clamp(mask):
    return [[sum(row[: i + 1]) - 1 for i in range(len(row))] for row in mask.int()]


def repeats(mask, step):
    return [int(row.sum()) - 2 + step for row in mask]


def turned(pair, angle):
    return complex(*pair) * complex(math.cos(angle), math.sin(angle))


def turned_apart(query, key, m, n):
    product = turned(query, m) * turned(key, -n).conjugate()
    return product.real


# What course.md lists and what else is likely, written as a learner might.
LISTED = [
    ("prefill_positions", "index", lambda m: [list(range(m.shape[1]))] * len(m)),
    ("prefill_positions", "no minus one", lambda m: m.long().cumsum(1)),
    ("prefill_positions", "minus one at pads", no_clamp),
    (
        "decode_position",
        "column",
        lambda m, s: torch.full((len(m),), m.size(1) + s - 1),
    ),
    ("decode_position", "padded length", lambda m, s: [m.size(1) + s for _ in m]),
    ("decode_position", "repeats the last", repeats),
    ("decode_position", "one too far", lambda m, s: m.long().sum(-1) + s),
    ("rope_score", "no turn", lambda q, k, m, n: q[0] * k[0] + q[1] * k[1]),
    ("rope_score", "against each other", turned_apart),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


def test_the_failing_row_is_named():
    verdict = checks.check(EXERCISES["prefill_positions"], lesson_03.positions_by_index)
    assert verdict.lines[0].startswith("Row B is numbered by its columns")


def test_the_packages_own_positions_pass():
    prefill = checks.check(EXERCISES["prefill_positions"], padding.positions)
    assert prefill.status == "passed"
    rows = [[lesson_03.left_mask(2, 5, 1), step] for step in (1, 4)]
    for mask, step in rows:
        mine = lesson_03.decode_position(mask, step)
        assert torch.equal(mine[:, None], padding.positions(mask, step))


def test_a_complex_number_turns_as_well():
    def rope_score(query, key, m, n):
        return (turned(query, m) * turned(key, n).conjugate()).real

    assert checks.check(EXERCISES["rope_score"], rope_score).status == "passed"


# ---- what the lesson says, on any canary -----------------------------------------

ASKED = [
    "copy d o g",
    "copy t h e n o p a d s",
    "reverse s d a p o n e h t",
    "copy a b",
]


def wrong_logits(model, bug, **options):
    """The letters of the rows whose logits are not those of the prompt alone."""
    rows = pitfalls.compare(load(model, device="cpu"), ASKED, bug, **options).rows
    return {letter for letter, row in zip("ABCD", rows) if row.largest_error > 1e-4}  # noqa: B905


def test_the_rows_with_pads_are_wrong_with_a_table_and_none_with_rope():
    guesses = lessons.guesses()
    assert wrong_logits("canary", "index-positions") == guesses["wrong_rows"].answer
    rope = wrong_logits("canary-rope", "index-positions")
    assert rope == guesses["wrong_rows_rope"].answer


@pytest.mark.parametrize("model", ["canary", "canary-rope"])
def test_right_at_prefill_only_is_wrong_from_the_second_token(model):
    lm = load(model, device="cpu")
    for row in pitfalls.compare(lm, ASKED, "prefill-only").rows:
        assert row.first_error < 1e-4
        assert row.equal or row.differs_at + 1 >= 2
    assert wrong_logits(model, "prefill-only") == {"A", "D"}


def test_a_pad_that_is_no_token_crashes():
    lm = load("canary-rope", device="cpu")
    strange = replace(lm, pad_token_id=len(lm.tokenizer))
    with pytest.raises(IndexError):
        generate_batch(strange, ASKED)


# ---- the lesson, with a learner's answers in place -------------------------------


def prefill_positions(mask):
    return [[max(0, sum(row[: i + 1]) - 1) for i in range(len(row))] for row in mask]


def decode_position(mask, step):
    return [float(row.sum()) + step - 1 for row in mask]


def rope_score(query, key, query_position, key_position):
    product = turned(query, query_position) * turned(key, key_position).conjugate()
    return torch.tensor(product.real)


@pytest.mark.slow
def test_the_lesson_runs_with_answers_in_another_form(fresh_kernel):
    run_all.with_answers("03", prefill_positions, decode_position, rope_score)


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    asked = [*LESSON.exercises, *LESSON.guesses]
    assert run_all.with_wrong_answers("03") == len(asked)
