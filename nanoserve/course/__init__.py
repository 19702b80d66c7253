"""What the lessons stand on: copies to work in, notebooks run and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .binding import check_guess, exercise, progress

if TYPE_CHECKING:
    from .binding import LateBound
    from .hunt import Hunt

__all__ = ["Hunt", "check_guess", "exercise", "progress", "reset"]


def reset(lesson: str) -> None:
    """Start a lesson afresh: ``course.reset("07")``. Your old copy is kept beside it.

    Raises ``InvalidInputError`` for a lesson that does not exist.
    """
    from . import workspace

    new, old = workspace.reset(lesson)
    kept = f"; your old copy is {old.name}" if old else ""
    print(f"{new.name} is new: close it and open it again{kept}")


def __getattr__(name: str) -> LateBound | type[Hunt]:
    """``course.pad_batch``: the learner's once it has passed its check, else ours."""
    if name == "Hunt":  # it needs the engine, which a page of links does not
        from .hunt import Hunt

        return Hunt
    from .binding import late_bound

    return late_bound(name)


def __dir__() -> list[str]:
    from .lessons import exercises

    return [*globals(), *exercises()]
