"""The bug hunt: an engine with one unknown bug, the course's instruments, a diagnosis.

>>> from nanoserve import course
>>> hunt = course.Hunt(4711)
>>> hunt.compare(), hunt.padding(), hunt.masks()  # doctest: +SKIP
>>> hunt.diagnose("mask-dropped")  # doctest: +SKIP

The seed chooses the bug. Every instrument runs with it planted, and each look is
counted, once, however often its cell is run.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from textwrap import fill
from typing import Any

from .. import attention, generate, padding, pitfalls
from ..generate import Prompt
from ..pitfalls.comparison import SMALL, abridged, compare
from ..pitfalls.examples import USUAL, canary
from ..request import whole
from . import panels, values

# Level 1: what lessons 03 to 05 taught, one bug each, in the padded rectangle
SUSPECTS = (
    "index-positions",
    "prefill-only",
    "decode-only",
    "last-column",
    "sum-minus-one",
    "mask-dropped",
    "mask-at-prefill-only",
    "mask-not-grown",
    "mask-transposed",
    "bool-mask-added",
    "minus-inf",
)
# how a look is taken -> the instrument
INSTRUMENTS = {
    "compare": ("compare_alone", "CompareAlone"),
    "padding": ("padding_explorer", "PaddingExplorer"),
    "masks": ("mask_explorer", "MaskExplorer"),
}

WORDS = {
    "name": "hunt {seed}",
    "title": "hunt {seed}, padding on the {side}",
    "begins": "one bug is planted in the engine",
    "prompts": "Its prompts, in `hunt.prompts`; any look takes others, and a side:",
    "looks": "Looks, each of which counts once:",
    "look compare": "a batch beside the same prompts alone",
    "look padding": "ids, mask, positions, and the last real token of each row",
    "look masks": "who sees whom, at the prompt and at each new token",
    "suspects": "The suspects:",
    "about": '`print(pitfalls.BUGS["index-positions"].text())` tells what one does.',
    "how": 'When you know it: `hunt.diagnose("mask-dropped")`, or whichever it is.',
    "so far": "Looks so far: {count}.",
    "no look": "no look at all",
    "one look": "1 look",
    "many looks": "{count} looks",
    "open": "no diagnosis yet",
    "how to diagnose": "Put the name of a suspect in place of the `...`. A wrong one "
    "costs nothing and breaks nothing.",
    "unknown": "no bug has this name",
    "did you mean": "Did you mean `{name}`?",
    "names": "A cell with `hunt` alone shows the suspects.",
    "no suspect": "That is a bug of this course, and no suspect here.",
    "found": "found in {looks}",
    "found later": "found in {looks}, after {wrong} wrong diagnoses",
    "found second": "found in {looks}, after 1 wrong diagnosis",
    "wrong": "it is not `{name}`",
    "would be": "With `{name}`: {symptom}",
    # what tells the suspect from the bug, the first of these that does
    "nan": "Is there any NaN here? Then an answer ends in (error): `hunt.compare()`.",
    "alone": "Is a single prompt, with no neighbour and no pads, answered rightly "
    "here? `hunt.compare([hunt.prompts[0]])` tells one kind of bug from the other.",
    "positions": "Look at the positions of the prompt's tokens: `hunt.padding()`. "
    "Would `{name}` give these?",
    "next": "Look at the position of the first *new* token: `hunt.padding()` shows it "
    "as *next*. Would `{name}` give this one?",
    "last": "Look at the column in which each row's logits are read, its last real "
    "token: `hunt.padding()`, on both sides. Would `{name}` read there?",
    "prompt mask": "Look at who sees whom within the *prompt*: `hunt.masks()`. Would "
    "`{name}` let them see this?",
    "decode mask": "Look at what the first *new* token sees: `hunt.masks()`, at its "
    "decode steps. Would `{name}` let it see this?",
    "answers": "Look at the answers once more: `hunt.compare()`, on both sides.",
    "symptom": "What one sees: {symptom}",
    "cause": "Why: {cause}",
    "fix": "What is right: {fix}",
    "where": "Where: `{where}`",
    "report": "A public report of it: {report}",
}


class Hunt:
    """One unknown bug, chosen by ``seed``, and the instruments to find it.

    ``lm`` and ``prompts`` are a canary and a batch in which every suspect shows.
    ``looks`` holds what has been looked at. Raises ``InvalidInputError`` for a seed
    that is no whole number of at least 0.
    """

    def __init__(self, seed: int) -> None:
        self.seed = whole("seed", seed, at_least=0)
        self._bug = pitfalls.BUGS[random.Random(self.seed).choice(SUSPECTS)]
        self.lm = canary("canary")
        self.prompts: list[Prompt] = list(USUAL)
        self.looks: list[tuple[str, str, str]] = []
        self.wrong: list[str] = []

    # --- looking ---

    def compare(
        self, prompts: Sequence[Prompt] | None = None, padding_side: str = "left"
    ) -> Any:
        """A batch beside the same prompts alone."""
        return self._look("compare", prompts, padding_side)

    def padding(
        self, prompts: Sequence[Prompt] | None = None, padding_side: str = "left"
    ) -> Any:
        """Ids, mask, positions, the last real token, and where the next will stand."""
        return self._look("padding", prompts, padding_side)

    def masks(
        self, prompts: Sequence[Prompt] | None = None, padding_side: str = "left"
    ) -> Any:
        """Who sees whom, at the prompt and at each new token."""
        return self._look("masks", prompts, padding_side)

    def _look(self, kind: str, prompts: Sequence[Prompt] | None, side: str) -> Any:
        asked = self.prompts if prompts is None else prompts
        shown = instrument(kind, self._bug.name, self.seed)(
            self.lm, asked, padding_side=side
        )
        key = (kind, side, str(list(asked)))
        if key not in self.looks:  # a cell that is run again is no new look
            self.looks.append(key)
        return shown

    # --- the diagnosis ---

    def diagnose(self, name: Any) -> None:
        """Show whether the bug is ``name``, either name of a pair. Never raises."""
        panels.show(self.verdict(name))

    def verdict(self, name: Any) -> panels.Panel:
        if name is None or name is ...:
            return self._panel("○", WORDS["open"], WORDS["how to diagnose"])
        named = as_named(name)
        if named not in pitfalls.BUGS:
            close = get_close_matches(named, known_names(), n=1)
            more = WORDS["did you mean" if close else "names"]
            head = f"{WORDS['unknown']}: {values.brief(named)}"
            return self._panel("?", head, more.format(name="".join(close)))
        if named in self._bug.names:
            return self._found()
        return self._not_it(named)

    def _found(self) -> panels.Panel:
        bug, wrong = self._bug, len(self.wrong)
        key = ("found", "found second")[wrong] if wrong < 2 else "found later"
        head = WORDS[key].format(looks=self._counted(), wrong=wrong)
        lines = [
            WORDS["symptom"].format(symptom=bug.symptom),
            WORDS["cause"].format(cause=bug.cause),
            WORDS["fix"].format(fix=bug.fix),
            WORDS["where"].format(where=bug.where),
            WORDS["report"].format(report=bug.report),
        ]
        return self._panel("✓", f"{head}: {' = '.join(bug.names)}", *lines)

    def _not_it(self, named: str) -> panels.Panel:
        if named not in self.wrong:
            self.wrong.append(named)
        suspect = pitfalls.BUGS[named]
        head = WORDS["wrong"].format(name=named)
        lines = [WORDS["would be"].format(name=named, symptom=suspect.symptom)]
        if suspect.name in SUSPECTS:
            clue = telling_apart(suspect.name, self._bug.name)
            lines.append(WORDS[clue].format(name=named))
        else:
            lines += [WORDS["no suspect"], WORDS["names"]]
        return self._panel("✗", head, *lines)

    # --- showing itself ---

    def _counted(self) -> str:
        count = len(self.looks)
        key = ("no look", "one look")[count] if count < 2 else "many looks"
        return WORDS[key].format(count=count)

    def _panel(self, sign: str, head: str, *lines: str) -> panels.Panel:
        """Never red: a wrong diagnosis is a step on the way."""
        colour = panels.RIGHT if sign == "✓" else panels.OPEN
        name = WORDS["name"].format(seed=self.seed)
        title = f"<b>{sign} {name}: {panels.marked_up(head)}</b>"
        html = [f'<p style="margin:4px 0">{title}</p>', *map(panels.paragraph, lines)]
        text = [f"{sign} {name}: {head}", *map(told, lines)]
        return panels.Panel(panels.framed(colour, *html), "\n".join(text))

    def panel(self) -> panels.Panel:
        """What is known, what can be done, and how many looks have been taken."""
        prompts = [abridged(str(prompt), 60) for prompt in self.prompts]
        kinds = [f"`hunt.{kind}()`: {WORDS[f'look {kind}']}" for kind in INSTRUMENTS]
        suspects = [" = ".join(pitfalls.BUGS[name].names) for name in SUSPECTS]
        return self._panel(
            "?",
            WORDS["begins"],
            WORDS["prompts"],
            *(f"- {prompt}" for prompt in prompts),
            WORDS["looks"],
            *(f"- {kind}" for kind in kinds),
            f"{WORDS['suspects']} {', '.join(suspects)}",
            WORDS["about"],
            WORDS["how"],
            WORDS["so far"].format(count=len(self.looks)),
        )

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.panel()._repr_mimebundle_()

    def __repr__(self) -> str:
        return repr(self.panel())


def told(line: str) -> str:
    """A line of a text panel: indented, an address in one piece."""
    return fill(
        line,
        80,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def as_named(name: Any) -> str:
    """A diagnosis as text, whatever somebody put there."""
    try:
        return str(name)[:60].strip().lower()
    except Exception:
        return type(name).__name__


def known_names() -> list[str]:
    return [each for name in SUSPECTS for each in pitfalls.BUGS[name].names]


@cache
def instrument(kind: str, bug: str, seed: int) -> Callable[..., Any]:
    """The instrument, run with the bug planted, also when it is asked anew."""
    module, name = INSTRUMENTS[kind]
    shown = getattr(import_module(f"nanoserve.widgets.{module}"), name)

    def build(self: Any, **settings: Any) -> dict[str, Any]:
        with pitfalls.plant(bug):
            scene = super(planted, self).build(**settings)
        side = settings["padding_side"]
        # its own title would say that nothing is planted
        title: str = WORDS["title"].format(seed=seed, side=side)
        return {**scene, "title": title}

    planted: Any = type(name, (shown,), {"build": build})
    return planted


# --- what tells one bug from another ---


def telling_apart(one: str, other: str) -> str:
    """The first key of ``WORDS`` in which the two can be told apart by looking."""
    mine, theirs = observed(one), observed(other)
    return next((key for key in mine if mine[key] != theirs[key]), "answers")


@cache
def observed(bug: str) -> dict[str, Any]:
    """What each look would show with ``bug`` planted: asked of the engine itself."""
    lm = canary("canary")
    ids = [lm.encode(prompt) for prompt in USUAL]
    with pitfalls.plant(bug):
        masks = [
            padding.pad_batch(ids, lm.pad_token_id, side)[1] for side in padding.SIDES
        ]
        logits = generate.next_token_logits(lm, USUAL)
        alone = compare(lm, USUAL[:1], max_new_tokens=4)
        return {
            "nan": bool(logits.isnan().any()),
            "alone": bool(alone.wrong or alone.rows[0].largest_error > SMALL),
            "positions": [padding.positions(mask)[mask].tolist() for mask in masks],
            "next": [padding.positions(mask, 1).tolist() for mask in masks],
            "last": [padding.last_column(mask).tolist() for mask in masks],
            "prompt mask": [attention.keep_mask(mask).tolist() for mask in masks],
            "decode mask": [attention.keep_mask(mask, 1).tolist() for mask in masks],
        }
