"""The recorded traffic of ../shared/data, which is not ours to pass on.

A test that takes it says so when it is not there, and is skipped.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from nanoserve import traffic

FOLDER = Path(
    os.environ.get("NANOSERVE_TRACES", Path(__file__).parents[2] / "shared" / "data")
)


def path(name: str) -> Path:
    """The CSV of the trace "code" or "conv"."""
    file = FOLDER / f"azure-llm-2023-{name}.csv"
    if not file.is_file():
        pytest.skip(f"no {file.name} (Azure Public Dataset): set NANOSERVE_TRACES")
    return file


@functools.cache
def trace(name: str) -> list[traffic.Arrival]:
    return traffic.read_trace(path(name))
