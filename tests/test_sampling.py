"""From logits to a token: the filters, the draw, and whose randomness it is."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import strategies as draws
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from nanoserve import Request, SamplingParams, sampling

GREEDY = SamplingParams()
INF, NAN = float("inf"), float("nan")


def logits(*values):
    return torch.tensor(values, dtype=torch.float32)


def draw_one(row, params):
    generator = sampling.generator_for(Request([0], params))
    return sampling.sample(row[None], [params], [generator])[0]


def draw_many(row, params, count=4000):
    """How often each token is drawn by one generator."""
    generator = sampling.generator_for(Request([0], params))
    rows, each = row.expand(count, -1), [generator] * count
    return Counter(sampling.sample(rows, [params] * count, each))


ROWS = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=40).map(torch.tensor)

# --- greedy ---


def test_greedy_takes_the_best_and_on_a_tie_the_lowest_id():
    rows = torch.stack([logits(1, 3, 2), logits(3, 1, 3), logits(-5, -5, -5)])
    assert sampling.sample(rows, [GREEDY] * 3, [None] * 3) == [1, 0, 0]


def test_greedy_needs_no_generator():
    assert sampling.generator_for(Request([0], GREEDY)) is None
    assert (
        sampling.generator_for(Request([0], SamplingParams(temperature=-0.0))) is None
    )


# --- top_k ---


@given(row=ROWS, k=st.integers(1, 50))
def test_top_k_keeps_k_tokens_and_none_is_better_than_they(row, k):
    kept = sampling.top_k_filter(row, k)
    stays = kept != -INF
    assert stays.sum() == min(k, len(row))
    assert torch.equal(kept[stays], row[stays])
    if k < len(row):
        assert row[~stays].max() <= row[stays].min()


def test_ties_add_no_token_to_top_k():
    kept = sampling.top_k_filter(logits(1, 1, 1, 1), 2)
    assert kept.isfinite().sum() == 2


def test_top_k_0_keeps_all():
    row = logits(3, -4, 0)
    assert sampling.top_k_filter(row, 0) is row


def test_top_k_1_is_greedy_at_any_temperature():
    params = SamplingParams(temperature=100.0, top_k=1)
    assert set(draw_many(logits(1, 3, 2), params, 200)) == {1}


# --- top_p ---


@given(row=ROWS, p=st.floats(0.01, 1, exclude_max=True))
def test_top_p_keeps_the_fewest_tokens_that_reach_p(row, p):
    order = sorted(range(len(row)), key=lambda i: (-float(row[i]), i))
    weights = [math.exp(float(row[i])) for i in order]
    reached, right = 0.0, set()
    for token, weight in zip(order, weights, strict=True):
        assume(abs(reached - p) > 1e-5)  # rounding may decide there
        if reached >= p:
            break
        right.add(token)
        reached += weight / sum(weights)
    kept = sampling.top_p_filter(row, p)
    assert set(kept.isfinite().nonzero().flatten().tolist()) == right
    assert torch.equal(kept[kept.isfinite()], row[kept.isfinite()])


@pytest.mark.parametrize("p", [0.5, 1e-6, 1e-30, 1e-50, 5e-324])
def test_top_p_always_keeps_the_first(p):
    kept = sampling.top_p_filter(logits(0, 9, 1), p)
    assert kept.tolist() == [-INF, 9, -INF]
    assert draw_one(logits(0, 9, 1), SamplingParams(temperature=1.0, top_p=p)) == 1


def test_top_p_1_keeps_a_tail_that_a_sum_would_lose():
    row = torch.full((50_000,), -20.0)
    row[0] = 10.0
    assert sampling.top_p_filter(row, 1.0) is row


def test_on_a_tie_top_p_keeps_the_lowest_ids():
    kept = sampling.top_p_filter(logits(1, 1, 1, 1), 0.5)
    assert kept.isfinite().tolist() == [True, True, False, False]


def test_top_p_looks_at_what_top_k_left():
    """Of 0.4, 0.3, 0.3 two reach 0.5; of what top_k leaves, the first one does."""
    row = torch.tensor([0.4, 0.3, 0.3]).log()
    params = SamplingParams(temperature=1.0, top_k=2, top_p=0.5, seed=1)
    assert draw_many(row, params, 200).keys() == {0}


# --- the draw ---


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_the_softmax_says(temperature):
    row, count = logits(2.0, 1.0, 0.0, -1.0, 1.5), 8000
    params = SamplingParams(temperature=temperature, seed=7)
    seen = draw_many(row, params, count)
    expected = ((row / temperature).softmax(-1) * count).tolist()
    chi_square = sum((seen[i] - e) ** 2 / e for i, e in enumerate(expected))
    assert chi_square < 18.5  # 4 degrees of freedom: 1 in 1,000 is above


def test_filtered_tokens_are_never_drawn_and_the_rest_keep_their_odds():
    row, count = logits(2.0, 1.0, 0.0, -1.0), 8000
    seen = draw_many(row, SamplingParams(temperature=1.0, top_k=2, seed=3), count)
    assert seen.keys() == {0, 1}
    assert abs(seen[0] / count - 1 / (1 + math.exp(-1))) < 0.02


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-30, 1e-5])
def test_a_tiny_temperature_is_greedy(temperature):
    row, params = logits(-1e4, 2.99, 3.0, 1e-3), SamplingParams(temperature=temperature)
    scores = sampling.perturbed(row, params, torch.Generator())
    assert scores.argmax() == 2
    assert not scores.isnan().any()


@pytest.mark.parametrize("temperature", [1e30, 1e39, 1e300, 1.7e308])
def test_a_huge_temperature_makes_all_tokens_alike(temperature):
    seen = draw_many(
        logits(30, 0, -30), SamplingParams(temperature=temperature, seed=1)
    )
    assert min(seen[token] for token in range(3)) > 1200  # of 4,000


@given(row=ROWS, params=draws.PARAMS)
def test_the_token_drawn_is_one_that_may_be_drawn(row, params):
    token = draw_one(row, params)
    assert 0 <= token < len(row)
    kept = sampling.top_p_filter(sampling.top_k_filter(row, params.top_k), 1.0)
    assert row[token] >= kept[kept.isfinite()].min()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_logits_are_sampled_in_fp32(dtype):
    row = torch.linspace(-3, 3, 500).to(dtype)
    for seed in range(40):
        params = SamplingParams(temperature=0.3, top_p=0.9, seed=seed)
        assert draw_one(row, params) == draw_one(row.float(), params)
    assert draw_one(row, SamplingParams(temperature=1e-5, seed=1)) == 499  # 3e5


# --- whose randomness ---


def sampled(seed, temperature=1.0):
    return SamplingParams(temperature=temperature, seed=seed)


def test_a_seed_repeats_an_answer_and_another_does_not():
    row = torch.zeros(1000)
    assert draw_one(row, sampled(4)) == draw_one(row, sampled(4))
    assert len({draw_one(row, sampled(seed)) for seed in range(8)}) == 8


def test_seeds_that_share_their_low_bits_draw_differently():
    row = torch.zeros(10_000)
    seeds = [0, 2**32, 2**33, 2**62, 2**63 - 1, 2**32 - 1]
    assert len({draw_one(row, sampled(seed)) for seed in seeds}) == len(seeds)


def test_without_a_seed_each_draw_is_fresh():
    row = torch.zeros(10_000)
    assert len({draw_one(row, sampled(None)) for _ in range(8)}) > 4


@given(rows=st.lists(st.tuples(draws.SEEDS, draws.TEMPERATURES), min_size=2))
def test_a_rows_draw_does_not_depend_on_its_neighbours(rows):
    params = [sampled(seed, temperature) for seed, temperature in rows]
    table = torch.linspace(-2, 2, 50).repeat(len(rows), 1)
    generators = [sampling.generator_for(Request([0], each)) for each in params]
    together = sampling.sample(table, params, generators)
    alone = [draw_one(row, each) for row, each in zip(table, params, strict=True)]
    assert together == alone


def test_the_global_randomness_is_left_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    draw_one(torch.zeros(9), sampled(None))
    draw_one(torch.zeros(9), sampled(3))
    assert torch.equal(torch.get_rng_state(), before)


# --- rows that are not finite ---


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_row_with_one_bad_logit_is_found(bad):
    rows = torch.zeros(3, 5)
    rows[1, 2] = bad
    assert sampling.check_finite(rows) == [True, False, True]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(temperature=1.0, top_p=0.5)])
def test_a_bad_row_takes_nobody_down(bad, params):
    rows = logits(1, 3, 2).repeat(3, 1)
    rows[1] = bad
    generators = [sampling.generator_for(Request([0], params)) for _ in range(3)]
    tokens = sampling.sample(rows, [params] * 3, generators)
    assert (tokens[0], tokens[2]) == (1, 1)
