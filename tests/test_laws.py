"""The laws of the design, as properties of any ragged set of requests.

Each is broken on purpose in test_mutants.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from unittest import mock

import laws
import pytest
import strategies as draws
import tiny
import torch
from hypothesis import given, note
from hypothesis import strategies as st

from nanoserve import (
    ContinuousBatchEngine,
    InvalidInputError,
    Request,
    SamplingParams,
    SequentialEngine,
    StaticBatchEngine,
    attention,
    engine,
    generate_batch,
    next_token_logits,
    serve,
)

# --- Law 1: a request's tokens depend on nothing but the request ---


@given(requests=draws.alike(), eos=draws.EOS_SETS)
def test_each_row_of_a_rectangle_equals_its_prompt_alone(lm, requests, eos):
    lm = dataclasses.replace(lm, eos_token_ids=eos)
    with laws.attention_watched():
        laws.hold(lm, requests, laws.RECTANGLES)


@given(
    requests=draws.mixed(arrivals=12),
    seats=st.integers(1, 4),
    side=draws.SIDES,
    eos=draws.EOS_SETS,
    options=draws.CONTINUOUS,
)
def test_each_answer_of_an_engine_equals_its_prompt_alone(
    lm, requests, seats, side, eos, options
):
    lm = dataclasses.replace(lm, eos_token_ids=eos)
    static = laws.by_static(side, seats)
    sequential = laws.by_engine(SequentialEngine)
    continuous = laws.by_engine(lambda lm: ContinuousBatchEngine(lm, **options))
    ways = {"static": static, "sequential": sequential, "continuous": continuous}
    with laws.attention_watched():
        laws.hold(lm, requests, ways)


@draws.examples(0.5)
@given(
    first=draws.mixed(),
    second=draws.mixed(),
    seats=st.integers(1, 3),
    options=draws.CONTINUOUS,
)
def test_an_engine_that_has_served_before_answers_the_same(
    lm, first, second, seats, options
):
    for used in StaticBatchEngine(lm, seats), ContinuousBatchEngine(lm, **options):
        serve(used, first)
        again = laws.by_engine(lambda _, used=used: used)
        laws.hold(lm, second, {used.name: again})


@draws.examples(0.5)
@given(
    requests=draws.mixed(),
    seats=st.integers(1, 4),
    options=draws.CONTINUOUS,
    data=st.data(),
)
def test_the_order_of_the_queue_changes_no_answer(lm, requests, seats, options, data):
    shuffled = data.draw(st.permutations(requests))
    continuous = laws.by_engine(lambda lm: ContinuousBatchEngine(lm, **options))
    ways = {"static": laws.by_static("left", seats), "continuous": continuous}
    laws.hold(lm, shuffled, ways)


# --- Law 1 to the bit: only a neighbour's content changes, no shape ---


@st.composite
def twins(draw):
    """Two batches of the same lengths and limits; row ``same`` is equal in both."""
    lengths = draw(st.lists(st.integers(1, 20), min_size=2, max_size=5))
    same = draw(st.integers(0, len(lengths) - 1))

    def prompts():
        return [draw(st.lists(draws.TOKENS, min_size=n, max_size=n)) for n in lengths]

    left, right = prompts(), prompts()
    right[same] = left[same]
    limits = draw(st.lists(draws.LIMITS, min_size=len(lengths), max_size=len(lengths)))
    return left, right, same, limits


@contextlib.contextmanager
def logits_of(lm, row):
    """Collect the logits of one row of every pass."""
    seen = []
    logits = lm.model.logits

    def noting(hidden):
        out = logits(hidden)
        seen.append(out[row].clone())
        return out

    with mock.patch.object(lm.model, "logits", noting):
        yield seen


@given(batches=twins(), side=draws.SIDES)
def test_a_neighbours_content_changes_no_bit_of_a_rectangles_row(lm, batches, side):
    *prompts, same, limits = batches
    seen = []
    for batch in prompts:
        with logits_of(lm, same) as logits:
            generate_batch(
                lm, batch, max_new_tokens=limits, ignore_eos=True, padding_side=side
            )
        seen.append(torch.stack(logits))
    assert torch.equal(*seen)


@given(batches=twins(), side=draws.SIDES)
def test_a_neighbours_content_changes_no_bit_of_an_engines_row(lm, batches, side):
    *prompts, same, limits = batches
    seen = []
    for batch in prompts:
        engine = StaticBatchEngine(lm, len(batch), padding_side=side)
        with logits_of(lm, same) as logits:
            serve(engine, never_stopping(batch, limits))
        seen.append(torch.stack(logits))
    assert torch.equal(*seen)


@given(batches=twins(), options=draws.CONTINUOUS)
def test_a_neighbours_content_changes_no_bit_of_a_continuous_row(lm, batches, options):
    *prompts, same, limits = batches
    seen = []
    for batch in prompts:
        running = ContinuousBatchEngine(lm, **options)
        with logits_of_request("ABCDE"[same]) as logits:
            serve(running, never_stopping(batch, limits))
        seen.append(torch.stack(logits))
    assert torch.equal(*seen)


@contextlib.contextmanager
def logits_of_request(name):
    """Collect the logits of one request, whatever row it has in a pass."""
    seen, next_tokens = [], engine.next_tokens

    def noting(logits, rows):
        for row, scores in zip(rows, logits, strict=True):
            if row.request_id == name:
                seen.append(scores.clone())
        return next_tokens(logits, rows)

    with mock.patch.object(engine, "next_tokens", noting):
        yield seen


def never_stopping(prompts, limits):
    return [
        Request(prompt, SamplingParams(limit, ignore_eos=True))
        for prompt, limit in zip(prompts, limits, strict=True)
    ]


@given(prompts=st.lists(draws.PROMPTS, min_size=1, max_size=6), side=draws.SIDES)
def test_another_shape_changes_logits_by_rounding_only(lm, prompts, side):
    together = next_token_logits(lm, prompts, padding_side=side)
    for row, prompt in zip(together, prompts, strict=True):
        alone = next_token_logits(lm, [prompt])[0]
        torch.testing.assert_close(row, alone, atol=5e-5, rtol=0)


# --- Law 2: nothing to see, or nothing finite to see, never reaches attention ---


@contextlib.contextmanager
def poisoned(row, in_call):
    """From the given call of attention on, one row's answer is NaN.

    The NaN goes on into that row's K and V of the next layers, as a real one would.
    """
    attend, calls = attention.attend, Counter()

    def poisoning(q, k, v, keep):
        others = [r for r in range(len(q)) if r != row]
        assert torch.isfinite(k[others]).all()
        assert torch.isfinite(v[others]).all()
        out = attend(q, k, v, keep)
        calls["all"] += 1
        if calls["all"] > in_call and row < len(q):
            out = out.clone()
            out[row] = torch.nan
        return out

    with mock.patch.object(attention, "attend", poisoning):
        yield


@pytest.mark.parametrize("passes_before", [0, 2])
@pytest.mark.parametrize("way", [*laws.RECTANGLES, "static left", "static right"])
def test_a_row_that_is_not_finite_ends_as_error_alone(lm, way, passes_before):
    requests = laws.ragged(ignore_eos=True)[:3]
    run = {**laws.RECTANGLES, **laws.ENGINES}[way]
    healthy = run(lm, requests)
    with poisoned(row=1, in_call=lm.model.config.num_layers * passes_before):
        answers = run(lm, requests)
    assert answers[1] == (healthy[1].token_ids[:passes_before], "error")
    assert answers[0] == healthy[0]
    assert answers[2] == healthy[2]


def test_the_neighbours_of_a_bad_row_keep_every_bit(lm):
    prompts = [prompt for prompt, _ in laws.RAGGED[:3]]
    with logits_of(lm, [0, 2]) as healthy:
        generate_batch(lm, prompts, max_new_tokens=4, ignore_eos=True)
    with logits_of(lm, [0, 2]) as beside, poisoned(row=1, in_call=4):
        generate_batch(lm, prompts, max_new_tokens=4, ignore_eos=True)
    assert torch.equal(torch.stack(healthy), torch.stack(beside))


def test_a_bad_row_leaves_a_clean_slot_behind(lm):
    engine = StaticBatchEngine(lm, 3)
    with poisoned(row=1, in_call=4):
        serve(engine, laws.ragged(ignore_eos=True)[:3])
    assert not engine.cache.keys.any()  # NaN would count as any
    assert not engine.cache.values.any()


@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), 1e30])
def test_a_tenant_does_not_see_what_the_one_before_left(lm, rubbish):
    engine = StaticBatchEngine(lm, len(laws.RAGGED))
    for prompt, _ in laws.RAGGED:
        engine.add_request(Request(prompt, SamplingParams(9, ignore_eos=True)))
    engine.step()
    for slot, length in enumerate(engine.cache.lengths):
        engine.cache.keys[:, slot, :, :length] = rubbish
        engine.cache.values[:, slot, :, :length] = rubbish
    while engine.has_work():
        engine.step()
    requests = list(reversed(laws.ragged()))
    with laws.attention_watched():
        laws.hold(lm, requests, {"after": laws.by_engine(lambda _: engine)})


# --- Law 3: a slot comes back once, whatever happens ---


ACTIONS = st.one_of(
    st.tuples(st.just("add"), draws.requests(arrivals=6)),
    st.tuples(st.just("step"), st.integers(1, 4)),
    st.tuples(st.just("abort"), st.integers(0, 3)),
    st.tuples(st.just("crash"), st.integers(1, 3)),
)


@draws.examples(2.0)
@given(actions=st.lists(ACTIONS, max_size=14), seats=st.integers(1, 3))
def test_whatever_happens_all_seats_come_back_and_answers_are_right(
    llama, actions, seats
):
    engine = StaticBatchEngine(llama, seats)
    asked, outputs, ends = {}, [], {}
    with tenancies(engine) as (taken, released):
        for action, value in [*actions, ("step", 10_000)]:
            if action == "add":
                asked[engine.add_request(value)] = value
            elif action == "abort" and value < len(engine.live()):
                request_id = engine.live()[value].request_id
                assert engine.abort(request_id)
                assert not engine.abort(request_id), "it has ended already"
            elif action == "crash":
                with laws.crash(value, KeyboardInterrupt()):
                    with contextlib.suppress(KeyboardInterrupt):
                        outputs += engine.step()
            for _ in range(value if action == "step" else 0):
                if not engine.has_work():
                    break
                outputs += engine.step()
    assert taken == released
    assert engine.cache.free_slots == seats
    assert not engine.cache.keys.any()
    assert not engine.cache.values.any()
    for output in outputs:
        assert output.request_id not in ends, "reported after its end"
        if output.finished:
            ends[output.request_id] = output.finish_reason
    assert ends.keys() == asked.keys()
    for request_id, request in asked.items():
        tokens = [t for o in outputs if o.request_id == request_id for t in o.token_ids]
        note(f"{request_id} {request} {tokens} {ends[request_id]}")
        ref = laws.alone(llama, request)
        if ends[request_id] == "abort":  # it got as far as it got
            ref.answer = laws.Answer(ref.answer.token_ids[: len(tokens)], "abort")
        assert not laws.unlike([laws.Answer(tokens, ends[request_id])], [ref])


@contextlib.contextmanager
def tenancies(engine):
    """Count how often each slot is taken and given back."""
    taken, released = Counter(), Counter()
    take, release = engine.cache.take, engine.cache.release

    def taking():
        slot = take()
        taken[slot] += 1
        return slot

    def releasing(slot):
        released[slot] += 1
        release(slot)

    with (
        mock.patch.object(engine.cache, "take", taking),
        mock.patch.object(engine.cache, "release", releasing),
    ):
        yield taken, released


# --- Law 4: the queue never stalls ---


@given(
    requests=st.lists(
        st.builds(
            Request,
            st.lists(draws.TOKENS, min_size=1, max_size=14),
            st.builds(SamplingParams, st.integers(1, 14)),
        ),
        max_size=6,
    ),
    longest=st.integers(2, 16),
)
def test_what_could_never_fit_is_refused_and_the_rest_is_served(
    llama, requests, longest
):
    engine = StaticBatchEngine(llama, 2, max_model_len=longest)
    added = []
    for request in requests:
        fits = len(request.prompt_token_ids) + request.params.max_tokens <= longest
        if fits:
            added.append(engine.add_request(request))
        else:
            with pytest.raises(InvalidInputError, match=f"max_model_len={longest}"):
                engine.add_request(request)
    assert [row.request_id for row in engine.live()] == added
    for _ in range(sum(r.params.max_tokens for r in requests)):
        engine.step()
    assert not engine.has_work()


# --- the test of the chapter on static batching ---


def test_24_a_and_3_b_answer_as_alone(lm):
    a, b = 7, 12
    requests = [
        Request([token] * count, SamplingParams(6, ignore_eos=True))
        for token, count in ((a, 24), (b, 3))
    ]
    laws.hold(lm, requests, {**laws.RECTANGLES, **laws.ENGINES})


@pytest.mark.parametrize("name", ["canary", "canary-rope"])
def test_24_a_and_3_b_on_a_model_that_was_trained(name):
    lm = trained(name)
    words = [" ".join(["a"] * 24), " ".join(["b"] * 3)]
    requests = [
        Request(lm.encode(text), SamplingParams(6, ignore_eos=True)) for text in words
    ]
    laws.hold(lm, requests, {**laws.RECTANGLES, **laws.ENGINES})
    for answer in laws.by_generate_batch("left")(lm, requests):
        assert answer.finish_reason == "length"
        assert answer.token_ids != [lm.pad_token_id] * 6


@pytest.mark.parametrize("name", ["canary", "canary-rope"])
def test_a_ragged_batch_on_a_model_that_was_trained(name):
    lm = trained(name)
    prompts = ["count from 1 to 5", "copy q w e r t", "repeat a 12 times", "copy c a"]
    requests = [Request(lm.encode(text), SamplingParams(20)) for text in prompts]
    laws.hold(lm, requests, {**laws.RECTANGLES, **laws.ENGINES})


def trained(name):
    import nanoserve

    try:
        return nanoserve.load(name, device="cpu")
    except nanoserve.ModelNotFoundError as missing:
        pytest.skip(str(missing))


def test_the_tiny_models_are_hard_enough(lm):
    """Law 1 on a model that always says the same would prove nothing."""
    answers = laws.by_generate_one(lm, laws.ragged(ignore_eos=True))
    said = Counter(token for answer in answers for token in answer.token_ids)
    assert len(said) > 12
    assert tiny.PAD < tiny.EOS < tiny.VOCAB_SIZE
