"""Pad share on real traffic: `python data/pad_share.py FOLDER` writes a small JSON.

FOLDER holds the Azure LLM inference trace of November 2023 (Azure Public Dataset,
CC-BY-4.0): `azure-llm-2023-conv.csv` and `azure-llm-2023-code.csv`. The traces are not
part of this project; what is computed from them is, in `results/pad_share.json`.
"""

import json
import statistics
import sys
from pathlib import Path

from nanoserve import traffic

RESULT = Path(__file__).parent / "results" / "pad_share.json"
SIZES = (2, 4, 8, 16, 32, 64)
CONDITIONS = {
    "what": "pads / (pads + prompt tokens), by count, of static batches of B prompts",
    "how": "prompts in the order of their arrival, B at a time, each batch padded to "
    "its longest; a short last batch counts only its own prompts",
    "source": "Azure LLM inference trace 2023 (Azure Public Dataset), "
    "https://github.com/Azure/AzurePublicDataset",
    "licence": "CC-BY-4.0",
    "column": "ContextTokens: tokens of the prompt",
    "script": "data/pad_share.py",
}


def main(folder: Path) -> None:
    measured = {
        name: of_traffic(prompt_lengths(folder / f"azure-llm-2023-{name}.csv"))
        for name in ("conv", "code")
    }
    result = {"conditions": CONDITIONS, "traffic": measured}
    RESULT.write_text(json.dumps(result, indent=2) + "\n", "utf-8")


def prompt_lengths(path: Path) -> list[int]:
    return [each.prompt for each in traffic.read_trace(path)]


def of_traffic(lengths: list[int]) -> dict:
    mean = statistics.fmean(lengths)
    return {
        "prompts": len(lengths),
        "mean": round(mean, 1),
        "spread": round(statistics.pstdev(lengths) / mean, 2),  # deviation / mean
        "longest": max(lengths),
        "pad_share": {size: round(pad_share(lengths, size), 3) for size in SIZES},
    }


def pad_share(lengths: list[int], size: int) -> float:
    starts = range(0, len(lengths), size)
    batches = [lengths[start : start + size] for start in starts]
    return 1 - sum(lengths) / sum(len(batch) * max(batch) for batch in batches)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
