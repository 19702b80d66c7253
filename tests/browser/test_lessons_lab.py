"""The lessons as a learner meets them: `make lab`, Run All, and a player that lives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab_server
import nbformat
import pytest

from nanoserve.course import glossary, lab, lessons, notebooks, workspace
from nanoserve.course.cells import solution_markdown
from nanoserve.course.words import WORDS

PLAYERS = {
    "00_start_here.ipynb": 1,
    "07_static_batching.ipynb": 3,
    "08_the_bill.ipynb": 1,
    "10_continuous_batching.ipynb": 1,
    "11_memory_is_the_ceiling.ipynb": 1,
    "12_prefill_against_decode.ipynb": 1,
}
PLAYER = ".ns-player:not(.ns-instrument)"
PICTURE = """(root) => [...root.querySelectorAll("canvas")].map((each) =>
  each.toDataURL()).join() + root.querySelector(".ns-playhead").style.transform"""


@pytest.fixture(scope="module")
def mine(tmp_path_factory: Any) -> Path:
    repository = tmp_path_factory.mktemp("nanoserve")
    folder = repository / "my"
    workspace.make_copies(target=folder)
    # the lessons read recorded results from where they lie beside it
    (repository / "data").symlink_to(notebooks.FOLDER.parent / "data")
    glossary.write(folder)
    return folder


@pytest.fixture(scope="module")
def url(browser: Any, mine: Path, tmp_path_factory: Any) -> Iterator[str]:
    with lab_server.started(mine, tmp_path_factory.mktemp("home")) as address:
        yield address


@pytest.fixture
def open_lesson(browser: Any, url: str) -> Iterator[Any]:
    contexts = []

    def open_(name: str = "") -> Any:
        """The lesson of that file; without a name, what `make lab` opens."""
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 1000}))
        page = contexts[-1].new_page()
        page.goto(f"{url}lab/tree/{name}?reset" if name else url)
        page.wait_for_selector(".jp-Notebook .jp-CodeCell", timeout=120_000)
        return page

    yield open_
    for context in contexts:
        context.close()


def step(page: Any, player: Any) -> None:
    """One pass on by key: what is seen and what is said both change."""
    from playwright.sync_api import expect

    live = player.locator(".ns-live")  # of two traces each says whose it is
    expect(live).to_have_text(re.compile(r"^(.+, )?pass \d"), timeout=30_000)
    said, seen = live.text_content(), player.evaluate(PICTURE)
    player.locator("input[type=range]").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function(
        "([root, was]) => root.querySelector('.ns-live').textContent !== was",
        arg=[player.element_handle(), said],
    )
    assert player.evaluate(PICTURE) != seen


@pytest.mark.parametrize("name", PLAYERS)
def test_run_all_runs_all_and_the_players_live(open_lesson, tmp_path, name):
    page = open_lesson("" if name == lab.FIRST else name)
    assert page.title().startswith(name[:5])
    lab_server.run_all(page)
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt").all_text_contents()
    assert prompts == [f"[{number}]:" for number in range(1, len(prompts) + 1)]
    for kind in ("error", "stderr"):
        shown = page.locator(f'.jp-OutputArea-output[data-mime-type$="{kind}"]')
        assert shown.all_text_contents() == []
    players = page.locator(PLAYER)
    players.nth(PLAYERS[name] - 1).wait_for(timeout=60_000)
    assert players.count() == PLAYERS[name]
    for player in players.all():
        player.scroll_into_view_if_needed()
        step(page, player)
    page.screenshot(path=tmp_path / f"{name[:2]}.png")
    stubs_are_not_attempted(page, lessons.all_lessons()[name[:2]])


def stubs_are_not_attempted(page: Any, lesson: Any) -> None:
    from playwright.sync_api import expect

    outputs = page.locator(".jp-OutputArea-output")
    for exercise in lesson.exercises:
        told = f"{exercise.name}: {WORDS['untouched']}"
        expect(outputs.filter(has_text=told)).not_to_have_count(0)
    guesses = outputs.filter(has_text=WORDS["guess untouched"])
    expect(guesses).to_have_count(len(lesson.guesses))


def test_an_exercise_filled_in_is_checked_where_it_stands(open_lesson, mine):
    page = open_lesson(lab.FIRST)
    lab_server.run_all(page)
    code = [each for each in read(mine / lab.FIRST) if each.cell_type == "code"]
    stub = next(i for i, each in enumerate(code) if "def score_shape" in each.source)
    fill_in(page, stub, right := solution("score_shape"))
    verdict = page.locator(f".jp-CodeCell >> nth={stub} >> .jp-OutputArea-output").last
    verdict.filter(has_text="score_shape: right in all").wait_for(timeout=60_000)
    fill_in(page, stub, right.replace("tokens, tokens]", "tokens, head_dim]"))
    verdict.filter(has_text=f"score_shape: {WORDS['wrong']}").wait_for(timeout=60_000)


def test_a_new_word_leads_to_its_place_in_the_glossary(open_lesson, tmp_path):
    page = open_lesson(lab.FIRST)
    page.wait_for_selector(lab_server.READY, timeout=120_000)
    page.click('.jp-Notebook a:has-text("KV cache")')
    viewer = page.locator(".jp-MarkdownViewer")
    heading = viewer.locator("h2", has_text="KV cache")
    heading.wait_for(timeout=60_000)
    page.wait_for_timeout(1000)
    page.screenshot(path=tmp_path / "glossary.png")
    top, height = viewer.bounding_box()["y"], viewer.bounding_box()["height"]
    assert top <= heading.bounding_box()["y"] < top + height / 2


def read(path: Path) -> list[Any]:
    return nbformat.read(path, as_version=4).cells


def solution(name: str) -> str:
    code = solution_markdown(name).split("```")[1].removeprefix("python\n")
    return f"@course.exercise\n{code}"


def fill_in(page: Any, cell: int, source: str) -> None:
    """Write a cell anew and run it. Keys that come while Lab still moves the cell
    are lost, so what stands there is looked at after each of them."""
    from playwright.sync_api import expect

    lines = page.locator(f".jp-Notebook .jp-CodeCell >> nth={cell} >> .cm-line")
    for keys in ("ControlOrMeta+a", "Delete") * 5:
        if keys != "Delete":
            lines.first.click()
        page.keyboard.press(keys)
        if lines.all_text_contents() == [""]:
            break
    page.keyboard.insert_text(source)
    expect(lines).to_have_text(source.split("\n"))
    page.keyboard.press("Shift+Enter")
