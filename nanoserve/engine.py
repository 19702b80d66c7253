"""The engines. They differ in *admission*, and in little else.

One ``step()`` is at most one pass: who may join is seated, the model runs once, every
live row gets one token, who need not stay leaves. What each slot did goes into
``engine.trace``; all counting is done there.
"""

from __future__ import annotations

import time
from bisect import insort
from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import attention, padding, sampling
from .batch import DecodeRows, PaddedPrefill
from .cache import SlotCache
from .errors import invalid
from .request import FinishReason, GenerationResult, Request, StepOutput, whole
from .sequence import Sequence, check_kind, check_request, slot_capacity
from .trace import Cell, SlotTrace, State

if TYPE_CHECKING:
    from .checkpoint import LanguageModel


class Engine:
    """What all engines share: the queue, the slots, the pass, the trace.

    A subclass says who joins (``admit``) and who leaves (``leave``).

    ``max_num_seqs`` slots of ``max_model_len`` tokens each (prompt and answer; unset:
    the smaller of the model's length and 2,048). Raises ``InvalidInputError``.
    """

    name = "engine"

    def __init__(
        self,
        lm: LanguageModel,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        padding_side: str = "left",
    ) -> None:
        self.max_num_seqs = whole("max_num_seqs", max_num_seqs, at_least=1)
        padding.check_side(padding_side)
        self.lm = lm
        self.max_model_len = slot_capacity(lm, max_model_len)
        self.padding_side = padding_side
        self.cache = SlotCache(lm.model, self.max_num_seqs, self.max_model_len)
        self.trace = SlotTrace(
            self.name,
            self.max_num_seqs,
            self.max_model_len,
            piece_of=lambda token: lm.tokenizer.decode([token]),
        )
        self.clock = 0  # in passes; it jumps over time in which nobody is here
        self.waiting: list[Sequence] = []  # first come, first served
        self.running: list[Sequence] = []  # who has a seat, finished or not
        self._live: dict[str, Sequence] = {}  # every request that has not ended
        self._aborts: list[StepOutput] = []  # not yet reported
        self._names = _letters()
        self._kept_free: set[str | None] = set()

    # --- what a caller uses ---

    def add_request(self, request: Request) -> str:
        """Queue a request and return its id.

        Raises ``InvalidInputError`` for a request this engine could never serve, and
        for an id that is still waiting or running; then nothing is queued.
        """
        check_request(request, self.lm, self.max_model_len)
        request_id = request.request_id
        if request_id is None:
            taken = self._live.keys() | self._kept_free
            request_id = next(name for name in self._names if name not in taken)
        if request_id in self._live:
            raise invalid("request_id", request_id, "is waiting or running already")
        sequence = Sequence(request, request_id, max(request.arrival_step, self.clock))
        size, limit = len(request.prompt_token_ids), request.params.max_tokens
        sequence.index = self.trace.add(request_id, size, limit, sequence.arrival)
        insort(self.waiting, sequence, key=lambda each: (each.arrival, each.index))
        self._live[request_id] = sequence
        self._note_arrivals()
        return request_id

    def keep_free(self, request_ids: Iterable[str | None]) -> None:
        """Ids that are about to come: none of them is given to a nameless request."""
        self._kept_free = set(request_ids)

    def abort(self, request_id: str) -> bool:
        """End a request now, wherever it is; the next step reports it.

        Returns False when it is not here (it never was, or has ended): a caller whose
        abort crosses the last token need not care.
        """
        sequence = self._live.get(request_id)
        if sequence is None:
            return False
        if sequence in self.waiting:
            self.waiting.remove(sequence)
        elif not sequence.kv_length:  # seated, but its prefill was interrupted
            self._release([sequence])
        sequence.finish_reason = "abort"
        self._end(sequence)
        self._aborts.append(StepOutput(request_id, [], True, "abort"))
        return True

    def live(self) -> list[Sequence]:
        """The requests that are waiting or running, in the order they were added."""
        return list(self._live.values())

    def has_work(self) -> bool:
        """Is there anything for ``step`` to run or to report?"""
        return bool(self.waiting or self.running or self._aborts)

    @torch.inference_mode()
    def step(self) -> list[StepOutput]:
        """Run at most one pass; return what it gave to whom."""
        self.leave()  # an abort may have ended a batch since the last pass
        self._wait_for_arrivals()
        self._seat(self.admit())
        outputs = self._run() if self.running else []
        self.leave()
        # after the pass: one that is interrupted must not swallow them
        reports, self._aborts = self._aborts, []
        return reports + outputs

    @property
    def total_slot_steps(self) -> int:
        """Rows computed so far."""
        return self.trace.ledger().total_slot_steps

    @property
    def wasted_slot_steps(self) -> int:
        """Of these, rows of requests that had already ended."""
        return self.trace.ledger().wasted_slot_steps

    # --- what a kind of engine decides ---

    def admit(self) -> list[Sequence]:
        """Who of ``self.arrived()`` takes a seat now, in order."""
        raise NotImplementedError

    def leave(self) -> None:
        """``self._release`` those who need not stay."""
        raise NotImplementedError

    # --- one pass ---

    def _run(self) -> list[StepOutput]:
        # told by what is stored, not by who came just now: a prefill that was
        # interrupted (Ctrl-C, out of memory) is then simply run again
        newcomers = [row for row in self.running if not row.kv_length]
        rows = newcomers or self.running
        logits, pads = self._prefill(rows) if newcomers else self._decode(rows)
        tokens = next_tokens(logits, rows)
        stints = [(row.state, row.unfed, len(row.token_ids)) for row in rows]
        outputs = emit(rows, tokens, self.lm.eos_token_ids)
        self._record(rows, stints, pads)
        return outputs

    def _prefill(self, rows: list[Sequence]) -> tuple[Tensor, list[int]]:
        """All prompts of a new batch in one padded rectangle.

        Returns float32 logits [rows, vocab] and the number of each row's pads.
        """
        ids, mask = padding.pad_batch(
            [row.prompt for row in rows], self.lm.pad_token_id, self.padding_side
        )
        ids, mask = ids.to(self.lm.device), mask.to(self.lm.device)  # [rows, width]
        positions = padding.positions(mask)
        keep = attention.keep_mask(mask)
        batch = PaddedPrefill(self.cache, slots_of(rows), mask, keep)
        hidden = self.lm.model(ids.flatten(), positions.flatten(), batch)
        return last_logits(self.lm, hidden, mask), (~mask).sum(dim=1).tolist()

    def _decode(self, rows: list[Sequence]) -> tuple[Tensor, list[int]]:
        """One token for every row, finished ones too; likewise, with no pads."""
        lengths = [row.kv_length for row in rows]
        live = [not row.finished for row in rows]
        batch = DecodeRows(self.cache, slots_of(rows), lengths, live)
        # a finished row goes on with its own last token; its answer is dropped
        ids = torch.tensor([row.last_token for row in rows], device=self.lm.device)
        positions = torch.tensor(lengths, device=self.lm.device)
        hidden = self.lm.model(ids, positions, batch)
        return self.lm.model.logits(hidden), [0] * len(rows)

    def _record(
        self,
        rows: list[Sequence],
        stints: list[tuple[State, int, int]],
        pads: list[int],
    ) -> None:
        """Hand the pass to the trace: one cell a row, then who got what."""
        cells = []
        for row, (state, fed, before), padded in zip(rows, stints, pads, strict=True):
            row.kv_length += fed
            emitted = len(row.token_ids) - before
            cells.append(
                Cell(row.slot, row.index, state, fed, padded, emitted, row.kv_length)
            )
        self.trace.record(cells, self.clock)
        self.clock += 1
        for row, (state, _, before) in zip(rows, stints, strict=True):
            for token in row.token_ids[before:]:
                self.trace.token(row.index, token)
            if row.finished and state != "finished":
                self._end(row)

    # --- coming and going ---

    def arrived(self) -> list[Sequence]:
        """Who waits and has arrived by now, in order of arrival."""
        return [each for each in self.waiting if each.arrival <= self.clock]

    def _wait_for_arrivals(self) -> None:
        """With nothing running, let the clock jump to the next arrival."""
        if self.waiting and not self.running:
            self.clock = max(self.clock, self.waiting[0].arrival)
        self._note_arrivals()

    def _note_arrivals(self) -> None:
        now = time.perf_counter()
        for sequence in self.arrived():
            sequence.arrived_at = sequence.arrived_at or now

    def _seat(self, newcomers: list[Sequence]) -> None:
        for sequence in newcomers:
            self.waiting.remove(sequence)
            sequence.slot = self.cache.take()
            sequence.started_at = time.perf_counter()
            self.running.append(sequence)

    def _release(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self.running.remove(sequence)
            self.cache.release(sequence.slot)

    def _end(self, sequence: Sequence) -> None:
        """It has its ``finish_reason``; its seat it may still hold."""
        assert sequence.finish_reason is not None
        del self._live[sequence.request_id]
        self.trace.finish(sequence.index, sequence.finish_reason)


class StaticBatchEngine(Engine):
    """A batch is formed once and runs until its last request has ended.

    Who has finished keeps the seat, and the row is computed still. Who arrives one
    pass late waits for the whole batch.
    """

    name = "static"

    def admit(self) -> list[Sequence]:
        return [] if self.running else self.arrived()[: self.max_num_seqs]

    def leave(self) -> None:
        if all(sequence.finished for sequence in self.running):
            self._release(list(self.running))


class SequentialEngine(StaticBatchEngine):
    """One request at a time: a static batch of one."""

    name = "sequential"

    def __init__(self, lm: LanguageModel, max_model_len: int | None = None) -> None:
        super().__init__(lm, max_num_seqs=1, max_model_len=max_model_len)


def serve(
    engine: Engine, requests: Iterable[Request], *, progress: bool = False
) -> dict[str, GenerationResult]:
    """Add ``requests``, run the engine until nothing is left, return every answer.

    The answers are in the order of the requests. What was queued before is served
    too and is among them. A request that is refused (``InvalidInputError``) is
    refused before anything runs, and takes back those that came with it. Ctrl-C ends
    them all: the slots come back, and the engine can be used again.
    """
    requests = _listed(requests)
    spared = engine.live()
    engine.keep_free(request.request_id for request in requests)
    try:
        for request in requests:
            engine.add_request(request)
        spared, sequences = [], engine.live()
        _drain(engine, len(sequences), progress)
    except BaseException:
        for sequence in engine.live():
            if sequence not in spared:
                engine.abort(sequence.request_id)
        engine.leave()
        raise
    return {each.request_id: each.result(engine.lm) for each in sequences}


def _drain(engine: Engine, total: int, progress: bool) -> None:
    from tqdm.auto import tqdm

    with tqdm(total=total, disable=not progress, unit="request") as bar:
        while engine.has_work():
            engine.step()  # may report aborts too of requests that are not counted
            bar.update(total - len(engine.live()) - bar.n)


def _listed(requests: Iterable[Request]) -> list[Request]:
    if isinstance(requests, Request) or not isinstance(requests, Iterable):
        raise invalid("requests", requests, "must be a list of requests")
    listed = list(requests)
    for request in listed:
        check_kind(request)
    return listed


def slots_of(rows: list[Sequence]) -> list[int]:
    """Whose K and V belongs to which row of the pass."""
    return [row.slot for row in rows]


def last_logits(lm: LanguageModel, hidden: Tensor, mask: Tensor) -> Tensor:
    """Float32 logits [rows, vocab] at each row's last real token.

    ``hidden`` is [rows x width, hidden_size]. Only these rows meet the vocabulary:
    [rows, width, vocab] would be gigabytes.
    """
    rows = torch.arange(mask.shape[0], device=mask.device)
    last = hidden.unflatten(0, mask.shape)[rows, padding.last_column(mask)]
    return lm.model.logits(last)


def next_tokens(logits: Tensor, rows: list[Sequence]) -> list[int | None]:
    """A token for each row; ``None`` where the logits are not finite."""
    finite = sampling.check_finite(logits)
    params = [row.request.params for row in rows]
    tokens = sampling.sample(logits, params, [row.generator for row in rows])
    return [token if ok else None for token, ok in zip(tokens, finite, strict=True)]


def emit(
    rows: list[Sequence], tokens: list[int | None], eos_token_ids: frozenset[int]
) -> list[StepOutput]:
    """Give each live row its token and see whether that ends it.

    A row without a token (non-finite logits) ends as ``error``, alone.
    """
    outputs = []
    for row, token in zip(rows, tokens, strict=True):
        if row.finished:  # or an answer would go on after its end
            continue
        if token is None:
            row.finish_reason = "error"
        else:
            row.append(token)
            row.finish_reason = finish_reason(row, eos_token_ids)
        new = [] if token is None else [token]
        outputs.append(StepOutput(row.request_id, new, row.finished, row.finish_reason))
    return outputs


def finish_reason(row: Sequence, eos_token_ids: frozenset[int]) -> FinishReason | None:
    """Why ``row`` ends with its newest token, or ``None``: it goes on.

    Only a new token is looked at. A prompt may hold an EOS (every chat does, after
    each earlier turn).
    """
    params, token = row.request.params, row.token_ids[-1]
    if token in params.stop_token_ids:
        return "stop"
    if token in eos_token_ids and not params.ignore_eos:
        return "stop"
    return "length" if len(row.token_ids) >= params.max_tokens else None


def _letters() -> Iterator[str]:
    """A, B, .. Z, AA, AB, .."""
    for number in count(1):
        name = ""
        while number:
            number, letter = divmod(number - 1, 26)
            name = chr(ord("A") + letter) + name
        yield name
