"""The lessons, one module each, found by their file names.

The modules are read when the first exercise is, not on import.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

from ..exercises import Exercise, Guess, Lesson


@functools.cache
def all_lessons() -> dict[str, Lesson]:
    """ "00" -> its lesson, in order."""
    names = sorted(each.name for each in pkgutil.iter_modules(__path__))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return {module.LESSON.number: module.LESSON for module in modules}


@functools.cache
def exercises() -> dict[str, Exercise]:
    """By name; a test holds that no two have the same."""
    return {e.name: e for lesson in all_lessons().values() for e in lesson.exercises}


@functools.cache
def guesses() -> dict[str, Guess]:
    return {g.name: g for lesson in all_lessons().values() for g in lesson.guesses}


def lesson_of(exercise: str) -> Lesson:
    return next(
        lesson
        for lesson in all_lessons().values()
        if any(each.name == exercise for each in lesson.exercises)
    )
