"""Blocks, tables and the packed batch over them.

As in test_cache.py every K and V carries its token's own number, so that a token in
the wrong place is known by name.
"""

from __future__ import annotations

import laws
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanoserve.batch import Packed
from nanoserve.paging import PagedCache, blocks_for, longest_run

SLOTS, BLOCKS, SIZE = 3, 12, 4


@pytest.fixture
def cache(llama):
    return PagedCache(llama.model, SLOTS, BLOCKS, SIZE)


def tokens(cache, numbers):
    """k, v of N tokens, [N, heads, dim]: token i is full of numbers[i], v negative."""
    heads, dim = cache.keys.shape[1], cache.keys.shape[3]
    k = torch.tensor(numbers, dtype=torch.float32)[:, None, None].repeat(1, heads, dim)
    return k, -k


def held(cache, slot, length, layer=0):
    """The numbers of a slot's tokens, by their position."""
    k, v = cache.read(layer, cache.places(slot, 0, length))
    assert torch.equal(k, -v)
    return k[0, :, 0].tolist()


def feed(cache, slots, starts, counts):
    """Row r's token at position p is the number 100 (slot + 1) + p."""
    numbers = [
        100.0 * (slot + 1) + start + i
        for slot, start, count in zip(slots, starts, counts, strict=True)
        for i in range(count)
    ]
    for slot, start, count in zip(slots, starts, counts, strict=True):
        assert cache.reserve(slot, start + count)
    batch = Packed(cache, slots, starts, counts)
    k, v = tokens(cache, numbers)
    return [
        batch.attend(layer, k.repeat(1, 2, 1), k, v)  # 4 query heads over 2
        for layer in range(cache.keys.shape[0])
    ]


# --- how many, and which ---


@pytest.mark.parametrize(
    ("count", "size", "blocks"),
    [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (8, 4, 2), (9, 4, 3), (7, 1, 7)],
)
def test_a_block_may_be_partly_empty_and_an_exact_fit_needs_no_more(
    count, size, blocks
):
    assert blocks_for(count, size) == blocks


@pytest.mark.parametrize(
    ("numbers", "run"),
    [
        ({5}, [5]),
        ({1, 2, 5, 6, 7, 9}, [5, 6, 7]),
        ({8, 9, 1, 2}, [1, 2]),
        (set(), []),
    ],
)
def test_the_longest_run_of_neighbours(numbers, run):
    assert longest_run(numbers) == run


def test_each_slot_begins_in_its_own_part_of_the_pool(cache):
    for slot in range(SLOTS):
        assert cache.reserve(slot, 5)
    assert cache.tables == [[0, 1], [4, 5], [8, 9]]
    assert cache.free_blocks == 6


def test_neighbours_are_taken_while_they_are_free_then_the_middle_of_a_hole(cache):
    cache.reserve(1, 5)
    assert cache.reserve(0, 17)
    assert cache.tables[0] == [0, 1, 2, 3, 9]  # of 6 .. 11
    assert cache.reserve(0, 25)
    assert cache.tables[0][5:] == [10, 11]


def test_room_that_is_there_is_not_taken_again(cache):
    for length in (1, 3, 4, 2):
        assert cache.reserve(0, length)
    assert cache.tables[0] == [0]
    assert cache.reserve(0, 5)
    assert cache.tables[0] == [0, 1]


def test_when_blocks_are_short_none_is_taken(cache):
    assert cache.reserve(0, 40)
    assert not cache.reserve(1, 9)
    assert cache.tables[1] == []
    assert cache.free_blocks == 2
    assert cache.reserve(1, 8)
    assert cache.free_blocks == 0


@given(st.lists(st.tuples(st.integers(0, SLOTS - 1), st.integers(0, 50)), max_size=30))
def test_every_block_has_one_owner(llama, requests):
    cache = PagedCache(llama.model, SLOTS, BLOCKS, SIZE)
    for _ in range(SLOTS):
        cache.take()
    for slot, length in requests:
        before = [list(table) for table in cache.tables]
        if not length:
            cache.release(slot)
            cache.take()
        elif not cache.reserve(slot, length):
            assert cache.tables == before
        else:
            assert len(cache.tables[slot]) >= blocks_for(length, SIZE)
            assert cache.tables[slot][: len(before[slot])] == before[slot]
        owned = [block for table in cache.tables for block in table]
        assert len(owned) == len(set(owned)) == BLOCKS - cache.free_blocks


# --- where a token stands ---


def test_neighbouring_blocks_are_read_without_a_copy(cache):
    cache.reserve(1, 9)
    places = cache.places(1, 0, 9)
    assert places == slice(16, 25)
    assert cache.places(1, 7, 9) == slice(23, 25)
    keys, values = cache.read(2, places)
    assert keys.data_ptr() == cache.keys[2, :, 16:].data_ptr()
    assert values.untyped_storage().data_ptr() == (
        cache.values.untyped_storage().data_ptr()
    )


def test_scattered_blocks_are_found_through_the_table(cache):
    cache.tables[0] = [5, 2, 9]
    assert cache.places(0, 0, 10).tolist() == [*range(20, 24), *range(8, 12), 36, 37]
    assert cache.places(0, 3, 6).tolist() == [23, 8, 9]


@given(
    table=st.permutations(range(BLOCKS)),
    cuts=st.lists(st.integers(1, 6), min_size=1, max_size=6),
)
def test_what_is_written_in_chunks_is_read_in_order(llama, table, cuts):
    cache = PagedCache(llama.model, SLOTS, BLOCKS, SIZE)
    length = sum(cuts)
    blocks = blocks_for(length, SIZE)
    cache.tables[0], cache.tables[1] = table[:blocks], table[blocks : blocks + 1]
    cache._free_blocks -= set(table[: blocks + 1])
    start = 0
    for count in cuts:
        feed(cache, [0], [start], [count])
        start += count
    for layer in range(cache.keys.shape[0]):
        assert held(cache, 0, length, layer) == [100.0 + i for i in range(length)]
    assert not any(held(cache, 1, SIZE)), "another's block stays as it was"


# --- the packed batch ---


def test_decode_rows_and_chunks_see_their_own_past_and_nothing_else(cache):
    feed(cache, [2, 0], [0, 0], [5, 3])
    with laws.attention_watched() as looks:
        outputs = feed(cache, [2, 0, 1], [5, 3, 0], [1, 2, 4])
    assert [(look.queries, look.keys) for look in looks[:3]] == [(1, 6), (2, 5), (4, 4)]
    assert held(cache, 2, 6) == [300.0 + i for i in range(6)]
    assert held(cache, 0, 5) == [100.0 + i for i in range(5)]
    assert held(cache, 1, 4) == [200.0 + i for i in range(4)]
    v = outputs[0][:, 0, 0].tolist()  # a mean of the v that were seen
    bounds = [(300, 305), (100, 103), (100, 104), *((200, 200 + i) for i in range(4))]
    for got, (low, high) in zip(v, bounds, strict=True):
        assert -high <= got <= -low


def test_the_first_token_of_a_chunk_does_not_see_the_second(cache):
    feed(cache, [0], [0], [3])
    one = feed(cache, [0], [3], [1])
    two = feed(cache, [0], [3], [2])
    for alone, chunk in zip(one, two, strict=True):
        torch.testing.assert_close(alone[0], chunk[0])


# --- giving back, and host memory ---


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), -3.0])
def test_release_zeroes_its_blocks_and_no_others(cache, rubbish):
    for slot in range(SLOTS):
        cache.take()
        cache.reserve(slot, 6)
    cache.tables[0], cache.tables[1] = [0, 5], [4, 1]
    cache._free_blocks = set(range(BLOCKS)) - {0, 1, 4, 5, 8, 9}
    cache.keys[:], cache.values[:] = 77.0, 77.0
    mine = cache.places(1, 0, 8)
    cache.keys[:, :, mine], cache.values[:, :, mine] = rubbish, rubbish
    cache.release(1)
    others = [place for place in range(BLOCKS * SIZE) if place not in mine.tolist()]
    for store in (cache.keys, cache.values):
        assert not store[:, :, mine].any()
        assert (store[:, :, others] == 77.0).all()
    assert cache.tables == [[0, 5], [], [8, 9]]
    assert cache.free_blocks == 8
    assert cache.free_slots == 1


def test_a_slot_is_not_released_twice(cache):
    slot = cache.take()
    cache.release(slot)
    with pytest.raises(RuntimeError, match="slot 0 is released twice"):
        cache.release(slot)
    assert (cache.free_slots, cache.free_blocks) == (SLOTS, BLOCKS)


def test_what_is_swapped_out_comes_back_to_other_blocks(cache):
    for _ in range(SLOTS):
        cache.take()
    feed(cache, [1], [0], [9])
    stored = cache.swap_out(1, 9)
    cache.release(1)
    assert not cache.keys.any()
    assert stored.keys.shape[2] == 9
    cache.reserve(2, 20)
    cache.reserve(0, 9)
    cache.swap_in(0, stored)
    for layer in range(cache.keys.shape[0]):
        assert held(cache, 0, 9, layer) == [200.0 + i for i in range(9)]
    assert stored.keys.device.type == "cpu"
