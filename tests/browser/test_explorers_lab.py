"""PaddingExplorer in JupyterLab: what is typed is drawn, and nonsense loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lab_server
import nbformat
import pytest

CODE = """import nanoserve
lm = nanoserve.load("canary")
explorer = nanoserve.PaddingExplorer(lm, ["count from 3 to 12", "copy c a d"])
explorer"""
THEN = 'print(explorer.scene["prompts"], explorer.scene["share"])'
COMPARED = 'nanoserve.CompareAlone(lm, explorer.scene["prompts"], bug="mask-dropped")'
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


@pytest.fixture(scope="module")
def page(browser: Any, tmp_path_factory: Any) -> Iterator[Any]:
    """One notebook with one kernel; its first cell has run."""
    folder = tmp_path_factory.mktemp("lab")
    cells = [nbformat.v4.new_code_cell(code) for code in (CODE, THEN, COMPARED)]
    made = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL})
    nbformat.write(made, folder / "n.ipynb")
    with lab_server.started(folder, tmp_path_factory.mktemp("home")) as url:
        context = browser.new_context(viewport={"width": 1280, "height": 1400})
        shown = context.new_page()
        shown.goto(f"{url}lab/tree/n.ipynb?reset")
        shown.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
        lab_server.run_cell(shown, 0)
        shown.wait_for_selector(".ns-padding .ns-rectangle", timeout=120_000)
        yield shown
        context.close()


def hears(page: Any, start: str) -> None:
    page.wait_for_function(
        "(start) => document.querySelector('.ns-padding .ns-live')"
        ".textContent.startsWith(start)",
        arg=start,
        timeout=60_000,
    )


def type_prompts(page: Any, words: str) -> None:
    page.locator(".ns-padding textarea").click()
    page.keyboard.press("Control+a")
    page.keyboard.type(words)  # key by key, Enter for a new line


def test_typing_draws_and_python_knows(page, tmp_path):
    picture = page.locator(".ns-padding .ns-rectangle")
    before = picture.screenshot()
    assert page.locator(".ns-padding .ns-more").count() == 0
    hears(page, "Pads on the left: 1 of 14 cells are pads: 7.1%")
    page.click(".ns-padding label:has-text('right')")
    type_prompts(page, "copy a\nreverse a b c d\n")
    hears(page, "Pads on the right: 3 of 14 cells are pads: 21.4%")  # its side stays
    assert picture.screenshot() != before
    assert picture.locator(".ns-pad").count() == 3
    page.screenshot(path=tmp_path / "typed.png")
    lab_server.run_cell(page, 1)
    told = page.locator(".jp-CodeCell >> nth=1 >> .jp-OutputArea-output")
    told.filter(has_text="['copy a', 'reverse a b c d'] 21.4%").wait_for(timeout=60_000)


def test_nonsense_is_told_in_one_line_and_nothing_is_lost(page, tmp_path):
    type_prompts(page, "copy a\nreverse a b c d")
    hears(page, "Pads on the right: 3 of 14 cells")
    picture = page.locator(".ns-padding .ns-rectangle")
    before = picture.inner_html()
    page.keyboard.type(" hello")
    problem = page.locator(".ns-padding .ns-problem")
    problem.filter(has_text="not in the vocabulary of canary").wait_for(timeout=60_000)
    assert problem.inner_text().startswith("prompt 2='hello'")
    page.screenshot(path=tmp_path / "refused.png")
    assert picture.inner_html() == before
    field = page.locator(".ns-padding textarea")
    assert field.input_value() == "copy a\nreverse a b c d hello"
    for _ in " hello":
        page.keyboard.press("Backspace")
    page.keyboard.type(" e")
    hears(page, "Pads on the right: 4 of 16 cells")
    assert problem.inner_text() == ""


def test_lab_takes_no_key_of_ours(page):
    page.locator(".ns-padding [role=listbox]").focus()
    cells = page.locator(".jp-CodeCell").count()
    for key in ("Home", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    hears(page, "row B, column 1: reverse")
    page.keyboard.press("Escape")
    assert page.locator(".jp-CodeCell").count() == cells


def test_a_comparison_lives_beside_it(page, tmp_path):
    lab_server.run_cell(page, 2)
    page.wait_for_selector(".ns-compare .ns-rectangle", timeout=120_000)
    live = page.locator(".ns-compare .ns-live")
    page.locator(".ns-compare [role=listbox]").focus()
    page.keyboard.press("Home")
    page.wait_for_timeout(300)
    assert live.inner_text().startswith("token 1: A ")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(300)
    assert live.inner_text().startswith("token 2: A ")
    page.screenshot(path=tmp_path / "compare.png")
