"""What CompareAlone shows: a batch, and the same prompts alone, as JSON."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from ..checkpoint import LanguageModel
from ..generate import Prompt
from ..pitfalls import comparison
from ..pitfalls.comparison import RowVerdict, letter
from ..request import FinishReason, whole
from .cells import piece
from .padding_scene import MOST_ROWS
from .rectangle import counted

MOST_STEPS = 96  # a picture of more is no picture
# Logit errors by their power of ten: more of their digits depend on the processor.
# An error's class counts the bounds that it reaches.
BOUNDS = (comparison.SMALL, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
NAN, NAN_ALONE = len(BOUNDS) + 1, len(BOUNDS) + 2


def scene(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 16,
    padding_side: str = "left",
    bug: str | None = None,
) -> dict[str, Any]:
    """What is drawn: ``pitfalls.compare``'s runs, the bug in the batch only.

    ``rows``   of each: ``name``, ``prompt``, what it says ``alone`` and in the
               ``batch``, token by token; ``ends``, why there is no more where the
               other goes on, or None; ``differs``, the first that differs, counted
               from 0, or None; ``errors``, the class of each logit error up to there;
               ``verdict``: "differs", "lucky" (same tokens, other logits), "ill"
               (NaN alone too), "clean"
    ``steps``  how many tokens the longest has
    ``opens``  ``step`` of the first difference, counted from 0, or of the last token

    Raises ``InvalidInputError``.
    """
    whole("max_new_tokens", max_new_tokens, at_least=1, at_most=MOST_STEPS)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens}
    result = comparison.compare(
        lm, counted(prompts, MOST_ROWS), bug, padding_side=padding_side, **options
    )
    rows = [_row(lm, *each) for each in enumerate(result.rows)]
    first = [row["differs"] for row in rows if row["differs"] is not None]
    steps = max(
        len(row[side]) + (end is not None)  # the end stands in a column of its own
        for row in rows
        for side, end in zip(("alone", "batch"), row["ends"], strict=True)
    )
    return {
        "opens": {"step": min(first, default=steps - 1), "row": 0},
        "steps": steps,
        "rows": rows,
    }


def _row(lm: LanguageModel, number: int, row: RowVerdict) -> dict[str, Any]:
    errors = [error_class(error) for error in row.errors]
    return {
        "name": letter(number),
        "prompt": row.prompt,
        "alone": [piece(lm, token) for token in row.alone],
        "batch": [piece(lm, token) for token in row.batch],
        "ends": [
            _end(ids, end, row.differs_at)
            for ids, end in zip((row.alone, row.batch), row.ends, strict=True)
        ],
        "differs": row.differs_at,
        "errors": errors,
        "verdict": _verdict(row.equal, errors),
    }


def _end(ids: list[int], end: FinishReason, differs_at: int | None) -> str | None:
    """Why there is no more, where the other has one, or an error made none."""
    return end if end == "error" or differs_at == len(ids) else None


def error_class(error: float) -> int:
    if math.isnan(error):
        return NAN_ALONE
    return NAN if math.isinf(error) else bisect_right(BOUNDS, error)


def _verdict(equal: bool, errors: list[int]) -> str:
    if not equal:
        return "differs"
    if NAN_ALONE in errors:
        return "ill"
    return "lucky" if any(errors) else "clean"
