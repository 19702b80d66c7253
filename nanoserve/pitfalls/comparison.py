"""A batch beside the same prompts alone: who differs, from which token, by how much.

Both sides are real runs, and the logits that are compared are those that chose the
tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from html import escape
from os.path import commonprefix
from typing import Any

from torch import Tensor

from .. import generate, look
from ..checkpoint import LanguageModel
from ..continuous import ContinuousBatchEngine
from ..engine import Engine, next_tokens
from ..request import FinishReason, GenerationResult, Request, SamplingParams, one_each
from ..sequence import Sequence as Row
from ..serving import serve
from ..static import StaticBatchEngine
from .bug import find, plant
from .planting import swap, unplanted

SMALL = 1e-4  # logits closer than this are equal: the rest is rounding

Prompt = str | list[int]
Run = tuple[GenerationResult, list[Tensor]]  # an answer, and the logits it came from


@dataclass(frozen=True)
class RowVerdict:
    """One row: its answers as token ids and as text, special tokens and all.

    ``ends``           why it ended: alone, and in the batch
    ``differs_at``     index of the first token that is not the same; ``None``: equal
    ``errors``         largest logit error when each token was chosen, up to the first
                       that differs, with it: so long both had read the same. ``inf``
                       where the batch has NaN, ``nan`` where the prompt alone has it
                       too
    """

    prompt: str
    alone: list[int]
    batch: list[int]
    alone_text: str
    batch_text: str
    ends: tuple[FinishReason, FinishReason]
    differs_at: int | None
    errors: list[float]

    @property
    def first_error(self) -> float:
        return self.errors[0]

    @property
    def largest_error(self) -> float:
        return max(self.errors)

    @property
    def equal(self) -> bool:
        return self.differs_at is None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.largest_error)

    def remark(self) -> str:
        first, most = rounded(self.first_error), rounded(self.largest_error)
        error = most if first == most else f"{first} at first, {most} at most"
        if self.differs_at is None:
            return f"logit error {error}"
        return f"differs from token {self.differs_at + 1}; logit error {error}"


@dataclass(frozen=True, repr=False)
class Comparison:
    """A batch, row by row, beside ``generate_one``. Shows itself as text and HTML."""

    title: str
    rows: list[RowVerdict]

    @property
    def wrong(self) -> list[int]:
        """The rows that differ, by number."""
        return [number for number, row in enumerate(self.rows) if not row.equal]

    def headline(self) -> str:
        wrong = len(self.wrong)
        verb = "differs" if wrong == 1 else "differ"
        return f"{self.title}: {wrong or 'none'} of {len(self.rows)} rows {verb}"

    def text(self) -> str:
        """Plain text, at most 80 columns."""
        lines = [self.headline()]
        for number, row in enumerate(self.rows):
            lines.append(f"{letter(number)}  {abridged(row.prompt, 76)}")
            if row.equal:
                lines.append(f"   both   {abridged(row.batch_text, 70)}")
            else:
                lines.append(f"   alone  {abridged(row.alone_text, 70)}")
                lines.append(f"   batch  {abridged(row.batch_text, 70)}")
            lines.append(f"          {row.remark()}")
        return "\n".join(lines)

    def html(self) -> str:
        """A table in the course's look; what differs is underlined."""
        rows = [_html_cells(*each) for each in enumerate(self.rows)]
        heads = ("", "prompt", "alone", "in the batch", "")
        return html_table(heads, rows, escape(self.headline()))

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}


# --- running both sides ---


def compare(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    bug: str | None = None,
    *,
    padding_side: str | None = None,
    seats: int | None = None,
    pages: Mapping[str, Any] | None = None,
    **options: Any,
) -> Comparison:
    """Answer ``prompts`` together with ``bug`` planted, and each alone without.

    With no ``bug`` the batch runs as things are planted just now. It is
    ``generate_batch``'s rectangle, or with ``seats`` a static engine's, which serves
    the prompts in their order, ``seats`` at a time, or with ``pages`` too (more options
    of its) a continuous engine's. ``padding_side`` unset is the one
    under which the bug shows; ``options`` are ``generate_batch``'s. Raises
    ``InvalidInputError``.
    """
    side = padding_side or (find(bug).side_as(bug) if bug else "left")
    with plant(bug) if bug else nullcontext():
        batch = run_together(
            lm, prompts, padding_side=side, seats=seats, pages=pages, **options
        )
    alone = run_alone(lm, prompts, **options)
    kind = "static" if pages is None else "continuous"
    where = f"{side} padding" if seats is None else f"a {kind} engine of {seats}"
    title = f"{bug or 'batch beside alone'}, {where}"
    return Comparison(title, verdicts(lm, prompts, alone, batch))


def run_alone(
    lm: LanguageModel, prompts: Sequence[Prompt], **options: Any
) -> list[Run]:
    """Each prompt by itself, with nothing planted."""
    each = list(zip(prompts, _one_by_one(options, len(prompts)), strict=True))
    with unplanted():
        return _noted(lambda: [generate.generate_one(lm, p, **o) for p, o in each])


def run_together(
    lm: LanguageModel,
    prompts: Sequence[Prompt],
    *,
    padding_side: str = "left",
    seats: int | None = None,
    pages: Mapping[str, Any] | None = None,
    **options: Any,
) -> list[Run]:
    """All prompts in a rectangle, or ``seats`` at a time in an engine."""
    if seats is None:
        generate_batch = generate.generate_batch
        return _noted(
            lambda: generate_batch(lm, prompts, padding_side=padding_side, **options)
        )
    engine: Engine = StaticBatchEngine(lm, seats, padding_side=padding_side)
    if pages is not None:
        engine = ContinuousBatchEngine(lm, seats, **pages)
    each = zip(prompts, _one_by_one(options, len(prompts)), strict=True)
    requests = [Request(lm.encode(p), _params(**o)) for p, o in each]
    return _noted(lambda: list(serve(engine, requests).values()))


def _params(max_new_tokens: int = 32, **others: Any) -> SamplingParams:
    return SamplingParams(max_new_tokens, **others)


def _one_by_one(options: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """``generate_batch``'s options as ``count`` times ``generate_one``'s."""
    lists = {
        name: one_each(name, options[name], count)
        for name in ("max_new_tokens", "seed")
        if name in options
    }
    return [
        {**options, **{name: values[row] for name, values in lists.items()}}
        for row in range(count)
    ]


def _noted(run: Callable[[], list[GenerationResult]]) -> list[Run]:
    """Run, and note the logits from which each live row's tokens were chosen."""
    seen: dict[Row, list[Tensor]] = {}  # rows show up in the order of the prompts

    def noting(logits: Tensor, rows: list[Row]) -> list[int | None]:
        for row, scores in zip(rows, logits, strict=True):
            if not row.finished:
                seen.setdefault(row, []).append(scores)
        return next_tokens(logits, rows)

    with swap({"engine.next_tokens": noting}):
        results = run()
    return list(zip(results, seen.values(), strict=True))


def verdicts(
    lm: LanguageModel, prompts: Sequence[Prompt], alone: list[Run], batch: list[Run]
) -> list[RowVerdict]:
    rows = zip(prompts, alone, batch, strict=True)
    return [_verdict(lm, *row) for row in rows]


def _verdict(lm: LanguageModel, prompt: Prompt, alone: Run, batch: Run) -> RowVerdict:
    (right, right_logits), (answer, logits) = alone, batch
    differs_at = first_difference(right, answer)
    steps = None if differs_at is None else differs_at + 1
    pairs = zip(right_logits[:steps], logits, strict=False)
    return RowVerdict(
        prompt=prompt if isinstance(prompt, str) else str(prompt),
        alone=right.token_ids,
        batch=answer.token_ids,
        alone_text=_shown(lm, right),
        batch_text=_shown(lm, answer),
        ends=(right.finish_reason, answer.finish_reason),
        differs_at=differs_at,
        errors=[_error(*pair) for pair in pairs],
    )


def first_difference(one: GenerationResult, other: GenerationResult) -> int | None:
    """Index of the first token that differs; ``None`` when the answers are equal."""
    same = one.token_ids == other.token_ids
    if same and one.finish_reason == other.finish_reason:
        return None
    pairs = zip(one.token_ids, other.token_ids, strict=False)
    apart = (index for index, (a, b) in enumerate(pairs) if a != b)
    return next(apart, min(len(one.token_ids), len(other.token_ids)))


def _error(right: Tensor, got: Tensor) -> float:
    error = float((right - got).abs().max())
    return error if math.isfinite(error) or not right.isfinite().all() else math.inf


# --- showing it ---


def _shown(lm: LanguageModel, result: GenerationResult) -> str:
    """An answer with its special tokens: a pad or an EOS in the midst is a symptom.

    The EOS at its end is left out; where there is none at all, it says what ended it.
    """
    ids, reason = result.token_ids, result.finish_reason
    by_eos = reason == "stop" and not lm.eos_token_ids.isdisjoint(ids)
    if by_eos and ids[-1] in lm.eos_token_ids:
        ids = ids[:-1]
    why = {"length": "limit", "stop": "stopped"}.get(reason, reason)
    text = lm.tokenizer.decode(ids, skip_special_tokens=False)
    return (text if by_eos else f"{text} ({why})").strip() or "(nothing)"


def rounded(error: float) -> str:
    """One digit, and none below 1e-4: the others depend on the processor."""
    if not math.isfinite(error):
        return "NaN"
    return "below 1e-4" if error < SMALL else f"{float(f'{error:.0e}'):g}"


def abridged(text: str, width: int) -> str:
    if len(text) <= width:
        return text
    half = max((width - 4) // 2, 1)  # text[-0:] would be all of it
    return f"{text[:half].rsplit(' ', 1)[0]} .. {text[-half:].split(' ', 1)[-1]}"


def letter(number: int) -> str:
    """A, B, .. Z, then A again: a picture of more rows needs no names."""
    return chr(ord("A") + number % 26)


def html_table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], caption: str = ""
) -> str:
    """A table on its own paper, legible on a dark page too. Cells are HTML."""
    paper = f"text-align:left;background:{look.PAPER};color:{look.INK}"
    cell = '<t{0} style="text-align:left;padding:2px 8px">{1}</t{0}>'
    lines = [
        "<tr>" + "".join(cell.format(kind, each) for each in line) + "</tr>"
        for kind, line in [("h", heads), *(("d", row) for row in rows)]
    ]
    title = f'<caption style="{paper};padding:2px 8px">{caption}</caption>'
    return f'<table style="{paper}">{title if caption else ""}{"".join(lines)}</table>'


def _html_cells(number: int, row: RowVerdict) -> list[str]:
    mark = f"border-left:6px solid {look.hue(number)};padding-left:6px"
    batch = escape(row.batch_text) if row.equal else _marked(row)
    name = f'<b style="{mark}">{letter(number)}</b>'
    texts = [escape(row.prompt), escape(row.alone_text), batch, row.remark()]
    return [name, *texts]


def _marked(row: RowVerdict) -> str:
    """The batch's answer, underlined from the first word that differs."""
    alone, batch = row.alone_text.split(), row.batch_text.split()
    same = len(commonprefix([alone, batch]))
    head, tail = " ".join(batch[:same]), " ".join(batch[same:])
    return f"&ne; {escape(head)} <b><u>{escape(tail or '(ends)')}</u></b>"
