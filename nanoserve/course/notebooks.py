"""Run the lessons and store what they print: ``make notebooks``.

Two refreshes on one machine give the same bytes. What would differ without meaning
anything (the time of each run, widget views and their state, the kernel's version) is
left out, and a cell that measures seconds is tagged ``nbval-ignore-output``.
``make check-notebooks`` runs them again and compares with what is stored.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode

FOLDER = Path(__file__).parents[2] / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {
        "display_name": "Python 3 (ipykernel)",
        "language": "python",
        "name": "python3",
    },
    "language_info": {"name": "python"},
}


def main(words: list[str]) -> int:
    """``refresh [07 ..]``: run all lessons, or those whose names begin so."""
    if not words or words[0] != "refresh":
        print("usage: python -m nanoserve.course.notebooks refresh [07 ..]")
        return 2
    for path in lessons(words[1:]):
        print(f"{path.name}: running", end="", flush=True)
        try:
            changed = refresh(path)
        except CellExecutionError as error:
            told = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
            print(f"\n{path.name}: a cell failed, nothing is stored\n{told}")
            return 1
        print(f"\r{path.name}: {'changed' if changed else 'the same'}   ")
    return 0


def lessons(beginnings: list[str] | None = None) -> list[Path]:
    """The notebooks in the order of their numbers."""
    chosen = tuple(beginnings or [""])
    paths = sorted(FOLDER.glob("*.ipynb"))
    return [path for path in paths if path.name.startswith(chosen)]


def refresh(path: Path) -> bool:
    """Run one notebook and store its outputs; True when that changed the file."""
    before = path.read_text("utf-8")
    notebook = execute(nbformat.reads(before, as_version=4), path.parent)
    after = nbformat.writes(notebook) + "\n"
    if after != before:
        scratch = path.with_suffix(".partial")  # Ctrl-C must not leave half a lesson
        scratch.write_text(after, "utf-8")
        os.replace(scratch, path)
    return after != before


def execute(notebook: NotebookNode, folder: Path) -> NotebookNode:
    """Run every cell in a fresh kernel; outputs as they are stored."""
    with tempfile.TemporaryDirectory() as progress:
        client = NotebookClient(
            notebook,
            timeout=300,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            record_timing=False,
            store_widget_state=False,
            coalesce_streams=True,  # or a busy machine cuts what is printed in pieces
        )
        # nobody's progress in the exercises may show in what is stored
        progress_file = str(Path(progress) / "progress.json")
        client.execute(env={**os.environ, "NANOSERVE_PROGRESS": progress_file})
    return tidied(notebook)


def tidied(notebook: NotebookNode) -> NotebookNode:
    """Drop what differs from run to run and means nothing."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if "data" in output:  # a view without its widget's state shows nothing
                output.data.pop(WIDGET_VIEW, None)
    return notebook


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
