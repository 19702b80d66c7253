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

    ``options``   ``compare``'s: ``padding_side``, ``seats``, ``pages`` ..
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

# Four short rows and one that needs no pads. Most bugs show in this batch, so that
# their answers can be held beside one another.
LONGEST = "copy t h e l o n g e s t h a s n o p a d s"
USUAL = (
    "count from 1 to 5",
    "repeat x 5 times",
    "copy d o g",
    "reverse s t o p",
    LONGEST,
)
SHORT = USUAL[:3]
LONG = "copy t h e l o n g e s t"
SECRET = "copy m y c a t i s c a l l e d f e l i x"
CHATS = (
    "copy a b <answer> a b <eos> repeat x 5 times",
    "copy h e l l o <answer> h e l l o <eos> repeat a 7 times",
    "reverse s t o p",
    LONGEST,
)
# The canary is used to prompts that begin late, after an earlier turn: not to 37 pads.
FAR = (
    "repeat x 5 times",
    "repeat y 9 times",
    "reverse d r a w e r",
    "count from 1 to 5",
    "copy b y f a r t h e l o n g e s t o f a l l p r o m p t s "
    "i s w i t h o u t p a d s",
)
NO_PADS = (
    "The longest: it has no pads. Another may be right by luck; its logits are not."
)
NO_TURN = "Those without an earlier turn: there is no EOS in their prompts."


def on_both(clean: str, prompts: tuple[str, ...] = USUAL, **more: Any) -> list[Example]:
    """The same batch on the canary with learned positions and on the one with RoPE."""
    models = ("canary", "canary-rope")
    return [Example(model=m, prompts=prompts, clean=clean, **more) for m in models]


def drawn(model: str, seed: int) -> Example:
    """One prompt three times, with one seed: alone it says the same three times."""
    return Example(
        model=model,
        prompts=("repeat x 5 times",) * 3,
        options={"temperature": 2.5, "seed": seed},
        clean="None is safe. Whoever draws first may have its first token right.",
    )


def next_tenant(model: str, prompt: str) -> Example:
    """Who sits in the slot in which a secret was told, beside a longer neighbour."""
    return Example(
        model=model,
        prompts=(SECRET, "count from 1 to 9", prompt, LONGEST),
        options={"seats": 2},
        clean="The two whose slots were new: they see empty columns at worst. And the "
        "longest of each pair: it has written every column it sees.",
    )


EXAMPLES: dict[str, list[Example]] = {
    "mask-from-ids": on_both(NO_TURN, CHATS, prepare=padded_with_eos),
    # nothing to see, nor wrong, under RoPE
    "index-positions": on_both(NO_PADS, FAR, options={"max_new_tokens": 48})[:1],
    "prefill-only": on_both(NO_PADS),
    "decode-only": on_both(NO_PADS),
    "last-column": on_both(NO_PADS),
    "sum-minus-one": on_both(NO_PADS),
    "mask-dropped": on_both(NO_PADS),
    "mask-at-prefill-only": on_both(NO_PADS),
    "mask-not-grown": on_both(
        "None is safe: the longest row too forgets what it has said.",
        options={"max_new_tokens": 20},
    ),
    "mask-transposed": on_both(NO_PADS),
    "bool-mask-added": on_both("None is safe: every token sees the future."),
    "minus-inf": on_both("The longest: it has no pads, and NaN stays in its row."),
    "min-plus-min": on_both("The longest: it has no pads, and NaN stays in its row."),
    "causal-at-decode": on_both(
        "None: every new token sees the first of its prompt and no other.",
        SHORT,
        options={"max_new_tokens": 8},
    ),
    "whole-window": on_both(
        "The longest: the window of the pass ends where it ends.",
        options={"seats": len(USUAL)},
    )[:1],  # under RoPE the logits are wrong and the answers right
    "shared-generator": [drawn("canary", 20), drawn("canary-rope", 6)],
    "nan-unchecked": on_both(
        "Those without a z: NaN stays in its row.",
        ("copy z o o", "count from 1 to 5", "copy d o g"),
        options={"max_new_tokens": 8},
        prepare=z_is_nan,
    ),
    "eos-in-prompt": on_both(NO_TURN, CHATS),
    "one-stop-ends-all": on_both("The first to stop: it has said all it had to say."),
    "finished-appended": on_both(
        "The last to stop: nothing can come after it.",
        ("count from 1 to 5", "copy d o g", "count from 3 to 12"),
    ),
    "not-scrubbed": on_both(
        "Those whose slots were new, the one who follows a tenant who was well, and "
        "the first, who read the z: it is ill alone too.",
        ("copy z o o k e e p e r s", "count from 1 to 9", "copy d o g", USUAL[0]),
        options={"seats": 2},
        prepare=z_is_nan,
    ),
    "stale-slot": [
        next_tenant("canary", "copy a"),
        next_tenant("canary-rope", "copy d o g"),
    ],
    "rows-compacted": on_both(
        "The first to leave, and the one in the first slot: its row was its slot.",
        (
            "reverse s t o p",
            LONG,
            "copy d o g",
            "count from 1 to 5",
            "count from 1 to 9",
        ),
        options={"seats": 3, "pages": {}, "max_new_tokens": 22},
    ),
    "stale-block": on_both(
        "Those who had ended before the pool gave one of their blocks to another.",
        ("count from 1 to 5", "repeat a 9 times", SECRET, "repeat x 5 times", LONG),
        options={
            "seats": 3,
            "pages": {"kv_blocks": 7, "block_size": 8},
            "max_new_tokens": 22,
        },
    ),
    "block-off-by-one": on_both(
        "Those who need one block only, of 16 tokens.",
        (SECRET, "copy d o g", "count from 1 to 5"),
        options={"seats": 3, "pages": {}, "max_new_tokens": 22},
    ),
}


def demonstrate(bug: str, number: int = 0) -> Comparison:
    """Run the example of a bug on its canary; some have more than one.

    The other name of a pair runs the same prompts under the other padding side.
    Raises ``InvalidInputError`` for a name that is not in ``BUGS``.
    """
    return EXAMPLES[find(bug).name][number].run(bug)
