"""load(): what it reads, what it refuses, and that a refusal is one clear line."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from test_model import ours, random_ids, theirs

from nanoserve import checkpoint, families, locate
from nanoserve.errors import (
    InvalidInputError,
    ModelNotFoundError,
    UnsupportedModelError,
)

WEIGHTS = "model.safetensors"
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
# family, what its config.json says, what the message must name
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "dynamic NTK": (
        "llama",
        {"rope_parameters": {**LINEAR, "rope_type": "dynamic"}},
        "rope_parameters.rope_type='dynamic'",
    ),
    "dynamic NTK, as older files say it": (
        "llama",
        {
            "rope_parameters": None,
            "rope_theta": 1e4,
            "rope_scaling": {"type": "dynamic", "factor": 2.0},
        },
        "rope_parameters.rope_type='dynamic'",
    ),
    "longrope": (
        "qwen2",
        {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64,
                "factor": 4.0,
            }
        },
        "rope_parameters.rope_type='longrope'",
    ),
    "unknown RoPE": (
        "llama",
        {"rope_parameters": {**LINEAR, "rope_type": "spiral"}},
        "rope_parameters.rope_type='spiral'",
    ),
    "RoPE by layer type": (
        "qwen3",
        {"rope_parameters": {"full_attention": LINEAR}},
        "rope_parameters={'full_attention'",
    ),
    "partial RoPE": (
        "llama",
        {"rope_parameters": {**LINEAR, "partial_rotary_factor": 0.5}},
        "rope_parameters.partial_rotary_factor=0.5",
    ),
    "multimodal RoPE": (
        "qwen2",
        {"rope_parameters": {**LINEAR, "mrope_section": [4, 2, 2]}},
        "rope_parameters.mrope_section=[4, 2, 2]",
    ),
    "active window": ("mistral", {"sliding_window": 255}, "sliding_window=255"),
    "active window by switch": (
        "qwen2",
        {
            "layer_types": None,
            "use_sliding_window": True,
            "sliding_window": 64,
            "max_window_layers": 1,
        },
        "sliding_window=64",
    ),
    "active window by layers": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 64,
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        "sliding_window=64",
    ),
    "window of no size": (
        "qwen3",
        {"layer_types": ["sliding_attention"] * 3},
        "layer_types=['sliding_attention'",
    ),
    "other layers": (
        "qwen2",
        {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
        "layer_types=['linear_attention']",
    ),
    "MoE": ("llama", {"model_type": "mixtral"}, "model_type='mixtral'"),
    "experts": ("qwen2", {"num_experts": 8}, "num_experts=8"),
    "another model": ("gpt2", {"model_type": "mamba"}, "model_type='mamba'"),
    "no model_type": ("gpt2", {"model_type": None}, "model_type=None"),
    "no head": (
        "llama",
        {"architectures": ["LlamaForSequenceClassification"]},
        "architectures=['LlamaForSequenceClassification']",
    ),
    "own code": (
        "llama",
        {"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}},
        "auto_map.AutoModelForCausalLM='modeling.Mine'",
    ),
    "quantized": (
        "llama",
        {"quantization_config": {"quant_method": "fp8"}},
        "quantization_config={'quant_method': 'fp8'}",
    ),
    "activation": ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
    "GPT-2 activation": (
        "gpt2",
        {"activation_function": "relu"},
        "activation_function='relu'",
    ),
    "GPT-2 scale": ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=False"),
    "GPT-2 layer scale": (
        "gpt2",
        {"scale_attn_by_inverse_layer_idx": True},
        "scale_attn_by_inverse_layer_idx=True",
    ),
    "GPT-2 reorder": (
        "gpt2",
        {"reorder_and_upcast_attn": True},
        "reorder_and_upcast_attn=True",
    ),
    "cross-attention": (
        "gpt2",
        {"add_cross_attention": True},
        "add_cross_attention=True",
    ),
    "soft cap": (
        "llama",
        {"final_logit_softcapping": 30.0},
        "final_logit_softcapping=30.0",
    ),
    "interleaved RoPE": ("llama", {"rope_interleaved": True}, "rope_interleaved=True"),
    "not causal": ("llama", {"is_causal": False}, "is_causal=False"),
    "heads": ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
    "odd heads": ("qwen2", {"hidden_size": 60}, "head_dim=15"),
}


@pytest.fixture(scope="module")
def templates(tmp_path_factory):
    """One directory for each family; copied, for tests write into theirs."""
    root = tmp_path_factory.mktemp("tiny")
    return {f: tiny.tiny_checkpoint(f, root / f) for f in tiny.FAMILIES}


@pytest.fixture
def fresh(templates, tmp_path):
    def copy(family: str = "llama") -> Path:
        return Path(shutil.copytree(templates[family], tmp_path / f"my-{family}"))

    return copy


def edit(path: Path, name: str = "config.json", **fields: Any) -> None:
    content = json.loads((path / name).read_text())
    (path / name).write_text(json.dumps({**content, **fields}))


def rewrite(path: Path, change) -> None:
    """Give the checkpoint's tensors to ``change``, a function of their dict."""
    tensors = load_file(path / WEIGHTS)
    change(tensors)
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})


def load(path, **options):
    return checkpoint.load(path, device="cpu", **options)


def refusal(kind: type[Exception], what, **options) -> str:
    with pytest.raises(kind) as caught:
        load(what, **options)
    assert isinstance(caught.value, ValueError)
    message = str(caught.value)
    assert "\n" not in message
    return message


def same_logits(path: Path, reference) -> None:
    ids = random_ids(30)
    got, wanted = ours(load(path), ids), theirs(reference, ids)
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


# What is read


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_what_a_language_model_carries(family, fresh):
    lm = load(str(fresh(family)))
    assert lm.name == f"my-{family}"
    assert lm.model.config.family == family
    assert (lm.device, lm.dtype) == (torch.device("cpu"), torch.float32)
    assert lm.eos_token_ids == frozenset({tiny.EOS})
    assert (lm.pad_token_id, lm.vocab_size) == (tiny.PAD, tiny.VOCAB_SIZE)
    assert lm.max_length == tiny.MAX_LENGTH
    assert lm.model.embedding.weight[tiny.PAD].abs().sum() > 0
    assert not lm.model.training
    assert not any(p.requires_grad for p in lm.model.parameters())


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_shards_are_read_like_one_file(family, tmp_path):
    model = tiny.tiny_transformer(family)
    model.save_pretrained(tmp_path, max_shard_size="40KB")
    tiny.tiny_tokenizer().save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    same_logits(tmp_path, model)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_names_without_their_prefix(family, fresh):
    """As a base model is saved (and as GPT-2 lies on the hub)."""
    path = fresh(family)

    def strip(tensors):
        for name in list(tensors):
            bare = name.removeprefix("model.").removeprefix("transformer.")
            tensors[bare] = tensors.pop(name)

    rewrite(path, strip)
    same_logits(path, tiny.tiny_transformer(family))


def test_old_buffers_among_the_weights_are_ignored(fresh):
    path = fresh("gpt2")
    rewrite(
        path,
        lambda t: t.update(
            {
                "transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8),
                "transformer.h.2.attn.masked_bias": torch.tensor(-1e4),
            }
        ),
    )
    same_logits(path, tiny.tiny_transformer("gpt2"))
    path = fresh("llama")
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    rewrite(path, lambda t: t.update({name: torch.ones(8)}))
    same_logits(path, tiny.tiny_transformer("llama"))


def test_a_tied_head_that_was_saved_all_the_same(tmp_path):
    model = tiny.tiny_transformer("llama", tie_word_embeddings=True)
    path = tiny.tiny_checkpoint("llama", tmp_path, tie_word_embeddings=True)
    embedding = model.get_input_embeddings().weight.detach()
    rewrite(path, lambda t: t.update({"lm_head.weight": embedding.clone()}))
    lm = load(path)
    assert lm.model.config.tied_embeddings
    same_logits(path, model)


def test_a_config_that_says_tied_beside_another_head(fresh):
    """transformers believes the weights; so do we."""
    path = fresh("llama")
    edit(path, tie_word_embeddings=True)
    assert not load(path).model.config.tied_embeddings
    same_logits(path, tiny.tiny_transformer("llama"))


def test_a_tied_embedding_saved_under_the_heads_name(tmp_path):
    path = tiny.tiny_checkpoint("llama", tmp_path, tie_word_embeddings=True)
    rewrite(
        path, lambda t: t.update({"lm_head.weight": t.pop("model.embed_tokens.weight")})
    )
    same_logits(path, tiny.tiny_transformer("llama", tie_word_embeddings=True))


def test_a_checkpoint_in_half_precision_is_widened_on_the_cpu(fresh):
    path = fresh("llama")
    rewrite(path, lambda t: t.update({n: w.bfloat16() for n, w in t.items()}))
    edit(path, dtype="bfloat16")
    assert load(path).dtype == torch.float32
    assert load(path, dtype="bfloat16").dtype == torch.bfloat16
    assert load(path, dtype=torch.float16).dtype == torch.float16


def test_the_default_dtype_on_an_accelerator(fresh):
    """Asked of the function, for there may be no accelerator here."""
    gpu, path = torch.device("cuda"), fresh("llama")
    cases: list[tuple[dict[str, Any], torch.dtype]] = [
        ({"dtype": "bfloat16"}, torch.bfloat16),
        ({"dtype": None, "torch_dtype": "float16"}, torch.float16),
        ({"dtype": None}, torch.float32),  # nothing said: the tensors' own
    ]
    for said, expected in cases:
        edit(path, **{"torch_dtype": None, **said})
        source = locate.find(path)
        assert checkpoint.default_dtype(source, gpu) == expected
        assert checkpoint.default_dtype(source, torch.device("cpu")) == torch.float32
    edit(path, dtype="bfloat16")
    source = locate.read_directory(path, "canary")
    assert checkpoint.default_dtype(source, gpu) == torch.float32


def test_eos_ids_come_from_all_three_places(fresh):
    path = fresh("llama")
    edit(path, eos_token_id=[5, 6])
    edit(path, "generation_config.json", eos_token_id=[6, 7, 8])
    assert load(path).eos_token_ids == frozenset({tiny.EOS, 5, 6, 7, 8})
    edit(path, "generation_config.json", eos_token_id=9)
    assert load(path).eos_token_ids == frozenset({tiny.EOS, 5, 6, 9})
    (path / "generation_config.json").unlink()
    edit(path, eos_token_id=None)
    assert load(path).eos_token_ids == frozenset({tiny.EOS})
    edit(path, "tokenizer_config.json", eos_token=None)
    assert load(path).eos_token_ids == frozenset()


@pytest.mark.parametrize(
    ("eos", "chosen"), [([9, 5], 2), ([70, 9], 2), (None, 2)], ids=str
)
def test_without_a_pad_token_one_is_chosen_and_said(eos, chosen, fresh):
    path = fresh("llama")
    edit(path, eos_token_id=eos)
    edit(path, "tokenizer_config.json", pad_token=None)
    with pytest.warns(UserWarning, match=f"no pad token; padding with {chosen}"):
        assert load(path).pad_token_id == chosen


def test_a_pad_outside_the_vocabulary_is_replaced(fresh):
    """Its embedding would be read all the same, masked or not: a crash."""
    path = fresh("llama")
    edit(path, "tokenizer_config.json", pad_token="<new>", eos_token=None)
    edit(path, "generation_config.json", eos_token_id=None)
    edit(path, eos_token_id=[99])
    with pytest.warns(UserWarning, match="pad token 64 outside .* padding with 0"):
        lm = load(path)
    assert lm.pad_token_id == 0


def test_a_pad_inside_the_vocabulary_is_not_warned_about(fresh, recwarn):
    load(fresh("llama"))
    assert not recwarn.list


def test_the_tokenizer_is_the_one_in_the_file(fresh):
    """AutoTokenizer gives this Qwen2 the class of its family, and an empty prompt."""
    assert load(fresh("qwen2")).encode("w4 w5 nonsense") == [4, 5, tiny.UNK]


# What is refused


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_run_exactly_is_refused(case, fresh):
    family, fields, named = REFUSED[case]
    path = fresh(family)
    edit(path, **fields)
    (path / WEIGHTS).write_bytes(b"")  # refused before a weight is read
    message = refusal(UnsupportedModelError, path)
    assert message.startswith(named), message


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_supported_takes_what_transformers_makes(family):
    config = tiny.tiny_transformer(family).config
    families.supported(config)
    config.quantization_config = {"quant_method": "gptq"}
    with pytest.raises(UnsupportedModelError, match="quantization_config="):
        checkpoint.supported(config)


def test_a_config_transformers_itself_refuses(fresh):
    path = fresh("llama")
    edit(path, hidden_size="wide")
    message = refusal(UnsupportedModelError, path)
    assert message.startswith("transformers refuses this llama config")
    assert "hidden_size" in message
    assert "wide" in message


BROKEN_TENSORS = {
    "missing": (
        "llama",
        lambda t: t.pop("model.layers.1.mlp.up_proj.weight"),
        "missing tensors for a llama checkpoint: layers.1.mlp.up_proj.weight",
    ),
    "missing bias": (
        "qwen2",
        lambda t: [t.pop(n) for n in list(t) if n.endswith("bias")],
        "missing tensors for a qwen2 checkpoint: layers.0.self_attn.k_proj.bias, "
        "layers.0.self_attn.q_proj.bias, layers.0.self_attn.v_proj.bias, "
        "layers.1.self_attn.k_proj.bias and 5 more",
    ),
    "missing head": (
        "llama",
        lambda t: t.pop("lm_head.weight"),
        "missing tensors for a llama checkpoint: lm_head.weight",
    ),
    "unexpected": (
        "mistral",
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}),
        "unexpected tensors for a mistral checkpoint: layers.0.self_attn.q_proj.bias",
    ),
    "one layer too many": (
        "gpt2",
        lambda t: t.update({"transformer.h.3.ln_1.weight": torch.ones(64)}),
        "unexpected tensors for a gpt2 checkpoint: h.3.ln_1.weight",
    ),
    "there twice": (
        "llama",
        lambda t: t.update({"norm.weight": torch.ones(64)}),
        "norm.weight: there twice",
    ),
    "shape": (
        "llama",
        lambda t: t.update({"model.embed_tokens.weight": torch.ones(63, 64)}),
        "embed_tokens.weight: shape [63, 64], and the config asks for [64, 64]",
    ),
    "fused parts of other shapes": (
        "llama",
        lambda t: t.update(
            {
                "model.layers.0.mlp.gate_proj.weight": torch.ones(95, 64),
                "model.layers.0.mlp.up_proj.weight": torch.ones(97, 64),
            }
        ),
        "layers.0.mlp.gate_proj.weight: shape [95, 64]",
    ),
    "broadcastable head norm": (
        "qwen3",
        lambda t: t.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(1)}),
        "layers.0.self_attn.q_norm.weight: shape [1]",
    ),
    "dtype": (
        "llama",
        lambda t: t.update(
            {"lm_head.weight": torch.ones(64, 64).to(torch.float8_e4m3fn)}
        ),
        "lm_head.weight: float8_e4m3fn is not a dtype read here",
    ),
}


@pytest.mark.parametrize("case", BROKEN_TENSORS)
def test_tensors_are_checked_to_the_last_one(case, fresh):
    family, change, said = BROKEN_TENSORS[case]
    path = fresh(family)
    rewrite(path, change)
    assert said in refusal(UnsupportedModelError, path)


# What is not there


def test_a_path_that_does_not_exist(tmp_path):
    for path in (tmp_path / "nothing", str(tmp_path / "nothing"), "./nothing", "a/b/c"):
        message = refusal(ModelNotFoundError, path)
        assert message.endswith("no such directory or .gguf file")
        assert str(path).removeprefix("./") in message


def test_a_file_that_is_no_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("notes").write_text("hello")
    assert "neither a directory nor" in refusal(ModelNotFoundError, "notes")


def test_a_directory_without_config(fresh):
    path = fresh()
    (path / "config.json").unlink()
    assert "no config.json" in refusal(ModelNotFoundError, path)


@pytest.mark.parametrize("content", ["{", "[1]", "\udcff"])
def test_a_config_that_is_no_json(content, fresh):
    path = fresh()
    (path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert "config.json" in refusal(ModelNotFoundError, path)


def test_a_directory_without_weights(fresh):
    path = fresh()
    (path / WEIGHTS).unlink()
    message = refusal(ModelNotFoundError, path)
    assert str(path) in message
    assert "no weights: only safetensors are read" in message
    (path / "pytorch_model.bin").write_bytes(b"")
    assert "pytorch_model.bin" in refusal(ModelNotFoundError, path)


def test_a_shard_that_is_missing(tmp_path):
    tiny.tiny_transformer("llama").save_pretrained(tmp_path, max_shard_size="40KB")
    tiny.tiny_tokenizer().save_pretrained(tmp_path)
    shard = sorted(tmp_path.glob("model-*.safetensors"))[1]
    shard.unlink()
    assert shard.name in refusal(ModelNotFoundError, tmp_path)


def test_weights_that_were_cut_short(fresh):
    path = fresh()
    whole = (path / WEIGHTS).read_bytes()
    (path / WEIGHTS).write_bytes(whole[: len(whole) // 2])
    assert "not a whole safetensors file" in refusal(ModelNotFoundError, path)


def test_a_directory_without_a_tokenizer(fresh):
    path = fresh()
    (path / "tokenizer.json").unlink()
    assert "no tokenizer" in refusal(ModelNotFoundError, path)
    (path / "tokenizer.json").write_text("{}")
    assert "tokenizer cannot be read" in refusal(ModelNotFoundError, path)


@pytest.mark.parametrize("name", ["", None, 3, ["canary"]])
def test_what_is_no_name_at_all(name):
    assert "name_or_path=" in refusal(InvalidInputError, name)


def test_smollm2_before_it_is_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
    message = refusal(ModelNotFoundError, "smollm2")
    assert message == "smollm2 is not fetched yet: run `nanoserve fetch smollm2`"


def test_smollm2_is_read_from_the_cache(templates, tmp_path, monkeypatch):
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
    shutil.copytree(templates["llama"], tmp_path / "smollm2")
    assert load("smollm2").name == "smollm2"


@pytest.mark.parametrize("inside", ["nanoserve/data", "data"])
def test_built_in_models_of_a_wheel_and_of_the_repository(
    inside, templates, tmp_path, monkeypatch
):
    monkeypatch.setattr(locate, "__file__", str(tmp_path / "nanoserve" / "locate.py"))
    assert "canary-rope" in refusal(ModelNotFoundError, "canary-rope")
    shutil.copytree(templates["llama"], tmp_path / inside / "canary-rope")
    lm = load("canary-rope")
    assert (lm.name, lm.dtype) == ("canary-rope", torch.float32)


def test_the_cache_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "mine"))
    assert checkpoint.cache_dir() == tmp_path / "mine"
    monkeypatch.delenv("NANOSERVE_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert checkpoint.cache_dir() == tmp_path / "xdg" / "nanoserve"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert checkpoint.cache_dir() == Path.home() / ".cache" / "nanoserve"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert checkpoint.cache_dir() == tmp_path / "local" / "nanoserve"


# Devices and dtypes


def test_devices_that_are_not_to_be_had(fresh):
    path = fresh()
    wrong: list[Any] = ["cuda:99", "abacus", "meta", 3.5]
    if not torch.cuda.is_available():
        wrong.append("cuda")
    for device in wrong:
        with pytest.raises(InvalidInputError, match="device=.*not to be had") as caught:
            checkpoint.load(path, device=device)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["float7", "int8", torch.int64, 16, "Tensor", ""])
def test_dtypes_that_are_refused(dtype, fresh):
    message = refusal(InvalidInputError, fresh(), dtype=dtype)
    assert message.startswith("dtype=")
    assert "float32, bfloat16 or float16" in message


# Prompts


def test_encode_takes_texts_and_ids():
    lm: Any = tiny.tiny_lm("llama")
    assert lm.encode("w4 w63 w5") == [4, 63, 5]
    assert lm.encode([0, 63]) == [0, 63]
    assert lm.encode((4, 5)) == [4, 5]
    assert lm.encode(torch.tensor([4, 5])) == [4, 5]
    assert all(type(token) is int for token in lm.encode(torch.tensor([4, 5])))


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("", "is empty"),
        ([], "is empty"),
        ("   ", "is empty"),
        ([4, -1], "prompt=-1: token ids are 0 to 63 here"),
        ([64], "prompt=64: token ids are 0 to 63 here"),
        ([4.0], "must be an integer"),
        ([True], "must be an integer"),
        (["w4"], "must be an integer"),
        ([[4, 5]], "must be an integer"),
        (None, "must be a"),
        (4, "must be a"),
        (b"w4", "must be a text"),
        ({4: 5}, "must be a text"),
        (torch.tensor([[4]]), "must be a text"),
        (torch.tensor(4), "must be a text"),
        ("\ud800", "prompt="),
    ],
    ids=str,
)
def test_encode_refuses(prompt, said):
    with pytest.raises(InvalidInputError, match="^prompt=") as caught:
        tiny.tiny_lm("llama").encode(prompt)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_ids_of_the_tokenizer_are_checked_too(fresh):
    """A tokenizer with more tokens than the model has embeddings."""
    path = fresh("llama")
    edit(path, "tokenizer_config.json", extra_special_tokens=["<beyond>"])
    lm = load(path)
    with pytest.raises(InvalidInputError, match="prompt=64"):
        lm.encode("w4 <beyond>")


def test_decode():
    lm: Any = tiny.tiny_lm("llama")
    assert lm.decode([tiny.BOS, 4, 5, tiny.EOS]) == "w4 w5"
    assert lm.decode([]) == ""
    assert lm.decode(torch.tensor([4])) == "w4"
    for ids in ([-1], [64], ["w4"], None):
        with pytest.raises(InvalidInputError, match="^ids="):
            lm.decode(ids)


# GGUF


@pytest.fixture
def gguf_file(tmp_path):
    """A tiny Llama written as llama.cpp's converter does, q and k rows permuted."""
    pytest.importorskip("accelerate")
    gguf = pytest.importorskip("gguf")
    model = tiny.tiny_transformer("llama")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 3)
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(tiny.MAX_LENGTH)
    writer.add_embedding_length(64)
    writer.add_block_count(3)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e4)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(tiny.VOCAB_SIZE)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*tiny.WORDS[:-2], "w", "4"])  # what the merge is made of
    writer.add_token_types([1] * tiny.VOCAB_SIZE)
    writer.add_token_merges(["w 4"])
    writer.add_bos_token_id(tiny.BOS)
    writer.add_eos_token_id(tiny.EOS)
    writer.add_pad_token_id(tiny.PAD)
    for name, weight in model.state_dict().items():
        heads = {"q_proj": 4, "k_proj": 2}.get(name.split(".")[-2])
        if heads:
            weight = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        short = names.get_name(name, try_suffixes=(".weight",))
        writer.add_tensor(short, weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, model


@pytest.mark.filterwarnings("ignore")
def test_a_gguf_is_the_model_it_was_made_from(gguf_file):
    path, model = gguf_file
    same_logits(path, model)
    lm = load(path)
    assert (lm.name, lm.max_length) == ("tiny", tiny.MAX_LENGTH)
    assert lm.eos_token_ids == frozenset({tiny.EOS})


def test_a_gguf_without_its_packages(tmp_path, monkeypatch):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: name != "gguf" and find_spec(name)
    )
    message = refusal(UnsupportedModelError, path)
    assert message.endswith("reading GGUF needs gguf: pip install 'nanoserve[gguf]'")


def test_a_gguf_that_is_none(tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path = tmp_path / "model.gguf"
    path.write_bytes(b"not a model")
    assert "cannot be read as GGUF" in refusal(ModelNotFoundError, path)
    assert "no such directory" in refusal(ModelNotFoundError, tmp_path / "no.gguf")


# The hub


class Hub(BaseHTTPRequestHandler):
    """As much of a model hub as huggingface_hub asks for, over one directory."""

    root: Path
    asked: list[str]
    SHA = "0123456789012345678901234567890123456789"

    def do_GET(self) -> None:
        self.asked.append(self.path)
        path = self.path.split("?")[0]
        files = sorted(self.root.iterdir())
        if path.startswith("/api/models/tiny/model/revision/"):
            siblings = [{"rfilename": p.name} for p in files]
            self.json({"id": "tiny/model", "sha": self.SHA, "siblings": siblings})
        elif path.startswith("/api/models/tiny/model/tree/"):
            about = {"type": "file", "oid": "0" * 40}
            sizes = [(p.name, p.stat().st_size) for p in files]
            self.json([{**about, "path": n, "size": size} for n, size in sizes])
        elif path.startswith("/tiny/model/resolve/"):
            self.reply((self.root / path.rsplit("/")[-1]).read_bytes(), "text/plain")
        else:
            self.send_error(404)

    do_HEAD = do_GET

    def json(self, content) -> None:
        self.reply(json.dumps(content).encode(), "application/json")

    def reply(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", f'"{abs(hash(body)):x}"')
        self.send_header("X-Repo-Commit", self.SHA)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def hub(fresh):
    path = fresh("llama")
    (path / "pytorch_model.bin").write_bytes(b"never asked for")
    handler = type("Handler", (Hub,), {"root": path, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield handler, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def load_elsewhere(name: str, cache: Path, **environment: str) -> str:
    """What load() says in a new process: huggingface_hub reads HF_* at import."""
    code = f"""
import nanoserve.checkpoint as c
try:
    lm = c.load({name!r}, device="cpu")
    print(lm.name, lm.encode("w4 w5"))
except ValueError as error:
    print(type(error).__name__, error)
"""
    names = ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH")
    kept = {name: os.environ[name] for name in names if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            **kept,
            "HF_HOME": str(cache),
            "HOME": str(cache),
            "PYTHONPATH": str(Path(checkpoint.__file__).parent.parent),
            "no_proxy": "127.0.0.1",
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_a_hub_id_through_a_mirror_and_then_offline(hub, tmp_path):
    handler, endpoint = hub
    cache = tmp_path / "hf"
    said = load_elsewhere("tiny/model", cache, HF_ENDPOINT=endpoint)
    assert said == "tiny/model [4, 5]"
    assert not any("pytorch_model.bin" in path for path in handler.asked)
    handler.asked.clear()
    offline = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "1"}
    assert load_elsewhere("tiny/model", cache, **offline) == "tiny/model [4, 5]"
    assert not handler.asked
    missing = load_elsewhere("tiny/other", cache, **offline)
    assert missing.startswith("ModelNotFoundError tiny/other: not built in (canary,")


@pytest.mark.slow
def test_a_hub_model_that_is_refused_before_its_weights(hub, tmp_path):
    handler, endpoint = hub
    edit(handler.root, hidden_act="gelu")
    said = load_elsewhere("tiny/model", tmp_path / "hf", HF_ENDPOINT=endpoint)
    assert said.startswith("UnsupportedModelError hidden_act='gelu'")
    assert not any(WEIGHTS in path for path in handler.asked)


def test_a_hub_id_that_is_not_to_be_had(monkeypatch):
    import huggingface_hub

    def fail(name, **options):
        raise OSError("a page\nof reasons")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(ModelNotFoundError) as caught:
        load("canery")
    message = str(caught.value)
    assert message.startswith("canery: not built in (canary, canary-rope, smollm2)")
    assert "HF_ENDPOINT" in message
    assert "\n" not in message
    assert "a page of reasons" in message
    assert isinstance(caught.value.__cause__, OSError)


def test_a_loaded_model_says_in_one_line_what_it_is():
    assert repr(load("canary")) == ("<LanguageModel canary: gpt2 on cpu, float32>")
