"""The tokenizer inside a GGUF, where transformers would read it wrongly.

A GGUF holds vocabulary and merges, but of the rule that cuts a text before them only
the name. transformers' own conversion does not look at the name: SmolLM2 cuts every
digit off first, and "  12" would become four tokens, not the three it was trained on.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def read(path: Path, max_length: int) -> PreTrainedTokenizerFast | None:
    """The tokenizer of a GGUF of SmolLM2's kind; ``None`` for any other kind.

    ``max_length`` in tokens. Needs the package gguf.
    """
    from gguf import GGUFReader
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(path).fields

    def of(key: str) -> Any:
        field = fields.get(f"tokenizer.{key}")
        return None if field is None else field.contents()

    if (of("ggml.model"), of("ggml.pre")) != ("gpt2", "smollm"):
        return None
    words = of("ggml.tokens")
    return PreTrainedTokenizerFast(
        tokenizer_object=_smollm(words, of("ggml.merges"), of("ggml.token_type")),
        bos_token=words[of("ggml.bos_token_id")],
        eos_token=words[of("ggml.eos_token_id")],
        pad_token=words[of("ggml.padding_token_id")],
        unk_token=words[of("ggml.unknown_token_id")],
        chat_template=of("chat_template"),
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def _smollm(words: list[str], merges: list[str], kinds: list[int]) -> Any:
    from gguf import TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {word: place for place, word in enumerate(words)}
    halves = (merge.split(" ") for merge in merges)
    pairs = [(left, right) for left, right in halves]
    tokenizer = Tokenizer(models.BPE(vocabulary, pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # No post-processor: SmolLM2 puts no BOS in front, its chat template says all.
    tokenizer.add_special_tokens(
        [
            AddedToken(word, special=True, normalized=False)
            for word, kind in zip(words, kinds, strict=True)
            if kind == TokenType.CONTROL
        ]
    )
    return tokenizer
