"""The pages of `make site`, from disk, with the network cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import accessibility
import pytest

from nanoserve.course import glossary, notebooks, site
from nanoserve.widgets.slot_player import TRACE_TYPE

LESSONS = [path.stem for path in notebooks.lessons()]
PLAYERS = {
    path.stem: path.read_text("utf-8").count(TRACE_TYPE)
    for path in notebooks.lessons(["00", "07", "11"])
}
PLAYER = ".ns-player:not(.ns-instrument)"
PICTURE = """(root) => [...root.querySelectorAll("canvas")].map((each) =>
  each.toDataURL()).join() + root.querySelector(".ns-playhead").style.transform"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    return site.build(tmp_path_factory.mktemp("site"))[0].parent


@pytest.fixture
def read(open_page: Any, folder: Path) -> Any:
    return lambda name, **options: open_page(folder / f"{name}.html", **options)


def test_the_index_leads_to_every_lesson_and_back(read):
    page = read("index")
    for name in LESSONS:
        link = page.locator(f'.lessons a[href="{name}.html"]')
        title = link.inner_text()
        link.click()
        assert page.locator("h1").inner_text().startswith(title)
        page.click("header a >> nth=0")
        assert page.url.endswith("index.html")
    page.click("header a >> nth=1")
    assert page.locator("h1").inner_text() == glossary.WORDS["title"]


def test_each_lesson_leads_to_the_next_and_back_by_key(read):
    page = read(LESSONS[0])
    way = [*LESSONS[1:], *reversed(LESSONS[:-1])]
    for number, name in enumerate(way, 1):
        side = "next" if number < len(LESSONS) else "before"
        page.locator(f"footer a.{side}").focus()
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/{name}.html")
    assert page.locator("footer a.before").count() == 0


def test_a_new_word_leads_to_its_place_in_the_glossary(read):
    page = read("00_start_here")
    page.click('a[href="glossary.html#kv-cache"]')
    page.wait_for_url("**/glossary.html#kv-cache")
    heading = page.locator("h2", has_text="KV cache")
    height = page.viewport_size["height"]
    assert 0 <= heading.bounding_box()["y"] < height


@pytest.mark.parametrize("name", ["index", *PLAYERS])
def test_every_player_steps_by_mouse_and_by_key(read, name):
    page = read(name)
    page.locator(".ns-player canvas").first.wait_for()
    players = page.locator(PLAYER).all()
    assert len(players) == PLAYERS.get(name, 1)
    for player in players:
        scrubber = player.locator("input[type=range]")
        forward = player.locator('[data-control="forward"]')
        at = int(scrubber.input_value())
        for act in (forward.click, lambda to=scrubber: to.press("ArrowRight")):
            before = heard(page, player), player.evaluate(PICTURE)
            act()
            at += 1
            assert heard(page, player).startswith(f"pass {at}: ")
            assert heard(page, player) != before[0]
            assert player.evaluate(PICTURE) != before[1]


def heard(page: Any, player: Any) -> str:
    """What a screen reader is told, once it says what is written."""
    page.wait_for_function(
        """(root) => root.querySelector(".ns-live").textContent
        === root.querySelector(".ns-sentence").textContent""",
        arg=player.element_handle(),
    )
    return player.locator(".ns-live").inner_text()


@pytest.mark.parametrize("name", PLAYERS)
def test_hints_solutions_and_answers_fold_out(read, name):
    page = read(name)
    folds = page.locator("main details:not(.ns-table)").all()
    told = [fold.locator("summary").inner_text() for fold in folds]
    assert {"Hint", "Solution", "Show the answer, and why"} <= set(told)
    for number, fold in enumerate(folds):
        inner = fold.locator("p, pre").first
        assert not inner.is_visible()
        if number % 2:
            fold.locator("summary").click()
        else:
            fold.locator("summary").press("Enter")
        assert inner.is_visible()


# Each page takes ten seconds: the first two in both looks, the others in turn.
PHONE, DESK = (390, "light"), (1280, "dark")
PAGES = ["index", *LESSONS, "glossary"]
LOOKS = [(name, *(PHONE, DESK)[place % 2]) for place, name in enumerate(PAGES)]
LOOKS += [("index", *DESK), (LESSONS[0], *PHONE)]


@pytest.mark.parametrize(("name", "width", "scheme"), LOOKS)
def test_axe_finds_no_fault_and_nothing_sticks_out(read, tmp_path, name, width, scheme):
    viewport = {"width": width, "height": 900}
    page = read(name, color_scheme=scheme, viewport=viewport)
    if name in PLAYERS:
        page.locator(".ns-player canvas").first.wait_for()
    for fold in page.locator("main details").all():
        fold.evaluate("(each) => { each.open = true; }")
    picture = tmp_path / f"{name}-{width}-{scheme}.png"
    page.screenshot(path=picture, full_page=True, timeout=120_000)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    found = accessibility.problems(page)
    assert [each for each in found if not each.startswith("minor")] == []


def test_where_scripts_do_not_run_the_pictures_stand(read):
    page = read("07_static_batching", java_script_enabled=False)
    images = page.locator("noscript img")
    assert images.count() == PLAYERS["07_static_batching"]
    assert all(image.is_visible() for image in images.all())
