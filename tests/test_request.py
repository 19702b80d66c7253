"""What comes in is checked when it is made, and refused in one clear line."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import strategies as draws
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import (
    InvalidInputError,
    NanoserveError,
    Request,
    SamplingParams,
    SequentialEngine,
    StaticBatchEngine,
    generate_batch,
    generate_one,
    next_token_logits,
    serve,
    stream_one,
)
from nanoserve.errors import invalid

NAN, INF = float("nan"), float("inf")
A = [5, 6, 7]  # a prompt with which nothing is wrong


def one_line(raised, *parts):
    message = str(raised.value)
    assert isinstance(raised.value, NanoserveError)
    assert isinstance(raised.value, ValueError)
    assert len(message.splitlines()) == 1
    assert len(message) < 200
    for part in parts:
        assert part in message


# --- numbers ---

BAD_PARAMS = {
    "max_tokens": [0, -1, True, 2.0, "3", None, NAN, [3], torch.zeros(9, 3)],
    "temperature": [NAN, INF, -INF, -0.1, "1", None, True, 10**400, 1j],
    "top_p": [0, 0.0, -0.5, 1.0001, 2, NAN, INF, "0.9", None, True],
    "top_k": [-1, 0.5, "2", None, True, NAN],
    "seed": [-1, 2**63, 1.0, "1", True],
    "stop_token_ids": [5, None, "5", b"5", {5: 1}, [5.0], ["5"], [True], [None]],
}


@pytest.mark.parametrize(
    ("field", "value"),
    [(f, v) for f, values in BAD_PARAMS.items() for v in values],
    ids=lambda value: repr(value)[:20].replace(" ", ""),
)
def test_a_bad_parameter_is_named_with_its_value(field, value):
    with pytest.raises(InvalidInputError) as raised:
        SamplingParams(**{field: value})
    one_line(raised, f"{field}=")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 1),
        ("max_tokens", 10**9),
        ("temperature", 0),
        ("temperature", 1e-300),
        ("temperature", 1e300),
        ("top_p", 1),
        ("top_p", 5e-324),
        ("top_k", 0),
        ("top_k", 10**9),
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("seed", None),
        ("stop_token_ids", ()),
        ("stop_token_ids", (1, 2)),
    ],
)
def test_the_limits_themselves_are_allowed(field, value):
    assert getattr(SamplingParams(**{field: value}), field) == value


@pytest.mark.parametrize("stops", [[4, 5], (4, 5), {4, 5}, range(4, 6), iter([4, 5])])
def test_stop_tokens_come_in_any_collection(stops):
    assert SamplingParams(stop_token_ids=stops).stop_token_ids == (4, 5)


def test_numbers_of_other_libraries_become_plain_ones(llama):
    params = SamplingParams(
        max_tokens=np.int64(3),
        temperature=Fraction(1, 2),
        top_k=np.int32(9),
        top_p=np.float32(0.5),
        seed=np.int64(4),
        stop_token_ids=np.array([60]),
    )
    plain = SamplingParams(3, 0.5, 9, 0.5, 4, (60,))
    assert params == plain
    assert [type(each) for each in vars(params).values()] == [
        type(each) for each in vars(plain).values()
    ]
    engine = StaticBatchEngine(llama, np.int64(2), np.int64(16))
    serve(engine, [Request(np.array(A), params, arrival_step=np.int64(2))])
    json.dumps(engine.trace.to_dict())  # knows no NumPy


# --- requests ---


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"prompt_token_ids": []}, "prompt_token_ids"),
        ({"prompt_token_ids": "w5 w6"}, "prompt_token_ids"),
        ({"prompt_token_ids": b"abc"}, "prompt_token_ids"),
        ({"prompt_token_ids": 5}, "prompt_token_ids"),
        ({"prompt_token_ids": None}, "prompt_token_ids"),
        ({"prompt_token_ids": {5: 6}}, "prompt_token_ids"),
        ({"prompt_token_ids": [5, 6.0]}, "prompt_token_ids"),
        ({"prompt_token_ids": [5, True]}, "prompt_token_ids"),
        ({"prompt_token_ids": [[5, 6]]}, "prompt_token_ids"),
        ({"prompt_token_ids": torch.tensor(5)}, "prompt_token_ids"),
        ({"prompt_token_ids": torch.tensor([[5, 6]])}, "prompt_token_ids"),
        ({"params": {"max_tokens": 3}}, "params"),
        ({"params": None}, "params"),
        ({"request_id": 7}, "request_id"),
        ({"arrival_step": -1}, "arrival_step"),
        ({"arrival_step": 1.0}, "arrival_step"),
        ({"arrival_step": None}, "arrival_step"),
    ],
)
def test_a_bad_request_is_refused_when_it_is_made(fields, name):
    with pytest.raises(InvalidInputError) as raised:
        Request(**{"prompt_token_ids": A, **fields})
    one_line(raised, f"{name}=")


@pytest.mark.parametrize(
    "make", [list, tuple, np.array, torch.tensor, lambda ids: list(np.array(ids))]
)
def test_a_prompt_becomes_a_list_of_plain_ints(make):
    ids = Request(make([5, 6])).prompt_token_ids
    assert ids == [5, 6]
    assert {type(each) for each in ids} == {int}


def test_a_request_keeps_its_own_copy_of_the_prompt():
    ids = [5, 6]
    request = Request(ids)
    ids.append(7)
    assert request.prompt_token_ids == [5, 6]


def test_a_long_value_is_cut_so_that_the_reason_is_seen():
    message = str(invalid("prompt", list(range(8000)), "is too long"))
    assert message.startswith("prompt=[0, 1, 2")
    assert message.endswith("...: is too long")
    assert len(message) < 100


# --- what a model cannot serve ---

# name -> (what is asked for, what the message names); max_model_len is 16
NOT_SERVED = {
    "too long": (Request(A, SamplingParams(14)), ["17", "3 + 14", "max_model_len=16"]),
    "prompt alone too long": (Request(A * 6), ["max_model_len=16"]),
    "limit alone too long": (Request(A, SamplingParams(10**12)), ["max_model_len=16"]),
    "id too large": (Request([5, 64], SamplingParams(2)), ["64", "0 to 63"]),
    "id negative": (Request([-1], SamplingParams(2)), ["-1", "0 to 63"]),
    "stop id too large": (
        Request(A, SamplingParams(2, stop_token_ids=(64,))),
        ["stop_token_ids=64"],
    ),
    "stop id negative": (
        Request(A, SamplingParams(2, stop_token_ids=(-1,))),
        ["stop_token_ids=-1"],
    ),
    "no request": (A, ["request=[5, 6, 7]", "Request"]),
}


@pytest.mark.parametrize("case", NOT_SERVED)
@pytest.mark.parametrize("kind", [StaticBatchEngine, SequentialEngine])
def test_an_engine_refuses_and_nothing_is_queued(llama, kind, case):
    request, parts = NOT_SERVED[case]
    engine = kind(llama, max_model_len=16)
    with pytest.raises(InvalidInputError) as raised:
        engine.add_request(request)
    one_line(raised, *parts)
    assert not engine.has_work()
    assert not engine.live()
    assert not engine.trace.requests
    assert engine.step() == []


def test_an_exact_fit_is_served(llama):
    engine = StaticBatchEngine(llama, 1, max_model_len=16)
    request = Request(A, SamplingParams(13, ignore_eos=True))
    (result,) = serve(engine, [request]).values()
    assert result.generated_tokens == 13


def test_an_id_that_is_still_at_work_is_refused_until_it_has_ended(llama):
    engine = StaticBatchEngine(llama, 1)
    request = Request(A, SamplingParams(2, ignore_eos=True), request_id="mine")
    engine.add_request(request)
    for _ in range(2):  # while it waits, then while it runs
        with pytest.raises(InvalidInputError) as raised:
            engine.add_request(request)
        one_line(raised, "request_id='mine'")
        engine.step()
    assert [row.request_id for row in engine.live()] == []
    assert engine.add_request(request) == "mine"


@pytest.mark.parametrize("seats", [0, -1, 2.0, True, "8", None])
def test_an_engine_needs_a_seat(llama, seats):
    with pytest.raises(InvalidInputError) as raised:
        StaticBatchEngine(llama, max_num_seqs=seats)
    one_line(raised, f"max_num_seqs={seats!r}")


@pytest.mark.parametrize("length", [0, 1, -1, 2.0, True, "8", 257])
def test_a_slot_holds_no_more_than_the_model_can(llama, length):
    with pytest.raises(InvalidInputError) as raised:
        StaticBatchEngine(llama, max_model_len=length)
    one_line(raised, f"max_model_len={length!r}", "256")


@pytest.mark.parametrize("side", ["middle", "", None, 0, "Left"])
def test_there_are_two_padding_sides(llama, side):
    for call in (
        lambda: StaticBatchEngine(llama, padding_side=side),
        lambda: generate_batch(llama, [A], padding_side=side),
        lambda: next_token_logits(llama, [A], padding_side=side),
    ):
        with pytest.raises(InvalidInputError) as raised:
            call()
        one_line(raised, "padding_side=", '"left" or "right"')


# --- the functions ---

BAD_KEYWORDS = {
    "max_new_tokens": [0, -3, True, 2.0, "3", None, 254],
    "temperature": [NAN, INF, -1],
    "top_p": [0, 1.5, NAN],
    "top_k": [-1, 1.5],
    "seed": [-1, "x"],
    "stop_token_ids": [5, None, [64], [-1]],
}


@pytest.mark.parametrize(
    ("field", "value"), [(f, v) for f, values in BAD_KEYWORDS.items() for v in values]
)
def test_the_functions_refuse_before_anything_runs(llama, field, value, monkeypatch):
    def ran(*_):
        raise AssertionError("a pass was run")

    monkeypatch.setattr(llama.model, "forward", ran)
    for call in (
        lambda: generate_one(llama, A, **{field: value}),
        lambda: next(stream_one(llama, A, **{field: value})),
        lambda: generate_batch(llama, [A, A], **{field: value}),
    ):
        with pytest.raises(InvalidInputError) as raised:
            call()
        one_line(raised, "max_tokens=257" if value == 254 else f"{field}=")


@pytest.mark.parametrize("prompt", ["", [], [64], [-1], [1.5], None, 5, b"w5"])
def test_the_functions_refuse_a_bad_prompt(llama, prompt):
    for call in (
        lambda: generate_one(llama, prompt),
        lambda: next(stream_one(llama, prompt)),
        lambda: generate_batch(llama, [A, prompt]),
        lambda: next_token_logits(llama, [A, prompt]),
    ):
        with pytest.raises(InvalidInputError) as raised:
            call()
        one_line(raised, "prompt")


@pytest.mark.parametrize("prompts", ["w5 w6", None, 5, torch.tensor([[5, 6]])])
def test_a_batch_takes_a_list_of_prompts(llama, prompts):
    for call in (generate_batch, next_token_logits):
        with pytest.raises(InvalidInputError) as raised:
            call(llama, prompts)
        one_line(raised, "prompts=")


@pytest.mark.parametrize("field", ["max_new_tokens", "seed"])
@pytest.mark.parametrize("values", [[], [4], [4, 5, 6], (4, 5, 6)])
def test_a_list_has_one_value_for_each_prompt(llama, field, values):
    with pytest.raises(InvalidInputError) as raised:
        generate_batch(llama, [A, A], **{field: values})
    one_line(raised, f"{field}=", f"{len(values)} values for 2 prompts")


def test_one_bad_value_in_a_list_is_found(llama):
    with pytest.raises(InvalidInputError) as raised:
        generate_batch(llama, [A, A], max_new_tokens=[4, 0])
    one_line(raised, "max_new_tokens=0")


def test_no_prompts_are_no_answers_but_no_logits_either(llama):
    assert generate_batch(llama, []) == []
    with pytest.raises(InvalidInputError):
        next_token_logits(llama, [])


# --- any rubbish at all ---

RUBBISH = st.one_of(
    st.none(),
    st.booleans(),
    st.text(max_size=3),
    st.floats(),
    st.integers(),
    st.binary(max_size=3),
    st.lists(st.one_of(st.integers(), st.floats(), st.text(max_size=2)), max_size=3),
)


@draws.examples(5)
@given(
    field=st.sampled_from(["prompt_token_ids", "request_id", "arrival_step"]),
    value=RUBBISH,
)
def test_a_request_of_rubbish_is_made_or_refused_never_else(field, value):
    try:
        request = Request(**{"prompt_token_ids": A, field: value})
    except InvalidInputError:
        return
    assert getattr(request, field) == value


@draws.examples(10)
@given(field=st.sampled_from(sorted(BAD_PARAMS)), value=RUBBISH)
def test_parameters_of_rubbish_are_made_or_refused_never_else(llama, field, value):
    try:
        params = SamplingParams(**{"max_tokens": 2, field: value})
        serve(StaticBatchEngine(llama, 1), [Request(A, params)])
    except InvalidInputError:
        return
    kept = getattr(params, field)
    assert kept == (tuple(value) if isinstance(value, list) else value)
