"""Lesson 11: its exercises, as learners may answer them, its map and its figures.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
import run_all
import torch

from nanoserve import (
    ContinuousBatchEngine,
    InvalidInputError,
    Request,
    SamplingParams,
    StaticBatchEngine,
    load,
    serve,
)
from nanoserve.continuous import bytes_per_token
from nanoserve.course import checks, lessons, trial, values
from nanoserve.course.lessons import lesson_11
from nanoserve.course.memory_map import MemoryMap

EXERCISES = lessons.exercises()
LESSON = lessons.all_lessons()["11"]
LM = load("canary", device="cpu")
LENGTHS = [4, 40, 9, 6, 25, 3, 12, 50, 7, 5, 30, 8]
TRAFFIC = Path(__file__).parents[1] / "data" / "traffic"
LLAMA_3_8B = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}


def counts_to(last):
    params = SamplingParams(max_tokens=60)
    return Request(LM.encode(f"count from 1 to {last}"), params)


# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    ("kv_bytes", (LLAMA_3_8B, 1, 2), 131_072),
    ("kv_bytes", (lesson_11.LLAMA_70B, 8192, 2), 2_684_354_560),
    ("blocks_needed", (16, 1, 16), 1),
    ("blocks_needed", (16, 2, 16), 2),
    ("blocks_needed", (1, 1, 16), 1),
    ("place_of", (5, [7, 2, 4], 4), [2, 1]),
    ("place_of", (16, [6, 5], 16), [5, 0]),
]
ANSWERS = {
    "kilobytes_of_a_token": 300,
    "live_in_slots": 7,
    "given_out_twice": 0,
}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


def product(config, tokens, number, *, pair=2, heads="num_key_value_heads", unit=1):
    """As a learner might write it."""
    each = config["head_dim"] * config[heads] * config["num_hidden_layers"]
    return torch.tensor(float(each * tokens * number * pair / unit))


def rounded_down(prompt, new, size):
    return int((prompt + new - 1) / size)


def always_one_more(prompt, new, size):
    blocks = 1
    for token in range(prompt + new - 1):
        if (token + 1) % size == 0:
            blocks += 1
    return blocks


# What course.md lists and what else is likely, written as a learner might.
LISTED = [
    ("kv_bytes", "no values", lambda *a: product(*a, pair=1)),
    ("kv_bytes", "query heads", lambda *a: product(*a, heads="num_attention_heads")),
    ("kv_bytes", "another unit", lambda *a: product(*a, unit=2**30)),
    ("kv_bytes", "another unit", lambda *a: product(*a, unit=1e9)),
    ("kv_bytes", "numbers", lambda c, n, _: product(c, n, 1)),
    ("blocks_needed", "floor", rounded_down),
    ("blocks_needed", "one more at an exact fit", always_one_more),
    ("blocks_needed", "prompt only", lambda p, n, s: (p + s - 1) // s),
    (
        "blocks_needed",
        "one more at an exact fit",
        lambda p, n, s: (p + n + s - 1) // s,
    ),
    ("place_of", "no table", lambda t, _, s: [t // s, t % s]),
    ("place_of", "swapped", lambda t, table, s: (t % s, table[t // s])),
    ("place_of", "flat", lambda t, table, s: table[t // s] * s + t % s),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


# ---- the references against the engine -------------------------------------------


def test_the_bytes_are_those_of_the_engine():
    config = LM.model.config
    shape = lesson_11.model(
        config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim
    )
    assert lesson_11.kv_bytes(shape, 1, 4) == bytes_per_token(LM)
    cache = StaticBatchEngine(LM, 2, max_model_len=64).cache
    held = cache.keys.nbytes + cache.values.nbytes
    assert lesson_11.kv_bytes(shape, 2 * 64, 4) == held


@pytest.mark.parametrize("last", [1, 8, 9, 10, 11])
def test_the_blocks_are_those_the_engine_takes_at_most(last):
    engine = ContinuousBatchEngine(LM, 2, 80, block_size=4)
    engine.add_request(request := counts_to(last))
    seen = []
    forward = engine.forward

    def watched(stints):
        logits = forward(stints)
        seen.append(len(engine.cache.tables[stints[0].row.slot]))
        return logits

    engine.forward = watched
    while engine.has_work():
        engine.step()
    prompt, made = len(request.prompt_token_ids), engine.trace.ledger().generated_tokens
    assert made == last + 1
    assert max(seen) == lesson_11.blocks_needed(prompt, made, 4)


def test_a_request_is_refused_exactly_where_its_blocks_are_too_few():
    engine = ContinuousBatchEngine(LM, 3, 64, kv_blocks=9, block_size=4)
    prompt = LM.encode("count from 1 to 9")
    for new in (30, 31):
        fits = lesson_11.blocks_needed(len(prompt), new, 4) <= 9
        request = Request(prompt, SamplingParams(max_tokens=new))
        if fits:
            engine.add_request(request)
        else:
            with pytest.raises(InvalidInputError):
                engine.add_request(request)
    assert lesson_11.blocks_needed(len(prompt), 30, 4) == 9
    assert lesson_11.blocks_needed(len(prompt), 31, 4) == 10


def test_every_place_is_the_caches():
    engine = ContinuousBatchEngine(LM, 3, 80, kv_blocks=20, block_size=4)
    for last in (6, 40, 40):
        engine.add_request(counts_to(last))
    for _ in range(28):
        engine.step()
    row = engine.running[0]
    table = engine.cache.tables[row.slot]
    assert table != sorted(table) or table[-1] - table[0] >= len(table)  # apart
    places = engine.cache.places(row.slot, 0, row.kv_length).tolist()
    for token, place in enumerate(places):
        block, offset = lesson_11.place_of(token, table, 4)
        assert block * 4 + offset == place


# ---- the map ---------------------------------------------------------------------


def mapped(engine, passes=12):
    for last in LENGTHS:
        engine.add_request(counts_to(last))
    for _ in range(passes):
        engine.step()
    return MemoryMap(engine)


def test_the_map_sums_up_to_the_whole_memory_and_knows_the_dead():
    slots = mapped(StaticBatchEngine(LM, 4, max_model_len=128))
    engine = ContinuousBatchEngine(LM, 16, 128, kv_blocks=32)
    blocks = mapped(engine)
    for each in (slots, blocks):
        assert sum(each.sums().values()) == 512
    # A counted to 4, C to 9, D to 6; B is still at it
    assert slots.sums()["finished"] == (7 + 4) + (7 + 9) + (7 + 6)
    assert slots.sums()["live"] == 7 + 11
    assert blocks.sums()["finished"] == 0
    assert blocks.sums()["live"] == sum(row.kv_length for row in engine.running)
    assert "B holds 18 tokens: slot 1" in slots.text()


def test_the_map_is_a_picture_and_the_same_bytes_each_time():
    one, other = (
        mapped(ContinuousBatchEngine(LM, 16, 128, kv_blocks=32)) for _ in range(2)
    )
    assert one.svg() == other.svg()
    drawn = ElementTree.fromstring(one.svg())
    names = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert names.count("B") == 2  # 18 tokens lie in two blocks
    shown = one._repr_mimebundle_()
    assert "B holds 18 tokens" in shown["text/plain"]
    assert "data:image/svg+xml;base64," in shown["text/html"]


def test_an_engine_that_has_done_nothing_is_all_free():
    drawn = MemoryMap(ContinuousBatchEngine(LM, 2, 64))
    assert drawn.sums() == {"live": 0, "finished": 0, "room": 0, "free": 128}
    ElementTree.fromstring(drawn.svg())


# ---- the figures of the lesson ---------------------------------------------------


def test_sixteen_sequences_and_one_hundred():
    each = lesson_11.kv_bytes(lesson_11.LLAMA_70B, 8192, 2)
    assert (80e9 - 70.6e9 / 2) // each == 45e9 // each == 16
    assert each == 2.5 * 2**30
    stored = json.loads((TRAFFIC / "azure-llm-2023-conv.json").read_text("utf-8"))
    mean = stored["prompt"]["mean"] + stored["output"]["mean"]
    assert 45e9 // lesson_11.kv_bytes(lesson_11.LLAMA_70B, round(mean), 2) == 100


def test_seven_percent_of_the_slots_are_live():
    engine = StaticBatchEngine(LM, 4, max_model_len=128)
    serve(engine, map(counts_to, LENGTHS))
    bill = engine.trace.ledger()
    assert (bill.kv_reserved_token_steps, bill.kv_live_token_steps) == (62976, 4601)


@pytest.mark.parametrize(("size", "passes"), [(128, 118), (16, 51)])
def test_the_same_memory_in_blocks_takes_fewer_passes(size, passes):
    """51: as many as the longest answer has tokens, so nobody ever waited."""
    memory = {"block_size": size, "kv_blocks": 512 // size}
    engine = ContinuousBatchEngine(LM, 24, 128, **memory)
    serve(engine, map(counts_to, LENGTHS * 2))
    assert engine.trace.passes == passes
    assert engine.trace.ledger().recomputed_tokens == 0


@pytest.mark.parametrize(("way", "again"), [("recompute", 28), ("swap", 0)])
def test_a_request_that_lost_its_seat_loses_and_repeats_nothing(way, again):
    few = {"kv_blocks": 9, "block_size": 4, "preemption": way}
    engine = ContinuousBatchEngine(LM, 3, max_model_len=32, **few)
    spans = [(1, 12), (3, 12), (5, 16)]
    asked = [
        Request(
            LM.encode(f"count from {first} to {last}"),
            SamplingParams(max_tokens=last - first + 2),
        )
        for first, last in spans
    ]
    answers = serve(engine, asked).values()
    assert [answer.text for answer in answers] == [
        " ".join(str(n) for n in range(first, last + 1)) for first, last in spans
    ]
    bill = engine.trace.ledger()
    assert (bill.passes, bill.recomputed_tokens) == (20, again)


# ---- the lesson, with a learner's answers in place -------------------------------


def kv_bytes(config, tokens, bytes_per_number):
    return torch.tensor(lesson_11.kv_bytes(config, tokens, bytes_per_number))


def blocks_needed(prompt_tokens, new_tokens, block_size):
    return torch.tensor(
        lesson_11.blocks_needed(prompt_tokens, new_tokens, block_size)
    ).float()


def place_of(token, table, block_size):
    return torch.tensor(lesson_11.place_of(token, table, block_size))


@pytest.mark.slow
def test_the_lesson_runs_with_answers_in_another_form(fresh_kernel):
    run_all.with_answers("11", kv_bytes, blocks_needed, place_of)


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    asked = [*LESSON.exercises, *LESSON.guesses]
    assert run_all.with_wrong_answers("11") == len(asked)
