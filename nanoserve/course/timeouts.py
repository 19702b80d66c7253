"""Call a function that may never end.

On the main thread of Linux and macOS an alarm signal stops it, in a sleep too. On
Windows, and on any other thread, a second thread raises the exception in it. Both work
between two steps of Python: a loop inside one call of C code, such as
``list(itertools.count())``, ends with the kernel only.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

# A bare `except:` in a loop swallows even Stopped. So it is raised again after a
# grace, in which any `finally` can do its work. The signal then comes in a burst so
# dense that one falls between two rounds of the loop, where no `try` holds. (The
# thread, which must wait for its turn each time, has no such burst.) In seconds.
GRACE, BURST = 0.1, 20e-6


class Stopped(BaseException):
    """The time is up. It is no ``Exception``, or the ``except Exception`` of an
    endless loop would swallow it, each time anew."""


def call(function: Callable[[], Any], seconds: float) -> Any:
    """``function()``, or raise :class:`Stopped` when that takes too long."""
    if is_debugged():
        return function()
    on_main_thread = threading.current_thread() is threading.main_thread()
    if sys.platform != "win32" and on_main_thread:
        return by_signal(function, seconds)
    return by_thread(function, seconds)


def is_debugged() -> bool:
    """Is somebody stepping through it? Then they take the time they need."""
    monitoring = getattr(sys, "monitoring", None)  # what debuggers use since 3.12
    if monitoring and monitoring.get_tool(monitoring.DEBUGGER_ID):
        return True
    tracer = sys.gettrace()  # coverage traces too
    module = getattr(tracer, "__module__", None) or type(tracer).__module__
    return "pydevd" in module or module == "bdb"


def by_signal(function: Callable[[], Any], seconds: float) -> Any:
    if sys.platform == "win32":
        raise NotImplementedError("Windows has no alarm signal")
    running, rung = True, False

    def ring(*_: object) -> None:
        nonlocal rung
        if running and not rung:
            rung = True
            signal.setitimer(signal.ITIMER_REAL, GRACE, BURST)
        if running:
            raise Stopped

    old_alarm = signal.getitimer(signal.ITIMER_REAL)
    old_ring = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        return function()
    finally:
        # first, and with no call before it: an alarm that rings from here on is
        # nobody's, and Python looks for signals only at calls and jumps
        running = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old_ring or signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, *old_alarm)


def by_thread(function: Callable[[], Any], seconds: float) -> Any:
    me = threading.get_ident()
    running, ended = True, threading.Event()

    def watch() -> None:
        wait = seconds
        while not ended.wait(wait) and running:
            _raise_in(me, Stopped)
            wait = GRACE

    watcher = threading.Thread(target=watch, daemon=True)
    try:
        watcher.start()
        return function()
    finally:
        running = False  # first, as above
        ended.set()
        watcher.join()
        _raise_in(me, None)  # take back what was raised and not yet delivered


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    raised = ctypes.py_object(exception) if exception else None
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
