"""What goes into an engine, and what comes out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, TypeVar

from .errors import invalid

T = TypeVar("T")

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How one request's tokens are chosen, and when they end.

    ``max_tokens``      at most this many new tokens (the stop token counts)
    ``temperature``     0 is greedy; otherwise logits are divided by it
    ``top_k``           keep the k likeliest tokens; 0 keeps all
    ``top_p``           keep the likeliest tokens that together reach p, in (0, 1]
    ``seed``            makes a sampled answer repeat; ``None`` draws afresh
    ``stop_token_ids``  more tokens that end the answer, beside the model's EOS
    ``ignore_eos``      run to ``max_tokens``, whatever the model says

    Checks itself when made. Raises :class:`~nanoserve.errors.InvalidInputError`.
    """

    max_tokens: int = 16
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        keep = partial(object.__setattr__, self)  # plain numbers, not NumPy's: frozen
        keep("max_tokens", whole("max_tokens", self.max_tokens, at_least=1))
        temperature, top_p = real(self.temperature), real(self.top_p)
        if not math.isfinite(temperature) or temperature < 0:
            raise invalid("temperature", self.temperature, "must be finite and >= 0")
        keep("temperature", temperature)
        if not 0 < top_p <= 1:
            raise invalid("top_p", self.top_p, "must be above 0 and at most 1")
        keep("top_p", top_p)
        keep("top_k", whole("top_k", self.top_k, at_least=0))
        if self.seed is not None:
            # torch.Generator takes no more than 64 bits, and -1 would pass as 2**64-1
            keep("seed", whole("seed", self.seed, at_least=0, at_most=2**63 - 1))
        stops = token_ids("stop_token_ids", self.stop_token_ids)
        keep("stop_token_ids", tuple(stops))


@dataclass(frozen=True)
class Request:
    """One prompt, by its token ids, and how to answer it.

    ``arrival_step`` is the pass before which it arrives: an engine does not see
    the request earlier. With no ``request_id`` the engine gives one.
    """

    prompt_token_ids: list[int]
    params: SamplingParams = field(default_factory=SamplingParams)
    request_id: str | None = None
    arrival_step: int = 0

    def __post_init__(self) -> None:
        ids = token_ids("prompt_token_ids", self.prompt_token_ids)
        if not ids:
            raise invalid("prompt_token_ids", ids, "is empty: it needs one token")
        object.__setattr__(self, "prompt_token_ids", ids)
        if not isinstance(self.params, SamplingParams):
            raise invalid("params", self.params, "must be a SamplingParams")
        if self.request_id is not None and not isinstance(self.request_id, str):
            raise invalid("request_id", self.request_id, "must be a string or None")
        arrival = whole("arrival_step", self.arrival_step, at_least=0)
        object.__setattr__(self, "arrival_step", arrival)


@dataclass(frozen=True)
class StepOutput:
    """What one step gave to one request: its new tokens, and whether it ended."""

    request_id: str
    token_ids: list[int]
    finished: bool
    finish_reason: FinishReason | None = None


@dataclass(frozen=True)
class GenerationResult:
    """One request's whole answer, with this row's own times.

    A row that ends early is not billed for the rows that go on: its clock stops
    at its own last token. All times are seconds on the host's clock.

    ``token_ids``         new tokens; a stop token is among them, not in ``text``
    ``queue_seconds``     from arrival to the start of its prefill
    ``prefill_seconds``   from there to its first token
    ``decode_seconds``    from its first token to its last
    ``ttft_seconds``      from arrival to its first token (``None``: it has none)
    ``tpot_seconds``      (last - first token time) / (n - 1); ``None`` for n < 2
    ``elapsed_seconds``   from arrival to its last token
    """

    prompt: str | list[int]
    token_ids: list[int]
    text: str
    prompt_tokens: int
    generated_tokens: int
    finish_reason: FinishReason
    queue_seconds: float
    ttft_seconds: float | None
    tpot_seconds: float | None
    prefill_seconds: float
    decode_seconds: float
    elapsed_seconds: float


def real(value: Any) -> float:
    """``value`` as a float; what is no number (``True``, ``"1"``) becomes NaN."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # 10**400
        return math.inf


def positive(name: str, value: Any) -> float:
    """``value`` as a float. Raises unless it is a finite number above 0."""
    number = real(value)
    if not (math.isfinite(number) and number > 0):
        raise invalid(name, value, "must be above 0")
    return number


def one_of(name: str, value: T, choices: Iterable[T]) -> T:
    """That of ``choices`` which equals ``value`` (8192.0 is 8192; ``True`` is not 1).
    Raises unless there is one."""
    among = list(choices)
    if isinstance(value, bool) or value not in among:
        raise invalid(name, value, f"must be one of {', '.join(map(str, among))}")
    return among[among.index(value)]


def whole(name: str, value: Any, *, at_least: int, at_most: int | None = None) -> int:
    """``value`` as an int. Raises unless it is an integer (``True`` and ``2.0`` are
    not) in range."""
    fits = isinstance(value, Integral) and not isinstance(value, bool)
    if fits and at_least <= value and (at_most is None or value <= at_most):
        return int(value)
    limit = f"must be an integer of at least {at_least}"
    if at_most is not None:
        limit += f" and at most {at_most}"
    raise invalid(name, value, limit)


def token_ids(name: str, values: Iterable[int]) -> list[int]:
    """A plain list of ints out of a list, tuple or 1-D tensor of token ids."""
    flat = isinstance(values, Iterable) and getattr(values, "ndim", 1) == 1
    if isinstance(values, str | bytes | Mapping) or not flat:
        raise invalid(name, values, "must be a list of token ids")
    ids = values.tolist() if hasattr(values, "tolist") else list(values)
    for token in ids:
        if not isinstance(token, Integral) or isinstance(token, bool):
            raise invalid(name, token, "every token id must be an integer")
    return [int(token) for token in ids]


def one_each(name: str, value: Any, count: int) -> list[Any]:
    """Spread one value over ``count`` prompts, or check a list of one a prompt."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != count:
            limit = f"has {len(value)} values for {count} prompts; give one for each"
            raise invalid(name, value, limit)
        return list(value)
    return [value] * count
