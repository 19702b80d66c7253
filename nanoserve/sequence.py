"""One request on its way: what an engine knows of it from arrival to the end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from . import sampling
from .errors import invalid
from .ledger import Cell, State
from .request import FinishReason, GenerationResult, Request, whole

if TYPE_CHECKING:
    from .checkpoint import LanguageModel
    from .paging import Stored


@dataclass(eq=False)
class Sequence:
    """``kv_length`` tokens of prompt + answer have their K and V in ``slot``.

    ``index`` is its number in the trace. Times are host seconds; ``None`` is not yet.
    """

    request: Request
    request_id: str
    arrival: int = 0
    index: int = -1
    slot: int = -1
    kv_length: int = 0
    kv_most: int = 0  # the most it ever held: up to here, tokens are fed again
    swapped: Stored | None = None  # its K and V while they are in host memory
    token_ids: list[int] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    arrived_at: float | None = None
    started_at: float | None = None
    token_times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.generator: torch.Generator | None = sampling.generator_for(self.request)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def prompt(self) -> list[int]:
        return self.request.prompt_token_ids

    @property
    def unfed(self) -> int:
        """Tokens so far whose K and V are still to be written."""
        if self.finished:
            return 0
        return len(self.prompt) + len(self.token_ids) - self.kv_length

    @property
    def state(self) -> State:
        if self.finished:
            return "finished"
        return "decode" if self.token_ids and self.unfed == 1 else "prefill"

    def wrote(self, tokens: int) -> None:
        """So many more have their K and V."""
        self.kv_length += tokens
        self.kv_most = max(self.kv_most, self.kv_length)

    @property
    def last_token(self) -> int:
        return (self.token_ids or self.prompt)[-1]

    def append(self, token: int) -> None:
        self.token_times.append(time.perf_counter())
        self.token_ids.append(token)

    def result(
        self, lm: LanguageModel, prompt: str | list[int] | None = None
    ) -> GenerationResult:
        """The finished answer; ``prompt`` as the user wrote it, or its ids."""
        count = len(self.token_ids)
        arrived = self.arrived_at or time.perf_counter()
        started = self.started_at or arrived
        times = self.token_times or [started]
        first, last = times[0], times[-1]
        assert self.finish_reason is not None
        return GenerationResult(
            prompt=self.prompt if prompt is None else prompt,
            token_ids=list(self.token_ids),
            text=lm.decode(self.text_ids),
            prompt_tokens=len(self.prompt),
            generated_tokens=count,
            finish_reason=self.finish_reason,
            queue_seconds=started - arrived,
            prefill_seconds=first - started,
            decode_seconds=last - first,
            ttft_seconds=first - arrived if count else None,
            tpot_seconds=(last - first) / (count - 1) if count > 1 else None,
            elapsed_seconds=last - arrived,
        )

    @property
    def text_ids(self) -> list[int]:
        """The answer without the token that stopped it."""
        return self.token_ids[: -1 if self.finish_reason == "stop" else None]


class Stint:
    """One row's part in one pass: ``fed`` of its tokens get their K and V.

    ``pads`` were computed beside them. Remembers how the row stood before the pass.
    """

    def __init__(self, row: Sequence, fed: int) -> None:
        self.row, self.fed, self.pads = row, fed, 0
        self.start, self.end = row.kv_length, row.kv_length + fed  # columns
        self.state: State = row.state
        # a row that feeds all it has gets a token; the logits of a chunk that ends
        # in the midst of a prompt would answer half a question
        self.due = fed == row.unfed
        self.recomputed = min(max(row.kv_most - self.start, 0), fed)
        self._said = len(row.token_ids)

    @property
    def tokens(self) -> list[int]:
        """The ids that are fed."""
        if self.state == "decode":  # every other time: no copy of all that was said
            return [self.row.last_token]
        return (self.row.prompt + self.row.token_ids)[self.start : self.end]

    @property
    def new_tokens(self) -> list[int]:
        return self.row.token_ids[self._said :]

    def cell(self) -> Cell:
        """What the trace keeps of it, after the pass."""
        made, again = len(self.new_tokens), self.recomputed
        # a prefill after a preemption feeds the answer so far, and its newest token
        # for the first time
        answer = self.fed - again if self.state == "prefill" and self._said else 0
        return Cell(
            slot=self.row.slot,
            request=self.row.index,
            state=self.state,
            fed=self.fed,
            pads=self.pads,
            emitted=made,
            kv=self.row.kv_length,
            recomputed=again,
            answer=answer,
        )


DEFAULT_MAX_MODEL_LEN = 2048


def slot_capacity(lm: LanguageModel, max_model_len: int | None) -> int:
    """Tokens a slot must hold: ``max_model_len``, or the default of an engine."""
    if max_model_len is None:
        return min(lm.max_length, DEFAULT_MAX_MODEL_LEN)
    # one token in and one out is the least there is
    return whole("max_model_len", max_model_len, at_least=2, at_most=lm.max_length)


def check_request(request: Request, lm: LanguageModel, max_model_len: int) -> None:
    """Refuse what this model could never serve, before anything is queued.

    Raises ``InvalidInputError`` for ids outside the vocabulary and for a prompt that
    does not leave room for its answer.
    """
    check_kind(request)
    check_ids("prompt_token_ids", request.prompt_token_ids, lm.vocab_size)
    check_ids("stop_token_ids", request.params.stop_token_ids, lm.vocab_size)
    prompt, limit = len(request.prompt_token_ids), request.params.max_tokens
    if prompt + limit > max_model_len:
        raise invalid(
            "prompt + max_tokens",
            prompt + limit,
            f"{prompt} + {limit} is beyond max_model_len={max_model_len}",
        )


def check_kind(request: object) -> None:
    if not isinstance(request, Request):
        raise invalid("request", request, "must be a nanoserve.Request")


def check_ids(name: str, ids: list[int] | tuple[int, ...], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            limit = f"is outside the vocabulary (0 to {vocab_size - 1})"
            raise invalid(name, token, limit)
