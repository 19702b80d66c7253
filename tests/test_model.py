"""The decoder against transformers, family by family and RoPE by RoPE, in fp32.

The batches here are the tests' own, so that a bug in the package's cache or masks
cannot agree with itself.
"""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from torch.nn import functional as F

from nanoserve import checkpoint

LIMIT = 1e-4
ROPES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 5000.0},
    "linear": {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 10000.0,
    },
    "yarn with attention_factor": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attention_factor": 1.7,
        "rope_theta": 10000.0,
    },
    "proportional": {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.5,
        "factor": 2.0,
        "rope_theta": 10000.0,
    },
}
# Variants of a family that change its arithmetic or the tensors it is saved as
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, one kv head": ("llama", {"num_key_value_heads": 1}),
    "llama, all kv heads": ("llama", {"num_key_value_heads": 4}),
    "llama, wide heads": ("llama", {"head_dim": 32}),
    "llama, eps": ("llama", {"rms_norm_eps": 0.1}),
    "mistral, idle window": ("mistral", {"sliding_window": tiny.MAX_LENGTH}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, idle window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
    ),
    "qwen3, biases, tied": (
        "qwen3",
        {"attention_bias": True, "tie_word_embeddings": True},
    ),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False}),
    "gpt2, n_inner and eps": ("gpt2", {"n_inner": 80, "layer_norm_epsilon": 0.1}),
    "gpt2, gelu_pytorch_tanh": ("gpt2", {"activation_function": "gelu_pytorch_tanh"}),
}


class Rectangle:
    """A left-padded batch with a cache: B rows, all of one width, columns in order."""

    def __init__(self, mask: torch.Tensor) -> None:
        self.mask = mask  # bool [B, T], False at pads
        self.kv: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def attend(self, layer, q, k, v):
        B, T = self.mask.shape
        q, k, v = (x.unflatten(0, (B, -1)).transpose(1, 2) for x in (q, k, v))
        if layer in self.kv:
            k, v = (
                torch.cat(pair, 2) for pair in zip(self.kv[layer], (k, v), strict=True)
            )
        self.kv[layer] = k, v  # [B, KVH, T, D]
        keep = torch.ones(T, T, dtype=torch.bool).tril() & self.mask[:, None, None]
        keep = keep | torch.eye(T, dtype=torch.bool)  # a pad sees itself
        keep = keep[..., -q.shape[2] :, :]  # [B, 1, queries, T]
        out = F.scaled_dot_product_attention(q, k, v, keep, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)

    def positions(self, columns: int) -> torch.Tensor:
        counted = (self.mask.cumsum(-1) - 1).clamp(min=0)
        return counted[:, -columns:].flatten()

    def grow(self) -> None:
        self.mask = F.pad(self.mask, (0, 1), value=True)


def random_ids(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, tiny.VOCAB_SIZE, shape, generator=generator)


@torch.inference_mode()
def ours(lm, ids: torch.Tensor) -> torch.Tensor:
    """Logits [T, V] of one prompt, whole."""
    batch = Rectangle(torch.ones(1, len(ids), dtype=torch.bool))
    return lm.model.logits(lm.model(ids, torch.arange(len(ids)), batch))


@torch.inference_mode()
def theirs(model, ids: torch.Tensor) -> torch.Tensor:
    return model(ids[None]).logits[0]


def pair(family: str, directory, **overrides):
    """A checkpoint through load() and the same in transformers' own hands."""
    from transformers import AutoModelForCausalLM

    path = tiny.tiny_checkpoint(family, directory, **overrides)
    reference = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    return checkpoint.load(path, device="cpu"), reference.eval()


@pytest.fixture(scope="module")
def seen(request):
    """Largest logit difference by case, printed when the module is done."""
    largest: dict[str, float] = {}
    yield largest
    capture = request.config.pluginmanager.get_plugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print()
        for case, difference in largest.items():
            print(f"largest logit difference, {case}: {difference:.1e}")


def compare(seen, case: str, a: torch.Tensor, b: torch.Tensor) -> None:
    difference = (a - b).abs().max().item()
    seen[case] = max(difference, seen.get(case, 0.0))
    assert a.dtype == torch.float32
    assert difference < LIMIT, case


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_logits_match_transformers(family, tmp_path, seen):
    lm, reference = pair(family, tmp_path)
    for length in (1, 3, 24, tiny.MAX_LENGTH):
        ids = random_ids(length, seed=length)
        compare(seen, family, ours(lm, ids), theirs(reference, ids))


@pytest.mark.parametrize("case", VARIANTS)
def test_logits_match_in_every_variant(case, tmp_path, seen):
    family, overrides = VARIANTS[case]
    lm, reference = pair(family, tmp_path, **overrides)
    ids = random_ids(40)
    compare(seen, case, ours(lm, ids), theirs(reference, ids))


@pytest.mark.parametrize("rope", ROPES)
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_logits_match_for_every_rope(family, rope, tmp_path, seen):
    lm, reference = pair(family, tmp_path, rope_parameters=dict(ROPES[rope]))
    ids = random_ids(tiny.MAX_LENGTH)
    compare(seen, f"RoPE {rope}", ours(lm, ids), theirs(reference, ids))


def test_every_rope_differs_from_the_default():
    """Else the test above would pass with one frequency table for all."""
    from transformers import LlamaConfig

    from nanoserve import families

    tables = set()
    for rope in ROPES.values():
        fields = {**tiny.ROPE_SHAPE, "rope_parameters": dict(rope)}
        tables.add(families.rope_frequencies(LlamaConfig(**fields)))
    assert len(tables) == len(ROPES)


@pytest.mark.parametrize("family", tiny.FAMILIES)
@torch.inference_mode()
def test_a_padded_batch_decodes_like_each_row_alone(family, tmp_path, seen):
    """Left pads with random ids, a prefill, then six steps through the cache."""
    lm, reference = pair(family, tmp_path)
    lengths, steps = (24, 3, 1), 6
    rows = [random_ids(n + steps, seed=n) for n in lengths]
    width = max(lengths)
    ids = random_ids(len(rows), width, seed=99)  # what the pads hold must not matter
    mask = torch.zeros(len(rows), width, dtype=torch.bool)
    for row, n in enumerate(lengths):
        ids[row, width - n :] = rows[row][:n]
        mask[row, width - n :] = True
    batch = Rectangle(mask)
    hidden = lm.model(ids.flatten(), batch.positions(width), batch)
    last = [hidden.view(len(rows), width, -1)[:, -1]]
    for step in range(steps):
        batch.grow()
        column = torch.stack([r[n + step] for r, n in zip(rows, lengths, strict=True)])
        last.append(lm.model(column, batch.positions(1), batch))
    got = lm.model.logits(torch.stack(last, 1))  # [B, steps + 1, V]
    for row, n in enumerate(lengths):
        alone = theirs(reference, rows[row])[n - 1 :]
        compare(seen, f"{family}, padded and cached", got[row], alone)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_bfloat16_follows_transformers(family, tmp_path, seen):
    """No exact law in bf16, but the same casts: no farther off than bf16 itself is."""
    from transformers import AutoModelForCausalLM

    path = tiny.tiny_checkpoint(family, tmp_path)
    lm = checkpoint.load(path, device="cpu", dtype="bfloat16")
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    full = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    ids = random_ids(tiny.MAX_LENGTH)
    got, reference, exact = ours(lm, ids), theirs(model, ids).float(), theirs(full, ids)
    assert lm.dtype == torch.bfloat16
    assert got.dtype == torch.float32
    rounding = (reference - exact).abs().mean()
    seen[f"{family}, bf16 (mean)"] = (got - reference).abs().mean().item()
    assert (got - reference).abs().mean() < rounding


def test_flat_tokens_do_not_see_each_other_outside_attend():
    """Tokens of one pass in another order give the same rows in that order."""
    lm = tiny.tiny_lm("llama")

    class Nobody:
        def attend(self, layer, q, k, v):
            assert k.shape == v.shape == (5, 2, 16)
            return q

    ids, positions, order = (
        random_ids(5),
        torch.arange(5),
        torch.tensor([3, 0, 4, 2, 1]),
    )
    with torch.inference_mode():
        straight = lm.model(ids, positions, Nobody())
        shuffled = lm.model(ids[order], positions[order], Nobody())
    assert straight.shape == (5, 64)
    torch.testing.assert_close(straight[order], shuffled, rtol=0, atol=1e-5)


def test_rope_table_does_not_lose_positions_in_bfloat16():
    """cos and sin are made in fp32: 256 and 257 are one number in bf16."""
    rope = tiny.tiny_lm("llama").model.rope
    cos, sin = rope(torch.tensor([254, 255]), torch.bfloat16)
    assert cos.dtype == torch.bfloat16
    assert not torch.equal(cos[0], cos[1])
    assert rope.cos.dtype == torch.float32
