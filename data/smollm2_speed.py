"""SmolLM2 on this machine, in seconds: `python data/smollm2_speed.py TRACE` takes
about 6 minutes and wants the machine to itself.

TRACE is `azure-llm-2023-conv.csv` (Azure Public Dataset, CC-BY-4.0). 64 of its requests
are drawn, shortened to at most 128 tokens each way, and answered by this project's two
engines and by transformers' `generate` on padded batches: in turns, so that a slow
minute hits all alike. Then a pass is taken apart, and a weight times a few rows.
Writes `results/smollm2_speed.json`.
"""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from torch.nn import functional as F
from tqdm import tqdm

import nanoserve
from nanoserve import Request, SamplingParams, packing, padding, scorecard, traffic

RESULT = Path(__file__).parent / "results" / "smollm2_speed.json"
SLOTS, LENGTH, TURNS = 8, 256, 3
REQUESTS, LONGEST = 64, 128
HOW = {
    "what": f"{REQUESTS} requests drawn from the conversation trace, prompts and "
    f"answers shortened to 1 to {LONGEST} tokens, all waiting from the beginning, "
    f"{SLOTS} at a time; greedy; answers end at their lengths",
    "how": f"each way once with {SLOTS} requests as a warm-up, then {TURNS} times, in "
    "turns; medians. generate: batches in order of arrival, padded on the left, each "
    "run until its longest answer is done",
    "decode": "40 passes over prompts of 32 tokens, after 10",
    "own share": "all of a pass but the model, whose attention and KV cache belong to "
    "it",
    "linear": "all matrices of a pass times so many rows, as PyTorch multiplies and as "
    "nanoserve/packing.py does; medians of 9",
    "source": "Azure LLM inference trace 2023 (Azure Public Dataset), "
    "https://github.com/Azure/AzurePublicDataset, CC-BY-4.0",
    "script": "data/smollm2_speed.py",
}
Answers = list[list[int]]
Way = Callable[[list[Request]], tuple[Answers, int]]  # and how many passes it took


def main(trace: Path) -> None:
    lm = nanoserve.load("smollm2", device="cpu")
    result = {
        "conditions": {**HOW, **scorecard.conditions(lm)},
        "serving": serving(lm, requests(traffic.read_trace(trace))),
        "decode": {str(rows): anatomy(lm, rows) for rows in (1, 2, 4, 8, 16, 32)},
        "linear": linear(lm),
    }
    RESULT.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(RESULT.read_text("utf-8"))


def requests(trace: list[traffic.Arrival]) -> list[Request]:
    """Lengths as recorded, shortened; the tokens themselves are drawn."""
    ids = random.Random(1)
    return [
        Request(
            [ids.randrange(100, 40_000) for _ in range(shortened(prompt, 4142))],
            SamplingParams(max_tokens=shortened(output, 1000), ignore_eos=True),
        )
        for _, prompt, output in random.Random(7).sample(trace, REQUESTS)
    ]


def shortened(tokens: int, becomes_longest: int) -> int:
    return max(1, min(LONGEST, round(tokens * LONGEST / becomes_longest)))


# --- serving ---


def serving(lm: nanoserve.LanguageModel, asked: list[Request]) -> dict:
    ways = {
        "generate": by_transformers(),
        "static": by_engine(lm, nanoserve.StaticBatchEngine),
        "continuous": by_engine(lm, nanoserve.ContinuousBatchEngine),
    }
    for way in ways.values():
        way(asked[:SLOTS])
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    told = {}
    for name in tqdm(list(ways) * TURNS, desc="serving", unit="run"):
        began = time.perf_counter()
        told[name] = ways[name](asked)
        seconds[name].append(round(time.perf_counter() - began, 2))
    middle = {name: statistics.median(took) for name, took in seconds.items()}
    best, _ = told["continuous"]
    return {
        "prompt_tokens": sum(len(each.prompt_token_ids) for each in asked),
        "generated_tokens": sum(each.params.max_tokens for each in asked),
        "max_num_seqs": SLOTS,
        "ways": {
            name: {
                "passes": passes,
                "seconds": seconds[name],
                "median_seconds": middle[name],
                "median_over_continuous": round(middle[name] / middle["continuous"], 3),
                "answers_as_continuous": sum(map(list.__eq__, answers, best)),
            }
            for name, (answers, passes) in told.items()
        },
    }


def by_engine(lm: nanoserve.LanguageModel, kind: type) -> Way:
    def way(asked: list[Request]) -> tuple[Answers, int]:
        engine = kind(lm, SLOTS, LENGTH)
        served = nanoserve.serve(engine, asked).values()
        return [list(each.token_ids) for each in served], engine.trace.ledger().passes

    return way


def by_transformers() -> Way:
    folder = nanoserve.checkpoint.cache_dir() / "smollm2"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32
    ).eval()
    model.generation_config.eos_token_id = None

    def way(asked: list[Request]) -> tuple[Answers, int]:
        answers, passes = [], 0
        for start in range(0, len(asked), SLOTS):
            batch = asked[start : start + SLOTS]
            prompts = [list(each.prompt_token_ids) for each in batch]
            limits = [each.params.max_tokens for each in batch]
            ids, mask = padding.pad_batch(prompts, 0)
            out = model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=max(limits),
                pad_token_id=0,
            )[:, ids.shape[1] :].tolist()
            answers += [row[:limit] for row, limit in zip(out, limits, strict=True)]
            passes += max(limits)
        return answers, passes

    return way


# --- what a pass consists of ---


def anatomy(lm: nanoserve.LanguageModel, rows: int, passes: int = 40) -> dict:
    """Continuous passes in which ``rows`` answers get a token each: how long, and how
    much of it is not the model (its attention and its KV cache belong to it)."""
    engine = nanoserve.ContinuousBatchEngine(lm, rows, LENGTH)
    params = SamplingParams(max_tokens=passes + 20, ignore_eos=True)
    for number in range(rows):
        engine.add_request(Request([*range(100 + number, 132 + number)], params))
    for _ in range(10):
        engine.step()
    inside: list[float] = []
    model = lm.model
    forward, logits = model.forward, model.logits
    model.forward, model.logits = timed(forward, inside), timed(logits, inside)
    whole, own = [], []
    try:
        for _ in range(passes):
            inside.clear()
            began = time.perf_counter()
            engine.step()
            whole.append(time.perf_counter() - began)
            own.append(1 - sum(inside) / whole[-1])
    finally:
        model.forward, model.logits = forward, logits
    return {
        "median_ms": round(1000 * statistics.median(whole), 1),
        "median_own_share": round(statistics.median(own), 4),
        "largest_own_share": round(max(own), 4),
    }


def timed(function: Callable, times: list[float]) -> Callable:
    def timing(*arguments):
        began = time.perf_counter()
        result = function(*arguments)
        times.append(time.perf_counter() - began)
        return result

    return timing


# --- a weight times a few rows ---


def linear(lm: nanoserve.LanguageModel, turns: int = 9) -> dict:
    """All weights of a pass, as PyTorch multiplies them and packed (packing.py)."""
    packed = [
        each.weight
        for each in lm.model.modules()
        if isinstance(each, nanoserve.model.Linear)
    ]
    plain = [weight.to_dense() for weight in packed]
    result = {}
    for rows in (1, 4, 8, 16, 64):
        times: dict[str, list[float]] = {"plain": [], "packed": []}
        inputs = {width: torch.randn(rows, width) for width in (576, 1536)}
        for _ in range(turns):
            for name, weights in (("plain", plain), ("packed", packed)):
                multiply = F.linear if name == "plain" else packing.linear
                began = time.perf_counter()
                for weight in weights:
                    multiply(inputs[weight.shape[1]], weight)
                times[name].append(time.perf_counter() - began)
        middle = {name: statistics.median(took) for name, took in times.items()}
        result[str(rows)] = {
            **{f"{name}_ms": round(1000 * took, 1) for name, took in middle.items()},
            "plain_over_packed": round(middle["plain"] / middle["packed"], 2),
        }
    return result


if __name__ == "__main__":
    with torch.inference_mode():
        main(Path(sys.argv[1]))
