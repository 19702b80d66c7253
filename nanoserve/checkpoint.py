"""``load()``: a model and its tokenizer, from wherever they lie."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from . import locate, request, weights
from .errors import invalid
from .families import supported
from .locate import Source, cache_dir
from .model import Decoder

__all__ = ["LanguageModel", "cache_dir", "load", "supported"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass
class LanguageModel:
    """A decoder, its tokenizer, and the ids that begin and end things."""

    model: Decoder
    tokenizer: Any
    name: str
    eos_token_ids: frozenset[int]
    pad_token_id: int

    def __repr__(self) -> str:
        family, dtype = self.model.config.family, str(self.dtype).split(".")[-1]
        return f"<LanguageModel {self.name}: {family} on {self.device}, {dtype}>"

    @property
    def device(self) -> torch.device:
        return self.model.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.embedding.weight.dtype

    @property
    def max_length(self) -> int:
        """Positions the model has: prompt and answer together."""
        return self.model.config.max_length

    @property
    def vocab_size(self) -> int:
        return self.model.config.vocab_size

    def encode(self, prompt: str | list[int]) -> list[int]:
        """Token ids of a prompt: checked, never empty, all inside the vocabulary.

        A text becomes ``tokenizer(prompt).input_ids``: its post-processor adds what
        the model needs. Raises InvalidInputError.
        """
        asked: Any = prompt
        if isinstance(prompt, str):
            asked = self.tokenized(prompt) if prompt else []
        ids = self.checked_ids("prompt", asked)
        if not ids:
            raise invalid("prompt", prompt, "is empty: it needs one token")
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids, without special tokens."""
        checked = self.checked_ids("ids", ids)
        return self.tokenizer.decode(checked, skip_special_tokens=True)

    def tokenized(self, text: str) -> list[int]:
        try:
            return list(self.tokenizer(text).input_ids)
        except Exception as error:  # half a surrogate pair out of a client's JSON
            raise invalid("prompt", text, "is no text the tokenizer reads") from error

    def checked_ids(self, field: str, ids: Any) -> list[int]:
        # bytes and dicts are iterables of integers too, and a mistake here
        if isinstance(ids, bytes | Mapping) or getattr(ids, "ndim", 1) != 1:
            raise invalid(field, ids, "must be a text or a list of token ids")
        checked = request.token_ids(field, ids)
        for token in checked:
            if not 0 <= token < self.vocab_size:
                limit = f"token ids are 0 to {self.vocab_size - 1} here"
                raise invalid(field, token, limit)
        return checked


def load(
    name_or_path: str | os.PathLike[str] = "canary",
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> LanguageModel:
    """Load a model: "canary", "canary-rope", "smollm2", a directory, a .gguf, a hub id.

    ``device``  by default cuda, else mps, else cpu
    ``dtype``   by default the checkpoint's own on an accelerator; float32 on the CPU,
                and for the canaries everywhere

    Raises ModelNotFoundError when there is no such model or it has no weights,
    UnsupportedModelError when this decoder would not run it exactly (it names the
    config field), InvalidInputError for a device or dtype that is not to be had.
    All are ValueErrors.
    """
    place = pick_device(device)
    wanted = pick_dtype(dtype)
    source = locate.find(name_or_path)
    if wanted is None:
        wanted = default_dtype(source, place)
    model = weights.build(source.config, source.tensors, place, wanted)
    eos = eos_token_ids(source)
    pad = pad_token_id(source, eos)
    return LanguageModel(model, source.tokenizer, source.name, eos, pad)


def pick_device(device: str | torch.device | None) -> torch.device:
    if device is None:
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen).item()  # finds "cuda:7" and a broken driver too
    except Exception as error:
        limit = "not to be had on this machine; leave it unset, or say 'cpu'"
        raise invalid("device", str(device), limit) from error
    return chosen


def pick_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is None or found in DTYPES:
        return found
    raise invalid("dtype", dtype, "must be float32, bfloat16 or float16")


def default_dtype(source: Source, device: torch.device) -> torch.dtype:
    if device.type == "cpu" or source.name in locate.CANARIES:
        return torch.float32
    said = source.said.get("dtype") or source.said.get("torch_dtype")
    own = getattr(torch, str(said).removeprefix("torch."), None)
    if own is None:  # the config does not say: ask a tensor
        own = next(iter(source.tensors.values())).dtype
    return own if own in DTYPES else torch.float32


def eos_token_ids(source: Source) -> frozenset[int]:
    """Every id that ends an answer, from all three places that may name one.

    Chat models often have more than one, and generation_config.json alone lists all.
    """
    found: set[int | None] = set()
    for said in (
        source.said.get("eos_token_id"),
        source.generation.get("eos_token_id"),
        source.tokenizer.eos_token_id,
    ):
        found.update(said if isinstance(said, list) else [said])
    return frozenset(token for token in found if token is not None)


def pad_token_id(source: Source, eos: frozenset[int]) -> int:
    """The tokenizer's pad; else one inside the vocabulary: it will be embedded."""
    vocab_size, pad = source.config.vocab_size, source.tokenizer.pad_token_id
    if pad is not None and 0 <= pad < vocab_size:
        return pad
    chosen = min((token for token in eos if 0 <= token < vocab_size), default=0)
    had = "no pad token" if pad is None else f"pad token {pad} outside the vocabulary"
    warnings.warn(f"{source.name}: {had}; padding with {chosen}", stacklevel=3)
    return chosen
