"""Packed weights give what PyTorch's own product gives, and nothing else changes."""

import copy
import pickle

import pytest
import tiny
import torch
from torch.nn import functional as F

from nanoserve import packing
from nanoserve.checkpoint import load
from nanoserve.generate import generate_batch, generate_one, next_token_logits


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def weight_of(*shape: int) -> torch.nn.Parameter:
    return torch.nn.Parameter(drawn(*shape), requires_grad=False)


can_pack = pytest.mark.skipif(
    not packing.pack(torch.nn.Parameter(torch.ones(512, 512))).is_mkldnn,
    reason="this processor or PyTorch has no packed product",
)


@can_pack
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 8, 9, 64, 300])
@pytest.mark.parametrize("shape", [(512, 576), (1000, 301)])
def test_the_product_is_that_of_pytorch(rows, shape):
    weight, bias, x = weight_of(*shape), drawn(shape[0]), drawn(rows, shape[1])
    packed = packing.pack(weight)
    assert packed.is_mkldnn and packed.shape == weight.shape
    for b in (None, bias):
        got, wanted = packing.linear(x, packed, b), F.linear(x, weight, b)
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-3)
        assert got.shape == wanted.shape


@can_pack
def test_a_view_and_more_dimensions_are_multiplied_as_they_are():
    weight = weight_of(512, 576)
    packed = packing.pack(weight)
    every_other = drawn(5, 1152)[:, ::2]
    column_major = drawn(576, 5).T
    deep = drawn(2, 3, 576)
    for x in (every_other, column_major, deep, deep[:, :0]):
        got = packing.linear(x, packed)
        torch.testing.assert_close(got, F.linear(x, weight), rtol=0, atol=1e-3)


@pytest.mark.parametrize(
    "weight",
    [drawn(16, 16), drawn(512, 512).bfloat16(), torch.empty(512, 512, device="meta")],
    ids=["small", "bfloat16", "not on the CPU"],
)
def test_what_gains_nothing_stays_as_it_is(weight):
    assert packing.pack(weight) is weight


def test_without_the_operators_weights_stay_as_they_are(monkeypatch):
    weight = weight_of(512, 512)

    def missing(*_):
        raise RuntimeError("no such operator")

    monkeypatch.setattr(packing, "linear", missing)
    assert packing.pack(weight) is weight
    monkeypatch.undo()
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert packing.pack(weight) is weight


@can_pack
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_packed_model_keeps_its_logits_and_law_1(family, tied, tmp_path, monkeypatch):
    reference = tiny.tiny_transformer(family, tie_word_embeddings=tied)
    reference.save_pretrained(tmp_path)
    tiny.tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(packing, "SMALLEST", 1)
    lm = load(tmp_path)
    assert all(each.weight.is_mkldnn for each in lm.model.modules() if is_linear(each))
    ids = torch.randint(4, tiny.VOCAB_SIZE, (1, 30))
    with torch.inference_mode():
        wanted = reference(ids).logits[0, -1]
    [got] = next_token_logits(lm, [ids[0].tolist()])
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    prompts = [[5, 9, 11], [7] * 20, [30, 31]]
    for prompt, row in zip(prompts, generate_batch(lm, prompts), strict=True):
        assert row.token_ids == generate_one(lm, prompt).token_ids


def is_linear(module) -> bool:
    return isinstance(module, torch.nn.Linear)


def test_a_packed_model_can_be_pickled_and_cast(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "SMALLEST", 1)
    lm = load(tiny.tiny_checkpoint("llama", tmp_path))
    told = generate_one(lm, [5, 9]).token_ids
    twin = pickle.loads(pickle.dumps(lm.model))
    assert all(each.weight.is_mkldnn for each in twin.modules() if is_linear(each))
    lm.model.double().float()  # as exact as before
    assert all(each.weight.is_mkldnn for each in lm.model.modules() if is_linear(each))
    assert generate_one(lm, [5, 9]).token_ids == told
    lm.model.bfloat16()
    assert lm.model.blocks[0].mlp.down.weight.dtype == torch.bfloat16
    lm.model = twin
    assert generate_one(lm, [5, 9]).token_ids == told


def test_a_packed_model_can_be_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "SMALLEST", 1)
    lm = load(tiny.tiny_checkpoint("llama", tmp_path))
    twin = copy.deepcopy(lm)
    assert generate_one(twin, [5, 9]).token_ids == generate_one(lm, [5, 9]).token_ids
