"""``@course.exercise``, and ``course.pad_batch``: the learner's function, or ours.

The decorator checks a function where it stands and gives that very function back. What
later cells reach as ``course.<name>`` is looked up at each call: the learner's if its
last check passed and nothing it is made of has changed since, else the reference.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeVar

from ..errors import NanoserveError
from . import checks, lessons, panels, progress_file, values
from .exercises import Exercise
from .words import WORDS

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Attempt:
    function: Callable[..., Any]
    status: checks.Status
    made_of: dict[str, Any]


_attempts: dict[str, Attempt] = {}  # by exercise; a fresh kernel knows of none
_being_checked: list[str] = []


def exercise(function: F) -> F:
    """Check the exercise that has this function's name, show the verdict, and give
    the function back as it is.

    >>> @course.exercise  # doctest: +SKIP
    ... def passes_to_come(tokens_to_make):
    ...     return max(tokens_to_make)
    ✓ passes_to_come: right in all 6 cases
    """
    name = getattr(function, "__name__", type(function).__name__)
    found = lessons.exercises().get(name)
    if found is None:
        close = get_close_matches(name, lessons.exercises(), n=1)
        panels.show(panels.unknown(name, WORDS["unknown"], close))
        return function
    verdict = _checked(found, function)
    panels.show(panels.of_verdict(verdict))
    return function


def _checked(found: Exercise, function: Callable[..., Any]) -> checks.Verdict:
    _attempts.pop(found.name, None)  # a check that is interrupted leaves none
    _being_checked.append(found.name)
    try:
        verdict = checks.check(found, function)
    finally:
        _being_checked.pop()
    _attempts[found.name] = Attempt(function, verdict.status, made_of(function))
    if verdict.status == "passed":
        progress_file.note(f"{lessons.lesson_of(found.name).number}.{found.name}")
    return verdict


def check_guess(name: str, guess: Any) -> None:
    """Show whether ``guess`` answers the question ``name``; nothing counts it."""
    found = lessons.guesses().get(name)
    if found is None:
        close = get_close_matches(str(name), lessons.guesses(), n=1)
        panels.show(panels.unknown(str(name), WORDS["guess unknown"], close))
        return
    said = _said(guess)
    if values.unfinished(said):
        panels.show(panels.guess_untouched())
    elif _answers(found.answer, said):
        panels.show(panels.guess_right(found, said))
    else:
        keys = [key for wrong, key in found.wrong if _answers(wrong, said)]
        nudge = found.words[keys[0] if keys else "nudge"]
        panels.show(panels.guess_wrong(found, said, nudge))


def _said(guess: Any) -> Any:
    try:
        return values.plain(guess)
    except Exception:  # whatever it is, it is no literal
        return values.Odd(WORDS["an object"].format(kind=type(guess).__name__))


def _answers(answer: Any, said: Any) -> bool:
    """Letters may be small, NaN a word, and one alone may stand without braces."""
    answer, said = _folded(values.plain(answer)), _folded(said)
    if isinstance(answer, frozenset) and isinstance(said, str | int | float):
        said = frozenset([said])
    return values.same(answer, said)


def _folded(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip().casefold()
    if isinstance(value, float) and value != value:
        return "nan"
    if isinstance(value, list):
        return [_folded(each) for each in value]
    if isinstance(value, frozenset):
        return frozenset(_folded(each) for each in value)
    return value


def progress() -> None:
    """Show the lessons, their exercises, and which have been passed."""
    everything = list(lessons.all_lessons().values())
    kept = progress_file.is_kept()
    panels.show(panels.of_progress(everything, progress_file.passed(), kept))


# --- course.<name> ---


class LateBound:
    """``course.pad_batch``: call it as the function it stands for.

    Which one that is shows as a badge, once in each cell that calls it, and as the
    value of ``course.pad_batch`` itself.
    """

    def __init__(self, exercise: Exercise) -> None:
        self._exercise = exercise
        self.__name__ = exercise.name
        self.__doc__ = exercise.reference.__doc__
        self.__signature__ = inspect.signature(exercise.reference)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        name = self._exercise.name
        if name in _being_checked:
            raise NanoserveError(WORDS["it itself"].format(name=name))
        mine = attempt_that_holds(name)
        if not _being_checked:
            _badge_once(self)
        function = mine.function if mine else self._exercise.reference
        return function(*arguments, **named)

    def badge(self) -> panels.Panel:
        is_yours, words = standing(self._exercise.name)
        return panels.badge(self._exercise.name, is_yours, words)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.badge()._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.badge())


@functools.cache
def late_bound(name: str) -> LateBound:
    """Raises ``AttributeError`` for a name that no exercise has."""
    found = None if name.startswith("_") else lessons.exercises().get(name)
    if found is None:
        raise AttributeError(f"module 'nanoserve.course' has no attribute {name!r}")
    return LateBound(found)


def attempt_that_holds(name: str) -> Attempt | None:
    attempt = _attempts.get(name)
    if attempt is None or attempt.status != "passed" or is_stale(attempt):
        return None
    return attempt


def standing(name: str) -> tuple[bool, str]:
    """Is it the learner's, and what the badge says."""
    attempt = _attempts.get(name)
    if attempt is None:
        return False, WORDS["ours, not run yet"]
    if attempt.status == "untouched":
        return False, WORDS["ours, untouched"]
    if attempt.status != "passed":
        return False, WORDS["ours, failed"]
    if is_stale(attempt):
        return False, WORDS["ours, stale"]
    return True, WORDS["yours"]


_badges: tuple[Any, set[str]] = (None, set())  # the cell, and the names shown in it


def _badge_once(function: LateBound) -> None:
    global _badges
    shell = panels.shell()
    if shell is None:
        return
    cell = panels.this_run(shell)
    if _badges[0] != cell:
        _badges = (cell, set())
    if function.__name__ not in _badges[1]:
        _badges[1].add(function.__name__)
        panels.show(function.badge())


# --- has it changed since its check? ---


def is_stale(attempt: Attempt) -> bool:
    """Another function has its name by now, or something it uses is not the same."""
    function = attempt.function
    named = getattr(function, "__globals__", {}).get(function.__name__, function)
    if named is not function and not isinstance(named, LateBound):
        return True
    now = made_of(function)
    return now.keys() != attempt.made_of.keys() or not all(
        _is_still(before, now[name]) for name, before in attempt.made_of.items()
    )


def _is_still(before: Any, now: Any) -> bool:
    if before is now:
        return True
    # a cell that is run again makes an equal one
    plain = int | float | str | types.CodeType
    return type(before) is type(now) and isinstance(before, plain) and before == now


def made_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Its code, that of the learner's helpers it calls, and the globals they read."""
    found: dict[str, Any] = {}
    _collect(function, found)
    return found


def _collect(function: Any, found: dict[str, Any]) -> None:
    if not isinstance(function, types.FunctionType) or (
        f"code of {function.__name__}" in found
    ):
        return
    found[f"code of {function.__name__}"] = function.__code__
    for name in _globals_read(function.__code__):
        value = function.__globals__.get(name)
        if getattr(value, "__globals__", None) is function.__globals__:
            _collect(value, found)  # a helper, of this notebook
        elif f"code of {name}" not in found:
            found[name] = value


@functools.cache
def _globals_read(code: types.CodeType) -> frozenset[str]:
    steps = dis.get_instructions(code)
    names = {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return frozenset(names).union(*map(_globals_read, inner))
