"""Lesson 12: its exercises, as learners may answer them, its lanes and its figures.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
import run_all
import torch

from nanoserve import (
    ContinuousBatchEngine,
    Request,
    SamplingParams,
    SlotTrace,
    load,
    metrics,
    serve,
)
from nanoserve.course import checks, lessons, trial, values
from nanoserve.course.lessons import lesson_12
from nanoserve.course.stream_lanes import StreamLanes, fed_by_pass, timelines
from nanoserve.ledger import Cell

EXERCISES = lessons.exercises()
LESSON = lessons.all_lessons()["12"]
LM = load("canary", device="cpu")


# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    ("longest_gap", ([9, 2, 2, 50, 2], [0, 1, 4]), [54]),
    ("longest_gap", ([21, 3, 246, 3], [0, 1, 2, 3]), [246]),
    (
        "plan_pass",
        (["A", "B"], [["C", 10]], 8),
        [{"A": 1, "B": 1, "C": 6}, {"A", "B"}],
    ),
    (
        "plan_pass",
        (["A"], [["C", 3], ["D", 9], ["E", 1]], 8),
        [{"A": 1, "C": 3, "D": 4}, {"A", "C"}],
    ),
    ("plan_pass", (["A"], [["C", 3]], 1), [{"A": 1}, {"A"}]),
    ("choose_budget", ({64: 20, 256: 26, 1024: 70}, 30, 6, 1000), [256, 4]),
    ("choose_budget", ({64: 20, 256: 26}, 26, 6, 1001), [256, 5]),
]
ANSWERS = {
    "tokens_of_that_pass": 243 + 3,
    "passes_in_chunks": 9,
    "who_gets_a_token": {"A", "B", "C"},
}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    expected = [*map(values.plain, answer)]
    assert values.same(expected if len(expected) > 1 else expected[0], given.value)


def newcomers_first(decoding, prompts, budget):
    fed = {}
    for name, left in [*prompts, *([each, 1] for each in decoding)]:
        if fed_now := min(left, budget - sum(fed.values())):
            fed[name] = fed_now
    lefts = dict(prompts)
    return fed, {name for name in fed if fed[name] == lefts.get(name, 1)}


def everybody_answers(decoding, prompts, budget):
    fed, _ = lesson_12.plan_pass(decoding, prompts, budget)
    return fed, list(fed)


def so_many_requests(decoding, prompts, budget):
    rows = [[name, 1] for name in decoding] + prompts
    fed = dict(rows[:budget])
    return fed, list(fed)


def whole_budget_for_prompts(decoding, prompts, budget):
    fed, gets = lesson_12.plan_pass([], prompts, budget)
    return {**fed, **dict.fromkeys(decoding, 1)}, gets | set(decoding)


def nothing_cut(decoding, prompts, budget):
    fed = dict.fromkeys(decoding, 1)
    for name, left in prompts:
        if sum(fed.values()) + left <= budget:
            fed[name] = left
    return fed, set(fed)


def within(pass_ms, limit):
    return [tokens for tokens in pass_ms if pass_ms[tokens] <= limit]


# What course.md lists and what else is likely, written as a learner might.
LISTED = [
    ("longest_gap", "counts passes", lambda _, p: int(torch.tensor(p).diff().max())),
    ("longest_gap", "mean", lambda f, p: sum(f[p[0] + 1 : p[-1] + 1]) / (len(p) - 1)),
    ("longest_gap", "one pass", lambda f, p: max(f[n] for n in p[1:])),
    ("plan_pass", "prefill first", newcomers_first),
    ("plan_pass", "a token from an unfinished chunk", everybody_answers),
    ("plan_pass", "counts requests", so_many_requests),
    ("plan_pass", "decodes are free", whole_budget_for_prompts),
    ("plan_pass", "whole prompts only", nothing_cut),
    (
        "choose_budget",
        "ignores the limit",
        lambda ms, _, d, p: (max(ms), -(-p // (max(ms) - d))),
    ),
    (
        "choose_budget",
        "decodes are free",
        lambda ms, most, _, p: (b := max(within(ms, most)), (p + b - 1) // b),
    ),
    (
        "choose_budget",
        "rounds down",
        lambda ms, most, d, p: (b := max(within(ms, most)), p // (b - d)),
    ),
    (
        "choose_budget",
        "smallest",
        lambda ms, most, d, p: (b := min(within(ms, most)), -(-p // (b - d))),
    ),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


# ---- the traffic of the lesson ---------------------------------------------------


def counts_to(last):
    params = SamplingParams(max_tokens=last + 1)
    return Request(LM.encode(f"count from 1 to {last}"), params)


def long_prompt():
    text = "copy " + " ".join("abcdefgh"[n % 8] for n in range(240))
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    return Request(LM.encode(text), params, arrival_step=6)


def run(**knobs):
    engine = ContinuousBatchEngine(LM, 4, max_model_len=320, **knobs)
    asked = [counts_to(20), counts_to(16), counts_to(24), long_prompt()]
    answers = serve(engine, asked)
    for name, last in (("A", 20), ("B", 16), ("C", 24)):
        assert answers[name].text == " ".join(str(n) for n in range(1, last + 1))
    return engine.trace


@pytest.mark.parametrize("budget", [8, 16, 32, 64, 128, 256])
def test_the_plan_of_the_exercise_is_the_engines(budget):
    """Pass by pass, while A, B and C decode and D is read."""
    trace = run(max_num_batched_tokens=budget)
    reads = [r for r in trace.runs if r.state == "prefill" and r.request == 3]
    first, fed = reads[0].start, fed_by_pass(trace)
    left, number = 243, first
    while left:
        here = [r for r in trace.runs if r.start <= number < r.end]
        decoding = [str(r.slot) for r in here if r.state == "decode"]
        plan, gets = lesson_12.plan_pass(decoding, [["D", left]], budget)
        assert sum(plan.values()) == fed[number]
        emitted = {"D" if r.request == 3 else str(r.slot) for r in here if r.emitted}
        assert gets == emitted
        left, number = left - plan["D"], number + 1


def test_a_whole_prompt_is_everybodys_gap_and_a_budget_bounds_it():
    whole, chunked = run(enable_chunked_prefill=False), run(max_num_batched_tokens=32)
    assert fed_by_pass(whole)[6] == 246
    assert fed_by_pass(chunked)[6:15] == [32] * 8 + [14]
    assert sum(fed_by_pass(whole)) == sum(fed_by_pass(chunked)) == 331
    for trace, gap in ((whole, 246), (chunked, 32)):
        times = timelines(trace)
        assert [max(times[name].itl) for name in "ABC"] == [gap] * 3
        assert metrics.measure(metrics.in_passes(trace)).itl.most == 1
        fed = fed_by_pass(trace)
        for index, last in enumerate((20, 16, 24)):
            came = [number for i, number, _ in trace.emissions() if i == index]
            assert came == list(range(last + 1))
            assert lesson_12.longest_gap(fed, came) == gap
    assert (timelines(whole)["D"].ttft, timelines(chunked)["D"].ttft) == (246, 270)


@pytest.mark.parametrize(
    ("budget", "passes", "first"),
    [(8, 50, 37), (16, 31, 18), (32, 25, 9), (64, 25, 4), (128, 25, 2), (256, 25, 1)],
)
def test_the_table_of_budgets(budget, passes, first):
    trace = run(max_num_batched_tokens=budget)
    assert trace.passes == passes
    assert metrics.in_passes(trace)[3].ttft == first
    assert max(fed_by_pass(trace)) == min(budget, 246)


# ---- the lanes -------------------------------------------------------------------


def by_hand():
    """A reads 4 and says two; B comes in pass 2, reads 6 in two chunks, says one."""
    trace = SlotTrace("by hand", 2, 16)
    trace.add("A", 4, 2, 0)
    trace.add("B", 6, 1, 1)
    trace.record([Cell(0, 0, "prefill", 4, 0, 1, 4)])
    trace.token(0, 1)
    trace.record([Cell(0, 0, "decode", 1, 0, 1, 5), Cell(1, 1, "prefill", 3, 0, 0, 3)])
    trace.token(0, 1)
    trace.record([Cell(1, 1, "prefill", 3, 0, 1, 6)])
    trace.token(1, 1)
    return trace


def test_times_are_counted_in_tokens_fed():
    times = timelines(by_hand())
    assert fed_by_pass(by_hand()) == [4, 4, 3]
    assert (times["A"].tokens, times["A"].itl) == ((4, 8), [4])
    assert (times["B"].arrived, times["B"].tokens) == (4, (11,))


def test_the_lanes_are_a_picture_with_a_bar_for_each_token():
    lanes = StreamLanes({"one": by_hand(), "other": by_hand()})
    drawn = ElementTree.fromstring(lanes.svg())
    rects = list(drawn.iter("{http://www.w3.org/2000/svg}rect"))
    bars = [each for each in rects if each.get("width") == "1.60"]
    assert len(bars) == 2 * 3 + 1  # and one in the legend
    ends = {round(float(each.get("x")) + 1.6, 1) for each in bars[:3]}
    assert ends == {round(40 + 720 * at / 11, 1) for at in (4, 8, 11)}
    assert lanes.svg() == StreamLanes({"one": by_hand(), "other": by_hand()}).svg()


def test_the_lanes_say_the_same_in_words():
    told = StreamLanes({"mine": by_hand()})._repr_mimebundle_()
    assert (
        told["text/plain"]
        == """\
mine: 3 passes, 11 tokens fed, at most 4 in a pass
A: first token 4 after it came, longest gap 4
B: first token 7 after it came
tokens fed, pass by pass: 4, 4, 3"""
    )
    assert "data:image/svg+xml;base64," in told["text/html"]


def test_a_request_that_never_ran_has_an_empty_lane():
    trace = SlotTrace("idle", 2, 16)
    trace.add("A", 4, 2, 0)
    lanes = StreamLanes({"idle": trace})
    assert "A: no token" in lanes.text()
    ElementTree.fromstring(lanes.svg())


# ---- the lesson, with a learner's answers in place -------------------------------


def longest_gap(fed, passes):
    return torch.tensor(lesson_12.longest_gap(fed, passes)).float()


def plan_pass(decoding, prompts, budget):
    fed, gets = lesson_12.plan_pass(decoding, prompts, budget)
    return {name: torch.tensor(n) for name, n in fed.items()}, sorted(gets)


def choose_budget(pass_ms, limit_ms, decodes, prompt):
    return torch.tensor(lesson_12.choose_budget(pass_ms, limit_ms, decodes, prompt))


@pytest.mark.slow
def test_the_lesson_runs_with_answers_in_another_form(fresh_kernel):
    run_all.with_answers("12", longest_gap, plan_pass, choose_budget)


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    asked = [*LESSON.exercises, *LESSON.guesses]
    assert run_all.with_wrong_answers("12") == len(asked)
