"""Bugs of the padded rectangle: who is real, where it stands, who sees it.

A wrong function is a drop-in for the right one: it has its signature and often calls
it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..attention import keep_mask
from ..padding import pad_batch, positions
from .bug import bug

# --- padding.pad_batch ---


@bug(
    "padding.pad_batch",
    symptom="In a chat the answer goes astray as soon as there is an earlier turn.",
    cause="The mask is guessed, `ids != pad`. With EOS as the pad, the EOS that ends "
    "an earlier turn is masked, and every later token moves up by one position.",
    fix="Build the mask where the lengths are known: in the function that pads.",
    report="https://github.com/huggingface/trl/pull/6357",
)
def mask_from_ids(
    prompts: Sequence[Sequence[int]], pad_token_id: int, padding_side: str = "left"
) -> tuple[Tensor, Tensor]:
    ids, _ = pad_batch(prompts, pad_token_id, padding_side)
    return ids, ids != pad_token_id


# --- padding.positions ---


def column_positions(mask: Tensor, step: int) -> Tensor:
    """A token's padded column: int64 [batch, width], or [batch, 1] at a later step."""
    batch, width = mask.shape
    if step:
        return torch.full((batch, 1), width + step - 1, device=mask.device)
    return torch.arange(width, device=mask.device).expand(batch, width)


@bug(
    "padding.positions",
    symptom="Shorter rows answer wrongly on a model with learned positions. A RoPE "
    "model shows nothing at all.",
    cause="A token's column is taken for its position, so a padded row starts at the "
    "number of its pads. RoPE sees distances only, and those are right as long as "
    "decode counts columns too.",
    fix="`positions = mask.cumsum(1) - 1`, and at least 0 for the pads.",
    report="https://github.com/ndif-team/nnsight/pull/673",
    side="left",
)
def index_positions(mask: Tensor, step: int = 0) -> Tensor:
    return column_positions(mask, step)


@bug(
    "padding.positions",
    symptom="The first token is right; then the shorter rows lose their way, on every "
    "kind of model.",
    cause="The prompt has true positions and decode goes on from the padded width: "
    "between them opens a gap as long as the padding. Under right padding the same "
    "mistake is called continued from the padded length.",
    fix="At step t a row stands at its own length + t - 1.",
    report="https://github.com/thu-nics/C2C/pull/19",
    side="left",
    alias="continued-from-padded-length",
)
def prefill_only(mask: Tensor, step: int = 0) -> Tensor:
    return column_positions(mask, step) if step else positions(mask, step)


@bug(
    "padding.positions",
    symptom="Shorter rows go wrong after the first token, also on a RoPE model.",
    cause="Decode counts real tokens while the prompt was fed its columns: the new "
    "tokens stand in the midst of the prompt, or before it.",
    fix="One function for both: positions come from the mask at every step.",
    report="https://github.com/fla-org/flash-linear-attention/pull/902",
    side="left",
)
def decode_only(mask: Tensor, step: int = 0) -> Tensor:
    return positions(mask, step) if step else column_positions(mask, step)


# --- padding.last_column ---


@bug(
    "padding.last_column",
    symptom="The first token of every shorter row is what the model says after a pad.",
    cause="The prompt's logits are read in the last column, `logits[:, -1]`. Under "
    "right padding that is a pad.",
    fix="Read each row at its last real token.",
    report="https://github.com/tenstorrent/tt-forge-onnx/pull/384",
    side="right",
)
def last_column(mask: Tensor) -> Tensor:
    batch, width = mask.shape
    return torch.full((batch,), width - 1, device=mask.device)


@bug(
    "padding.last_column",
    symptom="Shorter rows answer something unrelated, or nothing.",
    cause="`mask.sum(1) - 1` counts from the left edge. Under left padding it points "
    "at a pad, or at an early token of the prompt.",
    fix="Find the last True of the mask; the sum is its place under right padding "
    "only.",
    report="https://github.com/huggingface/peft/issues/3620",
    side="left",
)
def sum_minus_one(mask: Tensor) -> Tensor:
    return mask.sum(dim=1) - 1


# --- attention.keep_mask ---


@bug(
    "attention.keep_mask",
    symptom="Shorter rows count too far, repeat too often, or stop early.",
    cause="Only the causal mask is left: real tokens look at the pads before them.",
    fix="Causal and real: `causal & mask[:, None, :]`, and the mask at every step.",
    report="https://github.com/TransformerLensOrg/TransformerLens/issues/1005",
)
def mask_dropped(mask: Tensor, step: int = 0) -> Tensor:
    return keep_mask(torch.ones_like(mask), step)


@bug(
    "attention.keep_mask",
    symptom="The first token is right; then shorter rows drift, as if the mask had "
    "been dropped.",
    cause="The mask reaches the prompt's pass only. From the first decode step on the "
    "pads are keys like any other.",
    fix="Hand the mask to every step, one column longer each time.",
    report="https://github.com/TransformerLensOrg/TransformerLens/pull/1617",
)
def mask_at_prefill_only(mask: Tensor, step: int = 0) -> Tensor:
    return keep_mask(torch.ones_like(mask) if step else mask, step)


@bug(
    "attention.keep_mask",
    symptom="Every row forgets what it has just said, the longest one too: it skips, "
    "repeats or stops.",
    cause="The mask keeps the prompt's columns while the cache grows, and the new "
    "columns count as unseen.",
    fix="Append a column of True at every step.",
    report="https://github.com/huggingface/transformers/issues/23197",
)
def mask_not_grown(mask: Tensor, step: int = 0) -> Tensor:
    keep = keep_mask(mask, step)
    if step:
        keep[..., mask.shape[1] :] = False
    return keep


@bug(
    "attention.keep_mask",
    symptom="As if the mask had been dropped, though it is built and passed.",
    cause="`mask[:, :, None]` for `mask[:, None, :]`: it hides what pads ask, not "
    "the pads themselves.",
    fix="Keys are the last dimension: the mask of who may be seen goes there.",
    report="https://github.com/hyunwoongko/transformer/pull/40",
    side="left",
)
def mask_transposed(mask: Tensor, step: int = 0) -> Tensor:
    if step:
        return keep_mask(mask, step)
    keep = keep_mask(torch.ones_like(mask)) & mask[:, None, :, None]
    itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
    return keep | itself


def unguarded(mask: Tensor, step: int = 0) -> Tensor:
    """The right mask without its guard: a pad at the left may see nothing."""
    keep = keep_mask(mask, step)
    return keep if step else keep & mask[:, None, None, :]
