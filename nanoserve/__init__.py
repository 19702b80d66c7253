"""nanoserve: batched LLM serving, small enough to read in an evening.

>>> import nanoserve
>>> lm = nanoserve.load("canary")
>>> nanoserve.generate_one(lm, "count from 3 to 7").text
'3 4 5 6 7'
"""

from .checkpoint import LanguageModel, load
from .engine import Engine, SequentialEngine, StaticBatchEngine, serve
from .errors import (
    InvalidInputError,
    ModelNotFoundError,
    NanoserveError,
    UnsupportedModelError,
)
from .generate import generate_batch, generate_one, next_token_logits, stream_one
from .request import GenerationResult, Request, SamplingParams, StepOutput
from .trace import SlotLedger, SlotTrace

__version__ = "0.1.0"

__all__ = [
    "Engine",
    "GenerationResult",
    "InvalidInputError",
    "LanguageModel",
    "ModelNotFoundError",
    "NanoserveError",
    "Request",
    "SamplingParams",
    "SequentialEngine",
    "SlotLedger",
    "SlotTrace",
    "StaticBatchEngine",
    "StepOutput",
    "UnsupportedModelError",
    "generate_batch",
    "generate_one",
    "load",
    "next_token_logits",
    "serve",
    "stream_one",
]
