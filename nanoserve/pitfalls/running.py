"""Bugs of the run itself: the softmax, the draw, the end of an answer, the slot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention import attend, keep_mask
from ..cache import SlotCache
from ..engine import emit, finish_reason
from ..request import FinishReason, Request, StepOutput
from ..sequence import Sequence as Row
from .bug import bug
from .padded import unguarded

release = SlotCache.release

# --- attention.attend ---


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, masked: Callable[[Tensor], Tensor]
) -> Tensor:
    """A textbook's attention; ``masked`` works the mask into the scores, float32
    [batch, heads, queries, keys]."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1).float() for x in (k, v))
    scores = q.float() @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    return (masked(scores).softmax(dim=-1) @ v).to(q.dtype)


@bug(
    "attention.attend",
    symptom="Every row is wrong, even alone; no warning.",
    cause="A boolean mask is handed to code that adds its mask to the scores: True "
    "adds 1, False adds 0, and nothing is hidden, not even the future.",
    fix="Fill, do not add: `scores.masked_fill(~keep, lowest)`.",
    report="https://github.com/vllm-project/speculators/pull/691",
)
def bool_mask_added(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return by_hand(q, k, v, lambda scores: scores + keep)


@bug(
    "attention.attend",
    also={"attention.keep_mask": unguarded},
    symptom="Every shorter row dies: NaN, which is token 0 for ever where nobody "
    "checks. The longest row is right to the last bit.",
    cause="Pads at the left may see nothing, so their softmax is 0 / 0. It is NaN in "
    "the pads after layer 1, and as 0 x NaN in the real tokens after layer 2.",
    fix="Fill with the lowest finite number, and let a pad see itself.",
    report="https://github.com/pytorch/pytorch/issues/103749",
    side="left",
)
def minus_inf(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    return by_hand(q, k, v, lambda scores: scores.masked_fill(~keep, -torch.inf))


LOWEST = torch.finfo(torch.float32).min


def hidden(keep: Tensor) -> Tensor:
    """A boolean mask as numbers to add: 0 where it keeps, the lowest elsewhere."""
    return torch.where(keep, 0.0, LOWEST)


def summed_mask(mask: Tensor, step: int = 0) -> Tensor:
    """Causal + keys + queries, each with the lowest number where it hides."""
    if step:
        return hidden(keep_mask(mask, step))
    causal = keep_mask(torch.ones_like(mask))
    return hidden(causal) + hidden(mask[:, None, None]) + hidden(mask[:, None, :, None])


@bug(
    "attention.attend",
    also={"attention.keep_mask": summed_mask},
    symptom="Every shorter row dies, though no -inf is written anywhere.",
    cause="Float masks are added up, and min + min is -inf. Causal plus keys is "
    "harmless, for a pad still has itself; masking the pads as queries too is not.",
    fix="Combine masks as booleans and fill once.",
    report="https://github.com/huggingface/transformers/pull/27114",
    side="left",
)
def min_plus_min(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    added = hidden(keep) if keep.dtype == torch.bool else keep
    return by_hand(q, k, v, lambda scores: scores + added)


@bug(
    "attention.attend",
    symptom="The first token is right; then every row, even alone, says the same "
    "thing over and over.",
    cause="`is_causal=True` for one query over a longer cache: PyTorch aligns the "
    "triangle at the upper left, so the new token sees the first key and no other.",
    fix="At decode pass the mask itself.",
    report="https://github.com/pytorch/pytorch/issues/144858",
)
def causal_at_decode(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    if q.shape[2] > 1:
        return attend(q, k, v, keep)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


@bug(
    "attention.keep_stored",
    symptom="In an engine, a row beside a longer one answers wrongly.",
    cause="Decode looks at the whole window of the pass and not only at what this row "
    "has stored: the empty columns beyond take their share of the attention.",
    fix="`columns < length`, for each row its own.",
    report="https://github.com/huggingface/transformers/pull/30414",
)
def whole_window(lengths: Tensor, width: int) -> Tensor:
    shape = len(lengths), 1, 1, width
    return torch.ones(shape, dtype=torch.bool, device=lengths.device)


# --- sampling ---

_shared = torch.Generator()


@bug(
    "sampling.generator_for",
    symptom="A seeded answer changes with its neighbours; the same seed gives two "
    "rows two answers.",
    cause="All rows draw from one generator, in turn: what a row gets depends on how "
    "many draw before it.",
    fix="A generator for each request.",
    report="https://github.com/vllm-project/vllm/issues/51226",
)
def shared_generator(request: Request) -> torch.Generator | None:
    if request.params.temperature == 0:
        return None
    if request.params.seed is not None:
        _shared.manual_seed(request.params.seed)
    return _shared


@bug(
    "sampling.check_finite",
    symptom="One request answers token 0 again and again, up to its limit.",
    cause="Its logits are NaN and nobody looks: argmax of NaN is 0, which is a token.",
    fix="Check each row's logits; end that row as an error, alone.",
    report="https://github.com/JustVugg/colibri/issues/369",
)
def nan_unchecked(logits: Tensor) -> list[bool]:
    return [True] * len(logits)


# --- engine: stopping ---


@bug(
    "engine.finish_reason",
    symptom="In a chat with an earlier turn the answer is one token long.",
    cause="EOS is looked for in prompt and answer together, and the prompt has one.",
    fix="Only a new token can end an answer.",
    report="https://github.com/deepset-ai/haystack/issues/5315",
)
def eos_in_prompt(row: Row, eos_token_ids: frozenset[int]) -> FinishReason | None:
    if not row.request.params.ignore_eos and eos_token_ids.intersection(row.prompt):
        return "stop"
    return finish_reason(row, eos_token_ids)


@bug(
    "engine.emit",
    symptom="Every answer is as long as the shortest one.",
    cause="One flag for the batch: the first row that stops ends them all.",
    fix="A flag for each row; the batch ends when all have ended.",
    report="https://github.com/bigscience-workshop/lm-evaluation-harness/pull/124",
)
def one_stop_ends_all(
    rows: list[Row], tokens: list[int | None], eos_token_ids: frozenset[int]
) -> list[StepOutput]:
    outputs = emit(rows, tokens, eos_token_ids)
    if not any(row.finish_reason == "stop" for row in rows):
        return outputs
    for row in rows:
        row.finish_reason = row.finish_reason or "stop"
    return [
        output
        if output.finished
        else replace(output, finished=True, finish_reason="stop")
        for output in outputs
    ]


@bug(
    "engine.emit",
    symptom="Short answers have a tail: after the end comes more, until the longest "
    "row is done.",
    cause="A finished row is still computed, and its tokens are still appended.",
    fix="Append to live rows only.",
    report="https://github.com/mistralai/mistral-inference/pull/270",
)
def finished_appended(
    rows: list[Row], tokens: list[int | None], eos_token_ids: frozenset[int]
) -> list[StepOutput]:
    ended = [row.finished for row in rows]
    outputs = emit(rows, tokens, eos_token_ids)
    for row, token, was_over in zip(rows, tokens, ended, strict=True):
        if was_over and token is not None:
            row.append(token)
    return outputs


# --- cache.release ---


@bug(
    "cache.release",
    symptom="After one request ended in an error, another that was well gets its seat "
    "and ends in an error too.",
    cause="A slot is given back as it is. Old columns are masked, which is enough "
    "while they are finite; 0 x NaN is NaN.",
    fix="Zero what the tenant wrote when it leaves.",
    report="https://github.com/nod-ai/amd-shark-ai/pull/738",
)
def not_scrubbed(self: SlotCache, slot: int) -> None:
    self.lengths[slot] = 0  # nothing was written, it says
    release(self, slot)


@bug(
    "cache.release",
    also={"attention.keep_stored": whole_window},
    symptom="A row answers with words of another user's prompt.",
    cause="Two mistakes that are harmless, or nearly, by themselves: the slot is given "
    "back as it is, and decode looks beyond what the new tenant has stored.",
    fix="Zero what the tenant wrote; see no more than what is stored.",
    report="https://github.com/microsoft/onnxruntime-genai/pull/2354",
)
def stale_slot(self: SlotCache, slot: int) -> None:
    not_scrubbed(self, slot)
