"""The slot player in a notebook: an anywidget around the page's own JavaScript."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

import anywidget
import traitlets

from .. import picture
from ..errors import invalid
from ..request import whole
from ..trace import SlotTrace
from .standalone import as_traces, player_data, script, styles

SPEEDS = (0.5, 1.0, 2.0, 4.0, 8.0)
TRACE_TYPE = "application/vnd.nanoserve.trace+json"


class SlotPlayer(anywidget.AnyWidget):
    """The score of one trace, or of two on one clock: ``trace`` above, ``below``.

    A trace is a ``SlotTrace`` or what its ``to_dict`` stored; the player shows it as
    it is now. ``pass_`` (from 1), ``playing`` and ``speed`` (``SPEEDS``) can be read
    and set. Without a ``pass_`` (it is 0 then, until shown) the player opens where it
    first matters who has the seat. Raises ``InvalidInputError``.

    Displayed, it leaves a still picture, the steps as text and the trace as JSON
    beside the live view: so a notebook shows something true without a kernel, on
    GitHub, and where nobody trusts it.
    """

    _esm = script()
    _css = styles()
    _data = traitlets.Dict().tag(sync=True)
    pass_ = traitlets.Int(0).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    speed = traitlets.Float(1.0).tag(sync=True)

    def __init__(
        self,
        trace: SlotTrace | dict[str, Any],
        below: SlotTrace | dict[str, Any] | None = None,
        *,
        pass_: int | None = None,
        playing: bool = False,
        speed: float = 1.0,
    ) -> None:
        traces = as_traces(trace, below)
        # what is stored below the live view must be what it showed
        self.traces = [SlotTrace.from_dict(each.to_dict()) for each in traces]
        self._first, self._last = pass_range(self.traces)
        if pass_ is not None:
            whole("pass_", pass_, at_least=self._first, at_most=self._last)
        data = player_data(*self.traces)
        super().__init__(_data=data, pass_=pass_ or 0, playing=playing, speed=speed)

    @traitlets.validate("pass_")
    def _check_pass(self, proposal: dict[str, Any]) -> int:
        value: int = proposal["value"]
        if value:  # 0 is "not shown yet"
            whole("pass_", value, at_least=self._first, at_most=self._last)
        return value

    @traitlets.validate("speed")
    def _check_speed(self, proposal: dict[str, Any]) -> float:
        value: float = proposal["value"]
        if value not in SPEEDS:
            raise invalid("speed", value, f"must be one of {SPEEDS}")
        return value

    def __repr__(self) -> str:
        return f"SlotPlayer({', '.join(map(picture.title, self.traces))})"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        view = super()._repr_mimebundle_()
        data, metadata = view if view is not None else ({}, {})
        return {**data, **still_bundle(self.traces)}, metadata


def still_bundle(traces: list[SlotTrace]) -> dict[str, Any]:
    """What stays when the widget is gone: always the same for the same traces."""
    parts = [picture.mime_bundle(trace) for trace in traces]
    stored = [trace.to_dict() for trace in traces]
    return {
        "text/plain": "\n\n".join(part["text/plain"] for part in parts),
        "text/html": "\n".join(_captioned(traces, parts)),
        TRACE_TYPE: stored[0] if len(stored) == 1 else stored,
    }


def _captioned(traces: list[SlotTrace], parts: list[dict[str, Any]]) -> Iterator[str]:
    """Of two pictures each says whose it is."""
    for trace, part in zip(traces, parts, strict=True):
        caption = f"<p><b>{escape(picture.title(trace))}</b></p>"
        yield (caption if len(traces) > 1 else "") + part["text/html"]


def pass_range(traces: list[SlotTrace]) -> tuple[int, int]:
    """The passes that can be shown, counted from 1; (0, 0) where nothing has run.

    Two traces share one clock: their columns are the moments in which either ran.
    """
    moments = {trace.clock_of(n) for trace in traces for n in _shown(trace)}
    if not moments:
        return 0, 0
    before = _shown(traces[0]).start if len(traces) == 1 else 0
    return before + 1, before + len(moments)


def _shown(trace: SlotTrace) -> range:
    # of a bounded history only the last passes are sure to be whole
    first = 0 if trace.history is None else max(0, trace.passes - trace.history)
    return range(first, trace.passes)
