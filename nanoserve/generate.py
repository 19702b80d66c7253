"""Generation in about a page: one prompt, and the classic padded rectangle.

``generate_one`` is what every other way of running a request is held against.
``generate_batch`` is the lesson: padded columns, positions, a mask that grows, all in
sight. The engines store no pads: ``static.py``, ``continuous.py``.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import count
from typing import Any

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor

from . import attention, engine, padding
from .batch import DecodeRows, PaddedPrefill, Rectangle
from .cache import SlotCache
from .checkpoint import LanguageModel
from .errors import invalid
from .model import Batch
from .request import (
    GenerationResult,
    Request,
    SamplingParams,
    one_each,
    token_ids,
    whole,
)
from .sequence import Sequence as Row
from .sequence import check_request

Prompt = str | list[int]


def generate_one(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop_token_ids: Iterable[int] = (),
    ignore_eos: bool = False,
) -> GenerationResult:
    """Answer one prompt, alone: no padding, no neighbours.

    ``prompt`` is a text (its tokenizer adds what the model needs) or token ids. The
    rest is as in :class:`~nanoserve.SamplingParams`. Raises ``InvalidInputError``.
    """
    row = _row(
        lm, prompt, max_new_tokens, temperature, top_k, top_p, seed,
        stop_token_ids, ignore_eos,
    )  # fmt: skip
    for _ in _run_alone(lm, row):
        pass
    return row.result(lm, prompt)


def stream_one(
    lm: LanguageModel,
    prompt: Prompt,
    *,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None = None,
    stop_token_ids: Iterable[int] = (),
    ignore_eos: bool = False,
) -> Generator[str, None, GenerationResult]:
    """Yield the answer's text piece by piece, as soon as it is safe to show.

    A token may be half of a character; its bytes are held back until the rest has
    come. The pieces joined are ``generate_one(..).text``, and the generator's return
    value is that result (``result = yield from stream_one(..)``).
    """
    row = _row(
        lm, prompt, max_new_tokens, temperature, top_k, top_p, seed,
        stop_token_ids, ignore_eos,
    )  # fmt: skip
    return _pieces(lm, row, prompt)  # bad input is refused now, not at the first piece


def generate_batch(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    padding_side: str = "left",
    max_new_tokens: int | Sequence[int] = 32,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int | None | Sequence[int | None] = None,
    stop_token_ids: Iterable[int] = (),
    ignore_eos: bool = False,
) -> list[GenerationResult]:
    """Answer all prompts together, in one padded rectangle.

    Each row equals ``generate_one`` of its prompt. ``max_new_tokens`` and ``seed``
    may be lists, one value a prompt; one seed for all gives every row what
    ``generate_one(seed=seed)`` gives. Raises ``InvalidInputError`` before anything
    runs.
    """
    padding.check_side(padding_side)
    limits = one_each("max_new_tokens", max_new_tokens, len(_checked(prompts)))
    seeds = one_each("seed", seed, len(prompts))
    stops = token_ids("stop_token_ids", stop_token_ids)
    rows = [
        _row(lm, prompt, limit, temperature, top_k, top_p, seed, stops, ignore_eos)
        for prompt, limit, seed in zip(prompts, limits, seeds, strict=True)
    ]
    if rows:
        _run_rectangle(lm, rows, padding_side)
    return [row.result(lm, prompt) for row, prompt in zip(rows, prompts, strict=True)]


@torch.inference_mode()
def next_token_logits(
    lm: LanguageModel, prompts: Sequence[Prompt], *, padding_side: str = "left"
) -> Tensor:
    """The logits after each prompt, float32 [batch, vocab], by one padded prefill.

    A prompt may fill the model to its last position. Raises ``InvalidInputError``.
    """
    padding.check_side(padding_side)
    rows = [_unanswered(lm, prompt) for prompt in _checked(prompts)]
    if not rows:
        raise invalid("prompts", prompts, "needs at least one prompt")
    return _prefill(lm, rows, padding_side)[0]


@torch.inference_mode()
def _run_rectangle(lm: LanguageModel, rows: list[Row], padding_side: str) -> None:
    """Padded prefill, then masked decode, until every row has ended."""
    _start(rows)
    logits, mask, cache = _prefill(lm, rows, padding_side)
    for step in count(1):
        engine.emit(rows, engine.next_tokens(logits, rows), lm.eos_token_ids)
        if all(row.finished for row in rows):
            return
        logits = _decode(lm, rows, mask, cache, step)


def _prefill(
    lm: LanguageModel, rows: list[Row], padding_side: str
) -> tuple[Tensor, Tensor, SlotCache]:
    """One pass over all prompts.

    Returns float32 logits [rows, vocab] at each row's last real token, the prompt
    mask [rows, width], and the cache, which has room for the longest answer.
    """
    prompts = [row.prompt for row in rows]
    ids, mask = padding.pad_batch(prompts, lm.pad_token_id, padding_side)
    ids, mask = ids.to(lm.device), mask.to(lm.device)  # [rows, width]
    room = max(row.request.params.max_tokens for row in rows)
    cache = SlotCache(lm.model, len(rows), mask.shape[1] + room)
    batch = Rectangle(cache, attention.keep_mask(mask))
    positions = padding.positions(mask)  # [rows, width]
    hidden = lm.model(ids.flatten(), positions.flatten(), batch)
    return engine.last_logits(lm, hidden, mask), mask, cache


def _decode(
    lm: LanguageModel, rows: list[Row], mask: Tensor, cache: SlotCache, step: int
) -> Tensor:
    """Feed each row its newest token; float32 logits [rows, vocab].

    Every row grows by a column. A finished row is fed its last token again, and
    nobody reads what comes of it.
    """
    ids = torch.tensor([row.last_token for row in rows], device=lm.device)
    positions = padding.positions(mask, step)  # [rows, 1]
    # a finished row counts on; it must not count past the model's last position
    positions = positions.clamp(max=lm.max_length - 1)
    batch = Rectangle(cache, attention.keep_mask(mask, step))
    return lm.model.logits(lm.model(ids, positions.flatten(), batch))


@torch.inference_mode()
def _run_alone(lm: LanguageModel, row: Row) -> Iterator[None]:
    """Prefill and decode one request in a slot of its own; pause at each token."""
    _start([row])
    cache = SlotCache(lm.model, 1, len(row.prompt) + row.request.params.max_tokens)
    ids = torch.tensor(row.prompt, device=lm.device)
    mask = torch.ones(1, len(ids), dtype=torch.bool, device=lm.device)
    batch: Batch = PaddedPrefill(cache, [0], mask, attention.keep_mask(mask))
    positions = torch.arange(len(ids), device=lm.device)
    while True:
        hidden = lm.model(ids, positions, batch)[-1:]  # the last token's
        tokens = engine.next_tokens(lm.model.logits(hidden), [row])
        engine.emit([row], tokens, lm.eos_token_ids)
        yield
        if row.finished:
            return
        ids = torch.tensor([row.last_token], device=lm.device)
        positions = positions[-1:] + 1
        batch = DecodeRows(cache, [0], positions.tolist(), [True])


def _pieces(
    lm: LanguageModel, row: Row, prompt: Prompt
) -> Generator[str, None, GenerationResult]:
    shown, decoder = "", DecodeStream(skip_special_tokens=True)
    for _ in _run_alone(lm, row):
        if row.finish_reason in ("stop", "error"):
            continue  # the stop token is no text, and an error made no token
        try:
            piece = decoder.step(lm.tokenizer.backend_tokenizer, row.last_token)
        except Exception:  # bytes that are no text made "A" into "��" in hindsight
            decoder = DecodeStream(skip_special_tokens=True)
            piece = decoder.step(lm.tokenizer.backend_tokenizer, row.last_token)
        if piece:
            shown += piece
            yield piece
    result = row.result(lm, prompt)
    if result.text.startswith(shown) and result.text != shown:
        yield result.text[len(shown) :]  # bytes that were held back to the end
    return result


def _unanswered(lm: LanguageModel, prompt: Prompt) -> Row:
    """A prompt of which only the next token's logits are asked."""
    ids = lm.encode(prompt)
    if len(ids) > lm.max_length:
        limit = f"tokens are more than the model's max_length={lm.max_length}"
        raise invalid("prompt", len(ids), limit)
    return Row(Request(ids), request_id="alone")


def _row(lm: LanguageModel, prompt: Prompt, max_new_tokens: int, *options: Any) -> Row:
    """A checked request; ``options`` are ``SamplingParams``' fields in their order."""
    whole("max_new_tokens", max_new_tokens, at_least=1)
    ids = lm.encode(prompt)
    request = Request(ids, SamplingParams(max_new_tokens, *options))
    check_request(request, lm, lm.max_length)
    return Row(request, request_id="alone")


def _start(rows: list[Row]) -> None:
    now = time.perf_counter()
    for row in rows:
        row.arrived_at = row.started_at = now


def _checked(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """A single text is a sequence of texts too, each one letter long."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise invalid("prompts", prompts, "must be a list of prompts")
    return prompts
