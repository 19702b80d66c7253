"""The mask explorer and the NaN microscope on a page: no kernel, no network."""

from __future__ import annotations

import json
from typing import Any

import accessibility
import pytest

import nanoserve

pytest.importorskip("anywidget")

from nanoserve.widgets import mask_explorer, nan_microscope
from nanoserve.widgets.instrument import instrument_html
from nanoserve.widgets.mask_explorer import MaskExplorer
from nanoserve.widgets.nan_microscope import NaNMicroscope

PROMPTS = ["count from 1 to 5", "copy d o g", "copy t h e l o n g e s t"]
SAYS = {
    "mask-explorer": mask_explorer.sentence,
    "nan-microscope": nan_microscope.sentence,
}
FOCUSABLE = (
    "button:not(:disabled), input, select, textarea:not(:disabled), [tabindex='0']"
)


@pytest.fixture(scope="module")
def made() -> dict[type, Any]:
    lm = nanoserve.load("canary", device="cpu")
    all_ = {
        MaskExplorer: MaskExplorer(lm, PROMPTS, bug="mask-dropped"),
        NaNMicroscope: NaNMicroscope(lm, PROMPTS),
    }
    for each in all_.values():  # as a notebook stores it
        each._scene = json.loads(json.dumps(each.scene, sort_keys=True))
    return all_


class Reader:
    """What one sees, hears and does."""

    def __init__(self, page: Any, shown: Any) -> None:
        self.page, self.shown = page, shown
        page.wait_for_function("window.instrument && instrument.wide")

    def state(self) -> dict[str, Any]:
        return self.page.evaluate("instrument.state")

    def picture(self) -> str:
        """Its own drawings, without the icons of buttons."""
        return self.page.evaluate(
            """() => [...document.querySelectorAll(".ns-content svg")].filter((svg) =>
            !svg.closest("button")).map((svg) => svg.outerHTML.replace(/ng\\d+-/g, ""))
            .join()"""
        )

    def hears(self) -> str:
        """The live region, once it has caught up with the eyes."""
        self.page.wait_for_function(
            "instrument.spoken.textContent === instrument.said.textContent"
        )
        return self.page.text_content("[aria-live]")

    def expected(self) -> str:
        return SAYS[self.shown.name](self.shown.scene, self.state())

    def focus(self) -> None:
        self.page.locator("[role=slider]").focus()

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def changes(self, act: Any) -> dict[str, Any]:
        """Do it, and see that picture and words are others, and agree with Python."""
        before, heard = self.picture(), self.hears()
        act()
        assert self.picture() != before
        assert self.hears() != heard
        assert self.hears() == self.expected()
        return self.state()


@pytest.fixture
def read(open_page, made):
    def open_(kind: type, **options: Any) -> Reader:
        shown = made[kind]
        return Reader(open_page(instrument_html(shown), **options), shown)

    return open_


def label(reader: Reader, words: str) -> Any:
    return reader.page.locator(".ns-instrument label", has_text=words)


# --- the mask explorer ---


def test_the_mask_explorer_opens_where_the_bug_is_seen(read):
    reader = read(MaskExplorer)
    assert reader.state() == reader.shown.scene["opens"]
    said = reader.hears()
    assert said == reader.expected()
    assert "Seen, and must not be: " in said
    assert reader.page.locator(".ns-legend").inner_text().split("\n") == [
        "seen",
        "a pad sees itself",
        "hidden: it comes later",
        "hidden: a pad",
        "seen, and must not be",
    ]
    slider = reader.page.locator("[role=slider]")
    assert slider.get_attribute("aria-valuetext") == said
    answers = reader.page.locator(".ns-answers tbody tr").all_inner_texts()
    for row, line in zip(reader.shown.scene["rows"], answers, strict=True):
        assert row["prompt"] in line and row["answer"] in line
        assert ("same" in line) == row["same"]


def test_arrows_walk_over_queries_and_steps(read):
    reader = read(MaskExplorer)
    reader.focus()
    at = reader.state()["query"]
    for key, query, step in [
        ("ArrowUp", at - 1, 0),
        ("Home", 0, 0),
        ("ArrowDown", 1, 0),
        ("ArrowRight", 13, 1),
        ("ArrowRight", 14, 2),
        ("ArrowUp", 13, 2),
        ("End", 14, 2),
        ("ArrowLeft", 13, 1),
    ]:
        state = reader.changes(lambda key=key: reader.press(key))
        assert (state["query"], state["step"]) == (query, step), key
    reader.press("Home", "ArrowUp")
    assert reader.state()["query"] == 0


def test_hover_and_touch_pick_a_query(read, open_page, made):
    reader = read(MaskExplorer)
    place = """(query) => { const { sheet, size } = instrument;
      const box = sheet.element.getBoundingClientRect();
      const scale = box.height / sheet.element.viewBox.baseVal.height;
      const y = (66 + (query + 0.5) * size) * scale;
      return [box.left + box.width / 2, box.top + y]; }"""
    for query in (2, 11, 7):
        x, y = reader.page.evaluate(place, query)
        state = reader.changes(lambda x=x, y=y: reader.page.mouse.move(x, y))
        assert state["query"] == query
    finger = read(MaskExplorer, has_touch=True)
    x, y = finger.page.evaluate(place, 4)
    assert finger.changes(lambda: finger.page.touchscreen.tap(x, y))["query"] == 4


def test_parts_of_the_mask_are_switched_by_mouse_and_by_key(read):
    reader = read(MaskExplorer)
    causal, padding = (label(reader, f"{part} part") for part in ("causal", "padding"))
    assert reader.changes(causal.click)["shown"] == "padding"
    assert reader.changes(padding.click)["shown"] == "none"
    assert "no mask at all" in reader.hears()

    def press(switch: Any) -> None:
        switch.locator("input").focus()
        reader.press("Space")

    assert reader.changes(lambda: press(causal))["shown"] == "causal"
    assert reader.changes(lambda: press(padding))["shown"] == "both"


@pytest.mark.parametrize("kind", [MaskExplorer, NaNMicroscope])
def test_rows_are_chosen_by_mouse_and_by_key(read, kind):
    reader = read(kind)
    names = reader.page.locator(".ns-choices label")
    assert names.all_inner_texts() == ["A", "B", "C"]
    start = reader.state()["row"]
    other = (start + 1) % 3
    assert reader.changes(names.nth(other).click)["row"] == other
    names.nth(other).locator("input").focus()
    assert reader.changes(lambda: reader.press("ArrowRight"))["row"] == (other + 1) % 3


@pytest.mark.parametrize("kind", [MaskExplorer, NaNMicroscope])
def test_steps_by_button_slider_and_play(read, kind):
    reader = read(kind)
    back, play, forward = (
        reader.page.locator(f'[data-control="{key}"]')
        for key in ("back", "play", "forward")
    )
    assert back.is_disabled()
    last = reader.page.evaluate("Number(document.querySelector('[type=range]').max)")
    assert reader.changes(forward.click)["step"] == 1
    forward.focus()
    assert reader.changes(lambda: reader.press("Enter"))["step"] == 2
    assert reader.changes(back.click)["step"] == 1
    slider = reader.page.locator("[type=range]")
    slider.focus()
    assert reader.changes(lambda: reader.press("ArrowRight"))["step"] == 2
    reader.press("End")
    assert reader.state()["step"] == last and forward.is_disabled()
    shown = slider.get_attribute("aria-valuetext")
    assert shown == reader.page.inner_text(".ns-now")
    play.click()  # from the end it begins again
    assert play.get_attribute("aria-label") == "Pause"
    reader.page.wait_for_function("instrument.state.step === 2")
    reader.press("Space")
    assert play.get_attribute("aria-label") == "Play"
    at = reader.state()["step"]
    reader.page.wait_for_timeout(1300)
    assert reader.state()["step"] == at
    assert reader.hears() == reader.expected()


# --- the NaN microscope ---


def inks(reader: Reader, row: int) -> list[int]:
    """NaN cells of each layer in the overview of a row, masked with -inf."""
    return reader.page.evaluate(
        """(row) => { const { sheet } = instrument.panels[1].rows[row];
        const nan = new Set([...sheet.element.querySelectorAll("pattern")].filter(
          (each) => each.innerHTML.includes("--ns-ink")).map((each) => each.id));
        const lines = Array(instrument.scene.layers).fill(0);
        for (const box of sheet.element.querySelectorAll("rect[style]")) {
          const id = box.style.fill.match(/#([^")]+)/)?.[1];
          if (nan.has(id)) lines[Math.round((box.getAttribute("y") - 1)
            / instrument.small)] += box.getAttribute("width") / instrument.small;
        } return lines.map(Math.round); }""",
        row,
    )


def test_nan_is_seen_to_spread_layer_by_layer(read):
    reader = read(NaNMicroscope)
    reader.focus()
    pads = [6, 7, 0]
    seen = set()
    for step in range(16):
        assert reader.state()["step"] == step
        assert reader.hears() == reader.expected()
        seen.add(reader.picture())
        through = (step + 1) // 4
        for row, count in enumerate(pads):
            layers = [count, *([13] * 3 if count else [0] * 3)]
            assert inks(reader, row) == layers[:through] + [0] * (4 - through)
        reader.press("ArrowRight")
    assert len(seen) == 16
    verdicts = reader.page.locator(".ns-fill").nth(1).locator(".ns-spread p span")
    ill = "NaN: pads from layer 1, real tokens from layer 2 · next: none (NaN)"
    assert verdicts.all_inner_texts() == [ill, ill, "clean · next: t"]
    well = reader.page.locator(".ns-fill").nth(0).locator(".ns-spread p span")
    assert well.all_inner_texts() == [f"clean · next: {each}" for each in "1dt"]


def test_keys_of_the_microscope(read):
    reader = read(NaNMicroscope)
    reader.focus()
    for key, query, step in [
        ("ArrowDown", 1, 0),
        ("End", 12, 0),
        ("ArrowUp", 11, 0),
        ("PageDown", 11, 4),
        ("ArrowRight", 11, 5),
        ("ArrowRight", 11, 6),
        ("PageUp", 11, 2),
        ("ArrowLeft", 11, 1),
        ("Home", 0, 1),
    ]:
        state = reader.changes(lambda key=key: reader.press(key))
        assert (state["query"], state["step"]) == (query, step), key
    reader.press("Control+ArrowRight")  # not ours
    assert reader.state()["step"] == 1


def test_why_it_is_nan_is_said(read):
    reader = read(NaNMicroscope)
    reader.focus()
    reader.press("ArrowRight", "ArrowRight")
    assert "a softmax of -inf alone is 0 / 0: NaN" in reader.hears()
    assert "the mean of all values, pads too" in reader.hears()
    reader.press("PageDown", "End")
    assert "but 0 × NaN is NaN" in reader.hears()
    reader.press("PageDown")
    assert "its own query is NaN" in reader.hears()


def test_hover_picks_a_query_in_either_run(read):
    reader = read(NaNMicroscope)
    for panel, query in ((0, 3), (1, 9)):
        x, y = reader.page.evaluate(
            """([panel, query]) => { const { sheet } = instrument.panels[panel];
            const box = sheet.element.getBoundingClientRect();
            return [box.left + 120, box.top + instrument.top
              + (query + 0.5) * instrument.size]; }""",
            [panel, query],
        )
        state = reader.changes(lambda x=x, y=y: reader.page.mouse.move(x, y))
        assert state["query"] == query


# --- both, for every reader ---


@pytest.mark.parametrize("kind", [MaskExplorer, NaNMicroscope])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1000])
def test_axe_finds_nothing(read, kind, scheme, width):
    size = {"width": width, "height": 900}
    reader = read(kind, color_scheme=scheme, viewport=size)
    assert accessibility.problems(reader.page) == []
    reader.focus()
    reader.press("ArrowRight", "ArrowRight", "ArrowRight")
    assert accessibility.problems(reader.page) == []


@pytest.mark.parametrize("kind", [MaskExplorer, NaNMicroscope])
def test_tab_reaches_every_control_and_each_has_a_name(read, kind):
    reader = read(kind)
    reached = 0
    for _ in range(reader.page.locator(FOCUSABLE).count()):
        reader.page.keyboard.press("Tab")
        name, quiet, tag = reader.page.evaluate(
            """() => { const { activeElement: at } = document;
            return [at.ariaLabel || at.labels?.[0]?.textContent,
            at.dataset.lmSuppressShortcuts, at.tagName]; }"""
        )
        if tag == "BODY":
            break
        assert name, tag
        assert quiet == "true", tag
        reached += 1
    # of a radio group one is reached, the arrows do the rest
    assert reached == reader.page.locator(FOCUSABLE).count() - 2


@pytest.mark.parametrize("kind", [MaskExplorer, NaNMicroscope])
def test_the_field_says_that_it_needs_the_notebook(read, kind):
    reader = read(kind)
    field = reader.page.locator("textarea")
    assert field.is_disabled()
    assert field.input_value() == "\n".join(PROMPTS)
    assert "run the notebook" in reader.page.inner_text(".ns-prompts")


@pytest.mark.parametrize("kind", [MaskExplorer, NaNMicroscope])
@pytest.mark.parametrize("width", [320, 360, 620, 760, 1000, 1400, 1920])
def test_no_width_makes_the_page_wider_than_the_window(read, kind, width):
    reader = read(kind, viewport={"width": width, "height": 800})
    assert reader.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("kind", [MaskExplorer, NaNMicroscope])
def test_nothing_moves_by_itself(read, kind):
    reader = read(kind, reduced_motion="reduce")
    moving = reader.page.evaluate(
        """() => [...document.querySelectorAll("*")].map((each) =>
        getComputedStyle(each)).filter((style) => style.animationName !== "none"
        || style.transitionDuration !== "0s").length"""
    )
    before = reader.picture()
    reader.page.wait_for_timeout(1300)
    assert moving == 0 and reader.picture() == before


@pytest.mark.parametrize("kind", [MaskExplorer, NaNMicroscope])
def test_on_paper_stand_the_pictures_and_no_controls(read, kind, tmp_path):
    reader = read(kind, color_scheme="dark")
    reader.page.emulate_media(media="print")
    for name in ("controls", "choices", "prompts"):
        assert not reader.page.locator(f".ns-{name}").first.is_visible(), name
    assert reader.page.locator("[role=slider] svg").first.is_visible()
    ink = "getComputedStyle(instrument.root).getPropertyValue('--ns-ink')"
    assert reader.page.evaluate(ink).strip() == "#000"
    reader.page.screenshot(path=tmp_path / "print.png")


def test_a_page_may_hold_both_and_without_scripts_their_stills(open_page, made):
    html = instrument_html(*made.values())
    page = open_page(html)
    page.wait_for_function("window.instrument && instrument.wide")
    assert page.locator(".ns-instrument").count() == 2
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    still = open_page(html, java_script_enabled=False)
    assert still.locator("noscript img").count() == 2
    assert still.locator("noscript img").first.bounding_box()["width"] > 400
