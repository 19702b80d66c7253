"""The instruments in JupyterLab: live beside a kernel, and stills where none runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab_server
import nbformat
import pytest

import nanoserve

pytest.importorskip("anywidget")

CODE = """import nanoserve
lm = nanoserve.load("canary", device="cpu")
prompts = ["count from 1 to 5", "copy t h e l o n g e s t"]
made = nanoserve.{name}(lm, prompts)
made"""
NAMES = ["MaskExplorer", "NaNMicroscope"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: Any) -> Iterator[tuple[str, Path]]:
    home, folder = (tmp_path_factory.mktemp(each) for each in ("home", "folder"))
    with lab_server.started(folder, home) as url:
        yield url, folder


def opened(browser: Any, lab: tuple[str, Path], cells: list[Any]) -> Any:
    url, folder = lab
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    name = f"n{len(list(folder.glob('*.ipynb')))}.ipynb"
    nbformat.write(made, folder / name)
    page = browser.new_context(viewport={"width": 1280, "height": 1100}).new_page()
    page.goto(f"{url}lab/workspaces/w{time.time_ns()}/tree/{name}")
    page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
    return page


@pytest.mark.parametrize("name", NAMES)
def test_it_is_alive_and_runs_what_is_typed(browser, lab, name, tmp_path):
    source = CODE.format(name=name)
    cells = [
        nbformat.v4.new_code_cell(source),
        nbformat.v4.new_code_cell("print(made.scene['prompts'])"),
    ]
    page = opened(browser, lab, cells)
    lab_server.run_cell(page, 0)
    page.wait_for_selector(".ns-instrument [role=slider] svg", timeout=120_000)
    said = page.locator(".ns-instrument .ns-live")
    page.wait_for_function("document.querySelector('.ns-live').textContent")
    before = said.inner_text()
    page.locator(".ns-instrument [role=slider]").focus()
    page.keyboard.press("ArrowRight")  # Lab would go to another cell
    page.wait_for_function(
        "(was) => document.querySelector('.ns-live').textContent !== was", arg=before
    )
    field = page.locator(".ns-instrument textarea")
    assert field.is_enabled()
    field.fill("copy a b\ncount from 2 to 9")
    page.wait_for_function(
        "document.querySelector('.ns-instrument .ns-sentence').textContent"
        ".length && document.querySelector('.ns-instrument').textContent"
        ".includes('<answer>')",
        timeout=60_000,
    )
    page.wait_for_timeout(1500)
    field.fill("")
    page.wait_for_selector(".ns-problem:has-text('1 to 8 of them')", timeout=60_000)
    lab_server.run_cell(page, 1)
    shown = page.locator(".jp-CodeCell >> nth=1 >> .jp-OutputArea-output")
    shown.filter(has_text="['copy a b', 'count from 2 to 9']").wait_for(timeout=60_000)
    page.screenshot(path=tmp_path / f"{name}.png")
    page.context.close()


def test_untrusted_and_without_a_kernel_the_stills_stand(browser, lab):
    lm = nanoserve.load("canary", device="cpu")
    cells = []
    for name in NAMES:
        data, _ = getattr(nanoserve, name)(
            lm, ["copy a", "copy b c"]
        )._repr_mimebundle_()
        output = nbformat.v4.new_output("execute_result", data, execution_count=1)
        cells.append(nbformat.v4.new_code_cell("it", outputs=[output]))
    page = opened(browser, lab, cells)
    # Lab draws its cells one after the other
    all_images = "[...document.querySelectorAll('.jp-OutputArea-output img')]"
    drawn = f"{all_images}.filter((each) => each.naturalWidth).length === 2"
    page.wait_for_function(drawn, timeout=60_000)
    images = page.locator(".jp-OutputArea-output img")
    widths = images.evaluate_all("(all) => all.map((each) => each.naturalWidth)")
    assert len(widths) == 2 and min(widths) > 300
    assert page.locator(".jp-OutputArea-output details pre").count() == 2
    page.context.close()
