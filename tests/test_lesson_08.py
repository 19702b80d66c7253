"""Lesson 08: its exercises, as learners may answer them, and its figures.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import run_all
import torch

from nanoserve import (
    Request,
    SamplingParams,
    StaticBatchEngine,
    admission,
    load,
    replay,
    serve,
    traffic,
)
from nanoserve.course import checks, lessons, panels, trial, values
from nanoserve.course.lessons import lesson_08

EXERCISES = lessons.exercises()
LESSON = lessons.all_lessons()["08"]
RESULTS = Path(__file__).parents[1] / "data" / "results" / "replay_traffic.json"
SERVE = lesson_08.Serve(2)


# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    (
        "ledger",
        (
            [
                [("prefill", 2), ("prefill", 0), ("prefill", 4)],
                [("decode", 0)] * 3,
                [("decode", 0), ("decode", 0), ("finished", 0)],
                *[[("finished", 0), ("decode", 0), ("finished", 0)]] * 2,
            ],
        ),
        [10, 5, 0, 6],  # A, B and C
    ),
    ("ledger", ([[("prefill", 0), ("idle", 0)], [("idle", 0)] * 2],), [1, 0, 3, 0]),
    (
        "answer_all",
        ([(4, 9), (2, 1), (4, 3)], 2, SERVE),
        ["answer 9 to prompt 4", "answer 1 to prompt 2", "answer 3 to prompt 4"],
    ),
    ("batch_now", ([2, 4], 5, 3, 3), 2),
    ("batch_now", ([2, 4], 4, 3, 3), 0),
    ("batch_now", ([2, 4, 4, 4], 4, 3, 3), 3),
]
ANSWERS = {"seats_in_a_hundred": 12, "sorting_helps": "pads", "window_in_a_rush": 0}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


@pytest.mark.parametrize(("guess", "answer"), ANSWERS.items())
def test_the_answers_to_the_questions_are_right(guess, answer):
    assert lessons.guesses()[guess].answer == answer


def count(passes, *, useful=("prefill", "decode"), wasted=("finished",), pads_in=None):
    """The exercise with a Counter, as a learner might."""
    of = Counter(state for state, _ in chain.from_iterable(passes))
    pads = sum(n for _, n in chain.from_iterable(passes))
    sums = [sum(of[s] for s in useful), sum(of[s] for s in wasted), of["idle"]]
    if pads_in is not None:
        sums[pads_in] += pads
    return (*sums, pads)


def plan(requests, size, serve, *, key=sum, put_back=True, last=True, fill=True):
    line = sorted(enumerate(requests), key=lambda each: key(each[1]))
    answers = {}
    for batch in [line[at : at + size] for at in range(0, len(line), size)]:
        if len(batch) == size or last:
            numbers, asked = zip(*batch, strict=True)
            answers.update(zip(numbers, serve(list(asked)), strict=True))
    if not put_back:
        return list(answers.values())
    numbers = range(len(requests))
    return [answers.get(n) for n in numbers if fill or n in answers]


def first(request):
    return request[0]


def nothing(request):
    return 0


def window_of(oldest, *, full=True, timer=True):
    def batch_now(waiting, now, size, window):
        if full and len(waiting) >= size:
            return size
        if timer and waiting and now - oldest(waiting) >= window:
            return len(waiting[:size])
        return 0

    return batch_now


# What course.md lists and what else is likely, written as a learner might.
LISTED = [
    ("ledger", "idle as wasted", lambda p: count(p, wasted=("finished", "idle"))),
    ("ledger", "pads as slot-steps", lambda p: count(p, pads_in=0)),
    ("ledger", "prefill not counted", lambda p: count(p, useful=("decode",))),
    ("answer_all", "answers left sorted", lambda *a: plan(*a, put_back=False)),
    (
        "answer_all",
        "answers left sorted",
        lambda *a: plan(*a, key=first, put_back=False),
    ),
    ("answer_all", "last batch lost", lambda *a: plan(*a, last=False, fill=False)),
    (
        "answer_all",
        "last batch lost",
        lambda *a: plan(*a, key=nothing, last=False, fill=False),
    ),
    ("answer_all", "waits for ever", lambda *a: plan(*a, last=False)),
    ("answer_all", "waits for ever", lambda *a: plan(*a, key=first, last=False)),
    ("batch_now", "timer from the newest", window_of(max)),
    ("batch_now", "never fires", window_of(min, timer=False)),
    ("batch_now", "ignores full", window_of(min, full=False)),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


OTHER_WAYS = [
    ("ledger", count),
    ("ledger", lambda passes: torch.tensor(count(passes))),
    *(
        ("answer_all", lambda *a, key=key: plan(*a, key=key))
        for key in (nothing, first, sum, max, min, lambda each: -each[1])
    ),
    ("answer_all", lambda requests, size, serve: [serve([r])[0] for r in requests]),
    ("batch_now", window_of(min)),
    ("batch_now", lambda *a: np.int64(lesson_08.batch_now(*a))),
]


@pytest.mark.parametrize(("exercise", "function"), OTHER_WAYS)
def test_another_way_is_right(exercise, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert verdict.status == "passed", panels.of_verdict(verdict)


def test_a_batch_that_is_too_large_is_refused_in_words():
    verdict = checks.check(
        EXERCISES["answer_all"], lambda requests, size, serve: serve(requests)
    )
    assert verdict.status == "raised"
    assert "batch=4: must be 1 to 2 requests" in repr(panels.of_verdict(verdict))


# ---- the figures of the lesson ---------------------------------------------------


def lengths(*tokens):
    return [traffic.Arrival(0, *each) for each in tokens]


def test_the_two_bills_by_heart():
    abc = replay.replay(
        lengths((4, 3), (6, 5), (2, 2)), 3, admission.Static(), padded=True
    )
    assert (abc.wasted_slot_steps, abc.total_slot_steps, abc.pad_tokens) == (5, 15, 6)
    ragged = replay.replay(lengths((4, 10), (4, 500), (4, 50)), 3, admission.Static())
    assert round(100 * ragged.wasted_fraction, 1) == 62.7


def test_the_recorded_figures_are_those_of_the_lesson():
    recorded = json.loads(RESULTS.read_text("utf-8"))["traffic"]
    bill = {
        (name, order, each["max_num_seqs"]): each
        for name, of in recorded.items()
        for order, rows in [("arrival", of["arrival"]), *of["sorted"].items()]
        for each in rows
        if each["engine"] == "static"
    }
    assert bill["code", "arrival", 32]["passes"] == 63409
    assert round(100 * bill["code", "arrival", 32]["slot_utilization"]) == 12
    percent = {
        ("conv", "arrival"): (60, 52),
        ("conv", "prompt"): (6, 31),
        ("code", "arrival"): (62, 73),
        ("code", "prompt"): (5, 72),
    }
    for (name, order), shares in percent.items():
        of = bill[name, order, 8]
        seen = of["pad_fraction"], of["wasted_fraction"]
        assert tuple(round(100 * share) for share in seen) == shares
    for name, waste in (("conv", 6), ("code", 31)):
        assert round(100 * bill[name, "output", 8]["wasted_fraction"]) == waste


def test_a_sorted_plan_costs_less_and_the_engine_says_the_same_as_replay():
    """The score of the lesson: rows computed for nobody, and pads."""
    lm = load("canary", device="cpu")
    asked = [(20, 3), (4, 12), (18, 2), (5, 11), (6, 1)]
    scores = []
    for key in (nothing, sum):
        line = sorted(asked, key=key)
        engine = StaticBatchEngine(lm, max_num_seqs=2, max_model_len=64)
        for batch in (line[:2], line[2:4], line[4:]):
            serve(engine, [runs_for(lm, *each) for each in batch])
        real = engine.trace.ledger()
        paper = replay.replay(lengths(*line), 2, admission.Static(), padded=True)
        scores.append(real.wasted_slot_steps + real.pad_tokens)
        assert scores[-1] == paper.wasted_slot_steps + paper.pad_tokens
        assert real.passes == paper.passes
    assert scores[1] < scores[0]


def runs_for(lm, prompt, answer):
    ids = (lm.encode("copy a b c d e") * 9)[:prompt]
    return Request(ids, SamplingParams(max_tokens=answer, ignore_eos=True))


# ---- the lesson, with a learner's answers in place -------------------------------


@pytest.mark.slow
def test_the_lesson_runs_with_answers_in_another_form(fresh_kernel):
    def ledger(passes):
        return torch.tensor(count(passes))

    def answer_all(requests, size, serve):
        return tuple(serve([each])[0] for each in requests)

    def batch_now(waiting, now, size, window):
        return float(lesson_08.batch_now(waiting, now, size, window))

    run_all.with_answers("08", ledger, answer_all, batch_now)


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    asked = [*LESSON.exercises, *LESSON.guesses]
    assert run_all.with_wrong_answers("08") == len(asked)
