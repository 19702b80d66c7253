"""What the NaN microscope shows: two real runs, cell by cell, as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import generate, look, padding, pitfalls, recording
from ..checkpoint import LanguageModel
from ..generate import Prompt
from ..pitfalls.padded import unguarded
from ..pitfalls.running import LOWEST, by_hand
from .cells import piece
from .rectangle import checked_rectangle, prompt_text

FILLS = {"lowest": LOWEST, "minus-inf": -torch.inf}
STAGES = ("scores", "weights", "out", "hidden")

# What a number is, from what covers everything to what is well; marks of grid.MARKS.
CODES = {
    "n": "nan",
    "i": "minus-inf",
    "p": "plus-inf",
    "l": "lowest",
    "f": "finite",
    "z": "zero",
    "?": "not-yet",
}


def scene(
    lm: LanguageModel, prompts: Sequence[Prompt], padding_side: str = "left"
) -> dict[str, Any]:
    """What is drawn.

    ``width``, ``layers``  of the rectangle, of the model
    ``lines``  every line of cells once, a code a cell; ``codes`` says its mark
    ``rows``   ``name``, ``prompt``, ``hue``, ``tokens``, and ``kinds``: p pad, r real
    ``fills``  for "lowest" and "minus-inf", row by row: ``next`` (a token, or None
               where logits are NaN), ``pads`` and ``real`` (the first layer, from 1,
               in which they are NaN, or None), and ``layers``: for each the numbers of
               the lines of its ``scores`` and ``weights`` by query, of ``values``,
               ``out`` and ``hidden`` by column, and ``why``, a key of WORDS by column
    """
    mask = checked_rectangle(lm, prompts, padding_side)
    lines: dict[str, int] = {}
    fills = {}
    for name, number in FILLS.items():
        run = _run(lm, prompts, padding_side, number)
        fills[name] = [
            _row(lm, *run, mask, row, number, lines) for row in range(len(mask))
        ]
    rows = [
        {
            "name": pitfalls.comparison.letter(row),
            "prompt": prompt_text(lm, prompt),
            "hue": look.hue(row),
            "kinds": "".join("r" if real else "p" for real in mask[row].tolist()),
            "tokens": [piece(lm, token) for token in ids],
        }
        for row, (prompt, ids) in enumerate(
            zip(prompts, _ids(lm, prompts, padding_side), strict=True)
        )
    ]
    # the row with most pads, whose first pad is the first to see nothing
    row = int((~mask).sum(dim=1).argmax())
    return {
        "opens": {"row": row, "query": 0, "step": 0},
        "prompts": [row["prompt"] for row in rows],
        "width": mask.shape[1],
        "layers": len(lm.model.blocks),
        "stages": list(STAGES),
        "codes": CODES,
        "lines": list(lines),
        "rows": rows,
        "fills": fills,
    }


def _ids(lm: LanguageModel, prompts: Sequence[Prompt], side: str) -> list[list[int]]:
    encoded = [lm.encode(prompt) for prompt in prompts]
    ids: list[list[int]] = padding.pad_batch(encoded, lm.pad_token_id, side)[0].tolist()
    return ids


def _run(
    lm: LanguageModel, prompts: Sequence[Prompt], side: str, number: float
) -> tuple[recording.Pass, Tensor]:
    """One prefill with the classic mask and its holes filled with ``number``."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return by_hand(q, k, v, lambda scores: scores.masked_fill(~keep, number))

    places: dict[str, Callable[..., Any]] = {
        "attention.attend": attend,
        "attention.keep_mask": unguarded,
    }
    with pitfalls.unplanted(), pitfalls.swap(places):
        with recording.record(lm, weights=True) as record:
            logits = generate.next_token_logits(lm, prompts, padding_side=side)
    return record.passes[0], logits


def _row(
    lm: LanguageModel,
    run: recording.Pass,
    logits: Tensor,
    mask: Tensor,
    row: int,
    number: float,
    lines: dict[str, int],
) -> dict[str, Any]:
    def numbered(codes: Tensor) -> Any:
        """Lines of codes, [.., cells], as their numbers in the table."""
        if codes.dim() > 1:
            return [numbered(line) for line in codes]
        return lines.setdefault("".join(map(chr, codes.tolist())), len(lines))

    real, layers, spread = mask[row], [], []
    for call, hidden in zip(run.calls, run.hidden, strict=True):
        codes = _layer(call, hidden.reshape(*mask.shape, -1), row, number)
        spread.append((codes["hidden"] == ord("n")).cpu())
        layers.append({name: numbered(each) for name, each in codes.items()})
    finite = bool(logits[row].isfinite().all())
    return {
        "next": piece(lm, int(logits[row].argmax())) if finite else None,
        "pads": _first(spread, ~real),
        "real": _first(spread, real),
        "layers": layers,
    }


def _first(spread: list[Tensor], columns: Tensor) -> int | None:
    """The first layer, from 1, in which one of these columns is NaN."""
    found = (n for n, nan in enumerate(spread, 1) if nan[columns].any())
    return next(found, None)


def _layer(
    call: recording.Call, hidden: Tensor, row: int, number: float
) -> dict[str, Tensor]:
    """Codes of one row in one layer: [queries, keys], or by column."""
    assert call.weights is not None
    keep = call.keep[row]  # [1, queries, keys]
    scores = call.scores[row].masked_fill(~keep, number)  # [heads, queries, keys]
    weights, out = call.weights[row], call.out[row]
    codes = {
        "scores": _worst(scores, 0),
        "weights": _worst(weights, 0),
        "values": _worst(call.v[row], (0, 2)),
        "out": _worst(out, (0, 2)),
        "hidden": _worst(hidden[row], 1),
    }
    blind = ~keep[0].any(dim=-1)
    ill = weights.isnan().any(dim=0).any(dim=-1)
    reasons = torch.where(blind, ord("b"), ord("q"))
    reasons = torch.where(ill, reasons, ord("v"))
    well = torch.where(blind, ord("m"), ord("f"))
    codes["why"] = torch.where(codes["out"] == ord("n"), reasons, well)
    return codes


def _worst(x: Tensor, dim: int | tuple[int, ...]) -> Tensor:
    """The code of the worst number along these dimensions."""
    codes = "".join(CODES)
    ranks = torch.full(x.shape, codes.index("f"), device=x.device)
    for code, these in (
        ("z", x == 0),
        ("l", x == LOWEST),
        ("p", x == torch.inf),
        ("i", x == -torch.inf),
        ("n", x.isnan()),
    ):
        ranks[these] = codes.index(code)
    table = torch.tensor([ord(code) for code in codes], device=x.device)
    return table[ranks.amin(dim=dim)]
