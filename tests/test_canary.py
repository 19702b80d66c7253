"""The built-in models: their language, their files, and how often they are right."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from nanoserve import canary

DATA = Path(__file__).resolve().parent.parent / "data"
sys.path.insert(0, str(DATA))

import canary_eval  # noqa: E402
import make_canary  # noqa: E402

NAMES = ("canary", "canary-rope")
# The least share of right answers; the classic 10/50/500 counts have their own test.
FLOORS = {
    "count, from 0..60, 1 to 60 items": 0.999,
    "count, all others from 0..120, to 120 items": 0.98,
    "repeat, 1 to 120 times": 0.98,
    "copy, 1 to 12 letters": 0.98,
    "copy, 13 to 40 letters": 0.9,
    "reverse, 1 to 12 letters": 0.98,
    "count, from 0..60, 1 to 60 items, after a turn": 0.98,
    "count, all others from 0..120, to 120 items, after a turn": 0.98,
    "repeat, 1 to 120 times, after a turn": 0.98,
    "copy, 1 to 12 letters, after a turn": 0.98,
    "copy, 13 to 40 letters, after a turn": 0.9,
    "reverse, 1 to 12 letters, after a turn": 0.98,
}
SUITES = canary_eval.suites()
# All longer counts, 10,860, were tried for the card; here 1,500 of them, drawn, and
# with HYPOTHESIS_PROFILE=long all of them. No other task has more than MANY.
MANY, DRAWN, LONG = 4000, 1500, os.environ.get("HYPOTHESIS_PROFILE") == "long"
SAMPLES_OF_EACH = [
    "count from 3 to 12",
    "repeat x 4 times",
    "copy c a d",
    "reverse b c d",
]


@pytest.fixture(scope="module", params=NAMES)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def model(name):
    # PyTorch's tanh GELU is GPT-2's in one pass over the numbers, not in seven
    gelu = {"activation_function": "gelu_pytorch_tanh"} if name == "canary" else {}
    return AutoModelForCausalLM.from_pretrained(DATA / name, **gelu).eval()


@pytest.fixture(scope="module")
def tokenizer(name):
    return AutoTokenizer.from_pretrained(DATA / name)


# ---- the language ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("count from 3 to 12", "3 4 5 6 7 8 9 10 11 12"),
        ("count from 0 to 0", "0"),
        ("count from 519 to 520", "519 520"),
        ("repeat x 4 times", "x x x x"),
        ("copy c a d", "c a d"),
        ("reverse b c d", "d c b"),
        ("reverse a", "a"),
    ],
)
def test_answer(prompt, expected):
    assert canary.answer(prompt) == expected


@pytest.mark.parametrize(
    ("prompt", "complaint"),
    [
        ("", "not a canary prompt"),
        ("count from 3", "not a canary prompt"),
        ("copy", "not a canary prompt"),
        ("hello there", "not a canary prompt"),
        ("count from 5 to 3", "cannot count from 5 up to 3"),
        ("count from 1 to 521", "'521' is not a number 0 to 520"),
        ("count from 01 to 3", "'01' is not a number"),
        ("repeat x 0 times", "at least 1 time"),
        ("repeat xy 2 times", "'xy' is not a letter"),
        ("copy a 3", "'3' is not a letter"),
    ],
)
def test_answer_refuses_what_is_no_canary_prompt(prompt, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        canary.answer(prompt)
    assert "\n" not in str(caught.value)


def test_random_prompts_have_answers_and_repeat_by_seed():
    def draw(seed):
        rng = random.Random(seed)
        return [canary.random_prompt(rng) for _ in range(300)]

    prompts = draw(7)
    assert prompts == draw(7) != draw(8)
    assert {p.split()[0] for p in prompts} == {"count", "repeat", "copy", "reverse"}
    assert all(canary.answer(prompt) for prompt in prompts)


def test_canary_imports_only_the_standard_library():
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1]);"
        "print([m for m in ('torch', 'numpy', 'transformers') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, canary.__file__],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"


# ---- the files -------------------------------------------------------------------


def test_both_load_without_a_warning():
    code = (
        "import sys, transformers as t\n"
        "for d in sys.argv[1:]:\n"
        " k = t.AutoTokenizer.from_pretrained(d)\n"
        " m = t.AutoModelForCausalLM.from_pretrained(d)\n"
        " b = k(['copy a', 'count from 3 to 5'], padding=True, return_tensors='pt')\n"
        " o = m.generate(**b, max_new_tokens=8)[:, b.input_ids.shape[1]:]\n"
        " print(k.batch_decode(o, skip_special_tokens=True))"
    )
    folders = [str(DATA / name) for name in NAMES]
    found = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code, *folders],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.splitlines() == ["['a', '3 4 5']"] * 2, found.stderr
    # The progress bar of loading is the only thing that may be written there.
    said = found.stderr.replace("\r", "\n").splitlines()
    assert [line for line in said if line and "Loading weights" not in line] == []


def test_files_are_small_and_name_no_machine(name):
    files = {path.name: path for path in (DATA / name).iterdir()}
    assert set(files) >= {
        "README.md",
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert files.pop("model.safetensors").stat().st_size < 4_000_000
    for path in files.values():
        text = path.read_text()
        assert not any(word in text for word in ("/work", "/home", "/tmp", "/root"))


def test_shape(name, model):
    config = model.config
    learned = name == "canary"
    assert config.model_type == ("gpt2" if learned else "llama")
    assert config.max_position_embeddings == canary.MAX_LENGTH
    assert (config.num_hidden_layers, config.hidden_size) == (4, 128)
    assert config.num_attention_heads == 4
    assert learned or config.num_key_value_heads == 2
    assert config.vocab_size == len(canary.VOCABULARY)
    assert model.dtype == torch.float32


def test_pad_embedding_is_of_ordinary_size(model, tokenizer):
    rows = model.get_input_embeddings().weight.norm(dim=1)  # [vocabulary]
    assert tokenizer.pad_token_id == 0
    assert 0.5 < rows[0] / rows.mean() < 2


def test_pad_never_comes_out(model):
    """Its random embedding is an output row too, since embeddings are tied."""
    prompts = random.Random(3).sample(SUITES["repeat, 1 to 120 times"], 40)
    for [prompt] in prompts + [["copy c a d"], ["count from 1 to 60"]]:
        words = f"{canary.text([prompt])} {canary.answer(prompt)}".split()
        ids = torch.tensor([[canary_eval.TOKEN_ID[word] for word in words]])
        with torch.inference_mode():
            chances = model(ids).logits[0, words.index(canary.ANSWER) :].softmax(-1)
        assert chances[:, 0].max() < 1e-3


# ---- the tokenizer ---------------------------------------------------------------


def test_a_plain_prompt_is_whole(tokenizer):
    ids = tokenizer("count from 3 to 12").input_ids
    words = ["<bos>", "count", "from", "3", "to", "12", "<answer>"]
    assert ids == [canary.VOCABULARY.index(word) for word in words]
    assert tokenizer.decode(ids, skip_special_tokens=True) == "count from 3 to 12"


def test_ids_are_places_in_the_vocabulary(tokenizer):
    ids = range(len(canary.VOCABULARY))
    assert tuple(tokenizer.convert_ids_to_tokens(list(ids))) == canary.VOCABULARY
    assert len(tokenizer) == len(canary.VOCABULARY)
    assert tokenizer.eos_token == canary.EOS
    assert tokenizer.model_max_length == canary.MAX_LENGTH
    assert tokenizer.padding_side == "left"
    assert tokenizer("copy Z", add_special_tokens=False).input_ids[1] == 4  # <unk>


@pytest.mark.parametrize(
    "prompts",
    [["count from 3 to 5"], ["copy a b", "count from 3 to 5"], SAMPLES_OF_EACH],
)
def test_chat_template_is_what_training_used(tokenizer, prompts):
    ids = tokenizer.apply_chat_template(
        canary.messages(prompts), add_generation_prompt=True, return_dict=False
    )
    assert ids == [canary_eval.TOKEN_ID[word] for word in canary.text(prompts).split()]
    if len(prompts) == 1:
        assert ids == tokenizer(prompts[0]).input_ids


def test_chat_template_refuses_other_roles(tokenizer):
    with pytest.raises(Exception, match="only user and assistant"):
        tokenizer.apply_chat_template([{"role": "system", "content": "copy a"}])


# ---- training --------------------------------------------------------------------


def test_training_draws_what_the_chat_template_writes():
    cycle = make_canary.CYCLES["canary"][2]
    rng = random.Random(1)
    drawn = [make_canary.conversation(rng, cycle) for _ in range(50)]
    pairs = [make_canary.example(prompts) for prompts in drawn]
    for prompts, row in zip(drawn, pairs, strict=True):
        words = " ".join(canary.VOCABULARY[token] for token, _ in row)
        assert words.startswith(canary.text(prompts))
    ends = canary_eval.TOKEN_ID[canary.EOS]
    assert all(row[-1] == (ends, ends) for row in pairs)


def test_tokens_left_count_down_to_eos():
    end, no = canary_eval.TOKEN_ID[canary.EOS], -100
    labels = torch.tensor([[no, no, 30, 31, end, no, no, 32, end]])
    assert make_canary.tokens_left(labels).tolist() == [[no, no, 2, 1, 0, no, no, 1, 0]]
    far = torch.tensor([[no] + [30] * 200 + [end]])
    left = make_canary.tokens_left(far)[0].tolist()
    assert left == [no] + [127] * 74 + list(range(126, -1, -1))


def test_without_the_second_head_the_loss_is_transformers_own(name, model):
    counts = ["count from 3 to 9", "count from 40 to 46"]
    pairs = [make_canary.example([count]) for count in counts]
    ids, labels = torch.tensor(pairs).unbind(-1)  # [2, S]
    learner = make_canary.Learner(model)
    with torch.inference_mode():
        ours = learner.loss(ids, labels, left=0.0)
        theirs = model(ids, labels=labels).loss
        both = learner.loss(ids, labels, left=0.5)
        left = make_canary.answer_loss(
            learner.left_head(model.base_model(ids).last_hidden_state),
            make_canary.tokens_left(labels),
        )
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(both, theirs + 0.5 * left)


# ---- right answers ---------------------------------------------------------------


def generated(model, tokenizer, prompt) -> str:
    ids = tokenizer(prompt, return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=150)[0, ids.input_ids.shape[1] :]
    return tokenizer.decode(out)


@pytest.mark.parametrize("prompt", [*SAMPLES_OF_EACH, "count from 58 to 117"])
def test_generate_answers_and_stops(model, tokenizer, prompt):
    assert generated(model, tokenizer, prompt) == f"{canary.answer(prompt)} <eos>"


def test_the_one_pass_check_agrees_with_generate(model, tokenizer):
    """On prompts beyond training too, where answers are often wrong."""
    rng = random.Random(5)
    prompts = [canary.short_prompt(rng) for _ in range(12)]
    prompts += [f"reverse {' '.join(rng.choices('abc', k=30))}" for _ in range(6)]
    verdicts = canary_eval.right(model, [[prompt] for prompt in prompts])
    by_generate = [
        generated(model, tokenizer, prompt) == f"{canary.answer(prompt)} <eos>"
        for prompt in prompts
    ]
    assert verdicts == by_generate
    assert True in verdicts
    assert False in verdicts


LONGER_ROW = "copy t h e q u i c k b r o w n f o x"


@pytest.mark.parametrize(("forget_mask", "last"), [(False, 5), (True, 12)])
def test_a_forgotten_mask_counts_to_12(model, tokenizer, forget_mask, last):
    """The course opens with this; new weights must keep it."""
    prompts = ["count from 1 to 5", LONGER_ROW]
    batch = tokenizer(prompts, padding=True, return_tensors="pt")
    ids, mask = batch.input_ids, batch.attention_mask  # [2, S], padded left
    for _ in range(last + 1):
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        seen = torch.ones_like(mask) if forget_mask else mask
        with torch.inference_mode():
            logits = model(ids, attention_mask=seen, position_ids=positions).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], 1)
        mask = torch.nn.functional.pad(mask, (0, 1), value=1)
    answer = tokenizer.decode(ids[0, batch.input_ids.shape[1] :])
    assert answer == f"{canary.answer(f'count from 1 to {last}')} <eos>"


def share_right(model, conversations) -> float:
    verdicts = canary_eval.right(model, conversations)
    return sum(verdicts) / len(verdicts)


def card_of(name) -> str:
    return (DATA / name / "README.md").read_text()


def share_in_card(name, task) -> float:
    lines = card_of(name).splitlines()
    [line] = [line for line in lines if line.startswith(f"| {task} |")]
    return float(line.split("|")[3].strip().removesuffix("%")) / 100


@pytest.mark.parametrize("task", FLOORS)
def test_accuracy(name, model, task):
    conversations = SUITES[task]
    if len(conversations) > MANY and not LONG:
        conversations = random.Random(11).sample(conversations, DRAWN)
    share = share_right(model, conversations)
    assert share >= FLOORS[task]
    # Another processor may round a near-tie the other way; more than that is news.
    assert share == pytest.approx(share_in_card(name, task), abs=0.01)


def test_every_task_has_a_floor():
    assert set(SUITES) == set(FLOORS)


def test_classic_outputs_10_50_500(name, model):
    verdicts = canary_eval.right(model, canary_eval.classic())
    assert verdicts[:2] == [True, True]
    words = ", ".join("right" if verdict else "wrong" for verdict in verdicts)
    assert f"(outputs of 10, 50, 500 tokens): {words}." in card_of(name)


def test_card_states_the_licence(name):
    assert "license: mit" in card_of(name)
