"""Engines side by side: the same traffic at several loads, in passes or in seconds."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from typing import TYPE_CHECKING

import torch

from . import __version__

if TYPE_CHECKING:
    from .checkpoint import LanguageModel


def conditions(lm: LanguageModel) -> dict[str, str]:
    """What seconds depend on, in words: without them they say nothing.

    Keys: model, hardware, threads, versions, date. No machine is named.
    """
    size = sum(each.numel() for each in lm.model.parameters())
    dtype = str(lm.dtype).removeprefix("torch.")
    versions = {
        "nanoserve": __version__,
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
        "Python": platform.python_version(),
    }
    return {
        "model": f"{lm.name}: {lm.model.config.family}, {size:,} parameters, {dtype}",
        "hardware": hardware(lm.device),
        "threads": str(torch.get_num_threads()),
        "versions": ", ".join(map(" ".join, versions.items())),
        "date": time.strftime("%Y-%m-%d"),
    }


def hardware(device: torch.device) -> str:
    """What ``device`` is, in words: "cpu: x86_64, AVX512, 2 cores"."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"{device.type}: {platform.machine()}, {kernels}, {os.cpu_count()} cores"
