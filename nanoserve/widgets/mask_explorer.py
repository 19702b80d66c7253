"""The mask explorer: who sees whom in a padded batch, as the run really weighed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill
from typing import Any

from .. import look
from ..checkpoint import LanguageModel
from ..generate import Prompt
from . import mask_scene
from .grid import Sheet
from .instrument import Instrument
from .mask_scene import CODES

WORDS = {
    "name": "Mask explorer",
    "title": "{rows} rows, padding on the {side}{planted}",
    "with_bug": ", {bug} planted",
    "left": "left",
    "right": "right",
    "prompts": "prompts, one a line",
    # controls
    "row": "row",
    "causal": "causal part",
    "padding": "padding part",
    "query": "Query of row {row}",
    "step_prompt": "prompt",
    "step_new": "decode step {step} of {steps}",
    # the picture
    "sees": "what query {query} sees",
    "alone": "alone",
    "answers": "answered",
    "asked": "asked",
    "nothing": "nothing",
    "same": "same",
    "differs": "differs",
    "seen": "seen",
    "itself": "a pad sees itself",
    "later": "hidden: it comes later",
    "pad": "hidden: a pad",
    "leak": "seen, and must not be",
    "lost": "hidden, and must be seen",
    "nan": "its weight is NaN",
    # in words
    "kind_p": "a pad",
    "kind_r": "of the prompt",
    "kind_g": "generated",
    "kind_e": "after the end",
    "said": "Row {row}, query {query}, {token}, {kind}: {count} of {keys} keys seen"
    "{tokens}.{leaks}{lost}{nan}{shown}",
    "said_tokens": ": {tokens}",
    "said_leaks": " Seen, and must not be: {count}.",
    "said_lost": " Hidden, and must be seen: {count}.",
    "said_nan": " Weights that are NaN: {count}.",
    "shown_both": "",
    "shown_causal": " This is the causal part alone, not what ran.",
    "shown_padding": " This is the padding part alone, not what ran.",
    "shown_none": " This is no mask at all, not what ran.",
}


def say(key: str, **values: object) -> str:
    return WORDS[key].format(**values)


class MaskExplorer(Instrument):
    """Who sees whom, row by row: queries downwards, keys across.

    ``prompts`` run through ``generate_batch``'s rectangle, for ``max_new_tokens`` at
    most; ``bug``, a name in ``pitfalls.BUGS``, is planted meanwhile. A key counts as
    seen when its weight is not zero in some head of some layer: so it is what the
    code did, not what its mask says. Raises ``InvalidInputError``, also for more rows
    or columns than a picture can hold.
    """

    name = "mask-explorer"

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Prompt],
        *,
        padding_side: str = "left",
        max_new_tokens: int = 8,
        bug: str | None = None,
    ) -> None:
        self.lm = lm
        super().__init__(
            prompts=prompts,
            padding_side=padding_side,
            max_new_tokens=max_new_tokens,
            bug=bug,
        )

    def build(self, **settings: Any) -> dict[str, Any]:
        made = mask_scene.scene(self.lm, **settings)
        side, bug = WORDS[settings["padding_side"]], settings["bug"]
        planted = say("with_bug", bug=bug) if bug else ""
        title = say("title", rows=len(made["rows"]), side=side, planted=planted)
        return {"title": title, **made}

    def text(self, scene: dict[str, Any]) -> str:
        return text(scene)

    def svg(self, scene: dict[str, Any]) -> str:
        return svg(scene)


def matrix(scene: dict[str, Any], state: dict[str, Any]) -> list[str]:
    """The lines of the matrix that a state shows, all as wide as its step."""
    columns = scene["width"] + state["step"]
    numbers = scene["rows"][state["row"]]["matrix"][state["shown"]][:columns]
    return [scene["lines"][number].ljust(columns) for number in numbers]


# --- in words ---


def sentence(scene: dict[str, Any], state: dict[str, Any]) -> str:
    """The state in words; mask_explorer.js says the same."""
    row, query = scene["rows"][state["row"]], state["query"]
    line = scene["lines"][row["matrix"][state["shown"]][query]]
    seen = [row["tokens"][key] for key, code in enumerate(line) if code in "sixn"]
    counts = {"leaks": line.count("x"), "lost": line.count("o"), "nan": line.count("n")}
    told = {
        key: say(f"said_{key}", count=count) if count else ""
        for key, count in counts.items()
    }
    tokens = say("said_tokens", tokens=grouped(seen)) if seen else ""
    return say(
        "said",
        row=row["name"],
        query=query + 1,
        token=row["tokens"][query],
        kind=WORDS[f"kind_{row['kinds'][query]}"],
        count=len(seen),
        keys=len(line),
        tokens=tokens,
        shown=WORDS[f"shown_{state['shown']}"],
        **told,
    )


def grouped(tokens: list[str]) -> str:
    """Words in a row, equal neighbours counted: "3 x <pad>, count, from"."""
    groups: list[tuple[str, int]] = []
    for token in tokens:
        if groups and groups[-1][0] == token:
            groups[-1] = token, groups[-1][1] + 1
        else:
            groups.append((token, 1))
    return ", ".join(f"{n} × {token}" if n > 1 else token for token, n in groups)


SIGNS = {"s": "#", "i": "#", "l": ".", "p": "-", "x": "!", "o": "?", "n": "N", " ": " "}


def text(scene: dict[str, Any]) -> str:
    """The opening matrix in plain text, at most 80 columns, and all answers."""
    state = scene["opens"]
    row = scene["rows"][state["row"]]
    lines = matrix(scene, {**state, "step": scene["steps"]})
    kinds = dict(
        zip("#.-!?N", ("seen", "later", "pad", "leak", "lost", "nan"), strict=True)
    )
    used = {SIGNS[code] for line in lines for code in line}
    return "\n".join(
        [
            scene["title"],
            *_answers(scene),
            "",
            fill(sentence(scene, state), 78),
            "",
            *(
                f"{token[:7]:>7} {''.join(SIGNS[code] for code in line)}".rstrip()
                for token, line in zip(row["tokens"], lines, strict=True)
            ),
            "",
            *(f"{sign} {WORDS[kinds[sign]]}" for sign in kinds if sign in used),
        ]
    )


def _answers(scene: dict[str, Any]) -> Iterator[str]:
    for row in scene["rows"]:
        right = "" if row["same"] else f"  ({WORDS['alone']}: {row['right']})"
        yield f"{row['name']}  {row['prompt'][:34]:<34}  {row['answer']}{right}"


# --- as a still ---


def svg(scene: dict[str, Any]) -> str:
    """The opening row after the last step; its answers above."""
    sheet, state = Sheet(), scene["opens"]
    row = scene["rows"][state["row"]]
    lines = matrix(scene, {**state, "step": scene["steps"]})
    size = max(8.0, min(22.0, round(640 / len(lines))))
    y = 22.0
    for each in scene["rows"]:
        y = _still_answer(sheet, each, y, each is row)
    left, top = 96.0, y + 62
    for column, token in enumerate(row["tokens"]):
        x = left + (column + 0.5) * size
        turn = f'transform="rotate(-55 {x:.1f} {top - 6:.1f})"'
        sheet.write(token[:9], x, top - 6, "start", look.INK, turn)
        place = top + (column + 0.5) * size + 4
        sheet.write(token[:11], left - 8, place, "end", look.INK)
    marks = [[CODES[code] for code in line] for line in lines]
    sheet.grid(marks, left, top, size, row["hue"])
    edge = f'stroke="{look.INK}" stroke-width="1.5"'
    width = size * len(scene["lines"][row["matrix"]["both"][state["query"]]])
    sheet.box(left, top + state["query"] * size, width, size, edge)
    _still_legend(sheet, marks, row["hue"], top + size * len(lines) + 22)
    return sheet.svg(f"{WORDS['name']}: {scene['title']}")


def _still_answer(sheet: Sheet, row: dict[str, Any], y: float, shown: bool) -> float:
    stroke = f'stroke="{row["hue"]}" stroke-width="4"'
    sheet.box(14, y - 9, 0, 12, stroke)
    more = 'font-weight="bold"' if shown else ""
    sheet.write(f"{row['name']}  {row['prompt'][:44]}", 22, y, more=more)
    sheet.write(f"→ {row['answer'][:40] or WORDS['nothing']}", 350, y)
    if not row["same"]:
        words = f"{WORDS['alone']}: {row['right'][:40]}"
        sheet.write(words, 640, y, colour=look.FAINT)
    return y + 19


def _still_legend(sheet: Sheet, marks: list[list[str]], hue: str, y: float) -> None:
    used = {mark for line in marks for mark in line}
    x = 12.0
    for mark in CODES.values():
        if mark and mark in used:
            sheet.mark(mark, x, y - 11, 14, hue)
            sheet.write(WORDS[mark], x + 20, y)
            x += 44 + 6.7 * len(WORDS[mark])
