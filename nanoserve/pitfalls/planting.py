"""Swapping a function of the engine for a block, and always swapping it back.

Rooms call each other through their modules (``padding.positions(..)``), and that is
where a wrong function slips in, as it would in a pull request. While somebody has
something planted in a place, a small function stands there that asks *this* thread
what to run; afterwards the place holds the very function it held before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from importlib import import_module
from typing import Any

Function = Callable[..., Any]

# places that are not simply "module.function"
METHODS = {
    "cache.release": ("cache", "SlotCache", "release"),
    "paging.release": ("paging", "PagedCache", "release"),
    "paging.places": ("paging", "PagedCache", "places"),
}


class Plant:
    """What one ``swap`` put in, by place. Dead once its block has ended.

    Dead, not only removed: a generator may be closed in another thread, or a task may
    have copied the context, and neither finds the list it was entered in.
    """

    def __init__(self, wrong: Mapping[str, Function]) -> None:
        self.wrong = dict(wrong)
        self.alive = True


# A thread that was running before, a server for instance, has a list of its own.
_planted: ContextVar[tuple[Plant, ...]] = ContextVar("planted", default=())

# Re-entrant: the collector may close a forgotten generator while we are in here.
_lock = threading.RLock()
_users: dict[str, set[Plant]] = {}
_asking: dict[str, dict[Function, Function]] = {}  # who asks: whom it stands for


@contextmanager
def swap(wrong: Mapping[str, Function]) -> Iterator[None]:
    """Run a block with other functions in the places that ``wrong`` names.

    Of several in one place the innermost runs. Other threads do not see it.
    """
    plant = Plant(wrong)
    try:
        for place in plant.wrong:
            _enter(place, plant)
        _planted.set((*_planted.get(), plant))
        yield
    finally:
        plant.alive = False  # first: even an interrupt in here leaves nothing planted
        _planted.set(tuple(each for each in _planted.get() if each.alive))
        for place in plant.wrong:
            _leave(place, plant)


@contextmanager
def unplanted() -> Iterator[None]:
    """Run a block with nothing planted, whatever is planted around it."""
    outside = _planted.get()
    try:
        _planted.set(())
        yield
    finally:
        _planted.set(tuple(each for each in outside if each.alive))


def _enter(place: str, plant: Plant) -> None:
    owner, attribute = _locate(place)
    with _lock:
        _users.setdefault(place, set()).add(plant)
        right = getattr(owner, attribute)
        asking = _asking.setdefault(place, {})
        if right in asking:
            return  # somebody else has it planted too
        asking[ask := _ask(place, right)] = right
        setattr(owner, attribute, ask)


def _leave(place: str, plant: Plant) -> None:
    owner, attribute = _locate(place)
    with _lock:
        _users.get(place, set()).discard(plant)
        if any(each.alive for each in _users.get(place, ())):
            return
        # a test may have put a function of its own over ours meanwhile: that stays,
        # and finds the right one below, since ours has nothing to hand out any more
        asking = _asking.pop(place, {})
        while getattr(owner, attribute) in asking:
            setattr(owner, attribute, asking[getattr(owner, attribute)])
        _users.pop(place, None)


def _ask(place: str, right: Function) -> Function:
    @wraps(right)
    def ask(*args: Any, **options: Any) -> Any:
        for plant in reversed(_planted.get()):
            if plant.alive and place in plant.wrong:
                return plant.wrong[place](*args, **options)
        return right(*args, **options)

    return ask


def _locate(place: str) -> tuple[Any, str]:
    """The module or class that holds the function named "room.function"."""
    room, *owners, attribute = METHODS.get(place, place.split("."))
    owner: Any = import_module(f"nanoserve.{room}")
    for name in owners:
        owner = getattr(owner, name)
    return owner, attribute
