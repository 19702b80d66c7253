"""What an exercise is, and a guess, and a lesson: data, no doing.

A lesson's module (``lessons/lesson_07.py``) declares them. Its sentences stand in one
dict, ``WORDS``, and nowhere else, so that a translation replaces that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .rows import Row

Function = Callable[..., Any]


@dataclass(frozen=True, eq=False)
class Exercise:
    """A function to be written, and how an attempt is judged.

    ``reference`` names it, documents it and answers it. ``cases`` gives the arguments
    of each call, the simplest first. ``mistakes`` maps a name to the functions that
    make this mistake, one for each way of making it; ``words[name]`` is the sentence
    that helps ("{row}" in it stands for the row that is shown).

    ``inputs``: an attempt that changes its arguments is told so ("note"), may do so
    ("free"), or fails ("keep").

    ``draw(arguments, answer)`` gives the rows of a picture of an answer, of which the
    first that differs is shown; ``given(arguments, number)`` what to show above it.
    """

    reference: Function
    words: dict[str, str]  # "title", "hint" and one for each mistake
    cases: Callable[[], Sequence[tuple[Any, ...]]]
    mistakes: dict[str, tuple[Function, ...]]
    minutes: int = 5
    starred: bool = False
    inputs: Literal["note", "free", "keep"] = "note"
    draw: Callable[[tuple[Any, ...], Any], list[Row]] | None = None
    given: Callable[[tuple[Any, ...], int], list[Row]] | None = None

    @property
    def name(self) -> str:
        return self.reference.__name__


@dataclass(frozen=True, eq=False)
class Guess:
    """A question to answer before running: ``answer`` is a literal.

    ``wrong`` pairs a foreseen wrong guess with the key of its sentence in ``words``,
    which also holds "question", "nudge" (for any other) and "why".
    """

    name: str
    answer: Any
    words: dict[str, str]
    wrong: Sequence[tuple[Any, str]] = ()


@dataclass(frozen=True, eq=False)
class Lesson:
    number: str
    title: str
    exercises: Sequence[Exercise] = field(default_factory=tuple)
    guesses: Sequence[Guess] = field(default_factory=tuple)
