"""What nanoserve raises.

One family, rooted in :class:`NanoserveError`. All of bad input is also a
``ValueError``, so that a caller who knows nothing of this package catches it.
A message is one line: the field, the value, the limit.
"""

from __future__ import annotations

from typing import Any


class NanoserveError(Exception):
    """Root of the family."""


class InvalidInputError(NanoserveError, ValueError):
    """A request, a parameter or an argument outside its limits."""


class ModelNotFoundError(NanoserveError, ValueError):
    """No model of that name, or a directory that holds no weights."""


class UnsupportedModelError(NanoserveError, ValueError):
    """A checkpoint this decoder cannot run exactly, named by its config field."""


def invalid(field: str, value: Any, limit: str) -> InvalidInputError:
    """Word bad input the one way this package words it.

    >>> str(invalid("max_tokens", 0, "must be an integer of at least 1"))
    'max_tokens=0: must be an integer of at least 1'
    """
    shown = " ".join(repr(value).split())  # a tensor's repr has lines
    if len(shown) > 60:  # a prompt of 8,000 ids would bury the reason
        shown = shown[:57] + "..."
    return InvalidInputError(f"{field}={shown}: {limit}")
