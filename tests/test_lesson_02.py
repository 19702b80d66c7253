"""Lesson 02: its exercises, as learners may answer them, and its figures.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import run_all
import torch

from nanoserve import Request, SamplingParams, StaticBatchEngine, load, padding, serve
from nanoserve.course import checks, lessons, panels, trial, values
from nanoserve.course.lessons import lesson_02

EXERCISES = lessons.exercises()
LESSON = lessons.all_lessons()["02"]
RESULTS = Path(__file__).parents[1] / "data" / "results" / "pad_share.json"


# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    (
        "pad_batch",
        ([[101, 102], [201, 202, 203, 204]], 0, "right"),
        [
            [[101, 102, 0, 0], [201, 202, 203, 204]],
            [[True, True, False, False], [True] * 4],
        ],
    ),
    (
        "pad_batch",
        ([[9, 8], [7]], 8, "left"),
        [[[9, 8], [8, 7]], [[True, True], [False, True]]],
    ),
    ("pad_share", ([2, 4],), 0.25),
    ("pad_share", ([6],), 0),
    ("pad_share_in_batches", ([2, 4, 3], 2), 2 / 11),
    ("pad_share_in_batches", ([1, 3], 2), 1 / 3),
]
ANSWERS = {
    "pads_needed": 3 * 4 - (2 + 4 + 3),
    "one_long_prompt": 7 * (100 - 1),
    "conversations": 60,
}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


def pads_to_512(prompts, pad, side):
    ids = torch.full((len(prompts), 512), pad)
    for row, prompt in zip(ids, prompts, strict=True):
        start = 512 - len(prompt) if side == "left" else 0
        row[start : start + len(prompt)] = torch.tensor(prompt)
    mask = torch.zeros_like(ids)
    for row, prompt in zip(mask, prompts, strict=True):
        start = 512 - len(prompt) if side == "left" else 0
        row[start : start + len(prompt)] = 1
    return ids, mask


def masks_what_is_not_the_pad(prompts, pad, side):
    ids, _ = padding.pad_batch(prompts, pad, side)
    return ids, ids != pad


def right_for_left(prompts, pad, side):
    return padding.pad_batch(prompts, pad, {"left": "right", "right": "left"}[side])


def right_only(prompts, pad, side):
    width = max(map(len, prompts))
    ids = [prompt + [pad] * (width - len(prompt)) for prompt in prompts]
    return ids, [[i < len(prompt) for i in range(width)] for prompt in prompts]


def overflow_of_rows(lengths):
    return sum((max(lengths) - n) / n for n in lengths) / len(lengths)


def stream_without_its_end(lengths, size):
    cells = real = 0
    for batch in zip(*[iter(lengths)] * size, strict=False):
        cells, real = cells + size * max(batch), real + sum(batch)
    return 1 - real / cells if cells else 0


# What course.md lists and what else is likely, written as a learner might.
LISTED = [
    ("pad_batch", "pads to a maximum", pads_to_512),
    ("pad_batch", "mask by id", masks_what_is_not_the_pad),
    ("pad_batch", "wrong side", right_for_left),
    ("pad_batch", "wrong side", right_only),
    ("pad_share", "mean of rows", overflow_of_rows),
    ("pad_share", "over real tokens", lambda n: (max(n) * len(n) / sum(n)) - 1),
    ("pad_share", "real share", lambda n: torch.tensor(n).float().mean() / max(n)),
    ("pad_share_in_batches", "last batch lost", stream_without_its_end),
    (
        "pad_share_in_batches",
        "one rectangle",
        lambda n, _: 1 - sum(n) / len(n) / max(n),
    ),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


def test_the_packages_own_padding_passes():
    """Tensors mean the same as lists."""
    verdict = checks.check(EXERCISES["pad_batch"], padding.pad_batch)
    assert verdict.status == "passed"


def test_the_mean_of_the_rows_shares_passes():
    """All rows are equally wide, so it is the same number."""

    def pad_share(lengths):
        shares = [1 - length / max(lengths) for length in lengths]
        return sum(shares) / len(shares)

    assert checks.check(EXERCISES["pad_share"], pad_share).status == "passed"


def test_the_row_that_fails_is_drawn_with_its_pads_hatched():
    verdict = checks.check(EXERCISES["pad_batch"], masks_what_is_not_the_pad)
    assert repr(panels.of_verdict(verdict)).endswith(
        """\
  mask of row A:
  prompt    5     2      7
  expected  True  True   True
  yours     True  False  True
                  ^^^^^"""
    )
    wrong_side = checks.check(EXERCISES["pad_batch"], right_only)
    assert "linear-gradient" in panels.of_verdict(wrong_side).html


# ---- the figures of the lesson ---------------------------------------------------


def test_one_long_prompt_among_short_ones_pads_as_the_lesson_says():
    """(n - 1)(B - 1), counted by the engine that ran it."""
    lm = load("canary", device="cpu")
    engine = StaticBatchEngine(lm, max_num_seqs=8)
    long, short = lm.encode("copy " + "a " * 97), lm.encode("copy a")[:1]
    assert (len(long), len(short)) == (100, 1)
    params = SamplingParams(max_tokens=1)
    serve(engine, [Request(ids, params) for ids in [long, *[short] * 7]])
    assert engine.trace.ledger().pad_tokens == 693
    assert lessons.guesses()["one_long_prompt"].answer == 99 * 7


def test_the_recorded_pad_shares_have_their_source_and_are_those_of_the_readme():
    recorded = json.loads(RESULTS.read_text("utf-8"))
    assert "Azure Public Dataset" in recorded["conditions"]["source"]
    assert recorded["conditions"]["licence"] == "CC-BY-4.0"
    conversation = recorded["traffic"]["conv"]
    assert (conversation["prompts"], conversation["pad_share"]["8"]) == (19366, 0.603)
    assert recorded["traffic"]["code"]["pad_share"]["64"] == 0.719


def test_the_recorded_shares_are_computed_as_the_exercise_does(tmp_path, monkeypatch):
    """The script and the reference, on a trace made up here."""
    monkeypatch.syspath_prepend(str(RESULTS.parents[1]))
    import pad_share as script

    text = "\ufeffTIMESTAMP,ContextTokens,GeneratedTokens\n"
    for second, tokens in enumerate(("4,1", "9,1", "2,7")):
        text += f"2023-11-16 18:17:0{second},{tokens}\n"
    (tmp_path / "trace.csv").write_text(text, "utf-8")
    lengths = script.prompt_lengths(tmp_path / "trace.csv")
    assert lengths == [4, 9, 2]
    for size in script.SIZES:
        reference = lesson_02.pad_share_in_batches(lengths, size)
        assert script.pad_share(lengths, size) == pytest.approx(reference)
    assert script.of_traffic(lengths)["pad_share"][2] == 0.25


# ---- the lesson, with a learner's answers in place -------------------------------


def pad_batch(prompts, pad_id, side):
    ids, mask = padding.pad_batch(prompts, pad_id, side)
    return ids.int(), mask.int()


def pad_share(lengths):
    return 1 - torch.tensor(lengths).float().mean() / max(lengths)


@pytest.mark.slow
def test_the_lesson_runs_with_answers_in_another_form(fresh_kernel):
    run_all.with_answers("02", pad_batch, pad_share, lesson_02.pad_share_in_batches)


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    asked = [*LESSON.exercises, *LESSON.guesses]
    assert run_all.with_wrong_answers("02") == len(asked)
