"""Law 1 as code: what it means that a row "equals the request run alone".

A *way* of answering takes a model and a list of requests and gives one ``Answer`` for
each: the padded rectangle, an engine. ``unlike`` holds a way against ``generate_one``.
The property tests, the mutants and whoever plants a bug later use the same check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest
import tiny
import torch

from nanoserve import (
    ContinuousBatchEngine,
    Request,
    SamplingParams,
    SequentialEngine,
    StaticBatchEngine,
    attention,
    engine,
    generate,
    generate_batch,
    generate_one,
    sampling,
    sequence,
    serve,
)

NEAR_TIE = 1e-4  # in logits: two best scores closer than this may change places
NEAR_EDGE = 1e-6  # in probability: a token this close to top_p may fall either side


class Answer(NamedTuple):
    token_ids: list[int]
    finish_reason: str


Way = Callable[[Any, Sequence[Request]], list[Answer]]


# --- the request alone ---


@dataclass
class Alone:
    """What ``generate_one`` says, and how sure it was of each token.

    ``margins[i]`` is the distance, in logits, between the two best scores when token
    i was chosen; 0 where a token stood on the very edge of top_k or top_p.
    """

    request: Request
    answer: Answer
    margins: list[float]


def alone(lm: Any, request: Request) -> Alone:
    margins: list[float] = []
    sample = sampling.sample

    def noting(logits, params, generators):
        margins.append(margin(logits[0], params[0], generators[0]))
        return sample(logits, params, generators)

    with mock.patch.object(sampling, "sample", noting):
        answer = by_generate_one(lm, [request])[0]
    return Alone(request, answer, margins)


def margin(
    row: torch.Tensor, params: SamplingParams, generator: torch.Generator | None
) -> float:
    """How far, in logits, the best score is ahead. Leaves ``generator`` untouched."""
    if generator is None:
        best, second = row.topk(2).values.tolist()
        return best - second
    twin = torch.Generator()
    twin.set_state(generator.get_state())
    best, second = sampling.perturbed(row, params, twin).topk(2).values.tolist()
    if on_the_edge(row, params):
        return 0.0
    return (best - second) * min(params.temperature, 1.0)


def on_the_edge(row: torch.Tensor, params: SamplingParams) -> bool:
    """Could rounding decide whether a token is among top_k or top_p?"""
    logits = row.double().sort(descending=True).values
    if 0 < params.top_k < len(logits):
        if logits[params.top_k - 1] - logits[params.top_k] < NEAR_TIE:
            return True
        logits = logits[: params.top_k]
    share = (logits / max(params.temperature, 1e-30)).softmax(-1)
    before = share.cumsum(-1) - share
    return bool((before - params.top_p).abs().min() < NEAR_EDGE)


# --- together against alone ---


@dataclass
class Tally:
    """Near-ties are allowed, and counted: at most one row in a thousand."""

    rows: int = 0
    near_ties: int = 0
    most: float = 1e-3

    def too_many(self) -> bool:
        return self.near_ties > max(1, self.rows * self.most)

    def __str__(self) -> str:
        return f"Law 1: {self.rows:,} rows compared, {self.near_ties} near-ties"


@dataclass
class Report:
    """Printed by conftest.py when the session ends."""

    tally: Tally = field(default_factory=Tally)
    lines: list[str] = field(default_factory=list)


REPORT = Report()


def unlike(got: Sequence[Answer], expected: Sequence[Alone]) -> list[str]:
    """Where ``got`` breaks Law 1, a line for each row that does; [] when it holds."""
    assert len(got) == len(expected), "one answer for each request"
    broken = []
    for row, (answer, ref) in enumerate(zip(got, expected, strict=True)):
        REPORT.tally.rows += 1
        if answer == ref.answer:
            continue
        step = first_difference(answer.token_ids, ref.answer.token_ids)
        apart = step < min(len(answer.token_ids), len(ref.answer.token_ids))
        if apart and ref.margins[step] < NEAR_TIE:
            REPORT.tally.near_ties += 1
            continue
        sure = f", sure by {ref.margins[step]:.2g}" if apart else ""
        broken.append(
            f"row {row}, token {step}{sure}: {answer} is not {ref.answer} "
            f"(alone, {ref.request})"
        )
    return broken


def first_difference(left: Sequence[int], right: Sequence[int]) -> int:
    pairs = zip(left, right, strict=False)
    same = (i for i, (a, b) in enumerate(pairs) if a != b)
    return next(same, min(len(left), len(right)))


def hold(lm: Any, requests: Sequence[Request], ways: dict[str, Way]) -> None:
    """Assert Law 1 for all ``requests``, answered in each of ``ways``."""
    expected = [alone(lm, request) for request in requests]
    for name, way in ways.items():
        broken = unlike(way(lm, requests), expected)
        assert not broken, f"{name}:\n" + "\n".join(broken)


# --- the ways ---


def options(params: SamplingParams) -> dict[str, Any]:
    """``generate_one``'s keywords that say what ``params`` says."""
    fields = dict(vars(params))
    fields["max_new_tokens"] = fields.pop("max_tokens")
    return fields


def by_generate_one(lm: Any, requests: Sequence[Request]) -> list[Answer]:
    results = [
        generate_one(lm, request.prompt_token_ids, **options(request.params))
        for request in requests
    ]
    return [Answer(r.token_ids, r.finish_reason) for r in results]


def by_generate_batch(side: str) -> Way:
    """For requests that differ in prompt, limit and seed alone."""

    def way(lm: Any, requests: Sequence[Request]) -> list[Answer]:
        shared = options(requests[0].params)
        shared["max_new_tokens"] = [r.params.max_tokens for r in requests]
        shared["seed"] = [r.params.seed for r in requests]
        prompts = [r.prompt_token_ids for r in requests]
        results = generate_batch(lm, prompts, padding_side=side, **shared)
        return [Answer(r.token_ids, r.finish_reason) for r in results]

    return way


def by_engine(make: Callable[[Any], Any]) -> Way:
    def way(lm: Any, requests: Sequence[Request]) -> list[Answer]:
        results = serve(make(lm), requests).values()
        return [Answer(r.token_ids, r.finish_reason) for r in results]

    return way


def by_static(side: str, seats: int = 3) -> Way:
    return by_engine(lambda lm: StaticBatchEngine(lm, seats, padding_side=side))


def by_continuous(seats: int = 3, **options: Any) -> Way:
    return by_engine(lambda lm: ContinuousBatchEngine(lm, seats, **options))


RECTANGLES = {f"generate_batch {s}": by_generate_batch(s) for s in ("left", "right")}
ENGINES = {
    "static left": by_static("left"),
    "static right": by_static("right"),
    "sequential": by_engine(SequentialEngine),
    "continuous": by_continuous(),
    "tight": by_continuous(max_num_batched_tokens=5, kv_blocks=10, block_size=4),
}

# A small set in which every planted bug shows: a long prompt beside short ones, the
# pad and the EOS as real tokens inside a prompt, limits that end rows one by one.
RAGGED = (
    ([5, 9, 33, 7, 21, 40, 11, 6, 13, 50, 22, 8, 17, 30, 44, 5, 61, 12, 19, 27], 9),
    ([41], 12),
    ([23, tiny.PAD, 31, tiny.PAD, 8], 3),
    ([14, tiny.EOS, 52, 10], 7),
    ([55, 36, 4], 10),
)


def ragged(**params: Any) -> list[Request]:
    """``RAGGED`` as requests; ``seed`` counts up from row to row."""
    seed = params.pop("seed", None)
    return [
        Request(
            prompt,
            SamplingParams(limit, seed=None if seed is None else seed + row, **params),
        )
        for row, (prompt, limit) in enumerate(RAGGED)
    ]


# --- Law 2: what reaches the attention kernel ---


@dataclass
class Look:
    """One call of ``attention.attend``: shapes, and whether it was in order."""

    rows: int
    queries: int
    keys: int


@contextlib.contextmanager
def attention_watched() -> Iterator[list[Look]]:
    """Fail at once on a query with nothing to see, or on K or V that is not finite."""
    looks: list[Look] = []
    attend = attention.attend

    def watching(q, k, v, keep):
        assert keep.dtype == torch.bool
        assert keep.any(dim=-1).all(), "a query has nothing to see"
        assert torch.isfinite(k).all(), "K is not finite"
        assert torch.isfinite(v).all(), "V is not finite"
        assert keep.shape == (q.shape[0], 1, q.shape[2], k.shape[2])
        looks.append(Look(q.shape[0], q.shape[2], k.shape[2]))
        return attend(q, k, v, keep)

    with mock.patch.object(attention, "attend", watching):
        yield looks


# --- what may happen to an engine ---


@contextlib.contextmanager
def crash(call: int, error: BaseException) -> Iterator[None]:
    """Attention raises in its given call: in the midst of a pass."""
    attend, calls = attention.attend, count(1)

    def crashing(*args):
        if next(calls) == call:
            raise error
        return attend(*args)

    with mock.patch.object(attention, "attend", crashing):
        yield


def assert_times_add_up(result: Any) -> None:
    """Identities between the times of one ``GenerationResult``."""
    times = result.queue_seconds, result.prefill_seconds, result.decode_seconds
    assert min(times) >= 0
    assert result.elapsed_seconds == pytest.approx(sum(times))
    assert result.ttft_seconds == pytest.approx(sum(times[:2]))
    gaps = result.generated_tokens - 1
    if gaps:
        assert result.tpot_seconds == pytest.approx(result.decode_seconds / gaps)
    else:
        assert result.tpot_seconds is None
        assert result.decode_seconds == 0


@contextlib.contextmanager
def seconds_are_passes(lm: Any) -> Iterator[None]:
    """A clock that ticks once with each pass, so that times are exact."""
    forward, now = lm.model.forward, [1000.0]

    def ticking(*args):
        now[0] += 1
        return forward(*args)

    clock = SimpleNamespace(perf_counter=lambda: now[0])
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(lm.model, "forward", ticking))
        for room in (engine, generate, sequence):
            stack.enter_context(mock.patch.object(room, "time", clock))
        yield
