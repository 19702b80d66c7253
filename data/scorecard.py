"""The book's trace, in seconds: `python data/scorecard.py` takes about 10 minutes and
wants the machine to itself.

The chapter on static batching compares it with one request at a time, on Poisson
arrivals and a model of 5.8M parameters: throughput up, TTFT better at every load,
inter-token latency slightly worse. Here the same, and continuous batching beside it,
on a random Llama of that size and on SmolLM2, each at four loads. Writes
`results/scorecard.json`; `--model small` or `--model smollm2` does one and keeps what
is recorded of the other; `--quick` tries the small one with few requests and writes
nothing.
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path

import written

import nanoserve
from nanoserve import (
    ContinuousBatchEngine,
    LanguageModel,
    Scorecard,
    SequentialEngine,
    StaticBatchEngine,
    scorecard,
)

RESULT = Path(__file__).parent / "results" / "scorecard.json"
SLOTS, LENGTH, SEED = 8, 96 + 48, 7
LIMITS = 1.0, 0.1  # seconds: TTFT and TPOT, for the goodput
# requests a second, and how many
RUNS = {"small": ((4, 8, 32, 128), 128), "smollm2": ((0.5, 1, 2, 8), 40)}
QUICK = (32, 128), 16
HOW = {
    "what": "the trace of the book's chapter on static batching, served by each "
    "engine at several loads, by the clock; times are in seconds",
    "trace": "Poisson arrivals, prompts of 32 to 96 tokens, outputs of 16 to 48, both "
    f"uniform, seed {SEED}; at every load the same requests, only faster",
    "how": f"sequential: one request at a time; static and continuous: {SLOTS} slots; "
    "a request is added when it is due, and waits from then on; prompts are random "
    "ids, no answer ends before its limit; each engine fills its seats once before",
    "small": "a Llama of the size of the book's model, its weights random",
    "script": "data/scorecard.py",
}
SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=[*RUNS, "all"], default="all")
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    if chosen.quick:
        print(measure("small", *QUICK))
        return
    for name in RUNS if chosen.model == "all" else [chosen.model]:
        card = measure(name, *RUNS[name])
        print(card)
        record(name, card)


def measure(name: str, loads: tuple[float, ...], count: int) -> Scorecard:
    lm = small() if name == "small" else nanoserve.load(name, device="cpu")
    engines = {
        "sequential": partial(SequentialEngine, lm, LENGTH),
        "static": partial(StaticBatchEngine, lm, SLOTS, LENGTH),
        "continuous": partial(ContinuousBatchEngine, lm, SLOTS, LENGTH),
    }
    trace = partial(scorecard.book_trace, count=count, seed=SEED)
    return scorecard.in_seconds(engines, trace, loads, LIMITS, progress=True)


def small() -> LanguageModel:
    """A Llama of 5.8M parameters, made on the spot."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "small"
        LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(path)
        tokenizer().save_pretrained(path)
        return nanoserve.load(path, device="cpu")


def tokenizer():
    """A word an id. Nobody reads the answers."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocab = {f"w{token}": token for token in range(SHAPE["vocab_size"])}
    words = Tokenizer(models.WordLevel(vocab, unk_token="w0"))
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="w0", bos_token="w1", eos_token="w2"
    )


def record(name: str, card: Scorecard) -> None:
    models = json.loads(RESULT.read_text("utf-8"))["models"] if RESULT.exists() else {}
    result = {"conditions": HOW, "models": {**models, name: rounded(card.to_dict())}}
    RESULT.write_text(written.indented(result, "mean"), "utf-8")


def rounded(value):
    """To the microsecond."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
