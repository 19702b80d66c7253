"""Lesson 10: its exercises, as learners may answer them, and its figures.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from functools import partial
from pathlib import Path

import laws
import numpy as np
import pytest
import run_all
import torch

from nanoserve import (
    ContinuousBatchEngine,
    Request,
    SamplingParams,
    admission,
    load,
    metrics,
    replay,
    serve,
    traffic,
)
from nanoserve.course import checks, lessons, panels, trial, values
from nanoserve.course.lessons import lesson_10

EXERCISES = lessons.exercises()
LESSON = lessons.all_lessons()["10"]
DATA = Path(__file__).parents[1] / "data"
RESULTS = DATA / "results" / "replay_traffic.json"
LM = load("canary", device="cpu")


# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    ("admit", (["C", "D", "E"], ["A"], 3), ["C", "D"]),
    ("admit", (["C", "D"], ["A", "B"], 2), []),
    ("first_token_passes", ([6, 11, 4, 4, 9], 3), [1, 1, 1, 5, 7]),
    ("first_token_passes", ([10, 500, 50, 10], 3), [1, 1, 1, 11]),
    (
        "next_in_line",
        ([("A", 0, 9), ("B", 1, 7), ("C", 2, 5), ("D", 3, 1)], 11, 3, 10),
        ["A", "B", "D"],
    ),
]
ANSWERS = {
    "passes_at_least": -(-8 * (10 + 500 + 50) // 3),
    "d_joins": 5,
    "who_pays": "longer",
}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


@pytest.mark.parametrize(("guess", "answer"), ANSWERS.items())
def test_the_answers_to_the_questions_are_right(guess, answer):
    assert lessons.guesses()[guess].answer == answer


def joins_while(condition, side):
    """Take from one end of the line as long as ``condition`` holds."""

    def admit(waiting, running, max_num_seqs):
        line, joining = deque(waiting), []
        while line and condition(len(running), len(joining), max_num_seqs):
            joining.append(line.popleft() if side == "front" else line.pop())
        return joining

    return admit


def seats_free_up(tokens_to_make, max_num_seqs, *, gap=0, shift=0):
    """The exercise with a heap, as somebody who knows one would write it."""
    seats, first = [1] * max_num_seqs, []
    for tokens in tokens_to_make:
        begins = heapq.heappop(seats)
        first.append(begins + shift)
        heapq.heappush(seats, begins + tokens + gap)
    return first


def whole_batches(tokens_to_make, max_num_seqs):
    first, now, rest = [], 1, list(tokens_to_make)
    while rest:
        batch, rest = rest[:max_num_seqs], rest[max_num_seqs:]
        first.extend(now for _ in batch)
        now = now + sorted(batch)[-1]
    return first


def by(*keys):
    """Sort by the keys for who has waited long enough, and for all others."""

    def next_in_line(waiting, now, free_seats, patience):
        old = [each for each in waiting if now - each[1] >= patience]
        others = [each for each in waiting if each not in old]
        line = sorted(old, key=keys[0]) + sorted(others, key=keys[1])
        return [each[0] for each in line][:free_seats]

    return next_in_line


def by_length_alone(waiting, now, free_seats, patience):
    return [n for n, _, _ in sorted(waiting, key=lambda each: each[2])][:free_seats]


def arrival(request):
    return request[1]


def tokens(request):
    return request[2]


static = joins_while(lambda r, j, n: not r and j < n, "front")
# What course.md lists and what else is likely, written as a learner might.
LISTED = [
    ("admit", "only when all are free", static),
    ("admit", "one a pass", joins_while(lambda r, j, n: r < n and not j, "front")),
    ("admit", "newest first", joins_while(lambda r, j, n: r + j < n, "back")),
    ("admit", "overfills", joins_while(lambda r, j, n: j < n, "front")),
    ("admit", "overfills", joins_while(lambda r, j, n: r + j <= n, "front")),
    ("first_token_passes", "batch by batch", whole_batches),
    ("first_token_passes", "a pass for nobody", partial(seats_free_up, gap=1)),
    ("first_token_passes", "counted from 0", partial(seats_free_up, shift=-1)),
    ("next_in_line", "no aging", by_length_alone),
    ("next_in_line", "in order of arrival", by(arrival, arrival)),
    ("next_in_line", "the shortest of the old", by(tokens, tokens)),
    ("next_in_line", "longest first", by(arrival, lambda each: -each[2])),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


OTHER_WAYS = [
    ("admit", joins_while(lambda r, j, n: r + j < n, "front")),
    ("admit", lambda w, r, n: tuple(w)[: max(0, n - len(r))]),
    ("first_token_passes", seats_free_up),
    ("first_token_passes", lambda t, n: torch.tensor(seats_free_up(t, n))),
    ("next_in_line", by(arrival, tokens)),
    ("next_in_line", lambda *given: np.array(lesson_10.next_in_line(*given))),
]


@pytest.mark.parametrize(("exercise", "function"), OTHER_WAYS)
def test_another_way_is_right(exercise, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert verdict.status == "passed", panels.of_verdict(verdict)


def test_the_case_that_fails_is_shown():
    newest = joins_while(lambda r, j, n: r + j < n, "back")
    told = repr(panels.of_verdict(checks.check(EXERCISES["admit"], newest)))
    assert "admit(['D', 'E', 'F'], ['A', 'B'], 4)" in told
    assert "expected  D  E\n" in told
    assert "yours     F  E\n" in told


# ---- the figures of the lesson ---------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "static", "continuous"), [(3, 4000, 1670), (8, 1500, 680)]
)
def test_ten_five_hundred_fifty(slots, static, continuous):
    asked = [traffic.Arrival(0, 4, n) for n in (10, 500, 50)] * 8
    rules = admission.Static(), admission.Continuous()
    passes = [replay.replay(asked, slots, rule).passes for rule in rules]
    assert passes == [static, continuous]
    # the same on paper: the last token of each is made tokens - 1 passes later
    firsts = lesson_10.first_token_passes([each.output for each in asked], slots)
    ends = [f + each.output - 1 for f, each in zip(firsts, asked, strict=True)]
    assert max(ends) == continuous


def test_the_recorded_passes_have_their_source_and_are_those_of_the_lesson():
    recorded = json.loads(RESULTS.read_text("utf-8"))
    assert "Azure Public Dataset" in recorded["conditions"]["source"]
    assert recorded["conditions"]["licence"] == "CC-BY-4.0"
    times = {"code": (63409, 8328, 7.6), "conv": (332741, 128102, 2.6)}
    for name, (static, continuous, ratio) in times.items():
        passes = {
            (each["max_num_seqs"], each["engine"]): each["passes"]
            for each in recorded["traffic"][name]["arrival"]
        }
        assert passes[32, "static"] == static
        assert passes[32, "continuous"] == continuous
        assert round(static / continuous, 1) == ratio


def test_the_script_counts_as_replay_does(tmp_path, monkeypatch):
    """On a trace made up here, from the file to the JSON."""
    monkeypatch.syspath_prepend(str(DATA))
    import replay_traffic as script

    rows = ["2023-11-16 18:00:00,4,3", "2023-11-16 18:00:01,6,5"]
    text = "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows])
    for name in ("conv", "code"):
        (tmp_path / f"azure-llm-2023-{name}.csv").write_text(text, "utf-8")
    monkeypatch.setattr(script, "RESULT", tmp_path / "result.json")
    script.main(tmp_path)
    stored = json.loads((tmp_path / "result.json").read_text("utf-8"))
    assert stored["conditions"] == script.CONDITIONS
    code = stored["traffic"]["code"]
    assert (code["requests"], code["tokens"]) == (2, 8)
    assert [each["passes"] for each in code["arrival"][:4]] == [8, 8, 5, 5]
    assert code["arrival"][2]["wasted_fraction"] == 0.2


def test_the_engine_serves_when_the_exercise_says():
    lengths = [6, 11, 4, 4, 9, 30, 2, 2, 2]
    engine = ContinuousBatchEngine(LM, max_num_seqs=3, max_model_len=64)
    serve(engine, map(runs_for, lengths))
    seen = [each.ttft for each in metrics.in_passes(engine.trace)]
    assert seen == lesson_10.first_token_passes(lengths, 3)


def runs_for(tokens, arrival=0):
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    return Request(LM.encode("copy a b"), params, arrival_step=arrival)


class Shortest(admission.Continuous):
    """The lesson's own rule of admission."""

    def joins(self, queue):
        here = {each.index: each for each in queue.arrived()}
        line = [
            (index, each.arrival, each.request.params.max_tokens)
            for index, each in here.items()
        ]
        names = lesson_10.next_in_line(line, queue.clock, queue.free_seats, 10**9)
        return [here[name] for name in names]


def test_shortest_first_waits_less_on_average_and_longer_at_worst_with_equal_tokens():
    asked = [runs_for(*each) for each in ((30, 0), (20, 1), (3, 2), (4, 3), (5, 4))]
    waited = []
    for rule in (admission.Continuous(), Shortest()):
        engine = ContinuousBatchEngine(LM, max_num_seqs=1, max_model_len=64)
        engine.rule = rule
        answers = serve(engine, asked)
        got = [laws.Answer(a.token_ids, a.finish_reason) for a in answers.values()]
        assert not laws.unlike(got, [laws.alone(LM, each) for each in asked])
        waited.append(metrics.measure(metrics.in_passes(engine.trace)).queueing)
    first_come, shortest = waited
    assert shortest.mean < first_come.mean
    assert shortest.most == 11 + 30  # it came in pass 1, and all others went first


# ---- the lesson, with a learner's answers in place -------------------------------


@pytest.mark.slow
def test_the_lesson_runs_with_answers_in_another_form(fresh_kernel):
    def admit(waiting, running, max_num_seqs):
        joining = []
        while waiting and len(running) < max_num_seqs:
            joining.append(waiting.pop(0))  # both are the caller's
            running.append(joining[-1])
        return tuple(joining)

    def first_token_passes(tokens_to_make, max_num_seqs):
        return torch.tensor(seats_free_up(tokens_to_make, max_num_seqs))

    def next_in_line(waiting, now, free_seats, patience):
        return np.array(lesson_10.next_in_line(waiting, now, free_seats, patience))

    run_all.with_answers("10", admit, first_token_passes, next_in_line)


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    asked = [*LESSON.exercises, *LESSON.guesses]
    assert run_all.with_wrong_answers("10") == len(asked)
