"""Passes on real traffic: `python data/replay_traffic.py FOLDER` writes a small JSON.

FOLDER holds the Azure LLM inference trace of November 2023 (Azure Public Dataset,
CC-BY-4.0): `azure-llm-2023-conv.csv` and `azure-llm-2023-code.csv`. The traces are not
part of this project; what is computed from them is, in `results/replay_traffic.json`.
"""

import sys
from pathlib import Path

import written

from nanoserve import replay, traffic

RESULT = Path(__file__).parent / "results" / "replay_traffic.json"
SLOTS = (1, 2, 4, 8, 16, 32, 64)
WINDOW = 256
CONDITIONS = {
    "what": "passes and seats of static and of continuous batching, by count: no model "
    "runs, and nothing here is in seconds",
    "how": "all requests wait from the beginning, in the order of their arrival; every "
    "answer is as long as the recorded one; no token budget, no limit to memory; "
    f"`sorted`: by prompt or by output within each {WINDOW} requests",
    "source": "Azure LLM inference trace 2023 (Azure Public Dataset), "
    "https://github.com/Azure/AzurePublicDataset",
    "licence": "CC-BY-4.0",
    "script": "data/replay_traffic.py",
}


def main(folder: Path) -> None:
    measured = {
        name: of_trace(traffic.read_trace(folder / f"azure-llm-2023-{name}.csv"))
        for name in ("conv", "code")
    }
    result = {"conditions": CONDITIONS, "traffic": measured}
    RESULT.write_text(written.indented(result, "max_num_seqs"), "utf-8")


def of_trace(trace: list[traffic.Arrival]) -> dict:
    return {
        "requests": len(trace),
        "tokens": sum(each.output for each in trace),
        "arrival": rounded(replay.bills(trace, SLOTS)),
        "sorted": {
            order: rounded(replay.bills(replay.ordered(trace, order, WINDOW), [8, 32]))
            for order in ("prompt", "output")
        },
    }


def rounded(rows: list[dict]) -> list[dict]:
    return [
        {key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}
        for row in rows
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
