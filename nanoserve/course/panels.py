"""What is shown below a cell: each panel as HTML and, to the same effect, as text.

A panel is one mime bundle, displayed once and never updated, so that a stored
notebook compares equal and a plain terminal reads it too.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from .. import look
from . import rows, values
from .checks import Status, Verdict
from .exercises import Guess, Lesson
from .rows import tint
from .words import WORDS

RIGHT, WRONG, OPEN = look.hue(2), rows.WRONG, look.FAINT
SIGNS: dict[Status, tuple[str, str]] = {
    "passed": ("✓", RIGHT),
    "untouched": ("○", OPEN),
    "unfinished": ("○", OPEN),
    "wrong": ("✗", WRONG),
    "raised": ("✗", WRONG),
    "stopped": ("✗", WRONG),
    "arguments": ("✗", WRONG),
}


@dataclass(frozen=True)
class Panel:
    html: str
    text: str

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # half a surrogate pair, printed by a learner, would be refused by JSON
        bundle = {"text/html": self.html, "text/plain": self.text}
        return {kind: _encodable(words) for kind, words in bundle.items()}

    def __repr__(self) -> str:
        return _encodable(self.text)


def _encodable(words: str) -> str:
    return words.encode("utf-8", "replace").decode("utf-8")


def show(panel: Panel) -> None:
    """As this cell's output; in a plain Python, printed."""
    if shell() is None:
        print(panel)
        return
    from IPython.display import display

    display(panel)


def shell() -> Any:
    """The running IPython, or None."""
    loaded = sys.modules.get("IPython")
    return loaded.get_ipython() if loaded else None


def this_run(shell: Any) -> Any:
    """What tells one run of a cell from the next: the message that asked for it.

    Its number would not do: nbval runs all cells without counting them.
    """
    asked: dict[str, Any] = getattr(shell, "get_parent", dict)()
    return asked.get("header", {}).get("msg_id", shell.execution_count)


# --- pieces ---


def marked_up(words: str) -> str:
    """`x` becomes <code>x</code>, *x* becomes <em>x</em>, all else is escaped."""
    prose_and_code = escape(words).split("`")
    for i, part in enumerate(prose_and_code):
        if i % 2:
            prose_and_code[i] = f"<code>{part}</code>"
        else:
            prose_and_code[i] = re.sub(r"\*(\w[^*]*)\*", r"<em>\1</em>", part)
    return "".join(prose_and_code)


def wrapped(words: str) -> str:
    """A sentence of a text panel, indented."""
    return textwrap.fill(words, 80, initial_indent="  ", subsequent_indent="  ")


def framed(colour: str, *parts: str) -> str:
    return (
        f'<div style="border-left:4px solid {colour};padding:4px 12px;margin:4px 0;'
        f'background-color:{tint(colour, 0.07)}">{"".join(parts)}</div>'
    )


def paragraph(words: str) -> str:
    return f'<p style="margin:4px 0">{marked_up(words)}</p>'


def heading(sign: str, name: str, words: str) -> str:
    return (
        f'<p style="margin:4px 0"><b>{sign} <code>{escape(name)}</code>: '
        f"{escape(words)}</b></p>"
    )


def folded(summary: str, inner: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{inner}</details>"


def preformatted(words: str) -> str:
    style = "margin:4px 0;white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere"
    return f'<pre style="{style}">{escape(words)}</pre>'


# --- a verdict ---


def of_verdict(verdict: Verdict) -> Panel:
    sign, colour = SIGNS[verdict.status]
    said = WORDS[verdict.status].format(cases=verdict.cases)
    html = [heading(sign, verdict.name, said), *map(paragraph, verdict.lines)]
    text = [f"{sign} {verdict.name}: {said}", *map(wrapped, verdict.lines)]
    if verdict.call:
        html += [paragraph(WORDS["this case"]), preformatted(verdict.call)]
        text += [f"  {WORDS['this case']} {verdict.call}"]
    if verdict.rows:
        html += _rows_html(verdict)
        text += _rows_text(verdict)
    if verdict.printed:
        html.append(folded(WORDS["printed"], preformatted(verdict.printed)))
        text += [f"  {WORDS['printed']}:", *_indented(verdict.printed)]
    return Panel(framed(colour, *html), "\n".join(text))


def _rows_html(verdict: Verdict) -> list[str]:
    place = [paragraph(WORDS["the row"].format(row=verdict.place))]
    return (place if verdict.place else []) + [rows.as_html(verdict.rows)]


def _rows_text(verdict: Verdict) -> list[str]:
    place = [f"  {WORDS['the row'].format(row=verdict.place)}"]
    return (place if verdict.place else []) + rows.as_text(verdict.rows)


def _indented(words: str) -> list[str]:
    return [f"    {line}" for line in words.rstrip("\n").split("\n")]


def unknown(name: str, words: str, close: Sequence[str]) -> Panel:
    """Nothing has this name; ``close`` holds the nearest that exists, if any."""
    more = WORDS["did you mean"].format(name=close[0]) if close else WORDS["names"]
    html = framed(OPEN, heading("?", name, words), paragraph(more))
    return Panel(html, f"? {name}: {words}\n  {more}")


# --- a guess ---


def guess_untouched() -> Panel:
    return _titled("○", OPEN, WORDS["guess untouched"], [WORDS["how to guess"]])


def guess_right(guess: Guess, said: Any) -> Panel:
    title = WORDS["guess right"].format(guess=values.code(said))
    return _titled("✓", RIGHT, title, [guess.words["why"]])


def guess_wrong(guess: Guess, said: Any, nudge: str) -> Panel:
    """Grey, not red: it is a guess. The answer is folded, for who wants to think."""
    title = WORDS["guess wrong"].format(guess=values.code(said))
    shown = values.code(values.plain(guess.answer))
    answer = [WORDS["the answer"].format(answer=shown), guess.words["why"]]
    unfold = folded(WORDS["show the answer"], "".join(map(paragraph, answer)))
    panel = _titled("✗", OPEN, title, [nudge], unfold)
    return Panel(panel.html, "\n".join([panel.text, *map(wrapped, answer)]))


def _titled(
    sign: str, colour: str, title: str, lines: Sequence[str], more: str = ""
) -> Panel:
    head = f'<p style="margin:4px 0"><b>{sign} {marked_up(title)}</b></p>'
    html = framed(colour, head, *map(paragraph, lines), more)
    return Panel(html, "\n".join([f"{sign} {title}", *map(wrapped, lines)]))


# --- the badge ---


def badge(name: str, is_yours: bool, words: str) -> Panel:
    """Whose function stands behind ``course.name``."""
    sign, colour = ("✓", RIGHT) if is_yours else ("○", OPEN)
    pill = (
        f"border:1px solid {colour};border-radius:8px;padding:1px 8px;font-size:12px;"
        f"background-color:{tint(colour, 0.1)}"
    )
    what = f"{sign} <code>course.{name}</code>: {escape(words)}"
    html = f'<span style="{pill}">{what}</span>'
    return Panel(html, f"{sign} course.{name}: {words}")


# --- progress ---


def of_progress(lessons: Sequence[Lesson], passed: set[str], kept: bool) -> Panel:
    lines, table = [], []
    for lesson in lessons:
        lines.append(f"{lesson.number} {lesson.title}")
        table.append(_lesson_line(lesson))
        for exercise in lesson.exercises:
            done = f"{lesson.number}.{exercise.name}" in passed
            star = " *" if exercise.starred else ""
            minutes = WORDS["minutes"].format(minutes=exercise.minutes)
            sign, word = ("✓", WORDS["done"]) if done else ("○", WORDS["not done"])
            name = exercise.name + star
            lines.append(f"   {sign} {name:<24} {minutes:>7}  {word}")
            table.append(_exercise_line(sign, name, minutes, word))
    foot = [_sum(lessons, passed)] + ([] if kept else [WORDS["not kept"]])
    html = (
        f"<table><thead><tr><th>{WORDS['exercise']}</th><th></th>"
        f"<th>{WORDS['progress']}</th></tr></thead><tbody>{''.join(table)}"
        f"</tbody></table>{''.join(map(paragraph, foot))}"
    )
    return Panel(html, "\n".join([*lines, *foot]))


def _lesson_line(lesson: Lesson) -> str:
    title = f"{lesson.number} {escape(lesson.title)}"
    return f'<tr><th colspan="3" style="text-align:left">{title}</th></tr>'


def _exercise_line(sign: str, name: str, minutes: str, word: str) -> str:
    cells = [f"<code>{escape(name)}</code>", minutes, f"{sign} {word}"]
    style = 'style="text-align:left"'
    return "<tr>" + "".join(f"<td {style}>{cell}</td>" for cell in cells) + "</tr>"


def _sum(lessons: Sequence[Lesson], passed: set[str]) -> str:
    all_ = {f"{each.number}.{e.name}" for each in lessons for e in each.exercises}
    return WORDS["sum"].format(passed=len(all_ & passed), all=len(all_))
