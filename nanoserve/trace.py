"""What each slot did in each pass: the one record that everything else reads.

An engine hands over one :class:`Cell` for each row of a pass. Alike cells of
neighbouring passes are kept as one :class:`Run`, so that 10,000 passes of a long
answer are one line. Tables, pictures, players, exercises and tests read this and
count nothing themselves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from typing import Any

from .errors import invalid
from .ledger import Cell, Run, SlotLedger
from .request import FinishReason, whole

FORMAT = "nanoserve.slot-trace/1"


RUN_WIDTH = len(fields(Run))
PLAIN_WIDTH = RUN_WIDTH - 2  # without what only a preemption needs


@dataclass
class RequestRecord:
    """What the trace keeps of one request. ``arrival`` is on the clock, which may
    jump; ``finished`` is the number of passes that had run when it ended."""

    request_id: str
    prompt_tokens: int
    max_tokens: int
    arrival: int
    finished: int | None = None
    finish_reason: FinishReason | None = None
    token_ids: list[int] = field(default_factory=list)


class SlotTrace:
    """The record of one engine's life.

    ``slot_capacity`` is in tokens. KV is reserved for all slots from the beginning, or
    with a ``block_size`` by the block, as it is needed. ``history``, if set, keeps only
    the runs of about that many last passes (a server's trace must not grow for ever);
    the ledger stays whole. ``piece_of`` turns a token id into the text that pictures
    show.
    """

    def __init__(
        self,
        engine: str,
        max_num_seqs: int,
        slot_capacity: int,
        *,
        piece_of: Callable[[int], str] = str,
        block_size: int | None = None,
        history: int | None = None,
    ) -> None:
        if history is not None:
            whole("history", history, at_least=1)
        self.engine = engine
        self.max_num_seqs = max_num_seqs
        self.slot_capacity = slot_capacity
        self.piece_of = piece_of
        self.block_size = block_size
        self.history = history
        self.runs: list[Run] = []
        self.requests: dict[int, RequestRecord] = {}
        self.jumps: list[tuple[int, int]] = []  # (pass, clock) where they part
        self._ledger = SlotLedger(max_num_seqs)
        self._last: dict[int, Run] = {}  # slot -> its newest run
        self._next_index = 0

    @property
    def passes(self) -> int:
        return self._ledger.passes

    # --- written by an engine ---

    def add(
        self, request_id: str, prompt_tokens: int, max_tokens: int, arrival: int
    ) -> int:
        """A request has come; returns the number by which cells name it."""
        index, self._next_index = self._next_index, self._next_index + 1
        self.requests[index] = RequestRecord(
            request_id, prompt_tokens, max_tokens, arrival
        )
        return index

    def record(self, cells: Sequence[Cell], clock: int | None = None) -> None:
        """One pass has run, ``clock`` passes after the beginning of time."""
        now = self.passes
        if clock is not None and clock != self.clock_of(now):
            self.jumps.append((now, clock))
        for cell in cells:
            self._extend(cell, now)
        self._ledger.passes += 1
        self._ledger.kv_reserved_token_steps += self._reserved(1)
        # now and then, not each pass: it goes over all that is kept
        if self.history is not None and self.passes % self.history == 0:
            self._forget(self.passes - self.history)

    def token(self, index: int, token_id: int) -> None:
        self.requests[index].token_ids.append(token_id)

    def finish(self, index: int, reason: FinishReason) -> None:
        self.requests[index].finished = self.passes
        self.requests[index].finish_reason = reason

    def _extend(self, cell: Cell, now: int) -> None:
        run = self._last.get(cell.slot)
        fresh = Run(cell.slot, cell.request, cell.state, now, 1, *cell[3:])
        self._count(self._ledger, fresh, 1)
        if run is not None and run.goes_on_as(cell, now):
            run.passes += 1
        else:
            self.runs.append(fresh)
            self._last[cell.slot] = fresh

    def _count(self, ledger: SlotLedger, run: Run, passes: int) -> None:
        ledger.count(run, passes)
        if self.block_size is not None:
            ledger.kv_reserved_token_steps += run.reserved(passes, self.block_size)

    def _reserved(self, passes: int) -> int:
        """KV token-steps that are reserved whoever comes."""
        slots = 0 if self.block_size else self.max_num_seqs
        return passes * slots * self.slot_capacity

    def _forget(self, before: int) -> None:
        self.runs = [run for run in self.runs if run.end > before]
        shown = {run.request for run in self.runs}
        self.requests = {
            index: record
            for index, record in self.requests.items()
            if index in shown or record.finished is None
        }

    # --- read by everybody ---

    def ledger(self, passes: int | None = None) -> SlotLedger:
        """The bill so far, or as it stood after the first ``passes`` passes."""
        if passes is None:
            return replace(self._ledger)
        whole("passes", passes, at_least=0, at_most=self.passes)
        if self.history is not None:
            raise invalid("passes", passes, "this trace keeps only its last passes")
        ledger = SlotLedger(self.max_num_seqs, passes)
        ledger.kv_reserved_token_steps = self._reserved(passes)
        for run in self.runs:
            if run.start < passes:
                self._count(ledger, run, min(run.end, passes) - run.start)
        return ledger

    def clock_of(self, number: int) -> int:
        """When pass ``number`` began, on the clock that may jump."""
        for start, clock in reversed(self.jumps):
            if start <= number:
                return clock + number - start
        return number

    def emissions(self) -> Iterator[tuple[int, int, int]]:
        """(request, pass, token id) for each token made, a request's in order."""
        made: Counter[int] = Counter()
        for run in self.runs:
            made[run.request] += run.emitted * run.passes
        # a bounded history may have lost a request's first runs: its last tokens are
        # those of the runs that are left
        tokens = {
            i: iter(self.requests[i].token_ids[-n:]) for i, n in made.items() if n
        }
        for run in self.runs:
            if run.emitted:
                for number in range(run.start, run.end):
                    yield run.request, number, next(tokens[run.request])

    def text(self) -> str:
        """The steps and the bill as plain text."""
        from . import picture

        return picture.text(self)

    def svg(self) -> str:
        """The picture of all passes as one SVG, the same bytes each time."""
        from . import picture

        return picture.svg(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """In a notebook: the picture, with the steps as text folded under it."""
        from . import picture

        return picture.mime_bundle(self)

    # --- kept and brought back ---

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready: runs as lists in the order of ``Run``'s fields, beside the
        requests, the ledger, and the text of each token that occurs. What only paging
        and preemption need is left out where there was none."""
        ids = {i for record in self.requests.values() for i in record.token_ids}
        paged = {"block_size": self.block_size} if self.block_size else {}
        width = RUN_WIDTH if any(run.recomputed for run in self.runs) else PLAIN_WIDTH
        return {
            "format": FORMAT,
            "engine": self.engine,
            "max_num_seqs": self.max_num_seqs,
            "slot_capacity": self.slot_capacity,
            "passes": self.passes,
            "history": self.history,
            **paged,
            "run_fields": [each.name for each in fields(Run)][:width],
            "runs": [list(astuple(run))[:width] for run in self.runs],
            "requests": {str(i): asdict(r) for i, r in self.requests.items()},
            "jumps": [list(jump) for jump in self.jumps],
            "pieces": {str(i): self.piece_of(i) for i in sorted(ids)},
            "ledger": asdict(self._ledger),
        }

    @classmethod
    def from_dict(cls, stored: dict[str, Any]) -> SlotTrace:
        """Bring back what ``to_dict`` stored. Raises ``InvalidInputError`` for a
        dict of another format."""
        if not isinstance(stored, dict) or stored.get("format") != FORMAT:
            shown = stored.get("format") if isinstance(stored, dict) else stored
            raise invalid("format", shown, f"must be {FORMAT}")
        pieces = {int(i): piece for i, piece in stored["pieces"].items()}
        trace = cls(
            stored["engine"],
            stored["max_num_seqs"],
            stored["slot_capacity"],
            piece_of=lambda token: pieces.get(token, str(token)),
            block_size=stored.get("block_size"),
            history=stored["history"],
        )
        trace.runs = [Run(*run) for run in stored["runs"]]
        trace._last = {run.slot: run for run in trace.runs}
        trace.requests = {
            int(i): RequestRecord(**deepcopy(record))
            for i, record in stored["requests"].items()
        }
        trace._next_index = max(trace.requests, default=-1) + 1
        trace.jumps = [(start, clock) for start, clock in stored["jumps"]]
        trace._ledger = SlotLedger(**stored["ledger"])
        return trace
