"""One decoder for five families: Llama, Mistral, Qwen2, Qwen3 and GPT-2.

The model sees *flat* tokens: ``ids[N]`` and ``positions[N]``, whatever rows, slots or
chunks they came from. Everything in it but attention treats each token alone, so all
N go through each matrix at once. Attention needs to know who sees whom; that is the
batch's business, and the model only asks ``batch.attend(layer, q, k, v)``.

The names of the shapes: N tokens, E hidden size, H heads, KVH key and value heads,
D head dimension, I intermediate size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import packing


class Batch(Protocol):
    """What stands between the model and padding, slots and caches."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Store k and v, [N, KVH, D]; return what q, [N, H, D], gathers: [N, H, D].

        RoPE is already in q and k. They are views: copy what is to be kept.
        The scale, 1 / sqrt(D), is applied here.
        """


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder, in this project's names."""

    family: str  # "llama", "mistral", "qwen2", "qwen3" or "gpt2"
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    max_length: int
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    tied_embeddings: bool = False
    # D / 2 angles a position, and what cos and sin are multiplied by (YaRN).
    # Empty for GPT-2, which learns an embedding for each position instead.
    rope_frequencies: tuple[float, ...] = ()
    rope_scale: float = 1.0

    @property
    def qkv_heads(self) -> tuple[int, int, int]:
        return self.num_heads, self.num_kv_heads, self.num_kv_heads


class Decoder(nn.Module):
    """A causal language model over flat tokens.

    ``forward`` gives hidden states and ``logits`` turns the few that matter into
    scores: a prefill of 1,000 tokens needs one row of the vocabulary, not 1,000.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(config.vocab_size, config.hidden_size)
        if config.rope_frequencies:
            self.rope = Rope(config)
        else:
            self.position_embedding = Embedding(config.max_length, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, i) for i in range(config.num_layers))
        self.norm = make_norm(config)
        if not config.tied_embeddings:
            self.head = Linear(config.hidden_size, config.vocab_size, bias=False)

    def tie(self) -> None:
        """Once the weights are in: a tied head multiplies by the embedding's."""
        if self.config.tied_embeddings:
            config = self.config
            # on "meta", where nothing is allocated for what is replaced at once
            with torch.device("meta"):
                self.head = Linear(config.hidden_size, config.vocab_size, bias=False)
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, positions: Tensor, batch: Batch) -> Tensor:
        """int64 [N] and int64 [N] to hidden states [N, E], after the final norm."""
        x = self.embedding(ids)  # [N, E]
        rotation = None
        if self.config.rope_frequencies:
            rotation = self.rope(positions, x.dtype)  # once for all layers
        else:
            x = x + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x, rotation, batch)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., E] to float32 [..., V], in whatever dtype the weights are."""
        return self.head(hidden).float()


class Block(nn.Module):
    """Attention, then an MLP, each on the normalised stream and added back to it."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = Attention(config, layer)
        self.mlp_norm = make_norm(config)
        self.mlp = GeluMLP(config) if config.family == "gpt2" else GatedMLP(config)

    def forward(self, x: Tensor, rotation: Rotation | None, batch: Batch) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, batch)
        return x + self.mlp(self.mlp_norm(x))


class Attention(nn.Module):
    """The parts of attention that treat each token alone; the batch does the rest."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.config, self.layer = config, layer
        D, E = config.head_dim, config.hidden_size
        # One matmul for q, k and v: at small N each one costs a trip over its weights
        # whatever N is, and three short trips are slower than a long one.
        self.qkv = Linear(E, sum(config.qkv_heads) * D, bias=config.qkv_bias)
        self.output = Linear(config.num_heads * D, E, bias=config.output_bias)
        if config.qk_norm:  # Qwen3: over each head, one weight for q's and one for k's
            shape = config.num_heads + config.num_kv_heads, D
            self.head_norm = RMSNorm(shape, config.norm_eps)

    def forward(self, x: Tensor, rotation: Rotation | None, batch: Batch) -> Tensor:
        H, KVH, _ = heads = self.config.qkv_heads
        qkv = self.qkv(x).unflatten(-1, (sum(heads), -1))  # [N, H + 2 KVH, D]
        # q and k stay side by side, [N, H + KVH, D]: both are normed and turned alike
        qk, v = qkv.split((H + KVH, KVH), dim=1)
        if self.config.qk_norm:
            qk = self.head_norm(qk)
        if rotation is not None:
            qk = rotate(qk, *rotation)
        q, k = qk.split((H, KVH), dim=1)  # [N, H, D], [N, KVH, D]
        gathered = batch.attend(self.layer, q, k, v)  # [N, H, D]
        return self.output(gathered.flatten(1))


class GatedMLP(nn.Module):
    """SwiGLU (Shazeer 2020): silu(gate) * up, then down. Gate and up are one matmul."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        E, I = config.hidden_size, config.intermediate_size  # noqa: E741
        self.gate_up = Linear(E, 2 * I, bias=config.mlp_bias)
        self.down = Linear(I, E, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)  # [N, I] each
        return self.down(F.silu(gate) * up)


class GeluMLP(nn.Module):
    """GPT-2's: up, the tanh form of GELU (transformers' "gelu_new"), down."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        E, I = config.hidden_size, config.intermediate_size  # noqa: E741
        self.up = Linear(E, I, bias=config.mlp_bias)
        self.down = Linear(I, E, bias=config.mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class RMSNorm(nn.Module):
    """x / rms(x) * weight, over the last dimension (Zhang and Sennrich 2019)."""

    def __init__(self, shape: tuple[int, ...], eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(shape))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Squares of bf16 lose too much, hence fp32; the weight multiplies after the
        # cast back, as in transformers, or bf16 logits drift away from theirs.
        normed = F.rms_norm(x.float(), x.shape[-1:], None, self.eps)
        return self.weight * normed.to(x.dtype)


def make_norm(config: ModelConfig) -> nn.Module:
    if config.family == "gpt2":
        return nn.LayerNorm(config.hidden_size, config.norm_eps)
    return RMSNorm((config.hidden_size,), config.norm_eps)


class Linear(nn.Linear):
    """nn.Linear, packed for the CPU, and not drawn at random: every weight comes out
    of a checkpoint.

    Drawing costs seconds on a large model. Even on the "meta" device, where nothing
    is drawn, PyTorch imports its compiler to find that out: 1.3 s of a load.
    """

    def reset_parameters(self) -> None:
        pass

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Linear:
        """What ``.to()``, ``.half()`` and the like do to each module: the one place
        in which weights are packed, for a packed one can be neither moved nor cast."""
        self.weight = packing.unpack(self.weight)
        super()._apply(fn, recurse)
        self.weight = packing.pack(self.weight)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return packing.linear(x, self.weight, self.bias)


class Embedding(nn.Embedding):
    """nn.Embedding, not drawn at random either."""

    def reset_parameters(self) -> None:
        pass


Rotation = tuple[Tensor, Tensor]  # cos and signed sin, [N, 1, D] each


class Rope(nn.Module):
    """Rotary positions (Su et al. 2021): a table of cos and sin for every position."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        # On the CPU even while the weights are laid out on the "meta" device, where a
        # table would have no values; fp32, for bf16 cannot tell position 257 from 256.
        with torch.device("cpu"):
            frequencies = torch.tensor(config.rope_frequencies, dtype=torch.float32)
            positions = torch.arange(config.max_length, dtype=torch.float32)
        angles = torch.outer(positions, frequencies)  # [max_length, D / 2]
        cos, sin = angles.cos() * config.rope_scale, angles.sin() * config.rope_scale
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, positions: Tensor, dtype: torch.dtype) -> Rotation:
        cos, sin = self.cos[positions].to(dtype), self.sin[positions].to(dtype)
        cos, sin = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)  # [N, D]
        return cos.unsqueeze(1), sin.unsqueeze(1)  # one angle for all heads of a token


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) of x, [N, heads, D], by its token's angle.

    transformers' ``rotate_half`` negates the half that comes first; here ``sin``
    already carries that sign, which saves a pass over x.
    """
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((second, first), dim=-1) * sin
