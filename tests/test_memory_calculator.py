"""The memory calculator without a browser: its sums by hand, its words, its limits."""

from __future__ import annotations

import base64
import json
import re
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import nanoserve
from nanoserve import InvalidInputError
from nanoserve.course.lessons import lesson_11

pytest.importorskip("anywidget")
from nanoserve.widgets import memory_calculator, memory_scene

WIDGETS = Path(memory_calculator.__file__).parent
SVG = "{http://www.w3.org/2000/svg}"
SCENE = "application/vnd.nanoserve.memory-calculator+json"


def calculator(*args: Any, **settings: Any) -> Any:
    return nanoserve.MemoryCalculator(*args, **settings)


def sums(*args: Any, **settings: Any) -> dict[str, int]:
    scene = calculator(*args, **settings).scene
    return memory_scene.sums(scene, scene["opens"])


# --- the sums ---


def test_it_opens_with_the_books_example():
    assert sums() == {
        "weights": 35_276_853_248,
        "token": 327_680,
        "sequence": 2_684_354_560,
        "used": 80_000_000_000,
        "left": 44_723_146_752,  # "about 45 GB"
        "fit": 16,
        "rest": 44_723_146_752 - 16 * 2_684_354_560,
        "gib": 85_899_345_920,
        "gib_fit": 18,
    }


@pytest.mark.parametrize(
    ("settings", "fit"),
    [
        ({"weights": "bf16"}, 0),  # 141 GB
        ({"weights": "bf16", "card": 192}, 18),  # (192 - 141.1) / 2.684
        ({"kv": "fp8"}, 33),  # 44.72 / 1.342
        ({"context": 4096}, 33),
        ({"gpu_memory_utilization": 0.9}, 13),  # (72 - 35.28) / 2.684
        ({"model": "Llama-3.1-70B", "context": 131_072}, 1),  # 44.72 / 42.95
        ({"model": "Llama-2-7B", "weights": "bf16", "context": 4096, "card": 24}, 4),
        ({"model": "Llama-3-8B", "weights": "fp32", "card": 24}, 0),
        ({"model": "SmolLM2-135M", "weights": "fp32", "context": 512}, 6736),
    ],
)
def test_sequences_counted_by_hand(settings, fit):
    assert sums(**settings)["fit"] == fit


@pytest.mark.parametrize("model", memory_scene.MODELS)
def test_every_model_opens_by_its_name_alone(model):
    opens = calculator(model).scene["opens"]
    assert opens["context"] == {"Llama-2-7B": 4096}.get(model, 8192)


def test_what_fits_exactly_fits_and_with_a_byte_less_it_does_not():
    scene = calculator().scene
    card = next(each for each in scene["cards"] if each["gb"] == 80)
    for room, fit in [(7 * 2_684_354_560, 7), (7 * 2_684_354_560 - 1, 6), (-1, 0)]:
        card["used"]["100"] = 35_276_853_248 + room
        assert memory_scene.sums(scene, scene["opens"])["fit"] == fit


@pytest.mark.parametrize("kv", memory_scene.KV)
@pytest.mark.parametrize("name", memory_scene.MODELS)
def test_a_token_is_what_the_lesson_computes(name, kv):
    config, size = memory_scene.MODELS[name], memory_scene.KV[kv]
    made = sums(name, kv=kv, context=1024)
    assert made["token"] == lesson_11.kv_bytes(config, 1, size)
    assert made["sequence"] == lesson_11.kv_bytes(config, 1024, size)


# vocabulary, hidden size, intermediate size, from the same files
WIDTHS = {
    "SmolLM2-135M": (49_152, 576, 1_536),
    "Llama-2-7B": (32_000, 4_096, 11_008),
    "Mistral-7B-v0.3": (32_768, 4_096, 14_336),
    "Llama-3-8B": (128_256, 4_096, 14_336),
    "Llama-3.1-8B": (128_256, 4_096, 14_336),
    "Qwen3-8B": (151_936, 4_096, 12_288),
    "Llama-3-70B": (128_256, 8_192, 28_672),
    "Llama-3.1-70B": (128_256, 8_192, 28_672),
}


@pytest.mark.parametrize("name", memory_scene.MODELS)
def test_parameters_are_those_of_the_shape(name):
    config, (vocabulary, hidden, inner) = memory_scene.MODELS[name], WIDTHS[name]
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    attention = 2 * hidden * (heads + kv) * config["head_dim"]
    norms = 2 * hidden + (2 * config["head_dim"] if name.startswith("Qwen3") else 0)
    layer = attention + 3 * hidden * inner + norms
    tables = 1 if name.startswith("SmolLM2") else 2  # tied: one for both ends
    total = config["num_hidden_layers"] * layer + tables * vocabulary * hidden + hidden
    assert config["parameters"] == total


def test_contexts_end_where_the_model_does():
    shown = {each["name"]: each["contexts"] for each in calculator().scene["models"]}
    assert shown["Llama-2-7B"] == [512, 1024, 2048, 4096]
    assert [shown[name][-1] for name in ("Llama-3-70B", "Llama-3.1-70B")] == [
        8192,
        131_072,
    ]


# --- what it refuses, in one line ---


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"model": "GPT-5"}, "model='GPT-5': must be one of SmolLM2-135M, Llama-2-7B"),
        ({"weights": "fp16"}, "weights='fp16': must be one of fp32, bf16, int8, int4"),
        ({"kv": ["bf16"]}, "kv=['bf16']: must be one of bf16, fp8"),
        ({"card": 32}, "card=32: must be one of 24, 40, 48, 80, 141, 192"),
        ({"context": 16_384}, "context=16384: must be one of 512, 1024, 2048, 4096, 8"),
        ({"context": 1000}, "context=1000: must be one of 512, 1024, 2048, 4096, 8192"),
        (
            {"gpu_memory_utilization": 90},
            "gpu_memory_utilization=90: must be one of 0.8, 0.85, 0.9, 0.95, 1.0",
        ),
        ({"gpu_memory_utilization": True}, "gpu_memory_utilization=True: must be one"),
    ],
)
def test_what_is_not_there_to_choose_is_one_line(settings, line):
    with pytest.raises(InvalidInputError) as caught:
        calculator(**settings)
    assert str(caught.value).startswith(line)
    assert "\n" not in str(caught.value)


def test_another_choice_is_drawn_and_a_bad_one_loses_nothing():
    made = calculator()
    made.show(weights="bf16", card=192)
    before = made.scene
    assert before["opens"]["card"] == 192
    with pytest.raises(InvalidInputError):
        made.show(card=1)
    assert made.scene == before


# --- what a notebook keeps ---


def bundle(**settings: Any) -> dict[str, Any]:
    return calculator(**settings)._repr_mimebundle_()[0]


def drawn(**settings: Any) -> tuple[list[str | None], dict[str, int]]:
    """The words of the still, and how many boxes each kind of filling has."""
    html = bundle(**settings)["text/html"]
    (code,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]*)">', html)
    picture = ElementTree.fromstring(base64.b64decode(code))
    words = [each.text for each in picture.iter(f"{SVG}text")]
    boxes = {
        f"{path.get('fill')} {path.get('fill-opacity')}": path.get("d", "").count("M")
        for path in picture.iter(f"{SVG}path")
    }
    return words, boxes


def test_the_text_tells_the_sums():
    assert bundle()["text/plain"] == (
        "Llama-3-70B in int4 on 80 GB: 44.7 GB are left for K and V. A sequence of "
        "8,192\n"
        "tokens in bf16 takes 2.68 GB, so 16 fit whole.\n"
        "\n"
        "one token     2 × 80 layers × 8 KV heads × 128 numbers × 2 bytes = 327,680\n"
        "one sequence  327,680 × 8,192 tokens = 2,684,354,560 bytes = 2.68 GB\n"
        "the weights   70,553,706,496 × 0.5 bytes = 35,276,853,248 bytes = 35.3 GB\n"
        "left for KV   100 % of 80 GB − the weights = 44,723,146,752 bytes = 44.7 GB\n"
        "sequences     44,723,146,752 ÷ 2,684,354,560, rounded down: 16\n"
        "\n"
        "weights: 35.3 GB\n"
        "K and V of 16 sequences: 42.9 GB\n"
        "left over, too little for one more: 1.77 GB\n"
        "\n"
        "GB is 10^9 bytes. If the 80 on the card are GiB (2^30 bytes), 85.9 GB can be\n"
        "used; sequences that fit then: 18.\n"
        "\n"
        "Not counted: activations, the runtime, and the scales of small weights. On a\n"
        "server they take a part of what is left here."
    )


def test_weights_that_do_not_fit_are_told_in_words():
    told = bundle(weights="bf16")["text/plain"]
    assert told.startswith(
        "Llama-3-70B in bf16 does not fit on 80 GB: its weights alone take 141 GB, "
        "and\n"
        "there are 80.0 GB to use. No sequence can be served."
    )
    assert "for which there is no room: 61.1 GB" in told
    assert "left for KV   100 % of 80 GB − the weights: less than nothing" in told
    assert not re.search(r"(^|[ (])[-−]\d", told)
    words, boxes = drawn(weights="bf16")
    assert "weights: 141 GB" in words
    assert boxes["#d55e00 .28"] == 2  # on the bar, in the legend


def test_the_still_draws_each_sequence_as_far_as_one_can_see_it():
    words, boxes = drawn()
    assert "K and V of 16 sequences: 42.9 GB" in words
    assert boxes["#0072b2 .62"] == 16 + 1
    _, boxes = drawn(model="Llama-3-8B")
    assert boxes["#0072b2 .62"] == 1 + 1  # 70 of them
    _, boxes = drawn(gpu_memory_utilization=0.9)
    assert boxes["#6b727b .28"] == 1 + 1  # not to be used
    words, _ = drawn(model="Llama-3.1-70B", context=131_072)
    assert "K and V of 1 sequence: 42.9 GB" in words


def test_no_state_is_wider_than_80_columns_and_the_bar_is_the_card():
    made = calculator()
    scene = made.scene
    for model, weights, card, share in product(
        scene["models"], memory_scene.WEIGHTS, scene["cards"], memory_scene.SHARES
    ):
        state = {"model": model["name"], "weights": weights, "kv": "bf16"}
        state |= {"context": model["contexts"][-1], "card": card["gb"], "share": share}
        told = made.text({**scene, "opens": state})
        assert max(map(len, told.splitlines())) <= 80
        parts = memory_calculator.told(scene, state)["parts"]
        whole = card["gb"] * 10**9
        if parts[-1][0] == "beyond":
            whole = model["weights"][weights]
        assert sum(count for _, count, _ in parts) == whole


def test_the_same_choices_leave_the_same_bytes():
    for kind in ("text/plain", "text/html", SCENE):
        assert json.dumps(bundle()[kind]) == json.dumps(bundle()[kind])
    data = bundle()
    assert json.loads(json.dumps(data[SCENE])) == data[SCENE]
    assert len(json.dumps(data[SCENE])) < 6_000
    assert not re.search(r"<(svg|style|script)|style=", data["text/html"])


def test_every_word_is_used():
    source = "".join(
        (WIDGETS / name).read_text("utf-8")
        for name in ("memory_calculator.py", "memory_calculator.js")
    )
    used = source[: source.index("WORDS = {")] + source[source.index("\nWEIGHTS_HUE") :]
    made = {f"{line}_is" for line in ("token", "sequence", "weights", "left", "fit")}
    made |= {f"part_{kind}" for kind in memory_calculator.STILL}
    for key in memory_calculator.WORDS.keys() - made:
        assert re.search(rf"""["'.]{key}\b""", used), key
