"""The engines as their callers see them: steps, outputs, aborts, ids, serve."""

from __future__ import annotations

import dataclasses
from unittest import mock

import laws
import pytest
import tiny
import torch

from nanoserve import (
    ContinuousBatchEngine,
    InvalidInputError,
    Request,
    SamplingParams,
    SequentialEngine,
    StaticBatchEngine,
    StepOutput,
    engine,
    generate_one,
    serve,
)

KINDS = pytest.mark.parametrize(
    "kind", [StaticBatchEngine, SequentialEngine, ContinuousBatchEngine]
)


def ask(limit=3, prompt=(5, 6, 7), **more):
    params = SamplingParams(limit, ignore_eos=True)
    return Request(list(prompt), params, **more)


def drained(running):
    """All outputs until there is nothing left to do."""
    outputs = []
    for _ in range(1000):
        if not running.has_work():
            return outputs
        outputs += running.step()
    raise AssertionError("the engine does not come to an end")


# --- steps ---


def test_an_engine_that_was_asked_nothing_does_nothing(llama):
    idle = StaticBatchEngine(llama, 2)
    assert not idle.has_work()
    assert idle.step() == []
    assert idle.trace.passes == 0
    assert idle.clock == 0


def test_each_step_reports_each_live_requests_one_new_token(llama):
    running = StaticBatchEngine(llama, 2)
    for limit, prompt in ((3, [5, 6, 7]), (1, [8])):
        running.add_request(ask(limit, prompt))
    one = generate_one(llama, [5, 6, 7], max_new_tokens=3, ignore_eos=True).token_ids
    (other,) = generate_one(llama, [8], max_new_tokens=1).token_ids
    assert running.step() == [
        StepOutput("A", one[:1], False, None),
        StepOutput("B", [other], True, "length"),
    ]
    assert running.step() == [StepOutput("A", one[1:2], False, None)]
    assert running.has_work()
    assert running.step() == [StepOutput("A", one[2:], True, "length")]
    assert not running.has_work()


def test_a_step_is_one_pass(llama):
    running = StaticBatchEngine(llama, 2)
    for limit in (2, 4, 3):
        running.add_request(ask(limit))
    for passes in range(1, 8):
        running.step()
        assert running.trace.passes == passes
    assert not running.has_work()  # 4 for the first two, 3 for the third


def test_a_static_batch_waits_until_its_last_request_has_ended(llama):
    running = StaticBatchEngine(llama, 2)
    for limit in (1, 3, 1):
        running.add_request(ask(limit))
    ends = [[o.request_id for o in running.step() if o.finished] for _ in range(4)]
    assert ends == [["A"], [], ["B"], ["C"]]


def test_what_is_added_while_a_batch_runs_is_in_the_next(llama):
    running = StaticBatchEngine(llama, 2)
    running.add_request(ask(3))
    running.step()
    late = running.add_request(ask(2))
    ends = [[o.request_id for o in running.step() if o.finished] for _ in range(4)]
    assert ends == [[], ["A"], [], [late]]


def test_a_sequential_engine_runs_one_request_at_a_time(llama):
    running = SequentialEngine(llama)
    for limit in (2, 1, 3):
        running.add_request(ask(limit))
    said = [[output.request_id for output in running.step()] for _ in range(6)]
    assert said == [["A"], ["A"], ["B"], ["C"], ["C"], ["C"]]
    assert running.max_num_seqs == 1


def test_first_come_first_served(llama):
    running = SequentialEngine(llama)
    for arrival in (3, 0, 3, 1):
        running.add_request(ask(1, arrival_step=arrival))
    assert [o.request_id for o in drained(running)] == ["B", "D", "A", "C"]


def test_counters_are_the_traces(llama):
    running = StaticBatchEngine(llama, 2)
    for limit in (1, 3):
        running.add_request(ask(limit))
    drained(running)
    assert (running.total_slot_steps, running.wasted_slot_steps) == (6, 2)


def test_a_slot_is_as_long_as_it_was_asked_for_and_no_longer(llama):
    assert StaticBatchEngine(llama).max_model_len == tiny.MAX_LENGTH
    short = StaticBatchEngine(llama, 3, max_model_len=16)
    assert short.cache.keys.shape[1:4:2] == (3, 16)
    assert short.trace.slot_capacity == 16


def test_a_long_model_gets_slots_of_2048(llama, monkeypatch):
    long = dataclasses.replace(llama.model.config, max_length=10_000)
    monkeypatch.setattr(llama.model, "config", long)
    assert StaticBatchEngine(llama, 1).max_model_len == 2048


@pytest.mark.parametrize("side", ["left", "right"])
def test_decode_attends_as_far_as_the_longest_live_row(lm, side):
    """Not to the slot's end, nor to a finished row's."""
    running = StaticBatchEngine(lm, 3, padding_side=side)
    for limit, length in ((2, 20), (6, 4), (4, 9)):
        running.add_request(ask(limit, [7] * length))
    with laws.attention_watched() as looks:
        drained(running)
    layers = lm.model.config.num_layers
    widths = [look.keys for look in looks[::layers]]
    assert widths == [20, 21, 11, 12, 8, 9]
    assert {look.rows for look in looks} == {3}


# --- arrivals ---


def test_a_request_is_not_seen_before_it_arrives(llama):
    running = StaticBatchEngine(llama, 4)
    running.add_request(ask(2))
    running.add_request(ask(2, arrival_step=1))
    running.add_request(ask(2, arrival_step=2))
    said = [sorted(o.request_id for o in running.step()) for _ in range(4)]
    assert said == [["A"], ["A"], ["B", "C"], ["B", "C"]]


def test_the_clock_jumps_over_time_in_which_nobody_is_here(llama):
    running = StaticBatchEngine(llama, 4)
    running.add_request(ask(2, arrival_step=100))
    running.add_request(ask(1, arrival_step=5))
    drained(running)
    assert running.trace.passes == 3
    assert running.trace.jumps == [(0, 5), (1, 100)]
    assert [running.trace.clock_of(number) for number in range(3)] == [5, 100, 101]
    assert running.clock == 102


def test_an_arrival_in_the_past_is_now(llama):
    running = StaticBatchEngine(llama, 1)
    serve(running, [ask(3)])
    running.add_request(ask(1, arrival_step=1))
    assert running.trace.requests[1].arrival == 3
    assert len(running.step()) == 1


def test_a_request_still_to_come_counts_as_work(llama):
    running = StaticBatchEngine(llama, 1)
    running.add_request(ask(1, arrival_step=50))
    assert running.has_work()
    assert [output.finished for output in running.step()] == [True]


# --- ids ---


def test_ids_are_letters_that_go_on_after_z(llama):
    running = StaticBatchEngine(llama, 1)
    ids = [running.add_request(ask()) for _ in range(54)]
    assert ids[:3] == ["A", "B", "C"]
    assert ids[25:28] == ["Z", "AA", "AB"]
    assert ids[51:54] == ["AZ", "BA", "BB"]


def test_a_letter_that_is_taken_is_skipped(llama):
    running = StaticBatchEngine(llama, 1)
    running.add_request(ask(request_id="A"))
    running.add_request(ask(request_id="C"))
    assert [running.add_request(ask()) for _ in range(2)] == ["B", "D"]


def test_a_letter_is_not_given_twice(llama):
    running = StaticBatchEngine(llama, 1)
    first = list(serve(running, [ask(), ask()]))
    second = list(serve(running, [ask(), ask()]))
    assert first + second == ["A", "B", "C", "D"]


def test_any_string_is_an_id(llama):
    ids = ["", " ", "A" * 10_000, "\n", "\0", '<a>&"', "é😀", "\ud800"]
    running = StaticBatchEngine(llama, 3)
    assert list(serve(running, [ask(1, request_id=name) for name in ids])) == ids


# --- abort ---


def test_an_abort_shows_at_the_next_step_and_only_there(llama):
    running = StaticBatchEngine(llama, 2)
    for _ in range(2):
        running.add_request(ask(3))
    running.step()
    assert running.abort("A")
    outputs = running.step()
    assert outputs[0] == StepOutput("A", [], True, "abort")
    assert [output.request_id for output in outputs[1:]] == ["B"]
    assert [output.request_id for output in drained(running)] == ["B"]


def test_abort_of_what_is_not_here_is_false(llama):
    running = StaticBatchEngine(llama, 1)
    assert not running.abort("A")
    name = running.add_request(ask(1))
    assert not running.abort("B")
    running.step()
    assert not running.abort(name), "it has ended"
    assert running.step() == []


def test_an_abort_that_is_still_to_be_reported_is_work(llama):
    running = StaticBatchEngine(llama, 1)
    running.add_request(ask(3))
    running.abort("A")
    assert running.has_work()
    assert running.step() == [StepOutput("A", [], True, "abort")]
    assert not running.has_work()
    assert running.trace.passes == 0


def test_abort_of_a_waiting_request_touches_no_running_one(llama):
    requests = laws.ragged(ignore_eos=True)[:2]
    running = StaticBatchEngine(llama, 1)
    for request in requests:
        running.add_request(request)
    running.step()
    before = running.cache.keys.clone()
    assert running.abort("B")
    assert torch.equal(running.cache.keys, before)
    assert running.cache.free_slots == 0
    outputs = drained(running)
    assert outputs[0] == StepOutput("B", [], True, "abort")
    tokens = [token for output in outputs for token in output.token_ids]
    whole = laws.alone(llama, requests[0]).answer.token_ids
    assert tokens == whole[1:]


def test_an_aborted_row_keeps_its_static_seat_as_a_finished_one_does(llama):
    running = StaticBatchEngine(llama, 2)
    for _ in range(2):
        running.add_request(ask(4))
    running.step()
    running.abort("A")
    drained(running)
    ledger = running.trace.ledger()
    assert (ledger.passes, ledger.useful_slot_steps) == (4, 5)
    assert ledger.wasted_slot_steps == 3
    assert running.trace.requests[0].finish_reason == "abort"
    assert running.trace.requests[0].finished == 1


def test_abort_of_the_last_live_row_ends_the_batch_without_another_pass(llama):
    running = StaticBatchEngine(llama, 1)
    running.add_request(ask(9))
    running.step()
    running.abort("A")
    assert running.has_work()
    assert running.step() == [StepOutput("A", [], True, "abort")]
    assert not running.has_work()
    assert running.trace.passes == 1
    assert running.cache.free_slots == 1


def test_an_aborted_batch_makes_way_in_the_same_step(llama):
    running = StaticBatchEngine(llama, 1)
    running.add_request(ask(9))
    running.step()
    running.abort("A")
    running.add_request(ask(1))
    assert [(o.request_id, o.finish_reason) for o in running.step()] == [
        ("A", "abort"),
        ("B", "length"),
    ]


def test_the_id_of_an_aborted_request_is_free_again(llama):
    running = StaticBatchEngine(llama, 1)
    running.add_request(ask(request_id="mine"))
    running.abort("mine")
    running.add_request(ask(1, request_id="mine"))
    reasons = [output.finish_reason for output in drained(running)]
    assert reasons == ["abort", "length"]


# --- a pass that does not come to its end ---


@pytest.fixture(scope="module")
def drawn_alone(lm):
    requests = laws.ragged(temperature=1.0, seed=5)
    return [laws.alone(lm, request) for request in requests]


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
@pytest.mark.parametrize("passes_before", [0, 1, 3])
@KINDS
def test_a_pass_that_was_interrupted_is_run_again(
    lm, drawn_alone, kind, passes_before, error
):
    running = kind(lm)
    for each in drawn_alone:
        running.add_request(each.request)
    outputs = [output for _ in range(passes_before) for output in running.step()]
    with laws.crash(2, error()), pytest.raises(error):
        running.step()
    outputs += drained(running)
    got = []
    for name in "ABCDE":
        mine = [output for output in outputs if output.request_id == name]
        tokens = [token for output in mine for token in output.token_ids]
        got.append(laws.Answer(tokens, mine[-1].finish_reason))
    assert not laws.unlike(got, drawn_alone)


def test_an_interrupted_pass_is_not_counted(llama):
    running = StaticBatchEngine(llama, 2)
    for _ in range(2):
        running.add_request(ask(3))
    for call in (1, 2, 3):
        with laws.crash(call, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            running.step()
    assert running.trace.passes == 0
    drained(running)
    assert running.trace.ledger().total_slot_steps == 6


def test_an_interrupted_pass_swallows_no_abort(llama):
    running = StaticBatchEngine(llama, 2)
    for _ in range(2):
        running.add_request(ask(3))
    running.abort("A")
    with laws.crash(1, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        running.step()
    assert running.step()[0] == StepOutput("A", [], True, "abort")


def test_a_request_whose_prefill_was_interrupted_can_be_aborted(llama):
    """The others then run in slots that are not side by side."""
    requests = laws.ragged(ignore_eos=True)[:4]
    running = StaticBatchEngine(llama, 4)
    for request in requests:
        running.add_request(request)
    with laws.crash(2, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        running.step()
    running.abort("B")
    assert running.cache.free_slots == 1
    assert not running.cache.keys[:, 1].any()
    outputs = drained(running)
    assert outputs[0] == StepOutput("B", [], True, "abort")
    for name, request in zip("ACD", [requests[0], *requests[2:]], strict=True):
        tokens = [t for o in outputs if o.request_id == name for t in o.token_ids]
        answer = laws.Answer(tokens, "length")
        assert not laws.unlike([answer], [laws.alone(llama, request)])


# --- serve ---


@KINDS
def test_serve_returns_every_answer_in_the_order_of_the_requests(llama, kind):
    limits = [3, 1, 4, 2]
    requests = [ask(n, request_id=f"r{n}", arrival_step=9 - n) for n in limits]
    results = serve(kind(llama), iter(requests))
    assert list(results) == ["r3", "r1", "r4", "r2"]
    for n, result in zip(limits, results.values(), strict=True):
        assert result.generated_tokens == n
        assert result.prompt == [5, 6, 7]
        assert result.finish_reason == "length"
        laws.assert_times_add_up(result)


def test_serve_of_nothing_is_nothing(llama):
    assert serve(StaticBatchEngine(llama), []) == {}


def test_serve_answers_what_was_queued_before_too(llama):
    running = StaticBatchEngine(llama, 1)
    running.add_request(ask(3, request_id="early"))
    running.step()
    results = serve(running, [ask(2, request_id="late")])
    assert list(results) == ["early", "late"]
    assert results["early"].generated_tokens == 3


def times(results):
    """[queue, time to first token, elapsed] of each answer, in passes."""
    return [
        [r.queue_seconds, r.ttft_seconds, r.elapsed_seconds] for r in results.values()
    ]


def test_waiting_for_the_one_before_counts_in_the_time_to_first_token(llama):
    with laws.seconds_are_passes(llama):
        results = serve(SequentialEngine(llama), [ask(5), ask(2)])
    assert times(results) == [[0, 1, 5], [5, 6, 7]]


def test_a_static_batch_is_waited_for_to_its_end(llama):
    with laws.seconds_are_passes(llama):
        results = serve(StaticBatchEngine(llama, 2), [ask(1), ask(4), ask(2)])
    assert times(results) == [[0, 1, 1], [0, 1, 4], [4, 5, 6]]


def test_time_counts_from_arrival(llama):
    requests = [ask(9), ask(1, arrival_step=7), ask(2, arrival_step=50)]
    with laws.seconds_are_passes(llama):
        results = serve(StaticBatchEngine(llama, 2), requests)
    assert times(results) == [[0, 1, 9], [2, 3, 3], [0, 1, 2]]


def test_a_refused_request_takes_back_those_that_came_with_it(llama):
    running = StaticBatchEngine(llama, 2)
    with pytest.raises(InvalidInputError, match="prompt_token_ids=64"):
        serve(running, [ask(), ask(), Request([64]), ask()])
    assert not running.live()
    assert running.trace.passes == 0
    assert running.cache.free_slots == 2
    assert_usable(running)


def test_a_refused_request_takes_back_no_other(llama):
    running = StaticBatchEngine(llama, 1)
    running.add_request(ask(3, request_id="runs"))
    running.step()
    running.add_request(ask(3, request_id="waits"))
    with pytest.raises(InvalidInputError):
        serve(running, [ask(), Request([64])])
    assert [row.request_id for row in running.live()] == ["runs", "waits"]
    assert serve(running, []).keys() == {"runs", "waits"}


def test_what_fails_while_requests_are_made_takes_them_back_too(llama):
    def failing():
        yield ask()
        raise OSError("the file of prompts ends here")

    running = StaticBatchEngine(llama, 1)
    with pytest.raises(OSError, match="ends here"):
        serve(running, failing())
    assert not running.live()


@pytest.mark.parametrize("call", [1, 2, 4, 8])
def test_ctrl_c_in_serve_gives_all_slots_back(llama, call):
    running = StaticBatchEngine(llama, 2)
    with laws.crash(call, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        serve(running, [ask(), ask(), ask()])
    assert not running.live()
    assert running.cache.free_slots == 2
    assert not running.cache.keys.any()
    assert not running.cache.values.any()
    assert_usable(running)


def assert_usable(running):
    requests = laws.ragged()
    laws.hold(running.lm, requests, {"again": laws.by_engine(lambda _: running)})


def test_a_given_id_is_not_given_to_a_nameless_request_before_it(llama):
    answers = serve(SequentialEngine(llama), [ask(), ask(request_id="A"), ask()])
    assert list(answers) == ["B", "A", "C"]


@pytest.mark.parametrize("requests", [ask(), 7, None])
def test_serve_wants_a_list_of_requests(llama, requests):
    with pytest.raises(InvalidInputError, match="^requests=.*: must be a list of req"):
        serve(SequentialEngine(llama), requests)


def test_progress_does_not_count_the_aborts_of_before(llama, capsys):
    running = StaticBatchEngine(llama)
    running.abort(running.add_request(ask()))
    serve(running, [ask(), ask()], progress=True)
    assert "2/2" in capsys.readouterr().err.splitlines()[-1]


def test_serve_shows_its_progress_when_asked(llama, capsys):
    serve(StaticBatchEngine(llama), [ask(), ask()], progress=True)
    assert "2/2" in capsys.readouterr().err
    serve(StaticBatchEngine(llama), [ask(), ask()])
    assert capsys.readouterr().err == ""


# --- the model is not to be trusted ---


def test_a_first_token_that_is_not_to_be_had_is_an_error(llama):
    running = StaticBatchEngine(llama, 2)
    for _ in range(2):
        running.add_request(ask(2))
    with mock.patch.object(engine, "next_tokens", return_value=[None, 9]):
        assert running.step() == [
            StepOutput("A", [], True, "error"),
            StepOutput("B", [9], False, None),
        ]
    drained(running)
    assert running.trace.requests[0].finish_reason == "error"
    assert running.trace.requests[0].token_ids == []
    assert running.trace.ledger().generated_tokens == 2


def test_an_error_has_no_text_and_no_time_to_first_token(llama):
    with mock.patch.object(engine, "next_tokens", return_value=[None]):
        (result,) = serve(SequentialEngine(llama), [ask()]).values()
    assert (result.token_ids, result.text, result.finish_reason) == ([], "", "error")
    assert result.ttft_seconds is None
