"""What the memory calculator shows: models, cards and formats, and their bytes."""

from __future__ import annotations

from typing import Any

from ..continuous import kv_numbers
from ..request import one_of


def shape(layers: int, heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    """What decides over the bytes of K and V, by the names of a ``config.json``."""
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
    }


def model(parameters: int, context: int, *config: int) -> dict[str, int]:
    return {**shape(*config), "parameters": parameters, "context": context}


# Shapes and contexts as in each model's config.json on the Hugging Face Hub (Qwen3: the
# 32,768 tokens its model card calls native). The parameters follow from the same
# files, and a test adds them up.
MODELS = {
    "SmolLM2-135M": model(134_515_008, 8_192, 30, 9, 3, 64),
    "Llama-2-7B": model(6_738_415_616, 4_096, 32, 32, 32, 128),
    "Mistral-7B-v0.3": model(7_248_023_552, 32_768, 32, 32, 8, 128),
    "Llama-3-8B": model(8_030_261_248, 8_192, 32, 32, 8, 128),
    "Llama-3.1-8B": model(8_030_261_248, 131_072, 32, 32, 8, 128),
    "Qwen3-8B": model(8_190_735_360, 32_768, 36, 32, 8, 128),
    "Llama-3-70B": model(70_553_706_496, 8_192, 80, 64, 8, 128),
    "Llama-3.1-70B": model(70_553_706_496, 131_072, 80, 64, 8, 128),
}
WEIGHTS = {"fp32": 4, "bf16": 2, "int8": 1, "int4": 0.5}  # bytes of one weight
KV = {"bf16": 2, "fp8": 1}  # bytes of one number of K or V
CARDS = {  # GB, as they are sold, and examples
    24: "L4, RTX 4090",
    40: "A100 40GB",
    48: "L40S",
    80: "A100 80GB, H100",
    141: "H200",
    192: "MI300X",
}
SHARES = (80, 85, 90, 95, 100)  # percent: gpu_memory_utilization
SHORTEST, USUAL = 512, 8192  # tokens a sequence


def scene(
    model: str,
    weights: str,
    kv: str,
    context: int | None,
    card: int,
    gpu_memory_utilization: float,
) -> dict[str, Any]:
    """Everything there is to choose from, with its bytes, and what is chosen first.

    ``opens``    model, weights, kv, context, card, share (in percent)
    ``models``   of each its shape, parameters, the ``contexts`` it allows, bytes of
                 its ``weights`` and of one ``token`` by format
    ``formats``  bytes of one weight, of one number of K or V
    ``cards``    bytes to be ``used`` by share, with a GB of 10^9 bytes; ``gib`` is the
                 same with 2^30

    Raises ``InvalidInputError`` for what is not among them.
    """
    share = _share(gpu_memory_utilization)
    opens = {
        "model": one_of("model", model, MODELS),
        "weights": one_of("weights", weights, WEIGHTS),
        "kv": one_of("kv", kv, KV),
        "card": one_of("card", card, CARDS),
        "share": share,
    }
    allowed = contexts(MODELS[model]["context"])
    usual = min(USUAL, allowed[-1])
    opens["context"] = usual if context is None else one_of("context", context, allowed)
    return {
        "opens": opens,
        "models": [_model(name) for name in MODELS],
        "formats": {"weights": WEIGHTS, "kv": KV},
        "cards": [_card(gb, examples) for gb, examples in CARDS.items()],
    }


def contexts(most: int) -> list[int]:
    """Powers of two up to the longest sequence that a model was made for."""
    return [2**n for n in range(most.bit_length()) if SHORTEST <= 2**n <= most]


def _model(name: str) -> dict[str, Any]:
    config = MODELS[name]
    layers, heads = config["num_hidden_layers"], config["num_key_value_heads"]
    numbers = kv_numbers(layers, heads, config["head_dim"])
    return {
        "name": name,
        "layers": layers,
        "kv_heads": heads,
        "head_dim": config["head_dim"],
        "parameters": config["parameters"],
        "contexts": contexts(config["context"]),
        "weights": {
            each: int(config["parameters"] * size) for each, size in WEIGHTS.items()
        },
        "token": {each: numbers * size for each, size in KV.items()},
    }


def _card(gb: int, examples: str) -> dict[str, Any]:
    used, gib = (
        {str(share): gb * unit * share // 100 for share in SHARES}
        for unit in (10**9, 2**30)
    )
    return {"gb": gb, "examples": examples, "used": used, "gib": gib}


def _share(utilization: float) -> int:
    field, choices = "gpu_memory_utilization", [share / 100 for share in SHARES]
    return SHARES[choices.index(one_of(field, utilization, choices))]


# --- the arithmetic ---


def sums(scene: dict[str, Any], state: dict[str, Any]) -> dict[str, int]:
    """What the choices of ``state`` come to, in bytes; ``fit`` and ``gib_fit`` are
    whole sequences. ``left`` is below 0 where the weights do not fit. The calculator
    has these few lines in JavaScript too, and a test holds the two equal."""
    model, card = chosen(scene, state)
    weights = model["weights"][state["weights"]]
    token = model["token"][state["kv"]]
    used, gib = (card[unit][str(state["share"])] for unit in ("used", "gib"))
    sequence = token * state["context"]
    left = used - weights
    fit, gib_fit = (max(0, room // sequence) for room in (left, gib - weights))
    return {
        "weights": weights,
        "token": token,
        "sequence": sequence,
        "used": used,
        "left": left,
        "fit": fit,
        "rest": left - fit * sequence,
        "gib": gib,
        "gib_fit": gib_fit,
    }


def chosen(
    scene: dict[str, Any], state: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model and the card of a state."""
    model = next(each for each in scene["models"] if each["name"] == state["model"])
    card = next(each for each in scene["cards"] if each["gb"] == state["card"])
    return model, card
