"""The lessons as web pages that need nothing: ``make site``.

Each page is one file. Its players run without a kernel and without a network, from
the traces that the notebooks store beside their pictures.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

from ..widgets import instrument
from ..widgets.slot_player import TRACE_TYPE
from ..widgets.standalone import as_traces, in_script, player_data, script, styles
from .notebooks import FOLDER, lessons

WORDS = {
    "title": "From padding to packing",
    "subtitle": "Batched LLM serving, by hand",
    "about": "Read and step through the lessons here, offline. To run them, change "
    "them and do the exercises: <code>make lab</code>.",
    "index": "all lessons",
    "before": "before",
    "next": "next",
}
STYLE = (Path(__file__).parent / "site.css").read_text("utf-8")

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<nav>{nav}</nav>
{body}
<nav>{nav}</nav>
</main>
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
    """Write the index and one page for each lesson; returns their paths."""
    target.mkdir(parents=True, exist_ok=True)
    paths = lessons()
    written = [target / "index.html"]
    written[0].write_text(index([title_of(path) for path in paths], paths), "utf-8")
    for number, path in enumerate(paths):
        before = paths[number - 1] if number else None
        after = paths[number + 1] if number + 1 < len(paths) else None
        page = target / path.with_suffix(".html").name
        page.write_text(lesson_page(path, before, after), "utf-8")
        written.append(page)
    return written


def lesson_page(path: Path, before: Path | None, after: Path | None) -> str:
    notebook = nbformat.read(path, as_version=4)
    with_players = put_players_in(notebook)
    names = put_instruments_in(notebook)
    exporter = HTMLExporter(template_name="basic")
    body, _ = exporter.from_notebook_node(notebook)
    links = [("index.html", WORDS["index"])]
    links += [(page_name(before), f"← {title_of(before)}")] if before else []
    links += [(page_name(after), f"{title_of(after)} →")] if after else []
    return PAGE.format(
        title=escape(title_of(path)),
        style="\n".join([STYLE, highlighting(), look_of(names)]),
        nav=" ".join(f'<a href="{to}">{escape(word)}</a>' for to, word in links),
        body=linked_to_pages(body),
        script=scripts_of(with_players, names),
    )


def put_players_in(notebook: NotebookNode) -> bool:
    """Where a cell stored a trace, let the player stand; True if there was any.

    Without JavaScript the stored picture stays.
    """
    count = 0
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            stored = output.get("data", {}).get(TRACE_TYPE)
            if stored:
                count += 1
                still, name = output.data["text/html"], f"trace-{count}"
                output.data = {"text/html": player_place(stored, still, name)}
    return bool(count)


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


def look_of(names: list[str]) -> str:
    return instrument.styles(*names) if names else styles()


def scripts_of(with_players: bool, names: list[str]) -> str:
    """A module for all players of a page, and one for all its instruments."""
    players = MOUNT.format(script=script()) if with_players else ""
    if not names:
        return players
    boot = instrument.boot_script(*names)
    return f'{players}\n<script type="module">\n{boot}</script>'


def player_place(stored: Any, still: str, name: str) -> str:
    traces = as_traces(*stored) if isinstance(stored, list) else as_traces(stored)
    data = in_script(player_data(*traces))
    return (
        f'<div class="player" data-trace="{name}"></div><noscript>{still}</noscript>'
        f'<script type="application/json" id="{name}">{data}</script>'
    )


def linked_to_pages(body: str) -> str:
    """A link to another notebook becomes one to its page."""
    return re.sub(r'href="(\d\d_\w+)\.ipynb', r'href="\1.html', body)


def index(titles: list[str], paths: list[Path]) -> str:
    items = "".join(
        f'<li><a href="{page_name(path)}">{escape(title)}</a></li>'
        for title, path in zip(titles, paths, strict=True)
    )
    body = (
        f"<h1>{WORDS['title']}</h1><p>{WORDS['subtitle']}</p>"
        f'<ul class="lessons">{items}</ul><p>{WORDS["about"]}</p>'
    )
    page = PAGE.format(title=WORDS["title"], style=STYLE, nav="", body=body, script="")
    return page.replace("<nav></nav>\n", "")


def page_name(path: Path) -> str:
    return path.with_suffix(".html").name


def title_of(path: Path) -> str:
    """The first heading of a lesson."""
    first = nbformat.read(path, as_version=4).cells[0].source
    return str(first.splitlines()[0].lstrip("# "))


def highlighting() -> str:
    """Colours of code, for light pages and for dark ones."""
    light = HtmlFormatter(style="friendly").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
