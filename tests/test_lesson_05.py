"""Lesson 05: its exercises, as learners may answer them, and what it says of NaN.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import run_all
import torch
import torch.nn.functional as F

from nanoserve import generate_batch, load, next_token_logits, pitfalls, recording
from nanoserve.attention import keep_mask
from nanoserve.course import checks, lessons, panels, trial, values
from nanoserve.course.lessons import lesson_05
from nanoserve.course.lessons.lesson_05 import flags

EXERCISES = lessons.exercises()
NAN = math.nan

# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    (
        "safe_softmax",
        (torch.tensor([[0.0, math.log(3), 9.0]]), flags("110")),
        [[0.25, 0.75, 0]],
    ),
    ("safe_softmax", (torch.tensor([[7.0, 8.0]]), flags("00")), [[0.5, 0.5]]),
    ("safe_softmax", (torch.tensor([[NAN, 8.0]]), flags("01")), [[0, 1]]),
    ("who_is_poisoned", (flags("01", "11"), 1), [[True, False], [False, False]]),
    ("who_is_poisoned", (flags("01", "11"), 2), [[True, True], [False, False]]),
    ("who_is_poisoned", (flags("10", "11"), 2), [[False] * 2] * 2),
    (
        "scrub_slot",
        (torch.tensor([[NAN, 2], [3, 4]]), torch.tensor([[5.0], [6]]), 0, flags("01")),
        [[[0, 0], [3, 4]], [[0], [6]]],
    ),
]
ANSWERS = {
    "lowest_everywhere": "equal",
    "who_is_ill": {"A", "C"},
    "zero_times_nan": NAN,
    "multinomial_rows": 0,
}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


def by_numpy(scores, keep, floor):
    hidden = np.where(keep.numpy(), scores.numpy(), scores.numpy().dtype.type(floor))
    powers = np.exp(hidden - hidden.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def multiplies_the_mask(scores, keep):
    return (scores * keep.to(scores.dtype)).softmax(-1)


def whole_row_of_any_pad(mask, layers):
    rows = [[not all(row)] * len(row) for row in mask.tolist()]
    return rows if layers > 1 else [[not real for real in row] for row in mask.tolist()]


def cleans_by_where(keys, values, slot, mask):
    for cache in (keys, values):
        cache[slot] = torch.where(cache[slot].isnan(), 0.0, cache[slot])
    return keys, values


def cleans_real_columns(keys, values, slot, mask):
    for column, real in enumerate(mask.tolist()):
        if real:
            keys[slot][column] = values[slot][column] = 0
    return keys, values


# What course.md lists and what else is likely, written as a learner might.
LISTED = [
    (
        "safe_softmax",
        "nan_to_num",
        lambda s, k: torch.nan_to_num(s.where(k, -torch.inf).softmax(-1), nan=0.0),
    ),
    ("safe_softmax", "bare -inf", lambda s, k: s.where(k, -torch.inf).softmax(-1)),
    ("safe_softmax", "bare -inf", lambda s, k: by_numpy(s, k, -np.inf)),
    ("safe_softmax", "-1e9", lambda s, k: s.masked_fill(~k, -1e9).softmax(-1)),
    (
        "safe_softmax",
        "-1e9",
        lambda s, k: (
            s.where(k, torch.full_like(s, -math.inf).clamp(-1e9)).softmax(-1)
            if s.dtype != torch.float16
            else s.where(k, torch.tensor(-1e9).half()).softmax(-1)
        ),
    ),
    ("safe_softmax", "filled with 0", multiplies_the_mask),
    ("who_is_poisoned", "all", lambda m, n: [[1] * m.shape[1]] * len(m)),
    ("who_is_poisoned", "none", lambda m, n: m & False),
    ("who_is_poisoned", "pads only", lambda m, n: m == 0),
    ("who_is_poisoned", "right pads too", whole_row_of_any_pad),
    (
        "scrub_slot",
        "K only",
        lambda k, v, s, m: (k.index_fill(0, torch.tensor(s), 0), v),
    ),
    (
        "scrub_slot",
        "times zero",
        lambda k, v, s, m: tuple(
            x * (torch.arange(len(x)) != s)[:, None].float() for x in (k, v)
        ),
    ),
    ("scrub_slot", "live columns only", cleans_real_columns),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert verdict.mistake == mistake
    assert verdict.status == ("raised" if verdict.rows == () else "wrong")


def test_nan_that_is_replaced_and_text_that_stays_fails():
    """No planted mistake: infinity is left too, where a learner forgot it."""
    verdict = checks.check(EXERCISES["scrub_slot"], cleans_by_where)
    assert verdict.status == "wrong"
    assert verdict.rows


def test_other_ways_of_being_right_pass():
    def in_float32(scores, keep):
        floor = torch.finfo(torch.float32).min
        return scores.float().masked_fill(~keep, floor).softmax(-1)

    def by_hand(scores, keep):
        floor = torch.finfo(scores.dtype).min
        hidden = torch.where(keep, scores, floor)
        powers = (hidden - hidden.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    def by_rows(mask, layers):
        answer = []
        for row in mask.tolist():
            pads = row.index(True)
            ill = len(row) if layers > 1 and pads else pads
            answer.append([column < ill for column in range(len(row))])
        return answer

    def of_zeros(keys, values, slot, mask):
        return [
            [[0] * len(row) if n == slot else row for n, row in enumerate(cache)]
            for cache in (keys, values)
        ]

    for name, function in (
        ("safe_softmax", in_float32),
        ("safe_softmax", by_hand),
        ("who_is_poisoned", by_rows),
        ("scrub_slot", of_zeros),
    ):
        assert checks.check(EXERCISES[name], function).status == "passed", function


def test_the_failing_query_is_drawn_with_its_hidden_keys_hatched():
    verdict = checks.check(EXERCISES["safe_softmax"], lesson_05.softmax_bare)
    panel = panels.of_verdict(verdict)
    assert repr(panel).endswith(
        """\
  query 0:
  scores    1       2       0
  expected  0.3333  0.3333  0.3333
  yours     nan     nan     nan
            ^^^     ^^^     ^^^"""
    )
    assert "linear-gradient" in panel.html


def test_the_case_that_fails_tells_its_dtype():
    """To be pasted: in float32 it would not fail."""
    call = checks.check(EXERCISES["safe_softmax"], lesson_05.softmax_billion).call
    assert "dtype=torch.float16" in call
    given = eval(call, {"safe_softmax": lambda *pair: pair, "torch": torch})
    assert given[0].dtype == torch.float16
    assert given[1].dtype == torch.bool
    assert values.code(torch.tensor([1, 2])) == "torch.tensor([1, 2])"


# ---- what the lesson says, asked of the engine -----------------------------------


def poisoned_by_the_engine(mask, layers):
    """The canary runs rows of these lengths; where did attention give NaN?"""
    lm = load("canary", device="cpu")
    side = "right" if mask[:, 0].all() else "left"
    prompts = [lm.encode("copy a b c d e f")[: sum(row)] for row in mask.tolist()]
    with recording.record(lm) as record, pitfalls.plant("minus-inf"):
        next_token_logits(lm, prompts, padding_side=side)
    out = record.at(0, min(layers, len(record.calls)) - 1).out
    return out.isnan().any(dim=1).any(dim=-1)  # [rows, columns]


@pytest.mark.parametrize("number", range(len(lesson_05.poison_cases())))
def test_the_engine_poisons_just_those(number):
    mask, layers = lesson_05.poison_cases()[number]
    expected = lesson_05.who_is_poisoned(mask, layers)
    assert torch.equal(poisoned_by_the_engine(mask, layers), expected)


PROMPTS = ["count from 1 to 5", "copy d o g s a n d c a t s", "repeat a 4 times"]


def attend_with(softmax):
    def attend(q, k, v, keep):
        return softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, keep) @ v

    return attend


def no_guard(mask, step=0):
    keep = keep_mask(mask, step)
    return keep if step else keep & mask[:, None, None]


@pytest.mark.parametrize(
    ("softmax", "ill"),
    [
        (lesson_05.safe_softmax, set()),
        (lesson_05.softmax_bare, {0, 2}),
        (lesson_05.softmax_zeros_for_pads, set()),
    ],
)
def test_a_softmax_of_the_readers_own_runs_the_engine(softmax, ill):
    lm = load("canary", device="cpu")
    mine = {"attention.attend": attend_with(softmax), "attention.keep_mask": no_guard}
    with pitfalls.swap(mine):
        answers = generate_batch(lm, PROMPTS)
    errors = {row for row, each in enumerate(answers) if each.finish_reason == "error"}
    assert errors == ill
    right = [each.text for each in generate_batch(lm, PROMPTS)]
    for row in {0, 1, 2} - ill:
        assert answers[row].text == right[row]


def test_multinomial_raises_for_all_and_the_fused_kernel_gives_zeros():
    probabilities = torch.tensor([[0.5, 0.5], [NAN, NAN], [1.0, 0.0]])
    with pytest.raises(RuntimeError, match="nan"):
        torch.multinomial(probabilities, 1)
    x = torch.ones(1, 1, 2, 4)
    assert F.scaled_dot_product_attention(x, x, x, flags("00", "10")).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lowest_plus_lowest_is_minus_infinity(dtype):
    lowest = torch.tensor(torch.finfo(dtype).min, dtype=dtype)
    assert lowest + lowest == -torch.inf


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    assert run_all.with_wrong_answers("05") == 7


@pytest.mark.slow
def test_right_answers_of_any_form_run_the_lesson(fresh_kernel):
    def safe_softmax(scores, keep):
        weights = lesson_05.safe_softmax(scores, keep)
        return weights.double().numpy()

    def who_is_poisoned(mask, layers):
        return lesson_05.who_is_poisoned(mask, layers).int().tolist()

    run_all.with_answers("05", safe_softmax, who_is_poisoned)
