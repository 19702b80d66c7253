"""What seconds depend on. Without them they say nothing."""

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
    """In words: model, hardware, threads, versions, date. No machine is named."""
    weights = dict(lm.model.named_parameters())
    if lm.model.config.tied_embeddings:  # packed for the CPU, they are there twice
        weights.pop("head.weight", None)
    size = sum(each.numel() for each in weights.values())
    if lm.model.config.qk_norm:  # held once for each head, and one of each kind read
        heads, shared, _ = lm.model.config.qkv_heads
        norms = (heads + shared - 2) * lm.model.config.head_dim
        size -= lm.model.config.num_layers * norms
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
