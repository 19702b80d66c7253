"""The continuous engine as its callers see it: seats, budget, blocks, preemption."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
from types import SimpleNamespace
from unittest import mock

import laws
import pytest
import strategies as draws
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulator import Continuous, Draft, Job

from nanoserve import (
    ContinuousBatchEngine,
    InvalidInputError,
    Request,
    SamplingParams,
    SlotTrace,
    StepOutput,
    serve,
)
from nanoserve.pitfalls.examples import Poisoned


def ask(limit=3, prompt=(5, 6, 7), **more):
    return Request(list(prompt), SamplingParams(limit, ignore_eos=True), **more)


def job(prompt, limit, **more):
    return ask(limit, [7] * prompt, **more)


def started(lm, requests, *options, **more):
    running = ContinuousBatchEngine(lm, *options, **more)
    for request in requests:
        running.add_request(request)
    return running


def names(outputs):
    return [output.request_id for output in outputs]


def drained(running):
    outputs = []
    while running.has_work():
        outputs.append(running.step())
        assert len(outputs) < 1000, "the engine does not come to an end"
    return outputs


def fed(running):
    """{request: tokens fed} of each pass."""
    passes = [{} for _ in range(running.trace.passes)]
    for run in running.trace.runs:
        name = running.trace.requests[run.request].request_id
        for number in range(run.start, run.end):
            passes[number][name] = run.fed
    return passes


def clean(running):
    cache = running.cache
    return (
        cache.free_slots == running.max_num_seqs
        and cache.free_blocks == cache.blocks
        and not cache.keys.any()  # NaN would count as any
        and not cache.values.any()
    )


# --- who joins, who leaves ---


def test_who_has_finished_makes_way_before_the_next_pass(llama):
    running = started(llama, [job(3, n) for n in (1, 3, 2, 1)], 2)
    said = [names(outputs) for outputs in drained(running)]
    assert said == [["A", "B"], ["B", "C"], ["B", "C"], ["D"]]


def test_a_freed_seat_is_taken_and_no_row_is_computed_for_nothing(llama):
    running = started(llama, [job(3, n) for n in (5, 1, 1, 1, 1)], 2)
    drained(running)
    ledger = running.trace.ledger()
    assert (ledger.passes, ledger.wasted_slot_steps) == (5, 0)
    assert (ledger.idle_slot_steps, ledger.pad_tokens) == (1, 0)


def test_what_is_added_while_others_run_is_in_the_next_pass(llama):
    running = started(llama, [job(3, 4)], 2)
    running.step()
    running.add_request(job(5, 2))
    assert [names(outputs) for outputs in drained(running)] == [
        ["A", "B"],
        ["A", "B"],
        ["A"],
    ]


def test_a_request_is_not_seen_before_it_arrives(llama):
    requests = [job(3, 2), job(3, 1, arrival_step=1), job(3, 1, arrival_step=9)]
    running = started(llama, requests, 3)
    assert [names(outputs) for outputs in drained(running)] == [
        ["A"],
        ["A", "B"],
        ["C"],
    ]
    assert running.trace.jumps == [(2, 9)]


@given(
    jobs=st.lists(
        st.builds(Job, st.integers(1, 9), st.integers(1, 7), st.integers(0, 12)),
        min_size=1,
        max_size=7,
    ),
    seats=st.integers(1, 4),
    budget=st.integers(4, 20),
    size=st.integers(1, 5),
    spare=st.integers(0, 8),
    swap=st.booleans(),
)
def test_the_trace_is_what_happens_on_paper(
    llama, jobs, seats, budget, size, spare, swap
):
    blocks = max(-(-(job.prompt + job.outputs - 1) // size) for job in jobs) + spare
    requests = [job(j.prompt, j.outputs, arrival_step=j.arrival) for j in jobs]
    running = started(
        llama,
        requests,
        seats,
        max_num_batched_tokens=budget,
        kv_blocks=blocks,
        block_size=size,
        preemption="swap" if swap else "recompute",
    )
    drained(running)
    on_paper = written(jobs, Continuous(seats, budget, blocks, size, swap))
    ledger = running.trace.ledger()
    assert {name: getattr(ledger, name) for name in on_paper} == on_paper
    assert ledger == running.trace.ledger(ledger.passes)
    back = SlotTrace.from_dict(running.trace.to_dict())
    assert back.ledger(ledger.passes) == ledger


COUNTS = [
    "passes",
    "total_slot_steps",
    "wasted_slot_steps",
    "prompt_tokens",
    "pad_tokens",
    "generated_tokens",
    "recomputed_tokens",
    "kv_live_token_steps",
    "kv_reserved_token_steps",
]


def written(jobs, paper):
    """The bill of ``jobs``, by going over every share of every pass."""
    late = sorted(jobs, key=lambda each: each.arrival)
    clock, bill = (
        0,
        dict.fromkeys(
            COUNTS,
            0,
        ),
    )
    while late or paper.line:
        if not paper.line:
            clock = max(clock, late[0].arrival)
        while late and late[0].arrival <= clock:
            each = late.pop(0)
            paper.line.append(Draft(each.prompt, each.outputs))
        for share in paper.step():
            old = share.draft.kv - share.fed
            bill["total_slot_steps"] += 1
            first_time = range(
                old + share.again, min(share.draft.kv, share.draft.prompt)
            )
            bill["prompt_tokens"] += len(first_time)
            bill["recomputed_tokens"] += share.again
            bill["generated_tokens"] += share.emits
            bill["kv_live_token_steps"] += share.draft.kv
            bill["kv_reserved_token_steps"] += paper.need(share.draft.kv) * paper.size
        bill["passes"] += 1
        clock += 1
        paper.leave()
    return bill


# --- one pass: decode rows and chunks of prompts side by side ---


def test_a_pass_reads_the_weights_once_and_feeds_no_pads(llama):
    running = started(llama, [job(n, 4) for n in (9, 2, 5)], 3)
    sizes, forward = [], llama.model.forward

    def noting(ids, positions, batch):
        sizes.append(len(ids))
        return forward(ids, positions, batch)

    with mock.patch.object(llama.model, "forward", noting):
        drained(running)
    assert sizes == [16, 3, 3, 3]
    assert running.trace.passes == 4


def test_decode_comes_first_and_a_long_prompt_takes_what_is_left(llama):
    running = started(llama, [job(3, 5)], 3, max_num_batched_tokens=4)
    running.step()
    running.add_request(job(8, 2))
    running.add_request(job(2, 1))
    drained(running)
    assert fed(running) == [
        {"A": 3},
        {"A": 1, "B": 3},
        {"A": 1, "B": 3},
        {"A": 1, "B": 2, "C": 1},
        {"A": 1, "B": 1, "C": 1},
    ]


def test_an_unfinished_chunk_gives_no_token(llama):
    running = started(llama, [job(8, 2)], 2, max_num_batched_tokens=3)
    assert [names(outputs) for outputs in drained(running)] == [[], [], ["A"], ["A"]]
    chunks = [(run.state, run.fed, run.kv) for run in running.trace.runs]
    assert chunks == [
        ("prefill", 3, 3),  # two passes alike
        ("prefill", 2, 8),
        ("decode", 1, 9),
    ]


def test_without_chunks_a_prompt_waits_until_it_fits_whole(llama):
    options = {"max_num_batched_tokens": 12, "enable_chunked_prefill": False}
    running = started(llama, [job(8, 3), job(6, 1), job(2, 1)], 4, 12, **options)
    drained(running)
    # C would fit beside A, but nobody overtakes
    assert fed(running) == [{"A": 8}, {"A": 1, "B": 6, "C": 2}, {"A": 1}]


@pytest.mark.parametrize("budget", [3, 4, 7, 2048])
@pytest.mark.parametrize("size", [1, 3, 16])
def test_chunks_and_blocks_change_no_answer(lm, budget, size):
    way = laws.by_continuous(3, max_num_batched_tokens=budget, block_size=size)
    with laws.attention_watched():
        laws.hold(lm, laws.ragged(temperature=1.0, seed=3), {"chunks": way})


# --- blocks ---


def test_one_that_fits_exactly_is_served_and_one_token_more_is_refused(llama):
    """The last token is given out and never fed: 9 in and 4 out hold 12."""
    options = {"kv_blocks": 3, "block_size": 4}
    way = laws.by_continuous(2, **options)
    laws.hold(llama, [job(9, 4), job(12, 1), job(1, 12)], {"exact": way})
    for prompt, limit in ((9, 5), (10, 4), (13, 1), (1, 13)):
        running = ContinuousBatchEngine(llama, 2, **options)
        with pytest.raises(
            InvalidInputError,
            match=r"max_tokens - 1=13: needs 4 blocks of 4 tokens.*kv_blocks=3",
        ):
            running.add_request(job(prompt, limit))
        assert not running.has_work()
        assert not running.trace.requests


def test_max_model_len_bounds_prompt_and_answer(llama):
    running = ContinuousBatchEngine(llama, 2, max_model_len=12)
    assert len(serve(running, [job(8, 4)])["A"].token_ids) == 4
    with pytest.raises(InvalidInputError, match="8 . 5 is beyond max_model_len=12"):
        running.add_request(job(8, 5))


def test_a_request_holds_what_it_has_written_and_no_more(llama):
    running = started(llama, [job(5, 6)], 2, block_size=4)
    held = []
    while running.has_work():
        running.step()
        held.append(running.cache.blocks - running.cache.free_blocks)
    assert held == [2, 2, 2, 2, 3, 0]
    ledger = running.trace.ledger()
    assert ledger.kv_live_token_steps == 5 + 6 + 7 + 8 + 9 + 10
    assert ledger.kv_reserved_token_steps == 4 * (2 + 2 + 2 + 2 + 3 + 3)


def test_nobody_is_admitted_whose_prompt_finds_no_blocks(llama):
    running = started(
        llama, [job(9, 2), job(8, 1), job(1, 1)], 3, kv_blocks=4, block_size=4
    )
    said = [names(outputs) for outputs in drained(running)]
    assert said == [["A"], ["A"], ["B", "C"]], "C does not overtake B"
    assert running.trace.ledger().recomputed_tokens == 0


@contextlib.contextmanager
def gpu_of(lm, free, total):
    """A model on a GPU with so many bytes of memory, as far as anyone can see."""
    with (
        mock.patch.object(type(lm), "device", SimpleNamespace(type="cuda")),
        mock.patch.object(torch.cuda, "mem_get_info", return_value=(free, total)),
    ):
        yield


@pytest.mark.parametrize(("left", "blocks"), [(1, 1), (40_000, 4), (10**9, 16)])
def test_on_a_gpu_blocks_are_what_memory_leaves(llama, left, blocks):
    """3 layers x 2 KV heads x 16 x 2 x 4 bytes are 768 a token, 12,288 a block."""
    block, total = 12288, 10**9
    free = int(0.2 * total) + block + left
    with gpu_of(llama, free, total):
        running = ContinuousBatchEngine(llama, 4, 64, gpu_memory_utilization=0.8)
    assert running.cache.blocks == blocks


def test_a_gpu_that_is_full_is_told_so(llama):
    with gpu_of(llama, free=10**8, total=10**9):
        with pytest.raises(InvalidInputError, match="gpu_memory_utilization=0.9"):
            ContinuousBatchEngine(llama, 4)


# --- preemption ---

TIGHT = {"kv_blocks": 6, "block_size": 2}  # 12 tokens
MODES = pytest.mark.parametrize("mode", ["recompute", "swap"])


@MODES
def test_the_youngest_goes_back_and_loses_no_token(llama, mode):
    asked = [
        Request([9, 8, 7, 6], SamplingParams(5, 1.0, seed=4, ignore_eos=True)),
        Request([5, 4, 3], SamplingParams(6, 1.0, seed=5, ignore_eos=True)),
    ]
    running = started(llama, asked, 2, preemption=mode, **TIGHT)
    outputs = drained(running)
    # 4 + 3 prompts, then 5 + 4, 6 + 5 in 3 + 3 blocks; 7 + 6 would need one more
    assert [names(each) for each in outputs] == [
        ["A", "B"],
        ["A", "B"],
        ["A", "B"],
        ["A"],
        ["A"],
        ["B"],
        ["B"],
        ["B"],
    ]
    got = []
    for name in "AB":
        mine = [o for each in outputs for o in each if o.request_id == name]
        assert all(len(output.token_ids) == 1 for output in mine)
        tokens = [output.token_ids[0] for output in mine]
        got.append(laws.Answer(tokens, mine[-1].finish_reason))
    assert not laws.unlike(got, [laws.alone(llama, request) for request in asked])
    assert clean(running)


@MODES
def test_what_is_fed_again_is_counted_apart(llama, mode):
    asked = [job(4, 5), job(3, 6)]
    running = started(llama, asked, 2, preemption=mode, **TIGHT)
    drained(running)
    ledger = running.trace.ledger()
    # B had 3 + 2 stored; its third token is fed for the first time in any case
    assert ledger.recomputed_tokens == (5 if mode == "recompute" else 0)
    assert ledger.prompt_tokens == 7
    assert ledger.generated_tokens == 11
    assert fed(running)[5] == {"B": 6 if mode == "recompute" else 1}


@given(requests=draws.mixed(most=5), options=draws.CONTINUOUS)
def test_every_token_is_fed_once_and_what_is_fed_again_is_recomputed(
    llama, requests, options
):
    running = started(llama, requests, **options)
    drained(running)
    ledger, trace = running.trace.ledger(), running.trace
    everything = sum(run.fed * run.passes for run in trace.runs)
    once = sum(r.prompt_tokens + len(r.token_ids) - 1 for r in trace.requests.values())
    assert everything - ledger.recomputed_tokens == once
    assert ledger.prompt_tokens == sum(len(r.prompt_token_ids) for r in requests)
    assert clean(running)


@given(requests=draws.mixed(arrivals=20), options=draws.CONTINUOUS)
def test_nobody_waits_longer_than_the_bound(llama, requests, options):
    """In passes since its arrival, over it and all who came before it."""
    running = started(llama, requests, **options)
    drained(running)
    budget, bound = options["max_num_batched_tokens"], 0
    records = sorted(running.trace.requests.values(), key=lambda each: each.arrival)
    for record in records:
        longest = record.prompt_tokens + record.max_tokens
        bound += record.max_tokens + -(-longest // budget)
        ended = running.trace.clock_of(record.finished - 1) + 1
        assert ended - record.arrival <= bound


def test_a_preempted_request_waits_for_its_first_seat_only_once(llama):
    with laws.seconds_are_passes(llama):
        running = started(llama, [job(4, 5), job(3, 6)], 2, **TIGHT)
        results = serve(running, [])
    assert [result.queue_seconds for result in results.values()] == [0, 0]
    assert results["B"].ttft_seconds == 1
    assert results["B"].elapsed_seconds == 8


# --- abort, errors ---


@MODES
@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("who", ["A", "B", "C"])
def test_abort_at_any_moment_gives_back_all_that_was_held(llama, mode, steps, who):
    asked = [job(4, 5), job(3, 6), job(5, 2)]
    running = started(
        llama, asked, 2, preemption=mode, max_num_batched_tokens=3, **TIGHT
    )
    outputs = [output for _ in range(steps) for output in running.step()]
    if not running.abort(who):
        assert who in [o.request_id for o in outputs if o.finished]
        return
    assert not running.abort(who)
    assert who not in [row.request_id for row in running.running + running.waiting]
    after = drained(running)
    assert after[0][0] == StepOutput(who, [], True, "abort")
    outputs += [output for each in after for output in each]
    assert clean(running)
    for name, request in zip("ABC", asked, strict=True):
        tokens = [t for o in outputs if o.request_id == name for t in o.token_ids]
        alone = laws.alone(llama, request).answer.token_ids
        assert tokens == (alone[: len(tokens)] if name == who else alone)


def test_an_abort_storm_leaves_nothing_behind(llama):
    running = started(llama, [job(6, 8) for _ in range(30)], 4, kv_blocks=12)
    for number in range(30):
        running.step()
        for row in running.live()[number % 3 :: 3]:
            assert running.abort(row.request_id)
    drained(running)
    assert clean(running)
    laws.hold(llama, laws.ragged(), {"after": laws.by_engine(lambda _: running)})


def ill(lm, token):
    """The same model; whoever reads ``token`` gets NaN from there on."""
    model = copy.deepcopy(lm.model)
    model.embedding.__class__ = Poisoned
    model.embedding.token = token
    return dataclasses.replace(lm, model=model)


@pytest.mark.parametrize("at", [0, 5])
def test_a_row_that_is_not_finite_ends_alone_and_leaves_clean_blocks(lm, at):
    bad = [7] * 8
    bad[at] = 60
    asked = laws.ragged(ignore_eos=True)
    expected = [laws.alone(lm, request) for request in asked]
    running = started(
        ill(lm, 60), [ask(4, bad), *asked], 3, max_num_batched_tokens=5, block_size=4
    )
    outputs = [output for each in drained(running) for output in each]
    assert outputs[0] == StepOutput("A", [], True, "error")
    for name, ref in zip("BCDEF", expected, strict=True):
        if 60 in ref.request.prompt_token_ids + ref.answer.token_ids:
            continue
        tokens = [t for o in outputs if o.request_id == name for t in o.token_ids]
        assert not laws.unlike([laws.Answer(tokens, "length")], [ref])
    assert clean(running)


# --- what is refused ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs=0: must be"),
        ({"max_model_len": 1}, "max_model_len=1: must be"),
        ({"max_num_batched_tokens": 7}, "max_num_batched_tokens=7: .*max_num_seqs=8"),
        ({"max_num_batched_tokens": "8"}, "max_num_batched_tokens='8': must be"),
        (
            {"max_num_batched_tokens": 255, "enable_chunked_prefill": False},
            "max_num_batched_tokens=255: .*max_model_len=256",
        ),
        ({"kv_blocks": 0}, "kv_blocks=0: must be"),
        ({"block_size": 0}, "block_size=0: must be"),
        ({"block_size": 2.0}, "block_size=2.0: must be"),
        ({"gpu_memory_utilization": 0}, "gpu_memory_utilization=0: must be"),
        ({"gpu_memory_utilization": 1.1}, "gpu_memory_utilization=1.1: must be"),
        ({"preemption": "drop"}, "preemption='drop': must be"),
    ],
)
def test_what_makes_no_engine_is_refused_in_one_line(llama, options, message):
    with pytest.raises(InvalidInputError, match=message):
        ContinuousBatchEngine(llama, **options)


def test_names_and_defaults_are_as_documented(llama):
    engine = ContinuousBatchEngine(llama)
    assert engine.max_num_seqs == 8
    assert engine.max_model_len == tiny.MAX_LENGTH
    assert engine.max_num_batched_tokens == 2048
    assert engine.cache.block_size == 16
    assert engine.cache.blocks == 8 * tiny.MAX_LENGTH // 16
    assert engine.trace.engine == "continuous"
