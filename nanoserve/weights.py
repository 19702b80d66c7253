"""From Hugging Face tensors to a Decoder: renamed, fused, checked to the last one.

The decoder's own parameters drive the reading. Each names the tensors it is made of;
one that is missing, left over or of another shape is an error, never a shrug.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .errors import ModelNotFoundError, UnsupportedModelError
from .model import Decoder, ModelConfig

# What each module of ours is made of, over there. Several names: rows one after the
# other, in this order.
ROPE_NAMES = {
    "embedding": ("embed_tokens",),
    "blocks": ("layers",),
    "norm": ("norm",),
    "head": ("lm_head",),
    "attention_norm": ("input_layernorm",),
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.output": ("self_attn.o_proj",),
    "attention.head_norm": ("self_attn.q_norm", "self_attn.k_norm"),
    "mlp_norm": ("post_attention_layernorm",),
    "mlp.gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down": ("mlp.down_proj",),
}
GPT2_NAMES = {
    "embedding": ("wte",),
    "position_embedding": ("wpe",),
    "blocks": ("h",),
    "norm": ("ln_f",),
    "head": ("lm_head",),
    "attention_norm": ("ln_1",),
    "attention.qkv": ("attn.c_attn",),
    "attention.output": ("attn.c_proj",),
    "mlp_norm": ("ln_2",),
    "mlp.up": ("mlp.c_fc",),
    "mlp.down": ("mlp.c_proj",),
}
# GPT-2's matrices are stored [in, out] (its Conv1D), all others [out, in].
CONV1D = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
# Constants that old versions saved among the weights: causal masks, RoPE frequencies.
IGNORED = re.compile(r"(h\.\d+\.attn\.(masked_)?bias|.*rotary_emb\.inv_freq)")
READABLE = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def build(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
) -> Decoder:
    """A Decoder of these tensors, in eval mode, in ``dtype`` and on ``device``.

    Raises UnsupportedModelError for a tensor that is missing, unexpected, of another
    shape or not of floating point.
    """
    named = unprefixed(tensors)
    config = resolve_tying(config, tensors, named)
    with torch.device("meta"):  # shapes alone: nothing is drawn, nothing is allocated
        decoder = Decoder(config)
    targets = decoder.state_dict()
    check_names(config, list(targets), named)
    state = {}
    for name, target in targets.items():
        parts = {source: tensors[named[source]] for source in sources(config, name)}
        state[name] = joined(config, name, target.shape, parts, device, dtype)
    decoder.load_state_dict(state, assign=True)
    state.clear()  # or every matrix that is packed would be held twice
    decoder.tie()
    # .to moves RoPE's table, and packs the matrices
    return decoder.requires_grad_(False).eval().to(device)


def sources(config: ModelConfig, name: str) -> list[str]:
    """The tensors that one parameter of ours is made of, without their prefix.

    "blocks.2.mlp.down.weight" is ["layers.2.mlp.down_proj.weight"].
    """
    table = GPT2_NAMES if config.family == "gpt2" else ROPE_NAMES
    module, _, kind = name.rpartition(".")
    if not module.startswith("blocks."):
        return [f"{theirs}.{kind}" for theirs in table[module]]
    _, layer, inner = module.split(".", 2)
    (blocks,) = table["blocks"]
    return [f"{blocks}.{layer}.{theirs}.{kind}" for theirs in table[inner]]


def unprefixed(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Name without "model." or "transformer." -> name in the file.

    A base model is saved without the prefix, a language model with it.
    """
    named: dict[str, str] = {}
    for name in tensors:
        short = name.removeprefix("transformer.").removeprefix("model.")
        if short in named:
            raise UnsupportedModelError(f"tensor {short}: there twice, also as {name}")
        named[short] = name
    return named


def resolve_tying(
    config: ModelConfig, tensors: Mapping[str, Tensor], named: dict[str, str]
) -> ModelConfig:
    """Let the weights have the last word on tied embeddings, as transformers does.

    A config that says "tied" beside a different lm_head is wrong: both are used.
    """
    table = GPT2_NAMES if config.family == "gpt2" else ROPE_NAMES
    embedding, head = f"{table['embedding'][0]}.weight", "lm_head.weight"
    if not config.tied_embeddings or head not in named:
        return config
    if embedding not in named:  # saved under the head's name alone
        named[embedding] = named.pop(head)
        return config
    if torch.equal(tensors[named[embedding]], tensors[named[head]]):
        del named[head]
        return config
    return replace(config, tied_embeddings=False)


def check_names(config: ModelConfig, ours: list[str], named: dict[str, str]) -> None:
    needed = {source for name in ours for source in sources(config, name)}
    given = {name for name in named if not IGNORED.fullmatch(name)}
    for what, names in (("missing", needed - given), ("unexpected", given - needed)):
        if names:
            first = ", ".join(sorted(names)[:4])
            more = f" and {len(names) - 4} more" if len(names) > 4 else ""
            raise UnsupportedModelError(
                f"{what} tensors for a {config.family} checkpoint: {first}{more}"
            )


def joined(
    config: ModelConfig,
    name: str,
    shape: torch.Size,
    parts: dict[str, Tensor],
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Copy the parts, row after row, into one new tensor: fused, cast and moved."""
    whole = torch.empty(shape, dtype=dtype, device=device)
    pieces = whole.split(row_counts(config, name, len(parts), shape[0]))
    for piece, (source, part) in zip(pieces, parts.items(), strict=True):
        if source.endswith(CONV1D):
            part = part.T
        if ".head_norm." in name and part.shape == shape[1:]:
            part = part.expand_as(piece)  # each head gets its own copy: [D] -> [H, D]
        check_tensor(source, part, piece)
        piece.copy_(part)
    return whole


def row_counts(config: ModelConfig, name: str, parts: int, rows: int) -> list[int]:
    """How many rows of a parameter come from each of the tensors it is made of."""
    if ".head_norm." in name:
        return [config.num_heads, config.num_kv_heads]
    if ".qkv." in name and parts == 3:  # GPT-2's are one tensor already
        return [heads * config.head_dim for heads in config.qkv_heads]
    return [rows // parts] * parts


def check_tensor(name: str, tensor: Tensor, expected: Tensor) -> None:
    if tensor.dtype not in READABLE:
        kind = str(tensor.dtype).removeprefix("torch.")
        raise UnsupportedModelError(f"tensor {name}: {kind} is not a dtype read here")
    if tensor.shape != expected.shape:
        raise UnsupportedModelError(
            f"tensor {name}: shape {list(tensor.shape)}, and the config asks for "
            f"{list(expected.shape)}"
        )


class SafetensorsFiles(Mapping[str, Tensor]):
    """The tensors of a directory by name, each read when it is asked for."""

    def __init__(self, directory: Path) -> None:
        from safetensors import SafetensorError, safe_open

        self.files: dict[str, Any] = {}
        for path in weight_files(directory):
            try:
                opened = safe_open(path, framework="pt")
            except (SafetensorError, OSError) as error:
                raise ModelNotFoundError(
                    f"{path}: not a whole safetensors file ({error})"
                ) from error
            self.files.update(dict.fromkeys(opened.keys(), opened))

    def __getitem__(self, name: str) -> Tensor:
        return self.files[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.files)

    def __len__(self) -> int:
        return len(self.files)


def weight_files(directory: Path) -> list[Path]:
    """model.safetensors, or the shards that model.safetensors.index.json names."""
    single = directory / "model.safetensors"
    index = directory / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        others = sorted(p.name for p in directory.glob("*.bin"))
        found = f"; {', '.join(others[:3])} cannot be read here" if others else ""
        raise ModelNotFoundError(
            f"{directory}: no weights: only safetensors are read "
            f"(model.safetensors, or shards with an index){found}"
        )
    shards = sorted(set(read_json(index).get("weight_map", {}).values()))
    missing = [name for name in shards if not (directory / name).is_file()]
    if missing or not shards:
        lacks = ", ".join(missing[:3]) or "any shard"
        raise ModelNotFoundError(f"{directory}: no weights: {index.name} lacks {lacks}")
    return [directory / name for name in shards]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or one clear line."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(content, dict):
        raise ModelNotFoundError(f"{path}: not a JSON object")
    return content
