"""nanoserve: batched LLM serving, small enough to read in an evening.

>>> import nanoserve
>>> lm = nanoserve.load("canary")
>>> nanoserve.generate_one(lm, "count from 3 to 7").text
'3 4 5 6 7'
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .card import Scorecard as Scorecard
    from .checkpoint import LanguageModel as LanguageModel
    from .checkpoint import load as load
    from .continuous import ContinuousBatchEngine as ContinuousBatchEngine
    from .engine import Engine as Engine
    from .errors import InvalidInputError as InvalidInputError
    from .errors import ModelNotFoundError as ModelNotFoundError
    from .errors import NanoserveError as NanoserveError
    from .errors import UnsupportedModelError as UnsupportedModelError
    from .generate import generate_batch as generate_batch
    from .generate import generate_one as generate_one
    from .generate import next_token_logits as next_token_logits
    from .generate import stream_one as stream_one
    from .ledger import SlotLedger as SlotLedger
    from .request import GenerationResult as GenerationResult
    from .request import Request as Request
    from .request import SamplingParams as SamplingParams
    from .request import StepOutput as StepOutput
    from .serving import serve as serve
    from .static import SequentialEngine as SequentialEngine
    from .static import StaticBatchEngine as StaticBatchEngine
    from .trace import SlotTrace as SlotTrace
    from .widgets.compare_alone import CompareAlone as CompareAlone
    from .widgets.mask_explorer import MaskExplorer as MaskExplorer
    from .widgets.memory_calculator import MemoryCalculator as MemoryCalculator
    from .widgets.nan_microscope import NaNMicroscope as NaNMicroscope
    from .widgets.padding_explorer import PaddingExplorer as PaddingExplorer
    from .widgets.slot_player import SlotPlayer as SlotPlayer

__version__ = "0.1.0"

# Each public name and its room, which is opened when the name is first used: so
# `nanoserve --help` need not wait for torch, nor a server for a widget library.
ROOMS = {
    "Scorecard": "card",
    "LanguageModel": "checkpoint",
    "load": "checkpoint",
    "ContinuousBatchEngine": "continuous",
    "Engine": "engine",
    "InvalidInputError": "errors",
    "ModelNotFoundError": "errors",
    "NanoserveError": "errors",
    "UnsupportedModelError": "errors",
    "generate_batch": "generate",
    "generate_one": "generate",
    "next_token_logits": "generate",
    "stream_one": "generate",
    "SlotLedger": "ledger",
    "GenerationResult": "request",
    "Request": "request",
    "SamplingParams": "request",
    "StepOutput": "request",
    "serve": "serving",
    "SequentialEngine": "static",
    "StaticBatchEngine": "static",
    "SlotTrace": "trace",
    "MaskExplorer": "widgets.mask_explorer",
    "NaNMicroscope": "widgets.nan_microscope",
    "SlotPlayer": "widgets.slot_player",
    "PaddingExplorer": "widgets.padding_explorer",
    "CompareAlone": "widgets.compare_alone",
    "MemoryCalculator": "widgets.memory_calculator",
}
__all__ = list(ROOMS)


def __getattr__(name: str) -> Any:
    if name not in ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f".{ROOMS[name]}", __name__), name)
    except ModuleNotFoundError as missing:
        hint = f"nanoserve.{name} needs {missing.name}"
        if ROOMS[name].startswith("widgets"):
            hint += ": pip install 'nanoserve[course]'"
        raise ImportError(hint) from missing
    globals()[name] = value  # found without this detour the next time
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
