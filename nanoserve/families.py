"""From a transformers config to a ModelConfig, or a refusal that names the field.

A checkpoint that this decoder would run *almost* rightly is worse than one it does
not run: its answers are fluent and wrong. So whatever changes the arithmetic and is
not implemented is refused here, before a weight is read.
"""

from __future__ import annotations

from typing import Any

import torch

from .errors import UnsupportedModelError
from .model import ModelConfig

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gpt2")

# The types of RoPE whose frequencies do not depend on the length of the sequence.
# Those that do ("dynamic", "longrope") would make a request's tokens depend on its
# longest neighbour: Law 1 could not hold.
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "proportional")

# Fields that transformers or a vendor's own code give a meaning: the values that
# leave the plain decoder as it is, and what any other value would need.
PLAIN: dict[str, tuple[tuple[Any, ...], str]] = {
    "quantization_config": ((None,), "quantized weights are not read"),
    "num_experts": ((None, 0), "mixtures of experts are not implemented"),
    "num_local_experts": ((None, 0), "mixtures of experts are not implemented"),
    "n_routed_experts": ((None, 0), "mixtures of experts are not implemented"),
    "attn_logit_softcapping": ((None, 0), "soft-capped logits are not implemented"),
    "final_logit_softcapping": ((None, 0), "soft-capped logits are not implemented"),
    "logit_scale": ((None, 1), "scaled logits are not implemented"),
    "rope_interleaved": ((None, False), "only rotate_half RoPE is implemented"),
    "use_bidirectional_attention": ((None, False), "attention here is causal"),
    "is_causal": ((None, True), "attention here is causal"),
    "is_encoder_decoder": ((None, False), "only decoders are implemented"),
    "add_cross_attention": ((None, False), "cross-attention is not implemented"),
}
PLAIN_GPT2: dict[str, tuple[tuple[Any, ...], str]] = {
    "scale_attn_weights": ((True,), "attention here is scaled by 1/sqrt(head_dim)"),
    "scale_attn_by_inverse_layer_idx": ((False,), "the scale is the same each layer"),
    "reorder_and_upcast_attn": ((False,), "attention is not upcast"),
    "activation_function": (("gelu_new", "gelu_pytorch_tanh"), "not implemented"),
}


def refused(field: str, value: Any, reason: str) -> UnsupportedModelError:
    """Word a refusal the one way this package words it: field, value, reason."""
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return UnsupportedModelError(f"{field}={shown}: {reason}")


def parse(raw: dict[str, Any]) -> Any:
    """Turn the contents of a config.json into its transformers config object."""
    if raw.get("model_type") not in FAMILIES:
        reason = f"this decoder runs {', '.join(FAMILIES)} and nothing else"
        raise refused("model_type", raw.get("model_type"), reason)
    from transformers import CONFIG_MAPPING

    try:
        return CONFIG_MAPPING[raw["model_type"]].from_dict(raw)
    except Exception as error:  # strict validation has many kinds; all name the field
        reason = " ".join(str(error).split())
        raise UnsupportedModelError(
            f"transformers refuses this {raw['model_type']} config: {reason[:300]}"
        ) from error


def supported(config: Any) -> None:
    """Raise UnsupportedModelError unless the decoder runs this config exactly.

    ``config`` is a transformers config, as ``parse`` or AutoConfig make it.
    """
    if config.model_type not in FAMILIES:
        reason = f"this decoder runs {', '.join(FAMILIES)} and nothing else"
        raise refused("model_type", config.model_type, reason)
    _check_architecture(config)
    _check_plain(config, PLAIN)
    if config.model_type == "gpt2":
        _check_plain(config, PLAIN_GPT2)
        return
    _check_plain(config, {"hidden_act": (("silu", "swish"), "not implemented")})
    _check_heads(config)
    _check_rope(config)
    _check_window(config)


def model_config(config: Any) -> ModelConfig:
    """This project's description of a transformers config; refuses like ``supported``.

    ``tied_embeddings`` is the config's word; the weights have the last one.
    """
    supported(config)
    return _gpt2(config) if config.model_type == "gpt2" else _rope_family(config)


def _gpt2(config: Any) -> ModelConfig:
    return ModelConfig(
        family="gpt2",
        vocab_size=config.vocab_size,
        hidden_size=config.n_embd,
        num_layers=config.n_layer,
        num_heads=config.n_head,
        num_kv_heads=config.n_head,
        head_dim=config.n_embd // config.n_head,
        intermediate_size=config.n_inner or 4 * config.n_embd,
        norm_eps=config.layer_norm_epsilon,
        max_length=config.n_positions,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied_embeddings=config.tie_word_embeddings,
    )


def _rope_family(config: Any) -> ModelConfig:
    family = config.model_type
    # transformers reads attention_bias for these two alone; Qwen2 always has biases on
    # q, k and v and never on the output, Mistral has none.
    bias = family in ("llama", "qwen3") and config.attention_bias
    frequencies, scale = rope_frequencies(config)
    return ModelConfig(
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=head_dim(config),
        intermediate_size=config.intermediate_size,
        norm_eps=config.rms_norm_eps,
        max_length=config.max_position_embeddings,
        qkv_bias=bias or family == "qwen2",
        output_bias=bias,
        mlp_bias=family == "llama" and config.mlp_bias,
        qk_norm=family == "qwen3",
        tied_embeddings=config.tie_word_embeddings,
        rope_frequencies=frequencies,
        rope_scale=scale,
    )


def head_dim(config: Any) -> int:
    """Qwen3 and some Mistrals give it; elsewhere it is hidden size over heads."""
    given = getattr(config, "head_dim", None)
    return given or config.hidden_size // config.num_attention_heads


def rope_frequencies(config: Any) -> tuple[tuple[float, ...], float]:
    """D / 2 angles a position, and the factor for cos and sin, by transformers' own."""
    rope = config.rope_parameters
    if rope["rope_type"] == "default":
        D = head_dim(config)
        exponents = torch.arange(0, D, 2, dtype=torch.float) / D
        return tuple((1.0 / rope["rope_theta"] ** exponents).tolist()), 1.0
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    frequencies, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
    return tuple(frequencies.tolist()), float(scale)


def _check_plain(config: Any, plain: dict[str, tuple[tuple[Any, ...], str]]) -> None:
    for field, (values, reason) in plain.items():
        value = getattr(config, field, None)
        if value not in values:
            raise refused(field, value, reason)


def _check_architecture(config: Any) -> None:
    """A classifier or a vendor's variant may carry a family's model_type."""
    known = {f"{f}{end}" for f in FAMILIES for end in ("forcausallm", "model")}
    known.add("gpt2lmheadmodel")
    named = config.architectures or []
    if named and not any(name.lower() in known for name in named):
        raise refused("architectures", named, "not a plain causal language model")
    custom = (getattr(config, "auto_map", None) or {}).get("AutoModelForCausalLM")
    if custom:
        reason = "the checkpoint brings its own code, which is not run"
        raise refused("auto_map.AutoModelForCausalLM", custom, reason)


def _check_heads(config: Any) -> None:
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    if heads % shared:
        reason = f"must divide num_attention_heads={heads}"
        raise refused("num_key_value_heads", shared, reason)
    if head_dim(config) % 2:
        reason = "RoPE turns pairs, so it must be even"
        raise refused("head_dim", head_dim(config), reason)


def _check_rope(config: Any) -> None:
    rope = config.rope_parameters
    kind = rope.get("rope_type")
    if kind is None:
        raise refused("rope_parameters", rope, "one RoPE for all layers is implemented")
    if kind not in ROPE_TYPES:
        reason = f"its frequencies depend on length; {', '.join(ROPE_TYPES)} do not"
        if kind not in ("dynamic", "longrope"):
            reason = f"not among {', '.join(ROPE_TYPES)}"
        reason += " (older files call the field rope_scaling)"
        raise refused("rope_parameters.rope_type", kind, reason)
    part = rope.get("partial_rotary_factor")
    if part not in (None, 1) and kind != "proportional":
        raise refused(
            "rope_parameters.partial_rotary_factor", part, "RoPE here turns whole heads"
        )
    if rope.get("mrope_section"):
        reason = "multimodal RoPE is not implemented"
        raise refused("rope_parameters.mrope_section", rope["mrope_section"], reason)


def _check_window(config: Any) -> None:
    """Refuse a sliding window that some position of this model would reach past."""
    longest = config.max_position_embeddings
    window = getattr(config, "sliding_window", None)
    layers = getattr(config, "layer_types", None) or []
    odd = sorted(set(layers) - {"full_attention", "sliding_attention"})
    if odd:
        raise refused("layer_types", odd, "only full attention is implemented")
    if config.model_type == "mistral" or "sliding_attention" in layers:
        if window is not None and window >= longest:
            return
        if window is not None:
            reason = f"active, being below max_position_embeddings={longest}"
            raise refused("sliding_window", window, f"{reason}; not implemented")
    if "sliding_attention" in layers:
        raise refused("layer_types", layers, "sliding_attention is not implemented")
