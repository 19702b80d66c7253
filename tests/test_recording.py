"""The recording hook, held against transformers' own attention maps."""

from __future__ import annotations

import gc
import threading

import pytest
import tiny
import torch

import nanoserve
from nanoserve import attention, batch, model, pitfalls, recording

PROMPTS = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14]]


def test_weights_and_hidden_states_are_those_of_transformers(lm):
    family = lm.model.config.family
    theirs = tiny.tiny_transformer(family, attn_implementation="eager")
    for prompt in PROMPTS:
        with torch.inference_mode():
            told = theirs(
                torch.tensor([prompt]),
                output_attentions=True,
                output_hidden_states=True,
            )
        with recording.record(lm, weights=True) as record:
            nanoserve.next_token_logits(lm, [prompt])
        (only,) = record.passes
        assert only.ids.tolist() == prompt
        assert only.positions.tolist() == list(range(len(prompt)))
        assert [call.layer for call in record.calls] == [0, 1, 2]
        for call, weights in zip(only.calls, told.attentions, strict=True):
            torch.testing.assert_close(call.weights, weights, rtol=0, atol=1e-5)
            by_hand = call.scores.masked_fill(~call.keep, -torch.inf).softmax(-1)
            torch.testing.assert_close(by_hand, weights, rtol=0, atol=1e-5)
        # the last of theirs stands behind the final norm
        for mine, theirs_ in zip(
            only.hidden[:-1], told.hidden_states[1:-1], strict=True
        ):
            torch.testing.assert_close(mine, theirs_[0], rtol=0, atol=1e-4)
        last = lm.model.norm(only.hidden[-1])
        torch.testing.assert_close(last, told.hidden_states[-1][0], rtol=0, atol=1e-4)


def test_in_a_rectangle_each_row_weighs_what_it_weighs_alone(lm):
    with recording.record(lm, weights=True) as record:
        nanoserve.generate_batch(lm, PROMPTS, max_new_tokens=3, ignore_eos=True)
    assert len(record.passes) == 3
    assert [call.step for call in record.calls] == [0] * 3 + [1] * 3 + [2] * 3
    for row, prompt in enumerate(PROMPTS):
        with recording.record(lm, weights=True) as alone:
            nanoserve.generate_one(lm, prompt, max_new_tokens=3, ignore_eos=True)
        pads = 6 - len(prompt)
        for mine, its in zip(record.calls, alone.calls, strict=True):
            cut = slice(pads if mine.step == 0 else 0, None)
            torch.testing.assert_close(
                mine.weights[row, :, cut, pads:], its.weights[0], rtol=0, atol=1e-5
            )
            assert not mine.weights[row, :, cut, :pads].any()


def test_what_is_recorded_is_not_touched_by_what_comes_later(llama):
    with recording.record(llama) as record:
        nanoserve.generate_batch(llama, PROMPTS, max_new_tokens=2, ignore_eos=True)
    first, later = record.at(0, layer=1), record.at(1, layer=1)
    assert first.k.shape[2] == 6 and later.k.shape[2] == 7
    torch.testing.assert_close(first.k, later.k[:, :, :6], rtol=0, atol=0)
    assert first.weights is None
    assert first.out.shape == first.q.shape


@pytest.mark.parametrize("outer", ["plant", "record"])
def test_a_planted_bug_is_recorded_as_it_ran_in_either_order(llama, outer):
    planted = pitfalls.plant("bool-mask-added")
    if outer == "plant":
        with planted, recording.record(llama, weights=True) as record:
            nanoserve.next_token_logits(llama, PROMPTS)
    else:
        with recording.record(llama, weights=True) as record, planted:
            nanoserve.next_token_logits(llama, PROMPTS)
    call = record.at(0, layer=0)
    # it adds the mask, so that every query weighs the future too
    assert (call.weights > 0).all()
    added = (call.scores + call.keep).softmax(-1)
    torch.testing.assert_close(call.weights, added, rtol=0, atol=1e-5)
    assert not call.keep[0, 0, 0, 1]


def test_a_planted_softmax_of_minus_inf_is_nan_where_it_was(llama):
    with pitfalls.plant("minus-inf"), recording.record(llama, weights=True) as record:
        nanoserve.next_token_logits(llama, PROMPTS)
    call = record.at(0, layer=0)
    assert call.out[1, :, :3].isnan().all() and call.out[1, :, 3:].isfinite().all()
    assert call.weights[1, :, :3].isnan().all()
    # in the next layer the real tokens meet the pads' NaN: in what they gather, while
    # what they weigh is NaN only where a score is
    assert record.at(0, layer=1).out[1].isnan().all()


def test_an_engine_is_recorded_too_and_what_it_scrubs_afterwards(llama):
    engine = nanoserve.StaticBatchEngine(llama, max_num_seqs=2)
    params = nanoserve.SamplingParams(max_tokens=3, ignore_eos=True)
    requests = [nanoserve.Request(prompt, params) for prompt in PROMPTS[:2]]
    with recording.record(llama, weights=True) as record:
        nanoserve.serve(engine, requests)
    assert [len(each.calls) for each in record.passes] == [3, 3, 3]
    assert record.at(0, layer=2).keep.shape == (2, 1, 6, 6)
    # its slots are zeroed by now; what was read of them stays
    assert record.at(2, layer=0).k.abs().amax(dim=-1)[0].all()


# --- off ---


def hooks(decoder: model.Decoder) -> int:
    return sum(
        len(each._forward_hooks) + len(each._forward_pre_hooks)
        for each in decoder.modules()
    )


def test_outside_of_the_block_there_is_nothing(llama):
    plain = attention.attend
    with recording.record(llama) as record:
        assert batch.attention is not attention and hooks(llama.model) > 0
    assert batch.attention is attention and attention.attend is plain
    assert hooks(llama.model) == 0
    nanoserve.next_token_logits(llama, PROMPTS)
    assert record.passes == []


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_exception_there_is_nothing_left(llama, error):
    with pytest.raises(error):
        with recording.record(llama):
            raise error
    assert batch.attention is attention
    assert hooks(llama.model) == 0
    assert recording._records.get() == ()


def test_a_pass_that_breaks_off_leaves_the_next_one_whole(llama, gpt2, monkeypatch):
    with recording.record(llama) as record:
        with monkeypatch.context() as broken:
            broken.setattr(attention, "attend", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                nanoserve.next_token_logits(llama, PROMPTS)
        nanoserve.next_token_logits(gpt2, PROMPTS)  # another model, not recorded
        nanoserve.next_token_logits(llama, PROMPTS)
    assert [len(each.calls) for each in record.passes] == [0, 3]


def test_records_may_be_nested_and_end_in_any_order(llama, gpt2):
    outer = recording.record(llama)
    inner = recording.record(gpt2)
    first = outer.__enter__()
    second = inner.__enter__()
    nanoserve.next_token_logits(llama, PROMPTS)
    outer.__exit__(None, None, None)
    nanoserve.next_token_logits(gpt2, PROMPTS)
    nanoserve.next_token_logits(llama, PROMPTS)
    inner.__exit__(None, None, None)
    assert (len(first.calls), len(second.calls)) == (3, 3)
    assert batch.attention is attention


def test_another_thread_records_its_own_and_no_more(llama):
    counts = {}

    def elsewhere() -> None:
        nanoserve.next_token_logits(llama, PROMPTS)
        with recording.record(llama) as other:
            nanoserve.generate_batch(llama, PROMPTS, max_new_tokens=2, ignore_eos=True)
        counts["other"] = len(other.calls)

    with recording.record(llama) as mine:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        nanoserve.next_token_logits(llama, PROMPTS)
    assert (len(mine.calls), counts["other"]) == (3, 6)
    assert len(mine.passes) == 1
    gc.collect()
    assert batch.attention is attention


def test_a_pass_of_another_thread_in_the_midst_of_ours_is_not_ours(llama, monkeypatch):
    right, threads = attention.attend, []

    def attend(*given: torch.Tensor) -> torch.Tensor:
        if not threads:
            run = nanoserve.next_token_logits
            threads.append(threading.Thread(target=run, args=(llama, PROMPTS[1:])))
            threads[0].start()
            threads[0].join()
        return right(*given)

    monkeypatch.setattr(attention, "attend", attend)
    with recording.record(llama) as record:
        nanoserve.next_token_logits(llama, PROMPTS)
    (only,) = record.passes
    assert [call.layer for call in only.calls] == [0, 1, 2]
    assert [len(hidden) for hidden in only.hidden] == [18, 18, 18]
