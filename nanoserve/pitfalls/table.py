"""All bugs at a glance: what each one answers, and which check would have seen it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ..checkpoint import LanguageModel
from .bug import BUGS, Bug, plant
from .comparison import SMALL, abridged, html_table, run_alone, run_together, verdicts
from .examples import EXAMPLES, Batch, canary, padded_with_eos, z_is_nan


@dataclass(frozen=True, repr=False)
class Table:
    """Heads and rows. ``widest`` bounds a column of the text; HTML shows all."""

    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    widest: tuple[int, ...] = ()

    def text(self) -> str:
        bounds = self.widest or (30,) * len(self.heads)
        lines = [
            [abridged(cell, most) for cell, most in zip(line, bounds, strict=True)]
            for line in [self.heads, *self.rows]
        ]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(map(str.ljust, line, widths)).rstrip() for line in lines
        )

    def markdown(self) -> str:
        # escaped, or <answer> in a cell would vanish as an unknown tag
        rows = [[escape(cell) for cell in row] for row in self.rows]
        lines = [self.heads, ("---",) * len(self.heads), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def html(self) -> str:
        rows = [[escape(cell) for cell in row] for row in self.rows]
        return html_table(self.heads, rows)

    def __repr__(self) -> str:
        return self.text()

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return {"text/plain": self.text(), "text/html": self.html()}


def distinct() -> list[Bug]:
    """Every bug once, also those of two names, in the order of the lessons."""
    return list(dict.fromkeys(BUGS.values()))


def table() -> Table:
    """What each bug answers: its example is run, and its first wrong row shown."""
    rows = []
    for bug in distinct():
        result = EXAMPLES[bug.name][0].run(bug.name)
        worst = result.rows[result.wrong[0]]
        wrong = f"{len(result.wrong)} of {len(result.rows)}"
        rows.append((bug.name, worst.prompt, worst.batch_text, wrong))
    heads = ("planted", "asked", "answered", "rows wrong")
    return Table(heads, rows, widest=(24, 20, 26, 10))


# --- which check sees which bug ---

SHORT = ("count from 1 to 5", "repeat a 4 times")
RAGGED = ("copy q w e r t y u i o p a s", *SHORT)
CHAT = ("copy a b <answer> a b <eos> count from 3 to 6", *RAGGED)
TENANTS = ("copy z a s d f g h j k l", "count from 1 to 9", "copy a b", SHORT[0])

# Batches to hold beside the same prompts alone, from the least to the most revealing
CHECKS = {
    "one": Batch(prompts=RAGGED[:1]),
    "equal": Batch(prompts=("count from 1 to 5", "count from 3 to 12")),
    "left": Batch(prompts=RAGGED),
    "right": Batch(prompts=RAGGED, options={"padding_side": "right"}),
    "drawn": Batch(prompts=RAGGED, options={"temperature": 3.0, "seed": 7}),
    "chat": Batch(prompts=CHAT, prepare=padded_with_eos),
    "slots": Batch(prompts=TENANTS, options={"seats": 2}, prepare=z_is_nan),
}

# The same for a continuous engine, in which nothing is padded
TIGHT = {"kv_blocks": 8, "block_size": 4}
PAGED_CHECKS = {
    "one": Batch(prompts=RAGGED[:1], options={"seats": 1, "pages": {}}),
    "equal": Batch(prompts=CHECKS["equal"].prompts, options={"seats": 2, "pages": {}}),
    "seats": Batch(prompts=TENANTS, options={"seats": 2, "pages": {}}),
    "blocks": Batch(prompts=TENANTS, options={"seats": 3, "pages": TIGHT}),
}


def kill_table(model: str = "canary", *, paged: bool = False) -> Table:
    """Each bug against each check: those of padding and of fixed slots, or with
    ``paged`` those of a continuous engine. A check sees a bug when a row of its batch
    has other tokens than its prompt alone, or other logits."""
    lm, checks = canary(model), PAGED_CHECKS if paged else CHECKS
    bugs = [bug for bug in distinct() if bug.paged == paged]
    seen = {name: seen_by(check, lm, bugs) for name, check in checks.items()}
    rows = [
        (bug.name, *("x" if bug.name in seen[check] else "." for check in checks))
        for bug in bugs
    ]
    return Table(("planted", *checks), rows)


def seen_by(check: Batch, lm: LanguageModel, bugs: Sequence[Bug]) -> set[str]:
    """The names of those of ``bugs`` that ``check`` sees on ``lm``."""
    lm = check.prepared(lm)
    options = {"max_new_tokens": 8, **check.options}
    ways = ("padding_side", "seats", "pages")
    alike = {name: value for name, value in options.items() if name not in ways}
    alone = run_alone(lm, check.prompts, **alike)
    seen = set()
    for bug in bugs:
        with plant(bug.name):
            batch = run_together(lm, check.prompts, **options)
        rows = verdicts(lm, check.prompts, alone, batch)
        if any(not row.equal or row.largest_error > SMALL for row in rows):
            seen.add(bug.name)
    return seen
