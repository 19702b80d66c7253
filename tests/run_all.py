"""Run a lesson from top to bottom as somebody would who answers everything wrongly, or
rightly in a form of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import nbformat

from nanoserve import course
from nanoserve.course import binding

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
# What a learner's function may do, and what a learner may guess
BODIES = ("return 'wrong'", "raise ValueError('oh')", "return [[0]]", "return 1 / 0")
GUESSES = ('"wrong"', "-1", '{"Z"}', "None", "[...]", "print")


def with_wrong_answers(number: str) -> int:
    """Run each code cell in one namespace; raises whatever a cell raises.

    Returns how many answers were put in.
    """
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    bodies, guesses = cycle(BODIES), cycle(GUESSES)
    space: dict[str, object] = {"__name__": "__main__"}
    answered = 0
    for cell in nbformat.read(path, as_version=4).cells:
        source = cell.source
        if cell.cell_type != "code":
            continue
        if source.startswith("@course.exercise"):
            source = re.sub(r"\.\.\.$", next(bodies), source)
        elif re.match(r"(guess|diagnosis) = \.\.\.$", source, re.MULTILINE):
            source = source.replace("...", next(guesses), 1)
        answered += source != cell.source
        exec(compile(source, f"{path.name}: {source[:40]}", "exec"), space)
    return answered


def with_answers(number: str, *answers: Callable[..., Any]) -> None:
    """Run the lesson after each of ``answers`` has passed its check.

    The stubs are left out, so that ``course.<name>`` is that answer.
    """
    for answer in answers:
        course.exercise(answer)
        assert binding.attempt_that_holds(answer.__name__), answer.__name__
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    space: dict[str, object] = {"__name__": "__main__"}
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and "@course.exercise" not in cell.source:
            name = f"{path.name}: {cell.source[:40]}"
            exec(compile(cell.source, name, "exec"), space)
