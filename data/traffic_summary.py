"""Quantiles of real traffic: `python data/traffic_summary.py FOLDER` writes two JSONs.

FOLDER holds the Azure LLM inference trace of November 2023 (Azure Public Dataset,
CC-BY-4.0): `azure-llm-2023-conv.csv` and `azure-llm-2023-code.csv`. The traces are not
part of this project; what is computed from them is, in `traffic/`.
"""

import json
import re
import sys
from pathlib import Path

from nanoserve import traffic

NAMES = ("azure-llm-2023-conv", "azure-llm-2023-code")
ATTRIBUTION = {
    "what": "lengths of prompts and answers in tokens: mean, and [percent, tokens] by "
    "nearest rank; rows and their span in seconds",
    "source": "Azure LLM inference trace 2023 (Azure Public Dataset), "
    "https://github.com/Azure/AzurePublicDataset",
    "licence": "CC-BY-4.0",
    "changes": "summed up; no row of the trace is passed on",
    "script": "data/traffic_summary.py",
}


def main(folder: Path) -> None:
    for name in NAMES:
        trace = traffic.read_trace(folder / f"{name}.csv")
        stored = {"attribution": ATTRIBUTION, **traffic.summarise(trace)}
        path = Path(__file__).parent / "traffic" / f"{name}.json"
        path.write_text(written(stored), "utf-8")


def written(stored: dict) -> str:
    """Indented, but each [percent, tokens] on one line."""
    text = json.dumps(stored, indent=2)
    return re.sub(r"\[\s+([\d.]+),\s+(\d+)\s+\]", r"[\1, \2]", text) + "\n"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
