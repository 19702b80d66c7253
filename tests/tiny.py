"""Tiny random models for the tests: every family in a few milliseconds of arithmetic.

``tiny_checkpoint`` writes a Hugging Face directory (safetensors and tokenizer), and
``tiny_lm`` loads one. Their weights are drawn wide: logits reach about 6, biases are
not zero, norm weights are not one and the pad token's embedding is not zero, so that
a wrong mask, position or forgotten bias changes the answer instead of hiding in it.
"""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from nanoserve.checkpoint import LanguageModel

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2")
PAD, BOS, EOS, UNK = range(4)
VOCAB_SIZE = 64
MAX_LENGTH = 256
WORDS = ["<pad>", "<bos>", "<eos>", "<unk>"] + [f"w{i}" for i in range(4, VOCAB_SIZE)]

ROPE_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,  # NaN from a bad mask needs two layers to reach a real row
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LENGTH,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": ROPE_SHAPE,
    "mistral": {**ROPE_SHAPE, "sliding_window": None},
    "qwen2": ROPE_SHAPE,
    "qwen3": {**ROPE_SHAPE, "head_dim": 24},  # not hidden_size / heads
    "gpt2": {
        "vocab_size": VOCAB_SIZE,
        "n_embd": 64,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": MAX_LENGTH,
    },
}


def tiny_checkpoint(
    family: str, directory: str | Path, seed: int = 0, **overrides: Any
) -> Path:
    """Save a random model of ``family`` with its tokenizer; return the directory.

    ``overrides`` are fields of its transformers config, by their names there.
    """
    path = Path(directory)
    tiny_transformer(family, seed, **overrides).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


@functools.cache
def tiny_lm(family: str) -> LanguageModel:
    """The loaded tiny model of ``family``, one for each process: do not change it."""
    from nanoserve import checkpoint

    with tempfile.TemporaryDirectory() as directory:
        path = tiny_checkpoint(family, Path(directory) / f"tiny-{family}")
        return checkpoint.load(path, device="cpu")


def tiny_transformer(family: str, seed: int = 0, **overrides: Any) -> Any:
    """The transformers model itself: fp32, in eval mode."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    special = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    fields = {**SHAPES[family], **special, **overrides}
    config = CONFIG_MAPPING[family](**fields)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomize(model, torch.Generator().manual_seed(seed))
    return model


@torch.no_grad()
def randomize(model: torch.nn.Module, generator: torch.Generator) -> None:
    """Redraw every weight; transformers would leave biases 0, norms 1 and pads 0."""
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.dim() == 1:
            weight.copy_(0.2 * noise + (0.0 if name.endswith("bias") else 1.0))
        else:
            weight.copy_(0.2 * noise)


def tiny_tokenizer() -> Any:
    """One token a word: "w4 w5" is [4, 5], and nothing is added."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {word: token for token, word in enumerate(WORDS)}
    words = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
    )
