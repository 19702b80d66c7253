"""The rectangle: what ``pad_batch`` lays out and what is worked out from its mask."""

from __future__ import annotations

import pytest
import strategies as draws
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import InvalidInputError, padding

PROMPTS = st.lists(draws.PROMPTS, min_size=1, max_size=6)


def pads(prompt, width, side):
    """How many columns before and after a row's own tokens."""
    free = width - len(prompt)
    return (free, 0) if side == "left" else (0, free)


def test_two_prompts_as_in_the_article():
    ids, mask = padding.pad_batch([[101, 102], [201, 202, 203, 204]], 0, "right")
    assert ids.tolist() == [[101, 102, 0, 0], [201, 202, 203, 204]]
    assert mask.int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]


@given(prompts=PROMPTS, side=draws.SIDES, pad=draws.TOKENS)
def test_a_row_is_its_prompt_and_pads_on_one_side(prompts, side, pad):
    ids, mask = padding.pad_batch(prompts, pad, side)
    width = max(len(prompt) for prompt in prompts)
    assert (ids.dtype, mask.dtype) == (torch.int64, torch.bool)
    for row, prompt in enumerate(prompts):
        before, after = pads(prompt, width, side)
        assert ids[row].tolist() == [pad] * before + prompt + [pad] * after
        real = [False] * before + [True] * len(prompt) + [False] * after
        assert mask[row].tolist() == real


@given(prompts=PROMPTS, side=draws.SIDES, step=st.integers(1, 9))
def test_positions_count_a_rows_own_tokens(prompts, side, step):
    mask = padding.pad_batch(prompts, 0, side)[1]
    first, later = padding.positions(mask), padding.positions(mask, step)
    assert first.shape == mask.shape
    assert later.shape == (len(prompts), 1)
    for row, prompt in enumerate(prompts):
        assert first[row][mask[row]].tolist() == list(range(len(prompt)))
        assert later[row].tolist() == [len(prompt) + step - 1]


@given(prompts=PROMPTS, side=draws.SIDES)
def test_pads_stand_at_a_position_every_model_has(prompts, side):
    mask = padding.pad_batch(prompts, 0, side)[1]
    positions = padding.positions(mask)[~mask]
    longest = max(len(prompt) for prompt in prompts)
    assert all(0 <= position < longest for position in positions.tolist())


@given(prompts=PROMPTS, side=draws.SIDES)
def test_the_last_column_is_that_of_the_last_real_token(prompts, side):
    mask = padding.pad_batch(prompts, 0, side)[1]
    width = mask.shape[1]
    ends = [width - pads(prompt, width, side)[1] - 1 for prompt in prompts]
    assert padding.last_column(mask).tolist() == ends


@pytest.mark.parametrize("prompts", [[], [[]], [[5], []]])
def test_there_is_no_rectangle_of_nothing(prompts):
    with pytest.raises(InvalidInputError, match="prompts="):
        padding.pad_batch(prompts, 0)
