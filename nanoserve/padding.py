"""The rectangle: ragged prompts padded to one width, and who is real in it.

A row's mask says which columns hold its own tokens. Everything else about a padded
batch (a token's position, a row's last column) is worked out from the mask, never
from the ids: a pad id may stand in a prompt as a real token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import invalid

SIDES = ("left", "right")


def pad_batch(
    prompts: Sequence[Sequence[int]], pad_token_id: int, padding_side: str = "left"
) -> tuple[Tensor, Tensor]:
    """Pad ``prompts`` to the longest of them.

    Returns ``ids``, int64 [batch, width], and ``mask``, bool [batch, width], True at
    real tokens. Raises ``InvalidInputError`` for no prompts, an empty one, or a side
    that is neither "left" nor "right".

    >>> pad_batch([[101, 102], [201, 202, 203, 204]], 0, "right")[0].tolist()
    [[101, 102, 0, 0], [201, 202, 203, 204]]
    """
    check_side(padding_side)
    if not prompts or not all(len(prompt) for prompt in prompts):
        raise invalid("prompts", prompts, "needs prompts of at least one token each")
    width = max(len(prompt) for prompt in prompts)
    ids = torch.full((len(prompts), width), pad_token_id, dtype=torch.long)
    mask = torch.zeros(len(prompts), width, dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        start = width - len(prompt) if padding_side == "left" else 0
        columns = slice(start, start + len(prompt))
        ids[row, columns] = torch.tensor(prompt, dtype=torch.long)
        mask[row, columns] = True
    return ids, mask


def positions(mask: Tensor, step: int = 0) -> Tensor:
    """Where each token stands in its own text, pads not counted.

    Step 0 is the prompt: int64 [batch, width]. Step t is the row's t-th new token:
    int64 [batch, 1]. Pads get 0: any valid position would do, since nobody looks at
    them, but -1 is an IndexError in a model with learned positions.
    """
    if step == 0:
        return (mask.cumsum(dim=1) - 1).clamp(min=0)  # [batch, width]
    return mask.sum(dim=1, keepdim=True) + step - 1  # [batch, 1]


def last_column(mask: Tensor) -> Tensor:
    """The column of each row's last real token, int64 [batch], for either side.

    That is where the prompt's logits are read. ``mask.sum() - 1`` is the same only
    under right padding.
    """
    columns = torch.arange(mask.shape[1], device=mask.device)
    return torch.where(mask, columns, -1).amax(dim=1)


def check_side(padding_side: str) -> None:
    if padding_side not in SIDES:
        raise invalid("padding_side", padding_side, 'must be "left" or "right"')
