"""What hypothesis draws from: ragged prompts, limits, stop tokens, seeds, arrivals."""

from __future__ import annotations

import dataclasses
from typing import Any

import tiny
from hypothesis import settings
from hypothesis import strategies as st

from nanoserve import Request, SamplingParams


def examples(share: float) -> settings:
    """A test that is dearer, or cheaper, than the others tries another number."""
    return settings(max_examples=max(5, int(settings().max_examples * share)))


TOKENS = st.integers(0, tiny.VOCAB_SIZE - 1)
# mostly short, some much longer than their neighbours; pad and EOS are tokens too
PROMPTS = st.one_of(
    st.lists(TOKENS, min_size=1, max_size=6),
    st.lists(TOKENS, min_size=1, max_size=24),
    st.lists(st.sampled_from([tiny.PAD, tiny.EOS, 7]), min_size=1, max_size=5),
)
LIMITS = st.integers(1, 9)
STOPS = st.lists(TOKENS, max_size=6, unique=True).map(tuple)
TEMPERATURES = st.one_of(st.just(0.0), st.floats(0.05, 5.0))
SEEDS = st.integers(0, 2**63 - 1)
SIDES = st.sampled_from(["left", "right"])

PARAMS = st.builds(
    SamplingParams,
    max_tokens=LIMITS,
    temperature=TEMPERATURES,
    top_k=st.sampled_from([0, 1, 2, 5, 40, 1000]),
    top_p=st.one_of(st.just(1.0), st.floats(0.01, 1.0)),
    seed=SEEDS,
    stop_token_ids=STOPS,
    ignore_eos=st.booleans(),
)


def requests(arrivals: int = 0) -> st.SearchStrategy[Request]:
    return st.builds(Request, PROMPTS, PARAMS, arrival_step=st.integers(0, arrivals))


@st.composite
def alike(draw: Any, most: int = 5) -> list[Request]:
    """Requests that differ in prompt, limit and seed: what generate_batch takes."""
    shared = draw(PARAMS)
    rows = draw(st.lists(st.tuples(PROMPTS, LIMITS, SEEDS), min_size=1, max_size=most))
    return [
        Request(prompt, dataclasses.replace(shared, max_tokens=limit, seed=seed))
        for prompt, limit, seed in rows
    ]


def mixed(arrivals: int = 0, most: int = 6) -> st.SearchStrategy[list[Request]]:
    """Requests that have nothing in common: what an engine takes."""
    return st.lists(requests(arrivals), min_size=1, max_size=most)


# A model may name several ids that end an answer
EOS_SETS = st.frozensets(TOKENS, max_size=3).map(lambda more: more | {tiny.EOS})


@st.composite
def continuous(draw: Any) -> dict[str, Any]:
    """Options of a continuous engine, with few blocks more than one request needs."""
    size = draw(st.sampled_from([1, 2, 3, 5, 16]))
    longest = 24 + 9 - 1  # PROMPTS and LIMITS; the last token is not fed
    budget = draw(st.sampled_from([4, 5, 9, 33, 2048]))
    return {
        "max_num_seqs": draw(st.integers(1, 4)),
        "max_num_batched_tokens": budget,
        # whole prompts need a budget that holds the longest there could be
        "enable_chunked_prefill": budget < tiny.MAX_LENGTH or draw(st.booleans()),
        "kv_blocks": -(-longest // size) + draw(st.integers(0, 3)),
        "block_size": size,
        "preemption": draw(st.sampled_from(["recompute", "swap"])),
    }


CONTINUOUS = continuous()
