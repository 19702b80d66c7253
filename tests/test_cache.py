"""Slots and the three batches over them: what is written, what is seen, what is left.

Every K and V here carries its token's own number, so that a token in the wrong place
is known by name.
"""

from __future__ import annotations

import pytest
import strategies as draws
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import attention, padding
from nanoserve.batch import DecodeRows, PaddedPrefill, Rectangle
from nanoserve.cache import SlotCache

SLOTS, CAPACITY = 5, 40
SENTINEL = 77.0


@pytest.fixture
def cache(llama):
    return SlotCache(llama.model, SLOTS, CAPACITY)


def sizes(cache):
    """(layers, KV heads, head dimension)"""
    layers, _, heads, _, dim = cache.keys.shape
    return layers, heads, dim


def tokens(cache, numbers):
    """k, v of N tokens, [N, heads, dim]: token i is full of numbers[i], v negative."""
    _, heads, dim = sizes(cache)
    k = torch.tensor(numbers, dtype=torch.float32)[:, None, None].repeat(1, heads, dim)
    return k, -k


def held(cache, slot, layer=0):
    """The numbers of the tokens in a slot, column by column."""
    k, v = cache.keys[layer, slot], cache.values[layer, slot]
    assert torch.equal(k, -v)
    assert (k == k[:1, :, :1]).all(), "the heads of a token are alike here"
    return k[0, :, 0].tolist()


def prefill(cache, slots, lengths, side="left"):
    """Row r's tokens are 100 (r + 1), 100 (r + 1) + 1, ..; pads are SENTINEL."""
    prompts = [[100 * (r + 1) + i for i in range(n)] for r, n in enumerate(lengths)]
    ids, mask = padding.pad_batch(prompts, int(SENTINEL), side)
    batch = PaddedPrefill(cache, slots, mask, attention.keep_mask(mask))
    k, v = tokens(cache, ids.flatten().tolist())
    for layer in range(sizes(cache)[0]):
        batch.attend(layer, k.repeat(1, 2, 1), k, v)  # 4 query heads over 2
    return prompts


# --- slots ---


def test_the_lowest_free_slot_is_taken_first(cache):
    assert [cache.take() for _ in range(3)] == [0, 1, 2]
    cache.release(1)
    assert [cache.take() for _ in range(2)] == [1, 3]
    assert cache.free_slots == 1


def test_a_slot_is_not_released_twice(cache):
    slot = cache.take()
    cache.release(slot)
    with pytest.raises(RuntimeError, match="slot 0 is released twice"):
        cache.release(slot)
    assert cache.free_slots == SLOTS


def test_a_new_cache_holds_zeros(cache):
    assert not cache.keys.any()
    assert not cache.values.any()


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -3.0])
def test_release_zeroes_what_the_tenant_wrote_and_no_more(cache, rubbish):
    for _ in range(3):
        cache.take()
    cache.lengths = [4, 6, 5, 0, 0]
    for store in (cache.keys, cache.values):
        store[:] = SENTINEL
        store[:, 1, :, :6] = rubbish
    cache.release(1)
    for store in (cache.keys, cache.values):
        assert not store[:, 1, :, :6].any()
        assert (store[:, 1, :, 6:] == SENTINEL).all()
        assert (store[:, [0, 2, 3, 4]] == SENTINEL).all()
    assert cache.lengths == [4, 0, 5, 0, 0]


@given(slots=st.permutations(range(SLOTS)), count=st.integers(1, SLOTS), data=st.data())
def test_what_was_written_is_read_in_the_order_of_the_rows(llama, slots, count, data):
    cache = SlotCache(llama.model, SLOTS, CAPACITY)
    for slot in range(SLOTS):
        k, v = tokens(cache, [100 * slot + column for column in range(CAPACITY)])
        where = torch.full((CAPACITY,), slot)
        cache.write(1, where, torch.arange(CAPACITY), k, v)
    slots, width = slots[:count], data.draw(st.integers(1, CAPACITY))
    keys, values = cache.read(1, slots, width)
    right = [[100.0 * slot + column for column in range(width)] for slot in slots]
    assert keys[:, 0, :, 0].tolist() == right
    assert torch.equal(values, -keys)
    assert not cache.keys[0].any(), "the other layers stay as they were"


def test_neighbouring_slots_are_read_without_a_copy(cache):
    keys, values = cache.read(1, [1, 2, 3], 7)
    assert keys.untyped_storage().data_ptr() == cache.keys.untyped_storage().data_ptr()
    assert values.data_ptr() == cache.values[1, 1].data_ptr()


# --- a static engine's prefill ---


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("slots", [[0, 1, 2], [3, 0, 4]])
def test_prefill_stores_a_token_at_its_position_and_no_pad(cache, slots, side):
    prompts = prefill(cache, slots, [4, 1, 6], side)
    for layer in range(sizes(cache)[0]):
        for slot, prompt in zip(slots, prompts, strict=True):
            empty = [0.0] * (CAPACITY - len(prompt))
            assert held(cache, slot, layer) == prompt + empty
    assert [cache.lengths[slot] for slot in slots] == [4, 1, 6]


def test_a_prefill_that_is_interrupted_is_scrubbed_whole(cache):
    """It must be known what may be written *before* anything is."""
    slots = [cache.take(), cache.take()]
    mask = padding.pad_batch([[1, 2, 3], [1]], 0)[1]
    batch = PaddedPrefill(cache, slots, mask, attention.keep_mask(mask))
    k, v = tokens(cache, [5] * 6)
    batch.attend(0, k.repeat(1, 2, 1), k, v)  # one layer of three, then Ctrl-C
    for slot in slots:
        cache.release(slot)
    assert not cache.keys.any()
    assert not cache.values.any()


# --- decode ---


def decode(cache, slots, lengths, live, monkeypatch, numbers=(1, 2, 3)):
    """One decode pass; returns what attention was given: keys, values, keep."""
    seen = []

    def noting(q, k, v, keep):
        seen.append((k.clone(), v.clone(), keep))
        return q

    monkeypatch.setattr(attention, "attend", noting)
    batch = DecodeRows(cache, slots, lengths, live)
    k, v = tokens(cache, list(numbers[: len(slots)]))
    for layer in range(sizes(cache)[0]):
        answer = batch.attend(layer, k.repeat(1, 2, 1), k, v)
        assert torch.equal(answer, k.repeat(1, 2, 1)), "rows come back in their order"
    return seen[0]


@pytest.mark.parametrize("slots", [[0, 1, 2], [4, 0, 3]])
def test_decode_adds_one_token_to_each_live_row(cache, slots, monkeypatch):
    prompts = prefill(cache, slots, [4, 1, 6])
    decode(cache, slots, [4, 1, 6], [True] * 3, monkeypatch)
    for slot, prompt, new in zip(slots, prompts, [1, 2, 3], strict=True):
        assert held(cache, slot, 2)[: len(prompt) + 1] == [*prompt, new]
    assert [cache.lengths[slot] for slot in slots] == [5, 2, 7]


@pytest.mark.parametrize("slots", [[0, 1, 2], [4, 0, 3]])
def test_a_finished_row_stores_nothing_in_decode(cache, slots, monkeypatch):
    prefill(cache, slots, [4, 6, 2])
    before = cache.keys[:, slots[1]].clone()
    decode(cache, slots, [4, 6, 2], [True, False, True], monkeypatch)
    assert torch.equal(cache.keys[:, slots[1]], before)
    assert held(cache, slots[0])[:5] == [100, 101, 102, 103, 1]
    assert held(cache, slots[2])[:3] == [300, 301, 3], "not its finished neighbour's"


@pytest.mark.parametrize("slots", [[0, 1, 2], [4, 0, 3]])
def test_each_row_sees_its_own_tokens_and_no_other(cache, slots, monkeypatch):
    prompts = prefill(cache, slots, [4, 1, 6])
    keys, values, keep = decode(cache, slots, [4, 1, 6], [True] * 3, monkeypatch)
    assert torch.equal(values, -keys)
    for row, (prompt, new) in enumerate(zip(prompts, [1, 2, 3], strict=True)):
        assert keys[row, 0, :, 0][keep[row, 0, 0]].tolist() == [*prompt, new]


@given(
    rows=st.lists(st.tuples(st.integers(1, 30), st.booleans()), min_size=1, max_size=5)
)
def test_decode_looks_no_further_than_the_longest_live_row(llama, rows):
    lengths, live = [n for n, _ in rows], [alive for _, alive in rows]
    live[0] = True  # a batch in which all have ended is not run
    cache = SlotCache(llama.model, SLOTS, CAPACITY)
    batch = DecodeRows(cache, range(len(rows)), lengths, live)
    longest = max(n + 1 for n, alive in zip(lengths, live, strict=True) if alive)
    assert batch.width == longest
    assert batch.keep.shape == (len(rows), 1, 1, longest)
    seen = batch.keep.sum(dim=-1).flatten().tolist()
    held = [n + alive for n, alive in zip(lengths, live, strict=True)]
    assert seen == [min(n, longest) for n in held]
    assert min(seen) > 0, "a finished row, too, has something to see"


def test_a_decode_that_is_interrupted_is_scrubbed_whole(cache):
    slot = cache.take()
    prefill(cache, [slot], [3])
    batch = DecodeRows(cache, [slot], [3], [True])
    k, v = tokens(cache, [5])
    batch.attend(0, k.repeat(1, 2, 1), k, v)
    cache.release(slot)
    assert not cache.keys.any()
    assert not cache.values.any()


# --- the lesson's rectangle ---


@given(prompts=st.lists(draws.PROMPTS, min_size=1, max_size=SLOTS), side=draws.SIDES)
def test_a_rectangle_stores_padded_columns_as_they_stand(llama, prompts, side):
    ids, mask = padding.pad_batch(prompts, int(SENTINEL), side)
    rows, width = ids.shape
    cache = SlotCache(llama.model, rows, width + 2)
    batch = Rectangle(cache, attention.keep_mask(mask))
    k, v = tokens(cache, ids.flatten().tolist())
    batch.attend(0, k.repeat(1, 2, 1), k, v)
    for step in (1, 2):
        k, v = tokens(cache, [1000 * step + row for row in range(rows)])
        batch = Rectangle(cache, attention.keep_mask(mask, step))
        batch.attend(0, k.repeat(1, 2, 1), k, v)
    for row in range(rows):
        assert held(cache, row) == [*ids[row].tolist(), 1000 + row, 2000 + row]
