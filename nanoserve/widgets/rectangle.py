"""A padded batch that fits into a picture: checked, and put into words."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from .. import padding, pitfalls
from ..checkpoint import LanguageModel
from ..errors import invalid
from ..generate import Prompt

MOST_ROWS, MOST_COLUMNS = 8, 72  # a picture of more is no picture


def checked_rectangle(
    lm: LanguageModel, prompts: Sequence[Prompt], side: str, room: int = 0
) -> Tensor:
    """The true mask, bool [rows, width], of a batch that fits into a picture."""
    padding.check_side(side)
    counted(prompts, MOST_ROWS)
    with pitfalls.unplanted():
        encoded = [lm.encode(prompt) for prompt in prompts]
        _, mask = padding.pad_batch(encoded, lm.pad_token_id, side)
    if mask.shape[1] + room > MOST_COLUMNS:
        limit = f"prompt and answer may have {MOST_COLUMNS} together in a picture"
        raise invalid("columns", mask.shape[1] + room, limit)
    return mask


def counted(prompts: Sequence[Prompt], most: int) -> Sequence[Prompt]:
    """A list of prompts, and no more than a picture can hold."""
    if isinstance(prompts, str) or not isinstance(prompts, Sequence):
        raise invalid("prompts", prompts, "must be a list of prompts")
    if not 1 <= len(prompts) <= most:
        limit = f"1 to {most} of them fit into a picture"
        raise invalid("prompts", f"{len(prompts)} prompts", limit)
    return prompts


def prompt_text(lm: LanguageModel, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return str(lm.tokenizer.decode(prompt, skip_special_tokens=False))
