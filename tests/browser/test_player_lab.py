"""The slot player in JupyterLab, started as a user starts it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab_server
import nbformat
import pytest
from player_traces import scheduled

import nanoserve

ROOT = Path(__file__).parents[2]
CODE = """import sys
sys.path[:0] = [{tests!r}, {root!r}]
import nanoserve
from player_traces import scheduled
player = nanoserve.SlotPlayer(
    scheduled([3, 5, 2], 3), scheduled([3, 5, 2], 3, continuous=True)
)
player"""
TRACES = [scheduled([3, 5, 2], 3), scheduled([3, 5, 2], 3, continuous=True)]
FIRST = ".jp-Notebook .jp-CodeCell >> nth=0"


@pytest.fixture(scope="module")
def lab(browser: Any, tmp_path_factory: Any) -> Iterator[tuple[str, Path]]:
    """A server of its own; its address and its folder."""
    folder = tmp_path_factory.mktemp("lab")
    with lab_server.started(folder, tmp_path_factory.mktemp("home")) as url:
        yield url, folder


@pytest.fixture
def open_notebook(browser: Any, lab: tuple[str, Path]) -> Iterator[Any]:
    url, home = lab
    contexts = []

    def open_(outputs: list[Any], **options: Any) -> Any:
        source = CODE.format(tests=str(ROOT / "tests"), root=str(ROOT))
        cells = [
            nbformat.v4.new_code_cell(source, outputs=outputs),
            nbformat.v4.new_code_cell("print(player.pass_, player.speed)"),
            nbformat.v4.new_code_cell("player.pass_ = 2"),
        ]
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = nbformat.v4.new_notebook(
            cells=cells, metadata={"kernelspec": kernel}
        )
        name = f"n{len(list(home.glob('*.ipynb')))}.ipynb"
        nbformat.write(notebook, home / name)
        viewport = {"width": 1280, "height": 1000}
        contexts.append(browser.new_context(viewport=viewport, **options))
        page = contexts[-1].new_page()
        page.goto(f"{url}lab/workspaces/w{time.time_ns()}/tree/{name}")
        page.wait_for_selector(FIRST, timeout=120_000)
        return page

    yield open_
    for context in contexts:
        context.close()


def output(page: Any, cell: int) -> Any:
    return page.locator(f".jp-CodeCell >> nth={cell} >> .jp-OutputArea-output").last


def says(page: Any) -> str:
    page.wait_for_timeout(300)
    return page.locator(".ns-live").inner_text()


def test_a_live_player_answers_keys_and_python(open_notebook, tmp_path):
    page = open_notebook([])
    lab_server.run_cell(page, 0)
    page.wait_for_selector(".ns-player canvas", timeout=120_000)
    assert "static, pass 3: " in says(page)
    page.locator(".ns-player input").focus()
    page.keyboard.press("ArrowRight")
    assert "static, pass 4: " in says(page)
    page.keyboard.press("Home")
    page.keyboard.press("End")
    assert "static, pass 5: " in says(page)
    assert page.locator(".jp-mod-editMode").count() <= 1  # Lab took no key of ours
    page.locator('.ns-player [data-control="previous_event"]').click()
    assert "static, pass 3: " in says(page)
    page.select_option(".ns-player select", "4")
    page.wait_for_timeout(500)
    lab_server.run_cell(page, 1)
    output(page, 1).filter(has_text="3 4.0").wait_for(timeout=60_000)
    lab_server.run_cell(page, 2)
    page.wait_for_function(
        "document.querySelector('.ns-live').textContent.startsWith('static, pass 2')",
        timeout=60_000,
    )
    page.screenshot(path=tmp_path / "lab.png")


def test_it_plays_and_python_sees_the_end(open_notebook):
    page = open_notebook([])
    lab_server.run_cell(page, 0)
    page.wait_for_selector(".ns-player canvas", timeout=120_000)
    page.locator('.ns-player [data-control="play"]').focus()
    page.keyboard.press("Space")
    page.wait_for_function(
        "document.querySelector('.ns-live').textContent.startsWith('static, pass 5')",
        timeout=60_000,
    )
    page.wait_for_timeout(500)
    lab_server.run_cell(page, 1)
    output(page, 1).filter(has_text="5 1.0").wait_for(timeout=60_000)


def test_it_follows_the_dark_theme(open_notebook, tmp_path):
    page = open_notebook([])
    lab_server.run_cell(page, 0)
    page.wait_for_selector(".ns-player canvas", timeout=120_000)
    paper = """() => [getComputedStyle(document.querySelector(".ns-player"))
        .backgroundColor, document.querySelector(".ns-score canvas").toDataURL()]"""
    light = page.evaluate(paper)
    page.click("text=Settings")
    page.hover('.lm-Menu-item:has-text("Theme")')
    page.click('.lm-Menu-item:has-text("JupyterLab Dark") >> nth=0')
    page.wait_for_selector('body[data-jp-theme-light="false"]', state="attached")
    page.wait_for_timeout(1500)
    dark = page.evaluate(paper)
    page.screenshot(path=tmp_path / "lab-dark.png")
    assert light[0] != dark[0]
    assert light[1] != dark[1]


def test_untrusted_and_without_a_kernel_the_picture_stands(open_notebook, tmp_path):
    data, _ = nanoserve.SlotPlayer(*TRACES)._repr_mimebundle_()
    stored = nbformat.v4.new_output("execute_result", data, execution_count=1)
    page = open_notebook([stored])
    page.wait_for_selector(".jp-OutputArea-output img", timeout=60_000)
    images = page.locator(".jp-OutputArea-output img")
    assert images.count() == 2
    widths = images.evaluate_all("(all) => all.map((each) => each.naturalWidth)")
    assert min(widths) > 500
    assert page.locator(".jp-OutputArea-output details pre").count() == 2
    page.screenshot(path=tmp_path / "lab-untrusted.png")
