"""Where a model lies, and what is read there before its weights are."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import families, gguf_tokenizer, weights
from .errors import ModelNotFoundError, UnsupportedModelError, invalid
from .model import ModelConfig

CANARIES = ("canary", "canary-rope")
BUILT_IN = (*CANARIES, "smollm2")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]
# Other copies of the weights: Mistral's consolidated file, subfolders for ONNX
NOT_HUB_FILES = ["*/*", "consolidated*"]
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass
class Source:
    """A checkpoint that was found and can be run, its weights not yet read."""

    name: str
    config: ModelConfig
    said: dict[str, Any]  # config.json
    generation: dict[str, Any]  # generation_config.json
    tensors: Mapping[str, torch.Tensor]
    tokenizer: Any


def cache_dir() -> Path:
    """Where fetched models lie: NANOSERVE_CACHE, or the system's cache directory."""
    if chosen := os.environ.get("NANOSERVE_CACHE"):
        return Path(chosen).expanduser()
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    base = os.environ.get(variable)
    return (Path(base) if base else Path.home() / ".cache") / "nanoserve"


def find(name_or_path: str | os.PathLike[str]) -> Source:
    if not isinstance(name_or_path, str | os.PathLike) or not os.fspath(name_or_path):
        raise invalid("name_or_path", name_or_path, "must be a model's name or path")
    name, path = os.fspath(name_or_path), Path(name_or_path).expanduser()
    if name in BUILT_IN:
        return read_directory(built_in(name), name)
    if path.suffix == ".gguf" and path.is_file():
        return read_gguf(path)
    if path.is_dir():
        return read_directory(path, path.resolve().name)
    hub_id = re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", name)
    if isinstance(name_or_path, os.PathLike) or path.suffix == ".gguf" or not hub_id:
        raise ModelNotFoundError(f"{name}: no such directory or .gguf file")
    if path.exists():
        raise ModelNotFoundError(f"{name}: neither a directory nor a .gguf file")
    return read_directory(download(name), name)


def built_in(name: str) -> Path:
    """A built-in model's directory: in the package, the repository or the cache."""
    if name == "smollm2":
        path = cache_dir() / name
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(
                "smollm2 is not fetched yet: run `nanoserve fetch smollm2`"
            )
        return path
    package = Path(__file__).parent
    for data in (package / "data", package.parent / "data"):
        if (data / name / "config.json").is_file():
            return data / name
    raise ModelNotFoundError(f"{name}: not in {package.parent / 'data' / name}")


def read_directory(path: Path, name: str) -> Source:
    """A Hugging Face directory: config, safetensors, tokenizer."""
    if not (path / "config.json").is_file():
        raise ModelNotFoundError(f"{path}: no config.json, so not a model's directory")
    said = weights.read_json(path / "config.json")
    config = families.model_config(families.parse(said))  # refuses before all else
    generation = path / "generation_config.json"
    return Source(
        name=name,
        config=config,
        said=said,
        generation=weights.read_json(generation) if generation.is_file() else {},
        tensors=weights.SafetensorsFiles(path),
        tokenizer=read_tokenizer(path),
    )


def read_tokenizer(path: Path) -> Any:
    # Asked first, because transformers makes an empty tokenizer out of no files
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise ModelNotFoundError(f"{path}: no tokenizer: tokenizer.json is missing")
    # AutoTokenizer goes by the model's type, and gave a Qwen2 whose tokenizer.json was
    # not Qwen's the wrong one, silently. Where there is that file, it is the truth.
    if (path / "tokenizer.json").is_file():
        from transformers import PreTrainedTokenizerFast as Reader
    else:
        from transformers import AutoTokenizer as Reader
    try:
        return Reader.from_pretrained(path, local_files_only=True)
    except Exception as error:  # it raises whatever its many parsers raise
        raise ModelNotFoundError(
            f"{path}: the tokenizer cannot be read ({one_line(error)})"
        ) from error


def read_gguf(path: Path) -> Source:
    """A GGUF file through transformers, which gives its weights back in float32."""
    lacking = [p for p in ("gguf", "accelerate") if not importlib.util.find_spec(p)]
    if lacking:
        raise UnsupportedModelError(
            f"{path}: reading GGUF needs {' and '.join(lacking)}: "
            "pip install 'nanoserve[gguf]'"
        )
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    file = {"pretrained_model_name_or_path": path.parent, "gguf_file": path.name}
    try:
        theirs = AutoConfig.from_pretrained(**file)
        config = families.model_config(theirs)  # before minutes of unpacking
        tokenizer = gguf_tokenizer.read(path, config.max_length)
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(**file)
        model = AutoModelForCausalLM.from_pretrained(**file, dtype=torch.float32)
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise ModelNotFoundError(
            f"{path}: cannot be read as GGUF ({one_line(error)})"
        ) from error
    return Source(
        name=path.stem,
        config=config,
        said=theirs.to_dict(),
        generation=model.generation_config.to_dict(),
        tensors=dict(model.state_dict()),
        tokenizer=tokenizer,
    )


def download(name: str) -> Path:
    """Fetch a model of the hub; its config first, so that a refusal costs no wait.

    HF_ENDPOINT (a mirror) and HF_HUB_OFFLINE are honoured by huggingface_hub itself.
    """
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(name, allow_patterns=["config.json"]))
        if (path / "config.json").is_file():
            families.supported(families.parse(weights.read_json(path / "config.json")))
        everything = {"allow_patterns": HUB_FILES, "ignore_patterns": NOT_HUB_FILES}
        return Path(snapshot_download(name, **everything))
    except (UnsupportedModelError, ModelNotFoundError):
        raise
    except Exception as error:  # HTTP, DNS, disk, gated, offline, no such name
        raise ModelNotFoundError(
            f"{name}: not built in ({', '.join(BUILT_IN)}), no local path, and not to "
            "be had from the hub: check the name and the network, set HF_ENDPOINT to a "
            f"mirror, or give a local directory ({one_line(error)})"
        ) from error


def one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."
