"""A learner's answer as plain data, and whether two answers mean the same.

A list, a tuple, a tensor and an array of the same numbers are the same answer; so are
an int and a tensor of no dimensions, int32 and int64, True and 1. What an answer is
made of is never an internal of the check: everything is turned into lists first.
"""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence, ValuesView
from dataclasses import dataclass
from typing import Any

import torch

from .words import WORDS

MOST = 10_000  # more values than this in one list are no answer of this course
LISTS = (Sequence, deque, KeysView, ValuesView)  # str is a Sequence, and met before


@dataclass(frozen=True)
class Odd:
    """No answer at all, such as a generator; ``what`` says so in words."""

    what: str


def plain(value: Any) -> Any:
    """``value`` as None, ``...``, bool, int, float, str, list, dict or frozenset of
    such; what is none of these becomes :class:`Odd`.

    It calls methods of whatever the learner gave back: run it guarded.
    """
    if value is None or value is Ellipsis or isinstance(value, bool):
        return value
    if isinstance(value, int) and value.bit_length() > 256:
        return Odd(WORDS["a huge number"])  # Python may refuse to print it
    for kind in (int, float, str):  # their subclasses too: np.float64 is a float
        if isinstance(value, kind):
            return kind(value)
    if hasattr(value, "tolist"):  # a tensor, an array, a numpy scalar
        return _listed(value)
    if isinstance(value, LISTS):
        return _too_large(len(value)) or [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return frozenset(_key(each) for each in value)
    if isinstance(value, dict):
        return {_key(key): plain(each) for key, each in value.items()}
    return Odd(_what(value))


def _listed(value: Any) -> Any:
    size = math.prod(getattr(value, "shape", ()))
    return _too_large(size) or plain(value.tolist())


def _too_large(size: int) -> Odd | None:
    return Odd(WORDS["too large"].format(size=size)) if size > MOST else None


def _key(value: Any) -> Any:
    key = plain(value)
    return tuple(key) if isinstance(key, list) else key


def _what(value: Any) -> str:
    if isinstance(value, types.CoroutineType):
        return WORDS["a coroutine"]
    if isinstance(value, types.GeneratorType):
        return WORDS["a generator"]
    if isinstance(value, Iterator):
        return WORDS["an iterator"]
    if isinstance(value, Callable):  # type: ignore[arg-type]
        return WORDS["a function"]
    return WORDS["an object"].format(kind=type(value).__name__)


def unfinished(value: Any) -> bool:
    """Is there nothing here yet: None, ``...``, or a list with ``...`` left in it?"""
    if isinstance(value, list):
        blank = bool(value) and all(each is None for each in value)
        return blank or any(each is not None and unfinished(each) for each in value)
    return value is None or value is Ellipsis


def odd_part(value: Any) -> Odd | None:
    """The first thing in it that is no answer."""
    if isinstance(value, Odd):
        return value
    parts = value.values() if isinstance(value, dict) else value
    if isinstance(parts, str) or not isinstance(parts, Iterable):
        return None
    return next(filter(None, map(odd_part, parts)), None)


def same(expected: Any, got: Any) -> bool:
    """Do two plain values mean the same? Floats may differ in their last digits."""
    if isinstance(expected, list):
        return (
            isinstance(got, list)
            and len(got) == len(expected)
            and all(same(*pair) for pair in zip(expected, got, strict=True))
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(same(expected[key], got[key]) for key in expected)
        )
    if isinstance(expected, frozenset):
        return isinstance(got, list | frozenset) and expected == _set_of(got)
    if isinstance(expected, int | float):
        return isinstance(got, int | float) and _close(expected, got)
    return bool(expected == got)


def _set_of(values: list[Any] | frozenset[Any]) -> frozenset[Any]:
    return frozenset(_key(each) for each in values)


def _close(one: float, other: float) -> bool:
    if isinstance(one, int) and isinstance(other, int):
        return one == other
    both_nan = math.isnan(one) and math.isnan(other)
    return both_nan or math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-6)


def shape(value: Any) -> list[int] | None:
    """The shape of nested lists that are a full rectangle, else None."""
    if not isinstance(value, list):
        return []
    inner = [shape(each) for each in value]
    if any(each is None or each != inner[0] for each in inner):
        return None
    return [len(value), *(inner[0] or [] if inner else [])]


def brief(value: Any) -> str:
    """A plain value in a cell of a picture."""
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else code(value)
    return text if len(text) <= 72 else text[:71] + "…"


def code(value: Any) -> str:
    """``value`` as one would type it, to be copied into a cell.

    >>> code([torch.tensor([0.5, -torch.inf]), "A", True])
    "[torch.tensor([0.5, -torch.inf]), 'A', True]"
    """
    if isinstance(value, Odd):
        return value.what
    if value is Ellipsis:
        return "..."
    if isinstance(value, torch.Tensor):
        listed = value.tolist()
        kept = torch.tensor(listed).dtype == value.dtype  # or the dtype is the point
        dtype = "" if kept else f", dtype={value.dtype}"
        return f"torch.tensor({code(listed)}{dtype})"
    if isinstance(value, list):
        return f"[{', '.join(code(each) for each in value)}]"
    if isinstance(value, frozenset):  # sorted: a set has no order of its own
        members = ", ".join(sorted(code(each) for each in value))
        return f"{{{members}}}" if members else "set()"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{'-' if value < 0 else ''}torch.{str(abs(value))}"
    return f"{value:.6g}" if _has_long_tail(value) else repr(value)


def _has_long_tail(value: Any) -> bool:
    """0.10000000149011612 is what float32 makes of 0.1: nobody wants to read it."""
    return isinstance(value, float) and len(repr(value)) > 9
