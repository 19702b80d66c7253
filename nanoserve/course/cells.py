"""The cells of a notebook that belong to an exercise, made from its reference.

The builder of a lesson takes them from here and a test compares, so that a stub, a
hint and a solution can never say other than what the check does.
"""

from __future__ import annotations

import ast
import inspect

from . import lessons
from .words import WORDS


def title_markdown(name: str) -> str:
    exercise = lessons.exercises()[name]
    words = WORDS["starred title" if exercise.starred else "exercise title"]
    return words.format(title=exercise.words["title"], minutes=exercise.minutes)


def question_markdown(guess: str) -> str:
    return WORDS["question"].format(question=lessons.guesses()[guess].words["question"])


def guess_source(guess: str) -> str:
    """The code cell in which a guess is made, before the thing is run."""
    return f'guess = ...\ncourse.check_guess("{guess}", guess)'


def stub_source(name: str) -> str:
    """The code cell to be filled in: decorator, first line, docstring, ``...``."""
    source = _source(name)
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    docstring_ends = function.body[0].end_lineno
    head = source.splitlines()[:docstring_ends]
    return "\n".join(["@course.exercise", *head, "    ..."])


def hint_markdown(name: str) -> str:
    return _fold(WORDS["hint"], lessons.exercises()[name].words["hint"])


def solution_markdown(name: str) -> str:
    """The reference without its docstring, which stands in the cell above."""
    source = _source(name)
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = source.splitlines()
    first, last = function.body[0].lineno - 1, function.body[0].end_lineno
    code = "\n".join(lines[:first] + lines[last:])
    return _fold(WORDS["solution"], f"```python\n{code}\n```")


def _fold(summary: str, inner: str) -> str:
    # the empty lines let Markdown read what is inside
    return f"<details><summary>{summary}</summary>\n\n{inner}\n\n</details>"


def _source(name: str) -> str:
    return inspect.getsource(lessons.exercises()[name].reference).rstrip()
