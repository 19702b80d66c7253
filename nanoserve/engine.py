"""What all engines share. They differ in *admission*, and in little else.

One ``step()`` is at most one pass: who may join is seated, the model runs once, every
row that is due gets one token, who need not stay leaves. What each slot did goes into
``engine.trace``; all counting is done there.

Who joins and who leaves is said in ``admission.py``. ``static.py`` and
``continuous.py`` say what a pass is made of.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import count
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import admission, padding, sampling
from .cache import SlotCache
from .errors import invalid
from .paging import PagedCache
from .request import FinishReason, Request, StepOutput, whole
from .sequence import Sequence, Stint, check_request, slot_capacity
from .trace import SlotTrace

if TYPE_CHECKING:
    from .checkpoint import LanguageModel


class Engine(admission.Queue[Sequence]):
    """The queue, the seats, the pass, the trace.

    A subclass brings a ``rule`` of admission, a ``cache``, and says what the seated
    do in a pass (``plan``) and how the model is run on it (``forward``).

    ``max_num_seqs`` slots of ``max_model_len`` tokens each (prompt and answer; unset:
    the smaller of the model's length and 2,048). Raises ``InvalidInputError``.
    """

    name = "engine"
    rule: admission.Rule
    cache: SlotCache | PagedCache

    def __init__(
        self,
        lm: LanguageModel,
        max_num_seqs: int = 8,
        max_model_len: int | None = None,
        block_size: int | None = None,
    ) -> None:
        super().__init__(whole("max_num_seqs", max_num_seqs, at_least=1))
        self.lm = lm
        self.max_model_len = slot_capacity(lm, max_model_len)
        self.trace = SlotTrace(
            self.name,
            self.max_num_seqs,
            self.max_model_len,
            piece_of=lambda token: lm.tokenizer.decode([token]),
            block_size=block_size,
        )
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
        self.check(request)
        request_id = request.request_id
        if request_id is None:
            taken = self._live.keys() | self._kept_free
            request_id = next(name for name in self._names if name not in taken)
        if request_id in self._live:
            raise invalid("request_id", request_id, "is waiting or running already")
        sequence = Sequence(request, request_id, max(request.arrival_step, self.clock))
        size, limit = len(request.prompt_token_ids), request.params.max_tokens
        sequence.index = self.trace.add(request_id, size, limit, sequence.arrival)
        self.line_up(sequence)
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
        self.leave()
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
        self.skip_idle_time()
        self._note_arrivals()
        self._seat(self.admit())
        outputs = []
        if self.running:
            outputs = self._run()
        elif self.waiting:
            self.clock += 1  # a rule may wait for company: time goes on without a pass
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

    def check(self, request: Request) -> None:
        """Raise ``InvalidInputError`` for what this engine could never serve."""
        check_request(request, self.lm, self.max_model_len)

    def admit(self) -> list[Sequence]:
        """Who of ``self.arrived()`` takes a seat now, in order."""
        return self.rule.joins(self)

    def leave(self) -> None:
        """Who need not stay gives the seat back."""
        self._release(self.rule.leaves(self))

    def plan(self) -> list[Stint]:
        """Who of ``self.running`` feeds how many tokens to this pass."""
        raise NotImplementedError

    def forward(self, stints: list[Stint]) -> Tensor:
        """Run the model; float32 logits, [stints that are due, vocab]."""
        raise NotImplementedError

    # --- one pass ---

    def _run(self) -> list[StepOutput]:
        stints = self.plan()
        logits = self.forward(stints)
        due = [stint.row for stint in stints if stint.due]
        outputs = emit(due, next_tokens(logits, due), self.lm.eos_token_ids)
        self._record(stints)
        return outputs

    def _record(self, stints: list[Stint]) -> None:
        """Hand the pass to the trace: one cell a row, then who got what."""
        for stint in stints:
            stint.row.wrote(stint.fed)
        self.trace.record([stint.cell() for stint in stints], self.clock)
        self.clock += 1
        for stint in stints:
            for token in stint.new_tokens:
                self.trace.token(stint.row.index, token)
            if stint.row.finished and stint.state != "finished":
                self._end(stint.row)

    # --- coming and going ---

    def _note_arrivals(self) -> None:
        now = time.perf_counter()
        # the newest first, up to those who are known: a long queue costs nothing
        for sequence in reversed(self.arrived()):
            if sequence.arrived_at is not None:
                break
            sequence.arrived_at = now

    def _seat(self, newcomers: list[Sequence]) -> None:
        self.seat(newcomers)
        for sequence in newcomers:
            sequence.slot = self.cache.take()
            sequence.started_at = sequence.started_at or time.perf_counter()

    def _release(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            self.running.remove(sequence)
            self.cache.release(sequence.slot)

    def _end(self, sequence: Sequence) -> None:
        """It has its ``finish_reason``; its seat it may still hold."""
        assert sequence.finish_reason is not None
        sequence.swapped = None
        del self._live[sequence.request_id]
        self.trace.finish(sequence.index, sequence.finish_reason)


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
