"""For each bug a batch in which anyone can see it: found by running, on a canary."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..checkpoint import LanguageModel, load
from ..model import Embedding
from .bug import find
from .comparison import Comparison, compare


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Prompts and how to run them.

    ``options``   ``compare``'s: ``padding_side``, ``seats``, ``temperature`` ..
    ``prepare``   what to do with the model first
    """

    prompts: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    prepare: Callable[[LanguageModel], LanguageModel] | None = None

    def prepared(self, lm: LanguageModel) -> LanguageModel:
        return self.prepare(lm) if self.prepare else lm


@dataclass(frozen=True, kw_only=True)
class Example(Batch):
    """A batch on a canary in which a bug shows; the first wrong row shows it best.

    ``clean`` says which rows stay right, and why.
    """

    model: str
    clean: str

    def run(self, bug: str | None) -> Comparison:
        """The batch with ``bug`` planted, beside each prompt alone without."""
        lm = self.prepared(canary(self.model))
        return compare(lm, self.prompts, bug, **self.options)


@cache
def canary(name: str) -> LanguageModel:
    return load(name, device="cpu")


def padded_with_eos(lm: LanguageModel) -> LanguageModel:
    """The same model where EOS serves as the pad, as in many a checkpoint."""
    return replace(lm, pad_token_id=min(lm.eos_token_ids))


class Poisoned(Embedding):
    """An embedding in which one token has overflowed."""

    token: int

    def forward(self, ids: Tensor) -> Tensor:
        return super().forward(ids).masked_fill(ids[:, None] == self.token, torch.nan)


def z_is_nan(lm: LanguageModel) -> LanguageModel:
    """The same model, ill: whoever reads the letter z gets NaN from there on."""
    model = copy.deepcopy(lm.model)
    model.embedding.__class__ = Poisoned  # in place: its weight is the head's too
    model.embedding.token = lm.tokenizer.convert_tokens_to_ids("z")
    return replace(lm, model=model)


# --- the examples ---

# Short rows of three kinds and one that needs no pads. Most bugs show in this batch,
# so that their answers can be held beside one another.
USUAL = (
    "count from 1 to 5",
    "repeat a 4 times",
    "reverse b c d",
    "copy q w e r t y u i o p a s",
)
CHATS = ("copy a b <answer> a b <eos> count from 1 to 5", "reverse b c d", USUAL[-1])
NO_PADS = "The copy: it is the longest row, so it has no pads."
NO_TURN = "Those without an earlier turn: no EOS in their prompts."


def on_both(clean: str, prompts: tuple[str, ...] = USUAL, **more: Any) -> list[Example]:
    """The same batch on the canary with learned positions and on the one with RoPE."""
    models = ("canary", "canary-rope")
    return [Example(model=m, prompts=prompts, clean=clean, **more) for m in models]


EXAMPLES: dict[str, list[Example]] = {
    "mask-from-ids": on_both(NO_TURN, CHATS, prepare=padded_with_eos),
    "index-positions": on_both(NO_PADS)[:1],  # RoPE does not care
    "prefill-only": on_both(NO_PADS),
    "decode-only": on_both(NO_PADS),
    "last-column": on_both(NO_PADS),
    "sum-minus-one": on_both(NO_PADS),
    "mask-dropped": on_both(NO_PADS),
    "mask-at-prefill-only": on_both(NO_PADS),
    "mask-not-grown": on_both("None: the longest row too forgets what it has said."),
    "mask-transposed": on_both(NO_PADS),
    "bool-mask-added": on_both("None is safe: tokens see the future."),
    "minus-inf": on_both(NO_PADS),
    "min-plus-min": on_both(NO_PADS),
    "causal-at-decode": on_both("None: every row sees its first token only."),
    "whole-window": on_both(
        "The longest of each pair: the window of the pass ends where it ends.",
        ("count from 1 to 5", "copy q w e r t y u i o p a s"),
        options={"seats": 2},
    ),
    "shared-generator": on_both(
        "None, save for the first token of the first row: it draws first.",
        options={"temperature": 1.5, "seed": 7},
    ),
    "nan-unchecked": on_both(
        "Those without a z: NaN stays in its row.",
        ("copy a z", "count from 1 to 5"),
        options={"max_new_tokens": 8},
        prepare=z_is_nan,
    ),
    "eos-in-prompt": on_both(NO_TURN, CHATS),
    "one-stop-ends-all": on_both(
        "The first to stop: it would have stopped here anyway."
    ),
    "finished-appended": on_both("The last to stop: nothing came after it."),
    "not-scrubbed": on_both(
        "Who never saw NaN, and the longer tenant, who wrote each column before it "
        "read it; the copy with a z is ill alone too.",
        (
            "copy z q w e r t y u i o p a s",
            "count from 1 to 5",
            "repeat a 4 times",
            "copy q w e r t y",
        ),
        options={"seats": 2},
        prepare=z_is_nan,
    ),
    "stale-slot": on_both(
        "The first two, whose slots were new, and the longest tenant after them.",
        (
            "copy q w e r t y u i o p a s",
            "repeat x 12 times",
            "copy a b",
            "count from 1 to 12",
        ),
        options={"seats": 2},
    ),
}


def demonstrate(bug: str, number: int = 0) -> Comparison:
    """Run the example of a bug on its canary; some have more than one.

    The other name of a pair runs the same prompts under the other padding side.
    Raises ``InvalidInputError`` for a name that is not in ``BUGS``.
    """
    return EXAMPLES[find(bug).name][number].run(bug)
