"""The exercises: what an attempt is told, whatever it does.

A learner's cells are run here as a notebook runs them: compiled one by one, in one
namespace, in any order. At the end a real kernel runs a notebook of bad attempts.
"""

import ast
import asyncio
import contextlib
import functools
import json
import linecache
import math
import os
import pkgutil
import re
import signal
import threading
import time
from importlib import import_module
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbclient import NotebookClient

import nanoserve.course
from nanoserve import course
from nanoserve.course import (
    binding,
    cells,
    checks,
    lessons,
    panels,
    progress_file,
    rows,
    timeouts,
    trial,
    values,
)
from nanoserve.course.exercises import Exercise
from nanoserve.course.lessons import lesson_07
from nanoserve.course.words import WORDS

EXERCISES = lessons.exercises()
GUESSES = lessons.guesses()
ONE_PASSED = f"1 of {len(EXERCISES)} passed"
NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


class Notebook:
    """Cells in one namespace; ``run`` gives the texts of the panels it showed."""

    def __init__(self, shown):
        self.shown = shown
        self.number = 0
        self.space = {"course": course, "torch": torch, "calls": []}

    def run(self, source):
        self.number += 1
        name = f"cell-{self.number}"
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        self.shown.clear()
        exec(compile(source, name, "exec"), self.space)
        return [repr(panel) for panel in self.shown]

    def value(self, source):
        return eval(source, self.space)


@pytest.fixture(autouse=True)
def shown(monkeypatch, tmp_path):
    """A fresh kernel, an empty progress file, and the panels that were shown."""
    monkeypatch.setenv("NANOSERVE_PROGRESS", str(tmp_path / "progress.json"))
    restart()
    found = []
    monkeypatch.setattr(panels, "show", found.append)
    return found


@pytest.fixture
def notebook(shown):
    return Notebook(shown)


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(trial, "SECONDS", 0.15)


def restart():
    binding._attempts.clear()
    progress_file._since_start.clear()


def verdict_of(function, name="passes_to_come"):
    return checks.check(EXERCISES[name], function)


@functools.cache
def verdict_of_ours(name, function):
    """On a reference or a planted mistake. Some run an engine for a second, and what
    is said of them is looked at in more than one test."""
    return verdict_of(function, name)


def words_of(verdict):
    return repr(panels.of_verdict(verdict))


# ---- every exercise, its reference and its mistakes ------------------------------

ALL_MISTAKES = [
    pytest.param(each, name, function, id=f"{each.name}-{name}-{function.__name__}")
    for each in EXERCISES.values()
    for name, functions in each.mistakes.items()
    for function in functions
]


@pytest.mark.parametrize("each", EXERCISES.values(), ids=list(EXERCISES))
def test_the_reference_passes(each):
    verdict = verdict_of_ours(each.name, each.reference)
    assert (verdict.status, verdict.cases) == ("passed", len(each.cases()))
    assert f"course.{each.name}` is yours" in verdict.lines[-1]


# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    ("score_shape", (2, 3, 4, 5), [2, 3, 4, 4]),
    ("softmax_row", (torch.tensor([0.0, math.log(3)]),), [0.25, 0.75]),
    ("softmax_row", (torch.tensor([2000.0, -math.inf]),), [1, 0]),
    ("passes_to_come", ([3, 5, 2],), 5),
    ("passes_to_come", ([10, 500, 50],), 500),
    (
        "apply_new_tokens",
        (
            [[1, 2, 5], [1, 6], [1, 2], [1, 7]],
            [False] * 2 + [True, False],
            [8, 2, 9, 6],
            2,
        ),
        [[[1, 2, 5, 8], [1, 6, 2], [1, 2], [1, 7, 6]], [False, True, True, False]],
    ),
    (
        "drop_rows",
        (["A", "B", "C"], [True, False, False], torch.tensor([[1], [2], [3]])),
        [["B", "C"], [[2], [3]]],
    ),
]


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


def test_every_reference_was_worked_out_by_hand():
    """Here, or in the file of its lesson (test_lesson_02.py), which has its own."""
    names = [path.stem for path in Path(__file__).parent.glob("test_lesson_*.py")]
    elsewhere = [each for name in names for each in import_module(name).BY_HAND]
    assert {exercise for exercise, *_ in [*BY_HAND, *elsewhere]} == set(EXERCISES)


@pytest.mark.parametrize(("each", "name", "function"), ALL_MISTAKES)
def test_a_planted_mistake_fails_and_is_named(each, name, function):
    verdict = verdict_of_ours(each.name, function)
    assert verdict.status in ("wrong", "raised")
    assert verdict.mistake == name
    told = each.words[name].replace("{row}", verdict.place or "this answer")
    assert verdict.lines[0] == told[0].upper() + told[1:]
    assert "{" not in verdict.lines[0]
    assert verdict.call.startswith(f"{each.name}(")


def listed_appends_to_finished(rows, finished, new_tokens, eos):
    for i in range(len(rows)):
        rows[i] = rows[i] + [new_tokens[i]]
        if new_tokens[i] == eos:
            finished[i] = True
    return rows, finished


def listed_eos_in_the_prompt(rows, finished, new_tokens, eos):
    rows = [r if f else r + [t] for r, f, t in zip(rows, finished, new_tokens)]  # noqa: B905
    return rows, [eos in row for row in rows]


def listed_one_stop_ends_all(rows, finished, new_tokens, eos):
    rows = [r if f else r + [t] for r, f, t in zip(rows, finished, new_tokens)]  # noqa: B905
    return rows, [True] * len(rows) if eos in new_tokens else finished


# What course.md lists, written anew as a learner might, not as it is planted.
LISTED = [
    ("score_shape", "tokens x head_dim", lambda b, h, s, d: (b, h, s, d)),
    ("score_shape", "one score a token", lambda b, h, s, d: torch.Size([b, h, s])),
    ("softmax_row", "overflow", lambda s: np.exp(s.numpy()) / np.exp(s.numpy()).sum()),
    ("softmax_row", "no exp", lambda s: [float(x / s.sum()) for x in s]),
    ("apply_new_tokens", "appends to finished", listed_appends_to_finished),
    ("apply_new_tokens", "eos in the prompt", listed_eos_in_the_prompt),
    ("apply_new_tokens", "one stop ends all", listed_one_stop_ends_all),
    ("passes_to_come", "sum", lambda t: torch.tensor(t).sum()),
    ("passes_to_come", "one more", lambda t: 1 + max(t)),
    ("passes_to_come", "mean", lambda t: torch.tensor(t).float().mean()),
    ("drop_rows", "cache not moved", lambda n, f, k: (kept(n, f), k[: f.count(False)])),
    ("drop_rows", "renumbered", lambda n, f, k: (range(f.count(False)), kept(k, f))),
]


def kept(things, finished):
    return [thing for thing, done in zip(things, finished, strict=True) if not done]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = verdict_of(function, exercise)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


@pytest.mark.parametrize("each", EXERCISES.values(), ids=list(EXERCISES))
def test_mistakes_do_not_pass_for_each_other(each):
    answers = [
        (name, trial.run_all(function, each.cases()))
        for name, functions in each.mistakes.items()
        for function in functions
    ]
    for name, mine in answers:
        for other, theirs in answers:
            if name != other:
                assert not all(map(checks.agree, mine, theirs)), (name, other)


@pytest.mark.parametrize("each", EXERCISES.values(), ids=list(EXERCISES))
def test_the_words_are_all_there_and_all_used(each):
    assert set(each.words) == {"title", "hint", *each.mistakes}
    assert all(each.words.values())


def test_every_word_of_the_machinery_is_used():
    folder = Path(nanoserve.course.__file__).parent
    sources = [
        path.read_text("utf-8")
        for path in folder.glob("*.py")
        if path.name != "words.py"
    ]
    for key in WORDS:
        assert any(f'"{key}"' in source for source in sources), key


def test_names_are_unique_and_hide_nothing():
    declared = [
        each.name
        for lesson in lessons.all_lessons().values()
        for each in (*lesson.exercises, *lesson.guesses)
    ]
    assert len(declared) == len(set(declared))
    taken = {each.name for each in pkgutil.iter_modules(nanoserve.course.__path__)}
    assert not (taken | set(vars(nanoserve.course))) & set(declared)


def test_a_failing_row_is_drawn():
    verdict = verdict_of(lesson_07.appends_to_finished, "apply_new_tokens")
    assert words_of(verdict).endswith(
        """\
  row B:
  before    ended  7  2  gets 12
  expected  ended  7  2
  yours     ended  7  2  12
                         ^^"""
    )
    html = panels.of_verdict(verdict).html
    assert html.count("outline:3px") == 1  # one cell is wrong
    assert "linear-gradient" in html  # what has finished is crossed


# ---- answers that mean the same --------------------------------------------------


@pytest.mark.parametrize(
    "form",
    [
        int,
        float,
        torch.tensor,
        np.int32,
        np.array,
        lambda n: torch.tensor(n, dtype=torch.int32),
        lambda n: torch.tensor(float(n), requires_grad=True),
    ],
)
def test_a_number_in_any_form(form):
    assert verdict_of(lambda tokens: form(max(tokens))).status == "passed"


@pytest.mark.parametrize("form", [list, tuple, torch.Size, torch.tensor, np.array])
def test_a_list_in_any_form(form):
    verdict = verdict_of(lambda b, h, s, d: form([b, h, s, s]), "score_shape")
    assert verdict.status == "passed"


@pytest.mark.parametrize(
    "form",
    [
        lambda rows, done: [rows, done],
        lambda rows, done: (tuple(map(tuple, rows)), [int(each) for each in done]),
        lambda rows, done: ([torch.tensor(row) for row in rows], torch.tensor(done)),
        lambda rows, done: ([np.array(row) for row in rows], np.array(done)),
    ],
)
def test_nested_answers_in_any_form(form):
    def apply(rows, finished, new_tokens, eos):
        return form(*lesson_07.apply_new_tokens(rows, finished, new_tokens, eos))

    assert verdict_of(apply, "apply_new_tokens").status == "passed"


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, True, True),
        (5, 5.0, True),
        (5, 5.1, False),
        (5, [5], False),
        ([5], [[5]], False),
        (0.1, 0.10000001, True),
        (0.1, 0.101, False),
        (math.nan, math.nan, True),
        (math.inf, -math.inf, False),
        (1, "1", False),
        ("A", "a", False),
        ({"A", "B"}, ["B", "A"], True),
        ({"A", "B"}, ["B", "B"], False),
        (["A", "B"], {"A", "B"}, False),
        ({"a": [1]}, {"a": torch.tensor([1])}, True),
        ({"a": 1}, {"b": 1}, False),
        (10**30, 10**30, True),
        (1.0, 10**30, False),
    ],
)
def test_same(one, other, equal):
    assert values.same(values.plain(one), values.plain(other)) is equal


def test_a_number_in_a_list_is_not_the_number():
    told = words_of(verdict_of(lambda tokens: [max(tokens)]))
    assert "expected  5" in told
    assert "yours     [5]" in told


def test_the_shape_is_told_where_it_differs():
    def one_row_too_many(b, h, s, d):
        return [[b, h, s, s]]

    assert "shape [4], yours has shape [1, 4]" in words_of(
        verdict_of(one_row_too_many, "score_shape")
    )


# ---- not attempted ---------------------------------------------------------------

STUBS = {
    "dots": "...",
    "pass": "pass",
    "docstring": '"""Only words."""',
    "docstring and dots": '"""Words."""\n    ...',
    "return": "return",
    "return None": "return None",
    "return dots": "return ...",
    "raise": "raise NotImplementedError",
    "raise with words": 'raise NotImplementedError("later")',
}


@pytest.mark.parametrize("body", STUBS.values(), ids=list(STUBS))
def test_a_stub_is_not_attempted(notebook, body):
    (told,) = notebook.run(
        f"@course.exercise\ndef passes_to_come(tokens_to_make):\n    {body}"
    )
    assert told.startswith("○ passes_to_come: not attempted yet")
    assert "✗" not in told


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("most = max(tokens_to_make)", "Is a `return` missing?"),
        ("print(max(tokens_to_make))", "instead of printing it"),
        ("tokens_to_make.sort()", "It changes `tokens_to_make` and gives nothing"),
        ("return [max(tokens_to_make), ...]", "still `...` or None"),
        ("return 5 if 3 in tokens_to_make else None", "Is a `return` missing?"),
        (
            "if len(tokens_to_make) == 3: return max(tokens_to_make)\n"
            "    raise NotImplementedError",
            "still `...` or None",
        ),
    ],
)
def test_a_beginning_is_not_finished(notebook, body, words):
    (told,) = notebook.run(
        f"@course.exercise\ndef passes_to_come(tokens_to_make):\n    {body}"
    )
    assert told.startswith("○ passes_to_come: not finished yet")
    assert words in " ".join(told.split())


# ---- whatever it does ------------------------------------------------------------


def test_it_raises(notebook):
    (told,) = notebook.run(
        "@course.exercise\n"
        "def passes_to_come(tokens_to_make):\n"
        "    tokens_to_make.sort()\n"
        "    return tokens_to_make[9]\n"
    )
    assert told.startswith("✗ passes_to_come: it raised an error")
    assert "`IndexError`: list index out of range" in told
    assert "line 4: `return tokens_to_make[9]`" in told
    assert "passes_to_come([3, 5, 2])" in told


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), MemoryError()])
def test_it_raises_what_is_hard_to_catch(error):
    def passes_to_come(tokens_to_make):
        raise error

    verdict = verdict_of(passes_to_come)
    assert verdict.status == "raised"
    assert type(error).__name__ in words_of(verdict)


def test_it_raises_an_error_that_cannot_be_shown():
    class Sly(Exception):
        def __str__(self):
            raise ValueError("no words")

    def passes_to_come(tokens_to_make):
        raise Sly

    assert "`Sly`" in words_of(verdict_of(passes_to_come))


def test_it_raises_an_error_whose_words_never_end(impatient):
    class Sly(Exception):
        def __str__(self):
            while True:
                pass

    def passes_to_come(tokens_to_make):
        raise Sly

    assert "`Sly`" in words_of(verdict_of(passes_to_come))


def test_it_raises_an_error_with_an_address():
    def passes_to_come(tokens_to_make):
        raise TypeError(str(object()) + "\n" + "more lines")

    told = words_of(verdict_of(passes_to_come))
    assert "`TypeError`: <object object at 0x…>\n" in told


def test_other_arguments(notebook):
    (told,) = notebook.run("@course.exercise\ndef passes_to_come(): return 5")
    assert "its arguments are not the ones" in told
    assert "`passes_to_come(tokens_to_make)`" in told


def test_a_change_of_names_and_a_default_are_fine(notebook):
    source = "@course.exercise\ndef passes_to_come(t, more=0): return max(t) + more"
    assert notebook.run(source)[0].startswith("✓")


def loops_for_ever(tokens_to_make):
    while True:
        pass


def loops_and_swallows(tokens_to_make):
    while True:
        try:
            sum(tokens_to_make)
        except Exception:
            continue


def loops_and_swallows_all(tokens_to_make):
    while True:
        try:  # noqa: SIM105
            sum(range(1000))  # nearly always it is here, within the `try`
        except:  # noqa: E722
            pass


def prints_for_ever(tokens_to_make):
    while True:
        print("pass")


ENDLESS = [
    (call, function)
    for call in (timeouts.by_signal, timeouts.by_thread)
    for function in (loops_for_ever, loops_and_swallows, prints_for_ever)
]


@pytest.mark.parametrize(
    ("call", "function"), [*ENDLESS, (timeouts.by_signal, loops_and_swallows_all)]
)
def test_it_never_ends(monkeypatch, impatient, call, function):
    monkeypatch.setattr(trial, "call", call)
    verdict = verdict_of(function)
    assert verdict.status == "stopped"
    assert "Does a loop in it never end?" in words_of(verdict)
    assert len(verdict.printed) <= trial.MOST_PRINTED + 1


def test_no_except_exception_can_swallow_the_end():
    assert not issubclass(timeouts.Stopped, Exception)


def test_it_sleeps_for_ever(impatient):
    # two seconds, and not for ever: one who is stopped late has given None by then
    assert verdict_of(lambda tokens: time.sleep(2)).status == "stopped"


def test_no_case_is_run_after_one_that_never_ends(impatient):
    cases = EXERCISES["passes_to_come"].cases()
    assert len(trial.run_all(loops_for_ever, cases)) == 1


def test_it_never_ends_on_another_thread(impatient):
    found = []
    thread = threading.Thread(target=lambda: found.append(verdict_of(loops_for_ever)))
    thread.start()
    thread.join(timeout=5)
    assert [each.status for each in found] == ["stopped"]


@pytest.mark.parametrize("call", [timeouts.by_signal, timeouts.by_thread])
def test_the_time_limit_leaves_nothing_behind(call):
    threads = threading.active_count()
    for _ in range(20):
        with contextlib.suppress(timeouts.Stopped):
            call(lambda: loops_for_ever([]), 0.005)
    assert call(lambda: 5, 5.0) == 5
    time.sleep(timeouts.GRACE + 0.05)  # a Stopped that came late would end this test
    assert threading.active_count() == threads
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_somebody_elses_alarm_still_rings():
    rung = []
    before = signal.signal(signal.SIGALRM, lambda *_: rung.append("alarm"))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(timeouts.Stopped):
            timeouts.by_signal(lambda: loops_for_ever([]), 0.02)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        time.sleep(0.25)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert rung == ["alarm"]


@pytest.mark.parametrize("module", ["_pydevd_bundle.pydevd_cython", "bdb"])
def test_who_debugs_has_all_the_time(impatient, monkeypatch, module):
    tracer = type("Tracer", (), {"__module__": module})()
    monkeypatch.setattr("sys.gettrace", lambda: tracer)
    assert (
        verdict_of(lambda t: (t == [7] and time.sleep(0.2)) or max(t)).status
        == "passed"
    )
    monkeypatch.setattr("sys.gettrace", lambda: lambda *_: None)  # as coverage does
    assert (
        verdict_of(lambda t: (t == [7] and time.sleep(0.2)) or max(t)).status
        == "stopped"
    )


def test_it_calls_itself_for_ever():
    def passes_to_come(tokens_to_make):
        return passes_to_come(tokens_to_make)

    assert "It calls itself again and again." in words_of(verdict_of(passes_to_come))


def test_an_interrupt_comes_through(notebook):
    # as a kernel has it; a process that was started in the background ignores it
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        interrupt(notebook)
    finally:
        signal.signal(signal.SIGINT, old)


def interrupt(notebook):
    good = "@course.exercise\ndef passes_to_come(t): return max(t)"
    notebook.run(good)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        notebook.run("@course.exercise\ndef passes_to_come(t):\n    while True: pass")
    assert "not run yet" in repr(course.passes_to_come)
    assert notebook.run(good)[0].startswith("✓")


def test_it_prints(notebook, capsys, recwarn):
    (told,) = notebook.run(
        "import sys, warnings\n"
        "@course.exercise\n"
        "def passes_to_come(tokens_to_make):\n"
        "    print('I see', tokens_to_make)\n"
        "    print('and <b>', file=sys.stderr)\n"
        "    warnings.warn('hm')\n"
        "    return max(tokens_to_make)\n"
    )
    assert told.startswith("✓")
    assert told.endswith("What it printed:\n    I see [3, 5, 2]\n    and <b>")
    assert "<details><summary>What it printed</summary><pre" in notebook.shown[0].html
    assert "and &lt;b&gt;" in notebook.shown[0].html
    assert capsys.readouterr() == ("", "")
    assert not list(recwarn)


# What a learner's function does to the list it is given.
def sorts_first(tokens_to_make):
    tokens_to_make.sort()
    return tokens_to_make[-1]


def test_changing_the_input_is_told_kindly():
    verdict = verdict_of(sorts_first)
    assert verdict.status == "passed"
    assert verdict.lines[0].startswith("It also changes `tokens_to_make`")


def test_changing_the_input_may_be_part_of_the_task():
    verdict = verdict_of(lesson_07.apply_new_tokens, "apply_new_tokens")
    assert not any("changes" in line for line in verdict.lines)


def test_changing_the_input_may_be_a_fault():
    strict = Exercise(
        reference=lesson_07.passes_to_come,
        words={},
        cases=lesson_07.passes_cases,
        mistakes={},
        inputs="keep",
    )
    verdict = checks.check(strict, sorts_first)
    assert verdict.status == "wrong"
    assert "must stay as it is" in words_of(verdict)
    assert checks.check(strict, max).status == "passed"


def test_changing_a_tensor_is_seen_and_hurts_nobody():
    def softmax_row(scores):
        scores -= scores.max()
        return scores.exp() / scores.exp().sum()

    for _ in range(2):
        verdict = verdict_of(softmax_row, "softmax_row")
        assert verdict.status == "passed"
        assert "`scores`" in verdict.lines[0]


class Evil:
    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__
    __eq__ = __hash__ = __bool__ = __len__ = __repr__  # type: ignore[assignment]


class EvilList(list):
    def __iter__(self):
        raise RuntimeError("no iter")


async def answers_later(tokens_to_make):
    return max(tokens_to_make)


def holds_itself():
    inner = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda: (x for x in [5]), "write `return`, not `yield`"),
        (lambda: map(int, "5"), "put `list(...)` around it"),
        (lambda: max, "is a `()` missing?"),
        (lambda: answers_later([5]), "write `def`, not `async def`"),
        (lambda: Evil(), "an object of type `Evil`"),
        (lambda: [5, {"a": [Evil()]}], "A part of what it gave back is an object"),
        (lambda: ([5], map(int, "5")), "A part of what it gave back is an iterator"),
        (lambda: EvilList([5]), "`RuntimeError`: no iter"),
        (holds_itself, "RecursionError"),
        (lambda: torch.zeros(200, 200), "tensor of 40,000 values"),
        (lambda: torch.zeros(10**9, device="meta"), "tensor of 1,000,000,000 values"),
        (lambda: range(10**9), "tensor of 1,000,000,000 values"),
        (lambda: 10**5000, "a number of more than 77 digits"),
        (lambda: "\ud800", "yours     ?"),
        (lambda: "<script>", "yours     <script>"),
        (lambda: math.nan, "yours     nan"),
        (lambda: {1: {2, 3}}, "yours     {1: "),
        (lambda: b"5", "yours     53"),
        (lambda: [list(range(3000))], "…"),
    ],
)
def test_whatever_it_gives_back(answer, words, recwarn):
    verdict = verdict_of(lambda tokens: answer())
    bundle = panels.of_verdict(verdict)._repr_mimebundle_()
    assert verdict.status in ("wrong", "raised")
    assert words in bundle["text/plain"]
    assert "<script" not in bundle["text/html"]
    json.dumps(bundle).encode("utf-8")
    assert not list(recwarn)


@pytest.mark.parametrize("function", [max, "text", lambda *a: max(*a), Evil])
def test_whatever_is_decorated(function, shown):
    assert course.exercise(function) is function
    assert len(shown) == 1


def test_a_name_that_no_exercise_has(notebook):
    source = "@course.exercise\ndef {}(t): return max(t)"
    assert (
        "Did you mean `passes_to_come`?"
        in notebook.run(source.format("pass_to_come"))[0]
    )
    assert "Keep the name" in notebook.run(source.format("qwertz"))[0]


class Shell:
    """What is asked of IPython: the number of the cell that runs."""

    execution_count = 1


# ---- whose function it is --------------------------------------------------------

GOOD = "@course.exercise\ndef passes_to_come(tokens):\n    return max(tokens)\n"
BAD = GOOD.replace("max", "sum")
STUB = GOOD.replace("return max(tokens)", "...")
MARKED = GOOD.replace("return", "calls.append('mine'); return")


def is_mine(notebook):
    """Does course.passes_to_come run the learner's own?"""
    calls = notebook.space.setdefault("calls", [])
    calls.clear()
    assert notebook.value("course.passes_to_come([1, 4])") == 4
    return bool(calls)


def badge(notebook):
    return repr(notebook.value("course.passes_to_come"))


def test_the_learners_own_function_is_given_back(notebook):
    notebook.run("found = []\ndef note(f):\n    found.append(f)\n    return f")
    for source in (GOOD, BAD, STUB):
        notebook.run(source.replace("\ndef", "\n@note\ndef"))
        assert notebook.space["passes_to_come"] is notebook.space["found"][-1]


def test_late_binding(notebook):
    is_mine(notebook)
    assert badge(notebook).endswith("yours was not run yet")
    notebook.run(STUB)
    assert badge(notebook).endswith("yours is not attempted yet")
    assert not is_mine(notebook)
    notebook.run(MARKED)
    assert badge(notebook) == "✓ course.passes_to_come: yours"
    assert is_mine(notebook)
    notebook.run(MARKED.replace("max", "sum"))
    assert badge(notebook).endswith("yours did not pass its last check")
    assert not is_mine(notebook)


def test_twice(notebook):
    assert notebook.run(MARKED) == notebook.run(MARKED)
    assert is_mine(notebook)


def test_out_of_order(notebook):
    """A later cell first, which keeps what it got; then the exercise; then that."""
    notebook.run("from nanoserve.course import passes_to_come as passes\ncalls = []")
    assert notebook.value("passes([1, 4])") == 4
    notebook.run(MARKED)
    notebook.run("calls.clear()\npasses([1, 4])")
    assert notebook.space["calls"] == ["mine"]


def test_restart(notebook):
    notebook.run(MARKED)
    assert is_mine(notebook)
    restart()
    assert badge(notebook).endswith("yours was not run yet")
    assert not is_mine(notebook)


def test_edited_without_its_check(notebook):
    notebook.run(MARKED)
    notebook.run(BAD.removeprefix("@course.exercise\n"))
    assert "changed since its check" in badge(notebook)
    assert not is_mine(notebook)


def test_another_name_for_it_is_no_edit(notebook):
    notebook.run(MARKED)
    notebook.run("passes_to_come = course.passes_to_come")
    assert is_mine(notebook)


HELPED = """\
@course.exercise
def passes_to_come(tokens):
    calls.append('mine')
    return helper(tokens) + EXTRA
"""


@pytest.mark.parametrize(
    ("edit", "still"),
    [
        ("def helper(tokens):\n    return largest(tokens)", True),
        ("def helper(tokens):\n    return sum(tokens)", False),
        ("def largest(tokens): return max(tokens)", True),
        ("def largest(tokens): return min(tokens)", False),
        ("EXTRA = 0", True),
        ("EXTRA = 1", False),
        ("calls.append('other')", True),
    ],
)
def test_edited_helpers(notebook, edit, still):
    notebook.run("EXTRA = 0\ncalls = []")
    notebook.run("def largest(tokens): return max(tokens)")
    notebook.run("def helper(tokens):\n    return largest(tokens)")
    notebook.run(HELPED)
    assert is_mine(notebook)
    notebook.run(edit)
    assert is_mine(notebook) is still
    assert ("yours has changed" in badge(notebook)) is not still


def test_an_exercise_cannot_call_itself_by_the_course(notebook):
    cheat = GOOD.replace("max(tokens)", "course.passes_to_come(tokens)")
    (told,) = notebook.run(cheat)
    assert "stands for this exercise itself" in told
    assert badge(notebook).endswith("did not pass its last check")


def test_an_exercise_may_call_another_and_shows_no_badge(notebook, monkeypatch):
    monkeypatch.setattr(panels, "shell", lambda: Shell)
    (told,) = notebook.run(
        "@course.exercise\n"
        "def passes_to_come(tokens):\n"
        "    return max(course.score_shape(1, 1, max(tokens), 1))"
    )
    assert told == (
        "✓ passes_to_come: right in all 6 cases\n"
        "  From here on, `course.passes_to_come` is yours."
    )


def test_late_bound_looks_like_its_exercise():
    assert course.drop_rows is course.drop_rows
    assert course.drop_rows.__doc__ == lesson_07.drop_rows.__doc__
    assert "drop_rows" in dir(course)
    with pytest.raises(AttributeError, match="no attribute 'drop_row'"):
        course.drop_row  # noqa: B018
    with pytest.raises(AttributeError):
        course._anything  # noqa: B018


def test_the_badge_shows_once_a_cell(monkeypatch, shown):
    monkeypatch.setattr(panels, "shell", lambda: Shell)
    monkeypatch.setattr(Shell, "execution_count", 1)
    for _ in range(3):
        course.passes_to_come([1])
    course.score_shape(1, 1, 1, 1)
    assert [repr(each).split(":")[0] for each in shown] == [
        "○ course.passes_to_come",
        "○ course.score_shape",
    ]
    monkeypatch.setattr(Shell, "execution_count", 2)
    course.passes_to_come([1])
    assert len(shown) == 3


def test_a_cell_is_told_from_the_next_by_its_message(monkeypatch, shown):
    """nbval runs cells without counting them: all have one number."""
    monkeypatch.setattr(panels, "shell", lambda: Shell)
    for number in ("a", "a", "b"):
        message = {"header": {"msg_id": number}}
        monkeypatch.setattr(Shell, "get_parent", lambda m=message: m, raising=False)
        course.passes_to_come([1])
    assert len(shown) == 2


# ---- the verdict -----------------------------------------------------------------


@pytest.mark.parametrize("source", [GOOD, BAD, STUB])
def test_the_verdict_does_not_depend_on_what_was_before(notebook, source):
    notebook.run(source)
    first = notebook.shown[0]
    for other in (BAD, STUB, GOOD, source):
        notebook.run(other)
    assert notebook.shown[0] == first


def every_panel():
    for each in EXERCISES.values():
        functions = [f for fs in each.mistakes.values() for f in fs]
        for function in (each.reference, *functions, lambda *a: None, lambda: 0):
            yield panels.of_verdict(verdict_of_ours(each.name, function))
        yield course.__getattr__(each.name).badge()
    for guess in GUESSES.values():
        yield panels.guess_right(guess, guess.answer)
        yield panels.guess_wrong(guess, 0, guess.words["nudge"])
    yield panels.guess_untouched()
    yield panels.unknown("x", "no exercise has this name", ["y"])
    everything = list(lessons.all_lessons().values())
    yield panels.of_progress(everything, {"07.drop_rows"}, kept=False)


def test_every_panel_survives_an_untrusted_notebook():
    for panel in every_panel():
        bundle = panel._repr_mimebundle_()
        html, text = bundle["text/html"], bundle["text/plain"]
        assert not re.search(
            r"<(style|svg|script|iframe)|class=|id=|href|repeating", html
        )
        assert not re.search(r"0x[0-9a-f]{6}|/work|/tmp|/home", html + text)
        assert "`" not in html  # marked up, all of it
        assert len(text) > 10
        assert "<" not in re.sub(r"<(eos|pad|bos|answer|unk)>", "", text)


def test_html_and_text_say_the_same():
    verdict = verdict_of(lesson_07.stops_all, "apply_new_tokens")
    panel = panels.of_verdict(verdict)
    html = re.sub(r"<[^>]*>", "", panel.html)
    for word in re.sub(r"[`*^]", "", panel.text).split():
        assert word in html, word


def test_without_a_notebook_it_is_printed(monkeypatch, capsys):
    monkeypatch.undo()
    panels.show(panels.Panel("<b>", "text \ud800"))
    assert capsys.readouterr().out == "text ?\n"


def test_long_rows_show_the_stretch_that_differs():
    many = rows.of_value(list(range(100)))
    other = rows.of_value([*range(60), 0, *range(61, 100)])
    _, want, have = rows.first_difference(many, other)
    lines = rows.as_text([want, have])
    assert lines[0].split() == ["…", *map(str, range(52, 68)), "…"]
    assert lines[1].split()[9] == "0"
    assert lines[2].strip() == "^"


# ---- guesses ---------------------------------------------------------------------


@pytest.mark.parametrize("name", GUESSES)
def test_a_guess(name, shown):
    guess = GUESSES[name]
    course.check_guess(name, guess.answer)
    assert repr(shown[-1]).startswith("✓ Your guess, ")
    for wrong, key in guess.wrong:
        course.check_guess(name, wrong)
        assert repr(shown[-1]).startswith("✗ Not quite")
        told = " ".join(repr(shown[-1]).split())
        assert guess.words[key] in told
        assert guess.words["why"] in told
    course.check_guess(name, "something else")
    assert guess.words["nudge"] in " ".join(repr(shown[-1]).split())


# By hand again: A makes 3 tokens, B 5, C 2; in lesson 00 C sits from pass 5 to 11.
ANSWERS = {
    "scores_per_head": 25,
    "who_sits_idle": {5, 6, 7, 8, 9, 10, 11},
    "all_masked": math.nan,
    "equal_scores": 1 / 4,
    "three_requests": 5,
    "who_holds_a_seat": {"A", "C"},
    "eos_in_a_prompt": False,
    "keys_of_row_1": "C",
}


def test_every_guess_was_answered_by_hand(shown):
    """Here, or in the file of its lesson."""
    names = [path.stem for path in Path(__file__).parent.glob("test_lesson_*.py")]
    answers = ANSWERS.copy()
    for name in names:
        answers |= getattr(import_module(name), "ANSWERS", {})
    assert set(answers) == set(GUESSES)
    for name, answer in answers.items():
        course.check_guess(name, answer)
        assert repr(shown[-1]).startswith("✓"), name


@pytest.mark.parametrize("name", GUESSES)
def test_the_words_of_a_guess_are_all_there_and_all_used(name):
    guess = GUESSES[name]
    keys = {key for _, key in guess.wrong}
    assert set(guess.words) == {"question", "nudge", "why", *keys}


@pytest.mark.parametrize("guess", [None, ..., [...]])
def test_no_guess_is_not_wrong(guess, shown):
    course.check_guess("three_requests", guess)
    assert repr(shown[-1]).startswith("○ No guess yet")


@pytest.mark.parametrize(
    "guess", [{"A", "C"}, {"a", "c"}, ["C", "A"], ("A", "C"), frozenset("AC")]
)
def test_a_guess_in_any_form(guess, shown):
    course.check_guess("who_holds_a_seat", guess)
    assert repr(shown[-1]).startswith("✓")


@pytest.mark.parametrize("guess", [Evil(), EvilList([1]), lambda: 5, object(), 10**999])
def test_a_guess_that_is_none(guess, shown):
    course.check_guess("three_requests", guess)
    assert repr(shown[-1]).startswith("✗")


def test_one_alone_needs_no_braces(shown):
    course.check_guess("who_holds_a_seat", "C")
    assert "C it is, but not alone" in repr(shown[-1])


def test_a_guess_at_no_question(shown):
    course.check_guess("three_request", 5)
    assert "Did you mean `three_requests`?" in repr(shown[-1])
    course.check_guess(None, 5)
    assert len(shown) == 2


# ---- progress --------------------------------------------------------------------


def test_progress_is_kept_outside_the_notebook(notebook, shown):
    notebook.run(GOOD)
    notebook.run(BAD)
    notebook.run(STUB)
    stored = progress_file.path().read_text()
    assert json.loads(stored) == {"passed": ["07.passes_to_come"]}
    restart()
    course.progress()
    told = repr(shown[-1])
    assert re.search(r"✓ passes_to_come +3 min  passed", told)
    assert re.search(r"○ drop_rows \* +8 min  not yet", told)
    assert told.endswith(f"{ONE_PASSED}; a star marks what may be left out")
    assert os.listdir(progress_file.path().parent) == ["progress.json"]


DAMAGED = [
    "",
    "{",
    "[]",
    "null",
    '"passed"',
    '{"passed": 5}',
    '{"passed": [[1]]}',
    "\0",
]


@pytest.mark.parametrize("content", [*(each.encode() for each in DAMAGED), b"\xff\xfe"])
def test_a_damaged_file_breaks_nothing(notebook, shown, content):
    progress_file.path().write_bytes(content)
    course.progress()
    assert f"0 of {len(EXERCISES)} passed" in repr(shown[-1])
    assert notebook.run(GOOD)[0].startswith("✓")
    assert json.loads(progress_file.path().read_text())["passed"] == [
        "07.passes_to_come"
    ]


def test_a_place_that_cannot_be_written(notebook, shown, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("NANOSERVE_PROGRESS", str(tmp_path / "file" / "progress.json"))
    assert notebook.run(GOOD)[0].startswith("✓")
    course.progress()
    assert ONE_PASSED in repr(shown[-1])
    assert "could not be saved" in repr(shown[-1])
    assert str(tmp_path) not in repr(shown[-1])


def test_a_write_that_breaks_off_keeps_the_old_file(notebook, monkeypatch):
    notebook.run(GOOD)
    before = progress_file.path().read_text()

    def full(*_, **__):
        raise OSError("no space left on device")

    monkeypatch.setattr(json, "dump", full)
    assert progress_file.note("07.drop_rows") is False
    assert progress_file.path().read_text() == before


def test_where_progress_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("NANOSERVE_PROGRESS", str(tmp_path))
    assert progress_file.path() == tmp_path / "progress.json"
    monkeypatch.delenv("NANOSERVE_PROGRESS")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert progress_file.path() == tmp_path / "data" / "nanoserve" / "progress.json"
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    monkeypatch.delenv("XDG_DATA_HOME")
    assert progress_file.path() == Path(
        "/home/ada/.local/share/nanoserve/progress.json"
    )


# ---- the cells of a notebook -----------------------------------------------------


@pytest.mark.parametrize("name", EXERCISES)
def test_a_stub_fits_a_cell_and_is_not_attempted(notebook, name):
    source = cells.stub_source(name)
    lines = source.splitlines()
    assert len(lines) <= 15
    assert max(map(len, lines)) <= 80
    assert notebook.run(source)[0].startswith(f"○ {name}: not attempted yet")
    assert notebook.value(name).__doc__ == EXERCISES[name].reference.__doc__


@pytest.mark.parametrize("name", EXERCISES)
def test_the_solution_is_the_reference(notebook, name):
    markdown = cells.solution_markdown(name)
    code = re.fullmatch(
        r"<details><summary>Solution</summary>\n\n```python\n(.*)\n```\n\n</details>",
        markdown,
        re.DOTALL,
    )[1]
    assert notebook.run("@course.exercise\n" + code)[0].startswith("✓")
    mine, ours = (
        ast.parse(source).body[0]
        for source in (code, cells._source(name))  # the docstring stands in the stub
    )
    assert list(map(ast.dump, mine.body)) == list(map(ast.dump, ours.body[1:]))
    assert max(map(len, code.splitlines())) <= 80


@pytest.mark.parametrize("name", GUESSES)
def test_a_question_is_asked_before_it_is_answered(notebook, name):
    assert GUESSES[name].words["question"] in cells.question_markdown(name)
    assert notebook.run(cells.guess_source(name))[0].startswith("○ No guess yet")


def test_a_title_tells_the_minutes_and_the_star():
    assert cells.title_markdown("passes_to_come").endswith("Passes to come (3 min)")
    assert "★" in cells.title_markdown("drop_rows")
    assert "★" not in cells.title_markdown("passes_to_come")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_what_the_check_holds(path):
    stubs = {cells.stub_source(name) for name in EXERCISES}
    folded = {cells.solution_markdown(name) for name in EXERCISES}
    folded |= {cells.hint_markdown(name) for name in EXERCISES}
    guesses = {cells.guess_source(name) for name in GUESSES}
    for cell in nbformat.read(path, as_version=4).cells:
        if "course.check_guess(" in cell.source:
            assert cell.source in guesses
        if cell.source.startswith("@course.exercise"):
            assert cell.source in stubs
        if re.search("<summary>(Hint|Solution)</summary>", cell.source):
            assert cell.source in folded


# ---- a real kernel ---------------------------------------------------------------

STUB_OF_SHAPE = cells.stub_source("score_shape")
ATTEMPTS = [
    "from nanoserve import course\nfrom nanoserve.course import trial\n"
    "trial.SECONDS = 0.3",
    "course.passes_to_come([3, 5, 2])",
    "course.check_guess('three_requests', ...)",
    STUB_OF_SHAPE,
    "course.score_shape(1, 2, 3, 4), course.score_shape(1, 2, 3, 5)",
    "@course.exercise\ndef passes_to_come(t):\n    while True:\n        print('x')",
    "@course.exercise\ndef passes_to_come(t):\n    import time\n    time.sleep(99)",
    "@course.exercise\ndef passes_to_come(t):\n    raise SystemExit",
    "@course.exercise\ndef passes_to_come(t):\n    return 1 / 0",
    "@course.exercise\ndef passes_to_come(t):\n    return input()",
    "@course.exercise\ndef passes_to_come(t):\n    return object()",
    BAD,
    "course.passes_to_come([3, 5, 2])",
    GOOD,
    "course.passes_to_come([3, 5, 2])",
    "@course.exercise\ndef passes_to_com(t):\n    return 5",
    "course.passes_to_come",
    "course.progress()",
]


def a_run(folder):
    """A notebook of bad attempts, run from top to bottom in a fresh kernel."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in ATTEMPTS]
    client = NotebookClient(
        notebook, timeout=60, kernel_name="python3", allow_errors=True
    )
    env = {**os.environ, "NANOSERVE_PROGRESS": str(folder / "progress.json")}
    root = str(Path(__file__).parents[1])
    env["PYTHONPATH"] = os.pathsep.join([root, env.get("PYTHONPATH", "")])
    return client.async_execute(env=env)


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """The outputs of all cells, twice: two kernels side by side."""

    async def both():
        folders = [tmp_path_factory.mktemp("kernel") for _ in range(2)]
        return await asyncio.gather(*map(a_run, folders))

    return [[cell.outputs for cell in ran.cells] for ran in asyncio.run(both())]


@pytest.fixture
def outputs(two_runs):
    return two_runs[0]


def texts(outputs):
    return [
        [
            output.get("data", {}).get("text/plain", output.output_type)
            for output in cell
        ]
        for cell in outputs
    ]


def test_run_all_never_breaks(outputs):
    kinds = {output.output_type for cell in outputs for output in cell}
    assert kinds == {"display_data", "execute_result"}  # no error, no stream


def test_every_attempt_has_its_verdict(outputs):
    told = texts(outputs)
    assert told[1] == [
        "○ course.passes_to_come: the course's, yours was not run yet",
        "5",
    ]
    assert told[3][0].startswith("○ score_shape: not attempted yet")
    assert told[4][0].endswith("yours is not attempted yet")  # once for two calls
    assert told[4][1:] == ["([1, 2, 3, 3], [1, 2, 3, 3])"]
    verdicts = [told[number][0].split("\n")[0] for number in range(5, 12)]
    assert [each.split(": ")[1] for each in verdicts] == [
        "it did not come to an end",
        "it did not come to an end",
        "it raised an error",
        "it raised an error",
        "it raised an error",
        "not yet",
        "not yet",
    ]
    assert "line 3: `return 1 / 0`" in told[8][0]
    assert told[12][0].endswith("yours did not pass its last check")
    assert told[14] == ["✓ course.passes_to_come: yours", "5"]
    assert told[16] == ["✓ course.passes_to_come: yours"]
    assert told[17][0].endswith(f"{ONE_PASSED}; a star marks what may be left out")


def test_outputs_are_stable(two_runs):
    assert two_runs[0] == two_runs[1]
