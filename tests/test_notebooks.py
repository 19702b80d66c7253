"""The rules for notebooks, and that the comparison of their outputs can fail.

The comparison itself is nbval's: ``make test`` runs pytest with ``--nbval`` over
``notebooks/``, and each cell is a test.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from nanoserve.course import cells, lessons, notebooks

IGNORE = "nbval-ignore-output"
# Cells whose output is not compared: seconds, and what depends on what was fetched.
IGNORED = {
    "00_start_here.ipynb": 0,
    "02_the_rectangle.ipynb": 1,
    "03_positions.ipynb": 0,
    "04_masks.ipynb": 0,
    "05_the_nan_leak.ipynb": 1,
    "06_a_batch_that_equals_alone.ipynb": 0,
    "07_static_batching.ipynb": 3,
    "08_the_bill.ipynb": 0,
    "10_continuous_batching.ipynb": 3,
    "11_memory_is_the_ceiling.ipynb": 0,
    "12_prefill_against_decode.ipynb": 3,
}
# An address in memory, or a place on somebody's disk
PRIVATE = re.compile(r"0x[0-9a-f]{6,}|/home/|/root/|/Users/|/tmp/|[A-Z]:\\\\")


def read(path: Path) -> NotebookNode:
    return nbformat.read(path, as_version=4)


def problems(notebook: NotebookNode) -> list[str]:
    """Every rule of the course that this notebook breaks, in words."""
    found = ["widget state is stored"] if "widgets" in notebook.metadata else []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        found.append("not run from top to bottom: `make notebooks`")
    if len({cell.id for cell in notebook.cells}) != len(notebook.cells):
        found.append("two cells have one id")
    if notebook.cells[0].cell_type != "markdown":
        found.append("it begins without prose")
    for number, cell in enumerate(code, 1):
        found += [f"code cell {number}: {each}" for each in code_problems(cell)]
    return found


def code_problems(cell: NotebookNode) -> list[str]:
    lines = cell.source.splitlines()
    found = [f"{len(lines)} lines, at most 15"] if len(lines) > 15 else []
    found += [f"wider than 80: {line}" for line in lines if len(line) > 80]
    for output in cell.outputs:
        if output.get("name") == "stderr" or output.output_type == "error":
            found.append(f"its output is a {output.output_type} on stderr")
        if notebooks.WIDGET_VIEW in output.get("data", {}):
            found.append("a widget view is stored")
        if PRIVATE.search(json.dumps(output)):
            found.append("an address or a path of some machine is in its output")
    return found


@pytest.mark.parametrize("path", notebooks.lessons(), ids=lambda path: path.stem)
def test_every_lesson_keeps_the_rules(path: Path) -> None:
    assert problems(read(path)) == []


@pytest.mark.parametrize("path", notebooks.lessons(), ids=lambda path: path.stem)
def test_the_number_of_cells_that_are_not_compared_is_known(path: Path) -> None:
    tagged = [IGNORE in cell.metadata.get("tags", []) for cell in read(path).cells]
    assert sum(tagged) == IGNORED[path.name]


@pytest.mark.parametrize("path", notebooks.lessons(), ids=lambda path: path.stem)
def test_a_lesson_holds_its_exercises_and_questions_word_for_word(path: Path) -> None:
    """So that a stub, a hint and a solution never say other than what is checked."""
    lesson = lessons.all_lessons()[path.name[:2]]
    needed = {}
    for name in (exercise.name for exercise in lesson.exercises):
        needed[f"title of {name}"] = cells.title_markdown(name)
        needed[f"stub of {name}"] = cells.stub_source(name)
        needed[f"hint of {name}"] = cells.hint_markdown(name)
        needed[f"solution of {name}"] = cells.solution_markdown(name)
    for name in (guess.name for guess in lesson.guesses):
        needed[f"question {name}"] = cells.question_markdown(name)
        needed[f"guess of {name}"] = cells.guess_source(name)
    sources = {cell.source for cell in read(path).cells}
    assert [what for what, source in needed.items() if source not in sources] == []


def small_lesson(**cell: object) -> NotebookNode:
    outputs = [new_output("execute_result", {"text/plain": "42"}, execution_count=1)]
    fields = {"source": "6 * 7", "execution_count": 1, "outputs": outputs, **cell}
    return new_notebook(cells=[new_markdown_cell("# Title"), new_code_cell(**fields)])


def stdout(text: str, name: str = "stdout") -> list[NotebookNode]:
    return [new_output("stream", name=name, text=text)]


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ({"execution_count": None}, "not run from top to bottom"),
        ({"source": "\n".join("123456789abcdefg")}, "16 lines"),
        ({"source": "x = '" + "x" * 80 + "'"}, "wider than 80"),
        ({"outputs": stdout("oh", name="stderr")}, "stderr"),
        ({"outputs": stdout("at 0x7f8a12345678>")}, "address"),
        ({"outputs": stdout("/home/ada/nanoserve")}, "path"),
    ],
)
def test_a_broken_rule_is_named(cell: dict[str, object], complaint: str) -> None:
    assert complaint in " ".join(problems(small_lesson(**cell)))


def test_a_lesson_that_keeps_the_rules_has_no_problems() -> None:
    assert problems(small_lesson()) == []


def compare(path: Path) -> subprocess.CompletedProcess[str]:
    """As ``make check-notebooks`` does, for one notebook."""
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env"]
    return subprocess.run(
        [*command, "-p", "no:cacheprovider", "-p", "no:cov", str(path)],
        cwd=path.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_a_changed_digit_is_caught(tmp_path: Path) -> None:
    lesson, path = small_lesson(), tmp_path / "lesson.ipynb"
    nbformat.write(lesson, path)
    right = compare(path)
    assert right.returncode == 0 and "1 passed" in right.stdout, right.stdout

    lesson.cells[1].outputs[0].data["text/plain"] = "43"
    nbformat.write(lesson, path)
    wrong = compare(path)
    assert wrong.returncode == 1 and "1 failed" in wrong.stdout, wrong.stdout


def test_two_refreshes_give_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "lesson.ipynb"
    lesson = small_lesson(source="import time; time.perf_counter() > 0", outputs=[])
    nbformat.write(lesson, path)
    assert notebooks.refresh(path)
    first = path.read_bytes()
    assert not notebooks.refresh(path)
    assert path.read_bytes() == first and b"True" in first
