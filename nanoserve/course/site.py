"""The lessons as web pages that need nothing: ``make site``.

Each page is one file. Its players run without a kernel and without a network, from
the traces that the notebooks store beside their pictures. What only a kernel can do,
checking an answer, is left out; the answers to the questions fold out instead.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from nbconvert.filters import markdown2html
from nbformat import NotebookNode
from nbformat.v4 import new_markdown_cell
from pygments.formatters import HtmlFormatter

from ..widgets import instrument
from ..widgets.slot_player import TRACE_TYPE
from ..widgets.standalone import as_traces, in_script, player_data, script, styles
from . import glossary, panels, values
from .exercises import Guess
from .lessons import guesses
from .notebooks import FOLDER, lessons

WORDS = {
    "title": "From padding to packing",
    "subtitle": "Batched LLM serving, by hand",
    "hook": "You asked for 5. In a batch, it counted to 12. One line is missing. There "
    "was no error.",
    "player": "This is what a server does with three prompts at once, drawn from a "
    "real run. Each row is a seat in the batch, each column one run of the model. "
    "Press play: whoever is done early holds a seat for nothing.",
    "lessons": "Lessons",
    "about": "Read and step through the lessons here, offline. To run them, change "
    "them and have your exercises checked: <code>make lab</code>.",
    "course": "Course",
    "neighbours": "Before and after",
    "before": "Before",
    "next": "Next",
}
STYLE = (Path(__file__).parent / "site.css").read_text("utf-8")
GLOSSARY = "glossary.html"
ASKS = re.compile(r'course\.check_guess\("(\w+)"')

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<header><nav aria-label="{course}">{top}</nav></header>
<main>
{body}
</main>
{foot}
{script}
</body>
</html>
"""
MOUNT = """<script type="module">
{script}
for (const place of document.querySelectorAll(".player")) {{
  const data = JSON.parse(document.getElementById(place.dataset.trace).textContent);
  mount(place, data);
}}
</script>"""


def main(arguments: list[str]) -> int:
    """``[FOLDER]``: write all pages there, by default ``site/``."""
    target = Path(arguments[0]) if arguments else FOLDER.parent / "site"
    pages = build(target)
    print(f"{len(pages)} pages in {target}: open {pages[0]}")
    return 0


def build(target: Path) -> list[Path]:
    """Write the index, the glossary and one page for each lesson; returns paths."""
    paths = lessons()
    pages = {"index.html": index(paths)}
    for before, path, after in zip(
        [None, *paths], paths, [*paths[1:], None], strict=False
    ):
        pages[page_name(path)] = lesson_page(path, before, after)
    pages[GLOSSARY] = glossary_page()
    target.mkdir(parents=True, exist_ok=True)
    for name, page in pages.items():
        (target / name).write_text(page, "utf-8")
    return [target / name for name in pages]


# --- a lesson ---


def lesson_page(path: Path, before: Path | None, after: Path | None) -> str:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [readable(cell) for cell in notebook.cells]
    put_players_in(notebook)
    names = put_instruments_in(notebook)
    exporter = HTMLExporter(template_name="basic")
    body, _ = exporter.from_notebook_node(notebook)
    body, foot = linked_to_pages(body), neighbours(before, after)
    return page(title_of(path), body, foot, names)


def readable(cell: NotebookNode) -> NotebookNode:
    """Without what only a kernel can answer: an open question gets its answer."""
    if asked := ASKS.search(cell.source):
        return new_markdown_cell(folded_answer(guesses()[asked[1]]))
    if cell.source.startswith("@course.exercise"):
        cell.outputs = []  # "not attempted: run this cell again"
    return cell


def folded_answer(guess: Guess) -> str:
    shown = values.code(values.plain(guess.answer))
    answer = panels.WORDS["the answer"].format(answer=shown)
    told = "".join(map(panels.paragraph, (answer, guess.words["why"])))
    return panels.folded(panels.WORDS["show the answer"], told)


def put_players_in(notebook: NotebookNode) -> None:
    """Where a cell stored a trace, let the player stand.

    Without JavaScript the stored picture stays.
    """
    for number, output in enumerate(stored_traces(notebook), 1):
        output.data = {"text/html": player_place(output.data, f"trace-{number}")}


def put_instruments_in(notebook: NotebookNode) -> list[str]:
    """Where a cell stored an instrument's scene, let the instrument stand; which."""
    types = {instrument.mime_type(name): name for name in instrument.NAMES}
    found = set()
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            for kind in types.keys() & output.get("data", {}).keys():
                found.add(types[kind])
                still = output.data["text/html"]
                place = instrument.element(output.data[kind], still)
                output.data = {"text/html": place}
    return sorted(found)


def stored_traces(notebook: NotebookNode) -> list[NotebookNode]:
    outputs = [each for cell in notebook.cells for each in cell.get("outputs", [])]
    return [each for each in outputs if TRACE_TYPE in each.get("data", {})]


def player_place(shown: Any, name: str) -> str:
    stored, still = shown[TRACE_TYPE], shown["text/html"]
    traces = as_traces(*stored) if isinstance(stored, list) else as_traces(stored)
    data = in_script(player_data(*traces))
    return (
        f'<div class="player" data-trace="{name}"></div><noscript>{still}</noscript>'
        f'<script type="application/json" id="{name}">{data}</script>'
    )


def linked_to_pages(body: str) -> str:
    """A link to another notebook becomes one to its page."""
    return re.sub(r'href="(\d\d_\w+\.ipynb|glossary\.md)', _page_link, body)


def _page_link(found: re.Match[str]) -> str:
    return f'href="{page_name(Path(found[1]))}'


# --- the pages around them ---


def index(paths: list[Path]) -> str:
    """What the course is, a first player, and the lessons."""
    items = "".join(
        f'<li><a href="{page_name(path)}">{escape(title_of(path))}</a> '
        f"<span>{escape(minutes_of(path))}</span></li>"
        for path in paths
    )
    body = (
        f'<h1>{WORDS["title"]}</h1><p class="subtitle">{WORDS["subtitle"]}</p>'
        f"<p><strong>{WORDS['hook']}</strong></p>{first_player(paths)}"
        f"<h2>{WORDS['lessons']}</h2>"
        f'<ol class="lessons">{items}</ol><p>{WORDS["about"]}</p>'
    )
    return page(WORDS["title"], body)


def first_player(paths: list[Path]) -> str:
    for path in paths:
        for output in stored_traces(nbformat.read(path, as_version=4)):
            return f"<p>{WORDS['player']}</p>{player_place(output.data, 'trace-1')}"
    return ""


def glossary_page() -> str:
    body = f'<div class="glossary">{markdown2html(glossary.markdown())}</div>'
    return page(glossary.WORDS["title"], body)


def page(title: str, body: str, foot: str = "", instruments: Sequence[str] = ()) -> str:
    """A whole page, with the scripts of what stands in it."""
    home, words = WORDS["title"], glossary.WORDS["title"]
    return PAGE.format(
        title=escape(title),
        style="\n".join([highlighting(), look_of(instruments), STYLE]),
        course=WORDS["course"],
        top=f'<a href="index.html"><b>{home}</b></a> <a href="{GLOSSARY}">{words}</a>',
        body=body,
        foot=foot,
        script=scripts_of('<div class="player"' in body, instruments),
    )


def look_of(instruments: Sequence[str]) -> str:
    return instrument.styles(*instruments) if instruments else styles()


def scripts_of(with_players: bool, instruments: Sequence[str]) -> str:
    """A module for all players of a page, and one for all its instruments."""
    players = MOUNT.format(script=script()) if with_players else ""
    if not instruments:
        return players
    boot = instrument.boot_script(*instruments)
    return f'{players}\n<script type="module">\n{boot}</script>'


def neighbours(before: Path | None, after: Path | None) -> str:
    """Links to the lessons before and after, below the page."""
    links = [
        f'<a class="{side}" href="{page_name(path)}"><small>{WORDS[side]}</small> '
        f"{escape(title_of(path))}</a>"
        for side, path in (("before", before), ("next", after))
        if path
    ]
    label = WORDS["neighbours"]
    nav = f'<nav aria-label="{label}">{"".join(links)}</nav>'
    return f"<footer>{nav}</footer>" if links else ""


def page_name(path: Path) -> str:
    return path.with_suffix(".html").name


def title_of(path: Path) -> str:
    """The first heading of a lesson."""
    first = nbformat.read(path, as_version=4).cells[0].source
    return str(first.splitlines()[0].lstrip("# "))


def minutes_of(path: Path) -> str:
    """What a lesson says below its heading, as in *10 minutes.*"""
    first = nbformat.read(path, as_version=4).cells[0].source
    found = re.search(r"^\*(.+?)\.?\*$", first, re.M)
    return found[1] if found else ""


def highlighting() -> str:
    """Colours of code, for light pages and for dark ones."""
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
