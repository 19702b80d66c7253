"""A plant is in for its block, in its thread, and out again whatever happens."""

import asyncio
import gc
import signal
import threading

import pytest
import tiny
import torch

from nanoserve import (
    InvalidInputError,
    attention,
    cache,
    engine,
    padding,
    pitfalls,
    sampling,
)
from nanoserve.pitfalls import plant, planting, swap, unplanted

MASK = torch.tensor([[False, False, True], [True, True, True]])
RIGHT = [[0, 0, 0], [0, 1, 2]]
WRONG = [[0, 1, 2], [0, 1, 2]]  # index positions

ROOMS = (attention, engine, padding, sampling, cache.SlotCache)


def positions():
    return padding.positions(MASK).tolist()


@pytest.fixture(autouse=True)
def everything_is_back():
    """After each test every function of every room is the very same one."""
    before = [dict(vars(room)) for room in ROOMS]
    yield
    for room, names in zip(ROOMS, before, strict=True):
        for name, value in names.items():
            assert vars(room)[name] is value, f"{room}: {name} is still swapped"
    assert planting._planted.get() == ()
    assert not planting._users
    assert not planting._asking


def test_a_bug_is_in_for_a_block():
    right = padding.positions
    with plant("index-positions") as bug:
        assert bug is pitfalls.BUGS["index-positions"]
        assert positions() == WRONG
        assert padding.positions.__doc__ == right.__doc__
    assert positions() == RIGHT
    assert padding.positions is right


def test_a_method_can_be_planted(llama):
    slots = cache.SlotCache(llama.model, 1, 4)
    for scrubs in (False, True):
        slots.take()
        slots.keys[:] = 1
        slots.lengths[0] = 4
        with swap({}) if scrubs else plant("not-scrubbed"):
            slots.release(0)
        assert bool(slots.keys.any()) is not scrubs


def test_a_bug_of_two_functions_swaps_both():
    right = attention.attend, attention.keep_mask
    with plant("minus-inf"):
        assert not attention.keep_mask(MASK)[0, 0, 0].any()  # a pad that sees nothing
        assert attention.attend is not right[0]
    assert (attention.attend, attention.keep_mask) == right


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_in_the_block_takes_it_out(error):
    def block():
        with plant("index-positions"):
            assert positions() == WRONG
            raise error

    with pytest.raises(error):
        block()
    assert positions() == RIGHT


def test_an_interrupted_run_takes_it_out(llama):
    """Ctrl-C as Jupyter sends it: a signal, somewhere in the midst of a run."""
    calls = []

    def interrupted(*args):
        calls.append(args)
        signal.raise_signal(signal.SIGINT)
        return attention.attend(*args)

    with pytest.raises(KeyboardInterrupt), plant("index-positions"):
        with swap({"engine.next_tokens": interrupted}):
            tiny_batch(llama)
    assert len(calls) == 1
    assert positions() == RIGHT


def test_a_second_interrupt_on_the_way_out_leaves_nothing_planted(monkeypatch):
    leave = planting._leave

    def interrupted(place, plant):
        monkeypatch.setattr(planting, "_leave", leave)
        raise KeyboardInterrupt

    monkeypatch.setattr(planting, "_leave", interrupted)
    with pytest.raises(KeyboardInterrupt), plant("index-positions"):
        pass
    assert positions() == RIGHT
    with plant("prefill-only"):  # the next one tidies up
        assert positions() == RIGHT
        assert padding.positions(MASK, 1).tolist() == [[3], [3]]


def test_an_unknown_name_plants_nothing():
    with pytest.raises(InvalidInputError, match="bug='index': must be one of .*mask"):
        with plant("index"):
            pytest.fail("it must not run")


def test_nested_plants_of_different_places_are_all_in():
    with plant("index-positions"), plant("sum-minus-one"):
        assert positions() == WRONG
        assert padding.last_column(MASK).tolist() == [0, 2]
    assert padding.last_column(MASK).tolist() == [2, 2]


def test_of_nested_plants_of_one_place_the_innermost_is_in():
    with plant("index-positions"):
        with plant("prefill-only"):
            assert positions() == RIGHT
            assert padding.positions(MASK, 1).tolist() == [[3], [3]]
        assert positions() == WRONG
    assert positions() == RIGHT


def test_the_same_bug_twice():
    with plant("index-positions"):
        with plant("index-positions"):
            assert positions() == WRONG
        assert positions() == WRONG
    assert positions() == RIGHT


def test_plants_may_end_in_any_order():
    first, second = plant("index-positions"), plant("prefill-only")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert padding.positions(MASK, 1).tolist() == [[3], [3]]
    second.__exit__(None, None, None)
    assert positions() == RIGHT


def test_a_plant_is_for_one_block():
    once = plant("index-positions")
    with once:
        pass
    with pytest.raises((RuntimeError, AttributeError)), once:
        pytest.fail("it must not run")


def test_unplanted_sees_the_right_functions():
    with plant("index-positions"):
        with unplanted():
            assert positions() == RIGHT
            with plant("index-positions"):
                assert positions() == WRONG
        assert positions() == WRONG


def test_another_thread_does_not_see_it():
    seen = {}
    planted, done = threading.Event(), threading.Event()

    def other():
        planted.wait(10)
        seen["other"] = positions()
        with plant("prefill-only"):
            seen["own"] = padding.positions(MASK, 1).tolist()
        seen["after"] = positions()
        done.set()

    thread = threading.Thread(target=other)
    thread.start()
    with plant("index-positions"):
        planted.set()
        assert done.wait(10)
        assert positions() == WRONG
        thread.join()
    assert seen == {"other": RIGHT, "own": [[3], [3]], "after": RIGHT}


def test_many_threads_plant_and_leave():
    failures = []

    def work():
        for _ in range(200):
            with plant("index-positions"):
                if positions() != WRONG:
                    failures.append("not in")
            if positions() != RIGHT:
                failures.append("not out")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_task_sees_what_was_planted_around_it_and_not_longer():
    async def later(event):
        first = positions()
        await event.wait()
        return first, positions()

    async def scene():
        event = asyncio.Event()
        with plant("index-positions"):
            task = asyncio.create_task(later(event))
            await asyncio.sleep(0)
        event.set()
        return await task

    assert asyncio.run(scene()) == (WRONG, RIGHT)


def planting_generator():
    with plant("index-positions"):
        yield positions()
        yield positions()


def test_a_generator_holds_it_in_until_it_is_closed():
    steps = planting_generator()
    assert next(steps) == WRONG
    steps.close()
    assert positions() == RIGHT


def test_a_forgotten_generator_lets_go():
    steps = planting_generator()
    next(steps)
    del steps
    gc.collect()
    assert positions() == RIGHT


def test_generators_that_interleave():
    first, second = planting_generator(), planting_generator()
    next(first)
    next(second)
    first.close()
    assert positions() == WRONG
    second.close()
    assert positions() == RIGHT


def test_a_generator_closed_in_another_thread():
    steps = planting_generator()
    next(steps)
    thread = threading.Thread(target=steps.close)
    thread.start()
    thread.join()
    assert positions() == RIGHT
    with plant("prefill-only"):  # clears the dead one out of this thread's list
        pass


def test_a_generator_that_was_made_inside_runs_right_outside(gpt2):
    from nanoserve import generate_one, stream_one

    with plant("causal-at-decode"):
        pieces = stream_one(gpt2, [5, 6, 7], max_new_tokens=6, ignore_eos=True)
        next(pieces)
    assert "".join(pieces)
    alone = generate_one(gpt2, [5, 6, 7], max_new_tokens=6, ignore_eos=True)
    assert alone.generated_tokens == 6


def test_a_function_of_ones_own_in_the_same_place_is_left_alone(monkeypatch):
    """A test's spy over a planted place: whoever comes last must not undo the other."""
    right = padding.positions
    with plant("index-positions"):
        asking = padding.positions
        with monkeypatch.context() as patch:
            patch.setattr(padding, "positions", lambda *args: asking(*args))
            assert positions() == WRONG
            with plant("prefill-only"):
                assert positions() == RIGHT
            assert positions() == WRONG
    assert padding.positions is right


def tiny_batch(lm):
    from nanoserve import generate_batch

    return generate_batch(lm, [[5, 6, 7, 8], [tiny.EOS, 9]], max_new_tokens=3)
