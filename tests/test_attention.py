"""Who sees whom, and both ways of looking, against loops that leave no doubt."""

from __future__ import annotations

import math

import strategies as draws
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import attention, padding

MASKS = st.builds(
    lambda prompts, side: padding.pad_batch(prompts, 0, side)[1],
    st.lists(draws.PROMPTS, min_size=1, max_size=4),
    draws.SIDES,
)


@given(mask=MASKS)
def test_a_prompts_token_sees_the_real_ones_up_to_itself(mask):
    keep = attention.keep_mask(mask)
    batch, width = mask.shape
    assert keep.shape == (batch, 1, width, width)
    assert keep.dtype == torch.bool
    for row in range(batch):
        for query in range(width):
            if mask[row, query]:
                real = [bool(mask[row, key]) and key <= query for key in range(width)]
                assert keep[row, 0, query].tolist() == real


@given(mask=MASKS)
def test_nobody_sees_a_pad_but_the_pad_itself(mask):
    keep = attention.keep_mask(mask)[:, 0]
    pads = ~mask
    elsewhere = ~torch.eye(mask.shape[1], dtype=torch.bool)
    assert not (keep & pads[:, None, :] & elsewhere).any()


@given(mask=MASKS, step=st.integers(0, 5))
def test_every_query_sees_something(mask, step):
    assert attention.keep_mask(mask, step).any(dim=-1).all()


@given(mask=MASKS, step=st.integers(1, 5))
def test_a_new_token_sees_the_real_prompt_and_all_since(mask, step):
    keep = attention.keep_mask(mask, step)
    assert keep.shape == (len(mask), 1, 1, mask.shape[1] + step)
    for row in range(len(mask)):
        assert keep[row, 0, 0].tolist() == mask[row].tolist() + [True] * step


def test_a_slots_query_sees_what_its_row_has_stored():
    keep = attention.keep_stored(torch.tensor([1, 3, 9]), 4)
    assert keep.shape == (3, 1, 1, 4)
    assert keep[:, 0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]]


@st.composite
def scenes(draw):
    """Random q, k, v and a mask in which each query sees something."""
    seed = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2), (3, 3)]))
    batch, dim = draw(st.integers(1, 3)), draw(st.sampled_from([4, 8]))
    queries, keys = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    q = torch.randn(batch, kv_heads * group, queries, dim, generator=seed)
    k, v = torch.randn(2, batch, kv_heads, keys, dim, generator=seed)
    keep = torch.rand(batch, 1, queries, keys, generator=seed) < 0.6
    keep[..., 0] |= ~keep.any(dim=-1)
    return q, k, v, keep


def by_loops(q, k, v, keep):
    """(answers, weights), one query at a time in Python's doubles."""
    group = q.shape[1] // k.shape[1]
    out, weights = torch.zeros_like(q), torch.zeros(*q.shape[:3], k.shape[2])
    for b, h, i in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        seen = [j for j in range(k.shape[2]) if keep[b, 0, i, j]]
        heads_k, heads_v = k[b, h // group].double(), v[b, h // group].double()
        scores = [float(q[b, h, i].double() @ heads_k[j]) for j in seen]
        exps = [math.exp(s / math.sqrt(q.shape[-1])) for s in scores]
        for j, e in zip(seen, exps, strict=True):
            weights[b, h, i, j] = e / sum(exps)
            out[b, h, i] += (e / sum(exps) * heads_v[j]).float()
    return out, weights


@given(scene=scenes())
def test_the_fast_one_equals_the_loops(scene):
    close(attention.attend(*scene), by_loops(*scene)[0])


@given(scene=scenes())
def test_the_readable_one_equals_the_loops_weights_too(scene):
    answers, weights = attention.attend_readable(*scene)
    right_answers, right_weights = by_loops(*scene)
    close(answers, right_answers)
    close(weights, right_weights)


@given(scene=scenes(), rubbish=st.sampled_from([1e3, -1e3, 1e30]))
def test_what_is_masked_is_not_seen_while_it_is_finite(scene, rubbish):
    q, k, v, keep = scene
    hidden = ~keep.any(dim=(1, 2))  # [batch, keys]
    where = hidden[:, None, :, None]
    changed = q, k.masked_fill(where, rubbish), v.masked_fill(where, rubbish), keep
    for attend in (attention.attend, lambda *x: attention.attend_readable(*x)[0]):
        assert torch.equal(attend(*scene), attend(*changed))


def test_a_masked_nan_is_seen_all_the_same():
    """Why a slot is scrubbed: 0 x NaN is NaN."""
    q, k, v = torch.ones(3, 1, 1, 2, 4)
    keep = torch.tensor([[[[True, False]]]])
    v[:, :, 1] = torch.nan
    assert attention.attend(q[:, :, :1], k, v, keep).isnan().all()


def test_answers_keep_the_dtype_they_came_in():
    q, k, v = torch.ones(3, 1, 2, 3, 4, dtype=torch.bfloat16)
    keep = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    answers, weights = attention.attend_readable(q, k, v, keep)
    assert attention.attend(q, k, v, keep).dtype == torch.bfloat16
    assert answers.dtype == torch.bfloat16
    assert weights.dtype == torch.float32


def close(left, right):
    torch.testing.assert_close(left, right, atol=1e-5, rtol=1e-5)
