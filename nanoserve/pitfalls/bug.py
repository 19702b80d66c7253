"""What a planted bug is, the catalogue, and planting one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..errors import invalid
from .planting import Function, swap

if TYPE_CHECKING:
    from .examples import Example


@dataclass(frozen=True, eq=False, repr=False)
class Bug:
    """One planted bug, and what there is to know about it.

    ``replaces``  "room.function" -> the wrong one
    ``symptom``   what a user sees;  ``cause``, ``fix``: why, and the right line
    ``report``    a public report of the same mistake
    ``side``      the padding side under which it shows; ``None``: either
    ``paged``     it shows in a continuous engine only, not in padding or fixed slots
    ``alias``     its other name: what the same mistake is called under the other side
    """

    name: str
    replaces: Mapping[str, Function]
    symptom: str
    cause: str
    fix: str
    report: str
    side: str | None = None
    alias: str | None = None
    paged: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Either is a right diagnosis."""
        return (self.name, self.alias) if self.alias else (self.name,)

    @property
    def where(self) -> str:
        return " and ".join(self.replaces)

    @property
    def example(self) -> Example:
        """A batch on a canary in which it shows."""
        from .examples import EXAMPLES  # which need a model; the catalogue does not

        return EXAMPLES[self.name][0]

    @property
    def shows(self) -> str:
        if self.paged:
            return "in a continuous engine"
        return f"under {self.side or 'any'} padding"

    def side_as(self, name: str) -> str:
        """The padding side to show it under: each name of a pair has its own."""
        side = self.side or "left"
        return {"left": "right", "right": "left"}[side] if name == self.alias else side

    def __repr__(self) -> str:
        return f"<Bug {' = '.join(self.names)} in {self.where}>"

    def text(self) -> str:
        """What there is to know, at most 80 columns wide."""
        told = {each: getattr(self, each) for each in ("symptom", "cause", "fix")}
        shows = f"{self.where}; shows {self.shows}"
        told = {"in": shows, **told, "report": self.report}
        lines = [wrapped(f"{word:<8} {what}") for word, what in told.items()]
        return "\n".join([" = ".join(self.names), *lines])


def wrapped(line: str) -> str:
    """At most 80 columns, but an address stays in one piece."""
    return fill(
        line,
        80,
        subsequent_indent=" " * 9,
        break_long_words=False,
        break_on_hyphens=False,
    )


BUGS: dict[str, Bug] = {}  # a bug with two names stands under both


def bug(
    place: str, also: Mapping[str, Function] | None = None, **known: Any
) -> Callable[[Function], Function]:
    """Enter the decorated function in ``BUGS`` under its name, "-" for "_"."""

    def enter(wrong: Function) -> Function:
        name = wrong.__name__.replace("_", "-")
        entry = Bug(name, {place: wrong, **(also or {})}, **known)
        BUGS.update(dict.fromkeys(entry.names, entry))
        return wrong

    return enter


@contextmanager
def plant(name: str) -> Iterator[Bug]:
    """Run a block with the bug ``name`` in the engine, and take it out again, always.

    Plants may be nested: in different places all are in, in one place the innermost.
    Other threads see nothing of it. Raises ``InvalidInputError`` for a name that is
    not in ``BUGS``.
    """
    bug = find(name)
    with swap(bug.replaces):
        yield bug


def find(name: str) -> Bug:
    if name not in BUGS:
        raise invalid("bug", name, f"must be one of {', '.join(BUGS)}")
    return BUGS[name]
