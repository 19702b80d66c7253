"""``generate_one`` against transformers, and what all the functions promise."""

from __future__ import annotations

import dataclasses
import tempfile

import laws
import pytest
import strategies as draws
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st

from nanoserve import (
    InvalidInputError,
    Request,
    SamplingParams,
    engine,
    generate_batch,
    generate_one,
    load,
    next_token_logits,
    stream_one,
)
from nanoserve.checkpoint import LanguageModel

A, B, C = [5, 6, 7, 8], [9], [10, 11, 12, 13, 14, 15]
BOTH_SIDES = pytest.mark.parametrize("side", ["left", "right"])


@pytest.fixture(scope="module")
def theirs(lm):
    """The transformers model with the same weights as ``lm``."""
    return tiny.tiny_transformer(lm.name.removeprefix("tiny-"))


# --- against transformers ---


@torch.no_grad()
def by_argmax(model, prompt, count):
    """Greedy tokens from a model's logits, the whole text anew each time, no cache."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    return ids[len(prompt) :]


@draws.examples(0.3)
@given(prompt=draws.PROMPTS)
def test_greedy_tokens_are_those_of_transformers_logits(lm, theirs, prompt):
    request = Request(prompt, SamplingParams(12, ignore_eos=True))
    right = laws.Answer(by_argmax(theirs, prompt, 12), "length")
    assert not laws.unlike([right], [laws.alone(lm, request)])


def test_greedy_tokens_are_those_of_transformers_generate(lm, theirs):
    for prompt, _ in laws.RAGGED:
        ids = torch.tensor([prompt])
        out = theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=20,
            do_sample=False,
            eos_token_id=[tiny.EOS, 33, 44],
        )
        right = out[0, len(prompt) :].tolist()
        ours = generate_one(lm, prompt, max_new_tokens=20, stop_token_ids=[33, 44])
        assert ours.token_ids == right


@BOTH_SIDES
def test_next_token_logits_are_those_of_transformers(lm, theirs, side):
    prompts = [prompt for prompt, _ in laws.RAGGED]
    ours = next_token_logits(lm, prompts, padding_side=side)
    assert ours.dtype == torch.float32
    assert ours.shape == (len(prompts), lm.vocab_size)
    with torch.no_grad():
        for row, prompt in zip(ours, prompts, strict=True):
            right = theirs(torch.tensor([prompt])).logits[0, -1]
            torch.testing.assert_close(row, right, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gpt2"])
@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.15), ("float16", 0.03)])
def test_in_low_precision_logits_are_near_and_every_way_runs(family, dtype, bound):
    """Tokens may part there: about 3 % of steps are exact ties in bfloat16."""
    with tempfile.TemporaryDirectory() as directory:
        path = tiny.tiny_checkpoint(family, directory)
        low = load(path, device="cpu", dtype=dtype)
    prompts = [prompt for prompt, _ in laws.RAGGED]
    right = next_token_logits(tiny.tiny_lm(family), prompts)
    for side in ("left", "right"):
        logits = next_token_logits(low, prompts, padding_side=side)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits, right, atol=bound, rtol=0)
    for way in {**laws.RECTANGLES, **laws.ENGINES}.values():
        answers = way(low, laws.ragged(ignore_eos=True))
        lengths = [len(answer.token_ids) for answer in answers]
        assert lengths == [limit for _, limit in laws.RAGGED]


# --- when an answer ends ---


def free_run(lm, prompt, count=12):
    """What the model says when nothing stops it; some token comes up late."""
    return generate_one(lm, prompt, max_new_tokens=count, ignore_eos=True).token_ids


def late_token(tokens):
    """A token that does not occur before the middle, and where it first does."""
    middle = len(tokens) // 3
    return next((t, i) for i, t in enumerate(tokens) if tokens.index(t) == i >= middle)


def test_a_stop_token_ends_the_answer_and_is_its_last_token(lm):
    tokens = free_run(lm, A)
    stop, at = late_token(tokens)
    result = generate_one(lm, A, stop_token_ids=[stop], ignore_eos=True)
    assert result.token_ids == tokens[: at + 1]
    assert result.generated_tokens == at + 1
    assert result.finish_reason == "stop"


def test_the_stop_token_is_not_in_the_text(lm):
    tokens = free_run(lm, A)
    stop, at = late_token(tokens)
    lm = dataclasses.replace(lm, eos_token_ids=frozenset())
    result = generate_one(lm, A, stop_token_ids=[stop])
    assert result.text == lm.decode(tokens[:at])
    assert not result.text.endswith(f"w{stop}")


def test_a_limit_ends_the_answer_and_its_last_token_is_text(lm):
    result = generate_one(lm, A, max_new_tokens=4, ignore_eos=True)
    assert result.finish_reason == "length"
    assert result.generated_tokens == 4
    assert result.text == lm.decode(free_run(lm, A)[:4])


def test_a_stop_token_at_the_limit_is_a_stop(lm):
    stop, at = late_token(free_run(lm, A))
    result = generate_one(lm, A, max_new_tokens=at + 1, stop_token_ids=[stop])
    assert result.finish_reason == "stop"


def test_any_of_several_eos_ends_the_answer(lm):
    tokens = free_run(lm, A)
    for eos in set(tokens):
        several = dataclasses.replace(lm, eos_token_ids=frozenset({eos, 63, 62}))
        at = min(tokens.index(t) for t in (eos, 63, 62) if t in tokens)
        result = generate_one(several, A)
        assert (result.finish_reason, result.generated_tokens) == ("stop", at + 1)


def test_ignore_eos_runs_on_but_a_stop_token_still_stops(lm):
    tokens = free_run(lm, A)
    stop, at = late_token(tokens)
    lm = dataclasses.replace(lm, eos_token_ids=frozenset(tokens))
    on = {"max_new_tokens": 12, "ignore_eos": True}
    assert generate_one(lm, A, **on).token_ids == tokens
    result = generate_one(lm, A, stop_token_ids=[stop], **on)
    assert result.token_ids == tokens[: at + 1]


def test_an_eos_or_stop_token_in_the_prompt_ends_nothing(lm):
    eos_inside = [tiny.EOS, 5, tiny.EOS, 6, 21]
    tokens = free_run(lm, eos_inside)
    stop = next(t for t in (21, 5, 6) if t not in tokens[:4])
    lm = dataclasses.replace(lm, eos_token_ids=frozenset({tiny.EOS} - set(tokens)))
    result = generate_one(lm, eos_inside, max_new_tokens=4, stop_token_ids=[stop])
    assert result.token_ids == tokens[:4]


def test_special_tokens_are_in_the_answer_but_not_in_the_text(lm):
    lm = dataclasses.replace(lm, eos_token_ids=frozenset())
    said = [tiny.BOS, 7, tiny.PAD, 8]
    with scripted(said):
        result = generate_one(lm, A, max_new_tokens=4)
    assert result.token_ids == said
    assert result.text == "w7 w8"


# --- prompts and options ---


def test_a_text_is_what_the_tokenizer_makes_of_it(lm):
    result = generate_one(lm, "w5 w6 w7 w8")
    assert result.prompt == "w5 w6 w7 w8"
    assert result.prompt_tokens == 4
    assert result.token_ids == generate_one(lm, A).token_ids


@BOTH_SIDES
def test_each_row_has_its_own_limit(lm, side):
    limits = [7, 1, 3]
    results = generate_batch(
        lm, [A, B, C], max_new_tokens=limits, padding_side=side, ignore_eos=True
    )
    assert [result.generated_tokens for result in results] == limits
    assert [result.prompt for result in results] == [A, B, C]


def test_each_row_has_its_own_seed(lm):
    together = generate_batch(lm, [A, A, A], seed=[3, 4, None], temperature=2.0)
    for result, seed in zip(together[:2], [3, 4], strict=True):
        assert result.token_ids == sampled(lm, A, seed)
    assert together[0].token_ids != together[1].token_ids


def test_one_seed_is_every_rows_seed(lm):
    together = generate_batch(lm, [A, B, C], seed=3, temperature=2.0)
    for result, prompt in zip(together, [A, B, C], strict=True):
        assert result.token_ids == sampled(lm, prompt, 3)


def sampled(lm, prompt, seed):
    return generate_one(lm, prompt, seed=seed, temperature=2.0).token_ids


def test_one_prompt_may_come_in_both_forms_beside_others(lm):
    results = generate_batch(lm, ["w5 w6 w7 w8", A, tuple(A)], max_new_tokens=5)
    assert len({tuple(result.token_ids) for result in results}) == 1


def test_prompts_of_one_length_need_no_pad(lm):
    requests = [
        Request(prompt, SamplingParams(6)) for prompt in ([5, 6], [7, 8], [9, 10])
    ]
    laws.hold(lm, requests, laws.RECTANGLES)


def test_a_batch_of_one_is_the_prompt_alone_to_the_bit(lm):
    assert torch.equal(
        next_token_logits(lm, [C], padding_side="left"),
        next_token_logits(lm, [C], padding_side="right"),
    )


# --- at the end of the model's positions ---


@BOTH_SIDES
def test_rows_that_fill_the_model_to_its_last_position(lm, side):
    """The short prompt has the long limit: its finished neighbour counts on, past
    every position there is."""
    full = lm.max_length
    long, short = ([7] * (full - 4), 4), ([9, 12], full - 2)
    requests = [
        Request(prompt, SamplingParams(limit, ignore_eos=True))
        for prompt, limit in (long, short)
    ]
    ways = {
        "generate_batch": laws.by_generate_batch(side),
        "static": laws.by_static(side),
    }
    laws.hold(lm, requests, ways)


# --- a row's own times ---


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_times_of_a_result_add_up(llama, count):
    result = generate_one(llama, A, max_new_tokens=count, ignore_eos=True)
    laws.assert_times_add_up(result)
    assert result.prefill_seconds > 0
    assert result.queue_seconds == 0


def test_a_row_that_ends_early_is_not_billed_for_the_others(llama):
    with laws.seconds_are_passes(llama):
        results = generate_batch(
            llama, [A, B, C], max_new_tokens=[1, 3, 6], ignore_eos=True
        )
    assert [result.elapsed_seconds for result in results] == [1, 3, 6]
    assert [result.ttft_seconds for result in results] == [1, 1, 1]
    assert [result.tpot_seconds for result in results] == [None, 1, 1]
    assert [result.queue_seconds for result in results] == [0, 0, 0]


def test_an_answer_without_a_token_has_no_time_to_first_token(llama, monkeypatch):
    monkeypatch.setattr(engine, "next_tokens", lambda logits, rows: [None])
    result = generate_one(llama, A)
    assert (result.token_ids, result.text, result.finish_reason) == ([], "", "error")
    assert result.ttft_seconds is None
    assert result.tpot_seconds is None


# --- what is never made ---


@pytest.mark.parametrize("way", [*laws.RECTANGLES, *laws.ENGINES])
def test_only_last_tokens_meet_the_vocabulary(lm, way, monkeypatch):
    """A prefill's logits at all its tokens would be gigabytes."""
    shapes, logits = [], lm.model.logits
    monkeypatch.setattr(
        lm.model,
        "logits",
        lambda hidden: (shapes.append(hidden.shape), logits(hidden))[1],
    )
    {**laws.RECTANGLES, **laws.ENGINES}[way](lm, laws.ragged(ignore_eos=True))
    assert shapes
    assert all(len(shape) == 2 and shape[0] <= len(laws.RAGGED) for shape in shapes)


@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_a_prompt_that_fills_the_model(gpt2, side):
    full = [1 + place % 7 for place in range(gpt2.max_length)]
    both = next_token_logits(gpt2, [full, [3, 4]], padding_side=side)
    for row, prompt in zip(both, [full, [3, 4]], strict=True):
        torch.testing.assert_close(row, next_token_logits(gpt2, [prompt])[0])
    with pytest.raises(InvalidInputError, match=f"max_length={gpt2.max_length}$"):
        next_token_logits(gpt2, [[*full, 1]])


def test_nothing_of_a_run_asks_for_gradients(llama):
    assert not next_token_logits(llama, [A]).requires_grad
    assert torch.is_grad_enabled()


# --- streaming ---


class scripted:
    """The model says what it is told to: a list of tokens, one a pass."""

    def __init__(self, tokens):
        self.tokens, self.patch = tokens, pytest.MonkeyPatch()

    def __enter__(self):
        left = iter(self.tokens)
        self.patch.setattr(engine, "next_tokens", lambda logits, rows: [next(left)])

    def __exit__(self, *_):
        self.patch.undo()


def streamed(lm, prompt, **options):
    """(pieces, result) of stream_one."""
    pieces, stream = [], stream_one(lm, prompt, **options)
    while True:
        try:
            pieces.append(next(stream))
        except StopIteration as end:
            return pieces, end.value


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_the_pieces_of_a_stream_are_the_text(lm, temperature):
    for prompt, limit in laws.RAGGED:
        options = {"max_new_tokens": limit, "temperature": temperature, "seed": 5}
        pieces, result = streamed(lm, prompt, **options)
        whole = generate_one(lm, prompt, **options)
        assert "".join(pieces) == result.text == whole.text
        assert result.token_ids == whole.token_ids
        assert all(pieces)


def test_a_stream_shows_a_word_as_soon_as_it_is_made(llama):
    passes = []
    stream = stream_one(llama, A, max_new_tokens=6, ignore_eos=True)
    with pytest.MonkeyPatch.context() as patch:
        logits = llama.model.logits
        patch.setattr(llama.model, "logits", lambda x: (passes.append(1), logits(x))[1])
        next(stream)
        assert len(passes) == 1
        next(stream)
        assert len(passes) == 2


def test_a_stream_that_is_left_early_leaves_nothing_behind(llama):
    stream = stream_one(llama, A)
    next(stream)
    assert not torch.is_inference_mode_enabled()
    stream.close()
    assert not torch.is_inference_mode_enabled()


def test_a_stream_refuses_bad_input_at_once(llama):
    """A server must know before it sends its headers."""
    with pytest.raises(InvalidInputError):
        stream_one(llama, "")


def test_a_stream_does_not_show_the_stop_token(llama):
    with scripted([7, 8, 9]):
        pieces, result = streamed(llama, A, stop_token_ids=[9])
    assert "".join(pieces) == result.text == "w7 w8"


def test_a_stream_of_nothing_but_an_error_is_empty(llama):
    with scripted([None]):
        pieces, result = streamed(llama, A)
    assert (pieces, result.finish_reason) == ([], "error")


def test_a_stream_that_ends_in_an_error_shows_what_came_before(llama):
    with scripted([7, 8, None]):
        pieces, result = streamed(llama, A)
    assert "".join(pieces) == result.text == "w7 w8"
    assert (result.token_ids, result.finish_reason) == ([7, 8], "error")


# --- characters that are split over tokens ---


def bytes_lm(kind):
    """A model whose tokens are single bytes, id = 2 + byte: "é" is two of them.

    ``kind`` is GPT-2's way of writing bytes, or that of Llama 2 and Mistral, in which
    words have pieces of their own (ids from 258) and bytes are the way out.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocab = {"<pad>": 0, "<eos>": 1}
    if kind == "byte-level":
        vocab |= {char: 2 + byte for byte, char in bytes_to_unicode().items()}
        tokenizer = Tokenizer(models.BPE(vocab, []))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
    else:
        vocab |= {f"<0x{byte:02X}>": 2 + byte for byte in range(256)}
        vocab |= {piece: 258 + i for i, piece in enumerate(["▁a", "b", "▁", "é"])}
        tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
        steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
    )
    return LanguageModel(byte_model(), wrapped, kind, frozenset({1}), 0)


def byte_model():
    with tempfile.TemporaryDirectory() as directory:
        shape = {"vocab_size": 262, "num_hidden_layers": 1}
        return load(
            tiny.tiny_checkpoint("llama", directory, **shape), device="cpu"
        ).model


@pytest.fixture(scope="module")
def byte_level():
    return bytes_lm("byte-level")


@pytest.fixture(scope="module")
def byte_fallback():
    return bytes_lm("byte-fallback")


def as_tokens(data):
    return [2 + byte for byte in data]


def test_half_a_character_is_held_back(byte_level):
    with scripted(as_tokens("aé😀b".encode())):
        pieces, _ = streamed(byte_level, [5], max_new_tokens=8)
    assert pieces == ["a", "é", "😀", "b"]


def test_half_a_character_at_the_end_is_shown_at_the_end(byte_level):
    with scripted(as_tokens("aé".encode()[:-1])):
        pieces, result = streamed(byte_level, [5], max_new_tokens=2)
    assert "".join(pieces) == result.text == "a\ufffd"


@draws.examples(4)
@given(text=st.text(min_size=1, max_size=8))
def test_any_text_streams_whole(byte_level, text):
    tokens = as_tokens(text.encode())
    with scripted(tokens):
        pieces, result = streamed(byte_level, [5], max_new_tokens=len(tokens))
    assert "".join(pieces) == result.text == text
    assert "\ufffd" not in "".join(pieces[:-1]) or "\ufffd" in text


@draws.examples(4)
@given(data=st.binary(min_size=1, max_size=8))
def test_bytes_that_are_no_text_stream_as_they_are_decoded(byte_level, data):
    with scripted(as_tokens(data)):
        pieces, result = streamed(byte_level, [5], max_new_tokens=len(data))
    assert "".join(pieces) == result.text


@draws.examples(4)
@given(
    tokens=st.lists(
        st.sampled_from([*range(258, 262), *as_tokens(b"A\n\xe2\x82\xac\xf0")]),
        min_size=1,
        max_size=8,
    )
)
def test_no_bytes_break_a_stream(byte_fallback, tokens):
    """With byte fallback a stray byte turns the good ones before it, already shown,
    into "\ufffd" too: then pieces and text must differ, but the stream goes on."""
    with scripted(tokens):
        pieces, result = streamed(byte_fallback, [5], max_new_tokens=len(tokens))
    assert result.token_ids == tokens
    if "\ufffd" not in result.text:
        assert "".join(pieces) == result.text
