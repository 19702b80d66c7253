"""What the mask explorer shows: who saw whom in a real run, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .. import attention, generate, look, padding, pitfalls, recording
from ..checkpoint import LanguageModel
from ..generate import Prompt
from .cells import piece
from .rectangle import checked_rectangle, prompt_text

# What stands in a line of the scene, and its mark in grid.MARKS.
CODES = {
    "s": "seen",
    "i": "itself",
    "l": "later",
    "p": "pad",
    "x": "leak",
    "o": "lost",
    "n": "nan",
    " ": "",
}
SHOWN = ("both", "causal", "padding", "none")  # which parts of the mask are on


def scene(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    padding_side: str = "left",
    max_new_tokens: int = 8,
    bug: str | None = None,
) -> dict[str, Any]:
    """What is drawn.

    ``width``, ``steps``  of the prompts' rectangle; decode passes after it
    ``lines``   every line of a matrix once, a code a key; ``codes`` says its mark
    ``rows``    for each its ``name``, ``prompt``, ``hue``, ``tokens`` and ``kinds``
                by column, ``answer``, ``right`` (what it says alone), and ``matrix``:
                for each setting in ``SHOWN`` the number of the line of each query
    """
    mask = checked_rectangle(lm, prompts, padding_side, max_new_tokens)
    planted = pitfalls.plant(bug) if bug else nullcontext()
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens}
    with planted, recording.record(lm, weights=True) as record:
        results = generate.generate_batch(
            lm, prompts, padding_side=padding_side, **options
        )
    with pitfalls.unplanted():
        alone = [generate.generate_one(lm, prompt, **options) for prompt in prompts]
        steps = [_matrices(record, mask, step) for step in range(len(record.passes))]
    lines: dict[str, int] = {}
    rows = [
        {
            "name": pitfalls.comparison.letter(row),
            "prompt": prompt_text(lm, prompt),
            "hue": look.hue(row),
            **_columns(lm, record, mask, row, len(results[row].token_ids)),
            "answer": results[row].text,
            "right": alone[row].text,
            "same": results[row].token_ids == alone[row].token_ids,
            "matrix": {
                shown: [
                    lines.setdefault(line, len(lines))
                    for step in steps
                    for line in step[row][shown]
                ]
                for shown in SHOWN
            },
        }
        for row, prompt in enumerate(prompts)
    ]
    made = {
        "prompts": [row["prompt"] for row in rows],
        "bug": bug,
        "width": mask.shape[1],
        "steps": len(steps) - 1,
        "codes": CODES,
        "lines": list(lines),
        "rows": rows,
    }
    return {**made, "opens": _opening(made, padding.last_column(mask).tolist())}


def _columns(
    lm: LanguageModel, record: recording.Record, mask: Tensor, row: int, made: int
) -> dict[str, Any]:
    """What the run fed a row, column by column: tokens, and what kind each is.

    p pad, r prompt, g generated, e fed after the row had ended.
    """
    rows, width = mask.shape
    prompt = record.passes[0].ids.reshape(rows, width)[row].tolist()
    new = [int(each.ids[row]) for each in record.passes[1:]]
    kinds = ["r" if real else "p" for real in mask[row].tolist()]
    kinds += ["g" if step < made else "e" for step in range(1, len(new) + 1)]
    tokens = [piece(lm, token) for token in [*prompt, *new]]
    return {"tokens": tokens, "kinds": "".join(kinds)}


def _matrices(
    record: recording.Record, mask: Tensor, step: int
) -> list[dict[str, list[str]]]:
    """For each row the lines of this pass, one a query, under each setting."""
    calls = record.passes[step].calls
    weights = torch.stack(
        [call.weights for call in calls if call.weights is not None]
    ).cpu()
    weighed = (weights != 0).any(dim=2).any(dim=0)  # [rows, queries, keys]
    nan = weights.isnan().any(dim=2).any(dim=0)
    whole = torch.ones_like(mask)
    causal = attention.keep_mask(whole, step)[:, 0].expand_as(weighed)
    right = attention.keep_mask(mask, step)[:, 0].expand_as(weighed)
    real = torch.cat([mask, whole.new_ones(len(mask), step)], dim=1)  # [rows, keys]
    real = real[:, None].expand_as(weighed)
    shown = {
        "both": _as_it_ran(weighed, nan, right, causal, real),
        "causal": torch.where(causal, ord("s"), ord("l")),
        "padding": torch.where(real, ord("s"), ord("p")),
        "none": torch.full_like(weighed, ord("s"), dtype=torch.int64),
    }
    return [
        {
            name: ["".join(map(chr, line)) for line in codes[row].tolist()]
            for name, codes in shown.items()
        }
        for row in range(len(mask))
    ]


def _as_it_ran(
    weighed: Tensor, nan: Tensor, right: Tensor, causal: Tensor, real: Tensor
) -> Tensor:
    """A code for each key: what the run did with it, beside what it should do."""
    hidden = torch.where(causal, ord("p"), ord("l"))
    hidden = torch.where(right, ord("o"), hidden)
    seen = torch.where(real, ord("s"), ord("i"))
    seen = torch.where(right, seen, ord("x"))
    return torch.where(nan, ord("n"), torch.where(weighed, seen, hidden))


def _opening(scene: dict[str, Any], last: list[int]) -> dict[str, Any]:
    """Where it first matters: a real token's query that is wrong, of the prompt
    preferably the one that chooses the next token; else that of the row with most
    pads."""
    rows, width = scene["rows"], scene["width"]
    for row in sorted(range(len(rows)), key=lambda row: rows[row]["same"]):
        wrong = [
            query
            for query, line in enumerate(rows[row]["matrix"]["both"])
            if set(scene["lines"][line]) & set("xon")
            and rows[row]["kinds"][query] != "p"
        ]
        if wrong:
            query = last[row] if last[row] in wrong else wrong[0]
            step = max(0, query - width + 1)
            return {"row": row, "query": query, "step": step, "shown": "both"}
    row = max(range(len(rows)), key=lambda row: rows[row]["kinds"].count("p"))
    return {"row": row, "query": last[row], "step": 0, "shown": "both"}
