"""Run a learner's function on one case, whatever it does, and tell what came of it."""

from __future__ import annotations

import copy
import io
import linecache
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from . import values
from .timeouts import Stopped, call

SECONDS = 3.0  # for one call; a reference needs a thousandth of it
MOST_PRINTED = 2000  # characters: a print in an endless loop would fill the page


@dataclass
class Outcome:
    """``value`` is plain data. ``changed`` lists the numbers of the arguments that are
    not what they were. ``error`` is the type's name, ``message`` its words, ``line``
    where in the learner's cell it happened, if it was there."""

    kind: Literal["gave", "raised", "stopped"]
    value: Any = None
    changed: tuple[int, ...] = ()
    error: str = ""
    message: str = ""
    line: str = ""
    printed: str = ""


def run_all(
    function: Callable[..., Any], cases: Sequence[Sequence[Any]]
) -> list[Outcome]:
    """One outcome a case, no more after one that had to be stopped."""
    outcomes: list[Outcome] = []
    for arguments in cases:
        outcomes.append(run(function, arguments))
        if outcomes[-1].kind == "stopped":
            break
    return outcomes


def run(function: Callable[..., Any], arguments: Sequence[Any]) -> Outcome:
    """Call it on copies. Only a KeyboardInterrupt comes through: that is the person."""
    mine = copy.deepcopy(list(arguments))
    before = values.plain(mine)
    tap = Tap()

    def guarded() -> tuple[Any, Any]:
        # the answer is read before the arguments: it may be one of them
        return values.plain(function(*mine)), values.plain(mine)

    try:
        with quiet(tap):
            value, after = call(guarded, SECONDS)
    except KeyboardInterrupt:
        raise
    except Stopped:
        return Outcome("stopped", printed=tap.text)
    except BaseException as error:  # SystemExit too: it must not end the notebook
        return raised(error, function, tap)
    changed = [i for i in range(len(mine)) if not values.same(before[i], after[i])]
    return Outcome("gave", value, tuple(changed), printed=tap.text)


def raised(error: BaseException, function: Callable[..., Any], tap: Tap) -> Outcome:
    """Its own words are the learner's code too, and may raise or never end."""
    try:
        with quiet(Tap()):
            message = call(lambda: str(error), SECONDS)
    except KeyboardInterrupt:
        raise
    except BaseException:
        message = ""
    return Outcome(
        "raised",
        error=type(error).__name__,
        message=_tidy(message),
        line=_where(error.__traceback__, function),
        printed=tap.text,
    )


def _tidy(message: str) -> str:
    """The first line, without addresses: they differ from run to run."""
    first = str(message).strip().split("\n")[0]
    first = re.sub(r"0x[0-9a-fA-F]{6,}", "0x…", first)
    return first if len(first) <= 200 else first[:199] + "…"


def _where(trace: TracebackType | None, function: Callable[..., Any]) -> str:
    """The innermost line of the learner's own cell: "4: `rows.append(1)`"."""
    code = getattr(function, "__code__", None)
    number = None
    while trace is not None and code is not None:
        if trace.tb_frame.f_code.co_filename == code.co_filename:
            number = trace.tb_lineno
        trace = trace.tb_next
    if code is None or number is None:
        return ""
    text = linecache.getline(code.co_filename, number).strip()
    return f"{number}: `{text}`" if text else f"{number}"


class Tap(io.TextIOBase):
    """Keeps the beginning of what is printed."""

    def __init__(self) -> None:
        self.text = ""

    def writable(self) -> bool:
        return True

    def write(self, words: str) -> int:
        self.text = (self.text + str(words))[: MOST_PRINTED + 1]
        return len(words)


@contextmanager
def quiet(tap: Tap) -> Iterator[None]:
    """What is printed goes to ``tap``. Warnings go nowhere: Python shows each only
    once, so that a second run of the same cell would read differently."""
    with redirect_stdout(tap), redirect_stderr(tap), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
