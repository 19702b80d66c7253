"""PaddingExplorer, CompareAlone and MemoryCalculator on a page from disk: no kernel,
no network."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import accessibility
import pytest

from nanoserve import CompareAlone, MemoryCalculator, PaddingExplorer
from nanoserve.pitfalls.examples import canary
from nanoserve.widgets import memory_calculator, memory_scene, padding_explorer
from nanoserve.widgets.instrument import instrument_html

PROMPTS = ["count from 3 to 12", "copy c a d", "reverse b c d e f"]  # 7, 6, 8 tokens
THREE = [
    "count from 1 to 5",
    "count from 34 to 38",
    "copy t h e l o n g e s t h a s n o",
]
FOCUSABLE = "button, input, select, textarea, summary, [tabindex='0']"


class Reader:
    """What one sees, hears and does."""

    def __init__(self, page: Any) -> None:
        self.page = page
        page.wait_for_selector(".ns-rectangle, .ns-card")

    def sees(self) -> bytes:
        return self.page.locator(".ns-instrument").first.screenshot()

    def hears(self) -> str:
        """The live region, once it has caught up with the eyes."""
        self.page.wait_for_function(
            "document.querySelector('.ns-live').textContent"
            " === document.querySelector('.ns-sentence').textContent"
        )
        return self.page.text_content(".ns-live")

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def focus(self, name: str) -> None:
        self.page.locator(name).first.focus()

    def at(self) -> Any:
        return self.page.evaluate("instrument.state")

    def focused(self) -> list[Any]:
        """What kind of control, its name, whether it keeps its keys, and its ring."""
        return self.page.evaluate(
            """() => { const { activeElement: at } = document;
            const seen = at.type === "radio" ? at.nextSibling : at;
            return [at.dataset.control || at.type || at.role || at.tagName, at.ariaLabel
            || at.labels?.[0]?.textContent || at.textContent,
            at.closest("[data-lm-suppress-shortcuts]") === at,
            getComputedStyle(seen).outlineStyle]; }"""
        )


@pytest.fixture(scope="module")
def explorer():
    return PaddingExplorer(canary("canary"), PROMPTS)


@pytest.fixture(scope="module")
def comparison():
    return CompareAlone(canary("canary"), THREE, bug="mask-dropped")


@pytest.fixture(scope="module")
def calculator():
    return MemoryCalculator()


@pytest.fixture
def padding(open_page, explorer):
    return Reader(open_page(instrument_html(explorer)))


@pytest.fixture
def compare(open_page, comparison):
    return Reader(open_page(instrument_html(comparison)))


# --- the padding explorer ---

LEFT = (
    "Pads on the left: 3 of 24 cells are pads: 12.5%. "
    "Each row's last real token stands in column 7."
)
RIGHT = (
    "Pads on the right: 3 of 24 cells are pads: 12.5%. "
    "The last real tokens stand in the columns 6, 5, 7."
)


def test_it_opens_with_the_rectangle_in_two_sentences(padding, explorer):
    assert padding.hears() == LEFT == padding_explorer.summary(explorer.scene)
    cells = padding.page.locator(".ns-rectangle .ns-cell")
    assert cells.count() == 24 + 3  # and where the three next tokens will stand
    assert padding.page.locator(".ns-rectangle .ns-pad").count() == 3
    assert padding.page.inner_text(".ns-filled b") == "3 of 24 cells are pads: 12.5%"
    field = padding.page.locator("textarea")
    assert field.input_value() == "\n".join(PROMPTS)


def test_each_cell_shows_token_id_mask_and_position(padding):
    cells = padding.page.locator('.ns-rectangle [data-row="1"]')
    assert [" ".join(each.split()) for each in cells.all_inner_texts()] == [
        "0 0 0",  # a pad: its id, its mask, its position
        "0 0 0",
        "<bos> 1 1 0",
        "copy 10 1 1",
        "c 14 1 2",
        "a 12 1 3",
        "d 15 1 4",
        "<answer> 3 1 5",
        "… 1 6",  # the next token
    ]


def test_without_a_kernel_nothing_can_be_typed_and_a_line_says_so(padding):
    assert padding.page.locator("textarea").is_disabled()
    said = padding.page.inner_text(".ns-prompts .ns-more")
    assert said == "To type prompts of your own, run the notebook."


def columns_of_last(reader: Reader) -> list[str]:
    last = reader.page.locator(".ns-rectangle .ns-last")
    return last.evaluate_all("(all) => all.map((each) => each.dataset.column)")


def test_the_side_changes_by_mouse(padding):
    before = padding.sees()
    assert columns_of_last(padding) == ["7", "7", "7"]
    padding.page.click("label:has-text('right')")
    assert padding.hears() == RIGHT
    assert padding.sees() != before
    assert columns_of_last(padding) == ["6", "5", "7"]
    padding.page.click("label:has-text('left')")
    assert padding.hears() == LEFT


def test_the_side_changes_by_key(padding):
    before = padding.sees()
    padding.focus("input:checked")
    padding.press("ArrowRight")
    assert padding.hears() == RIGHT
    assert padding.sees() != before
    padding.press("ArrowLeft")
    assert padding.hears() == LEFT


def test_a_cell_under_the_pointer_is_told(padding):
    before = padding.sees()
    cell = padding.page.locator('[data-row="1"][data-column="0"]')
    cell.hover()
    assert padding.hears() == (
        "row B, column 0: a pad, id 0, mask 0; the 0 as its position is read by nobody"
    )
    assert padding.sees() != before
    padding.page.locator('[data-row="0"][data-column="8"]').hover()
    assert padding.hears() == (
        "row A: the next token goes into column 8 and stands at position 7"
    )
    padding.page.mouse.move(5, 5)
    assert padding.hears() == LEFT
    cell.click()
    padding.page.mouse.move(5, 5)
    assert padding.hears().startswith("row B, column 0: a pad")


def test_every_cell_is_reached_by_keys(padding):
    padding.page.click("label:has-text('right')")
    padding.page.mouse.move(5, 5)
    padding.focus("[role=listbox]")
    before = padding.sees()
    heard = []
    for keys in (["Home"], ["ArrowRight"], ["ArrowDown"], ["End", "ArrowLeft"]):
        padding.press(*keys)
        assert padding.sees() != before
        before = padding.sees()
        heard.append(padding.hears())
    assert heard == [
        "row A, column 0: <bos>, id 1, mask 1, position 0",
        "row A, column 1: count, id 5, mask 1, position 1",
        "row B, column 1: copy, id 10, mask 1, position 1",
        "row B, column 7: a pad, id 0, mask 0; the 5 as its position is read by nobody",
    ]
    padding.press("ArrowLeft", "ArrowLeft")
    assert padding.hears() == (
        "row B, column 5: <answer>, id 3, mask 1, position 5; "
        "the last real token, its logits choose the next"
    )
    active = padding.page.get_attribute("[role=listbox]", "aria-activedescendant")
    assert padding.page.inner_text(f"#{active}") == padding.hears()
    padding.press("ArrowUp", "ArrowUp", "Home", "ArrowLeft")  # no further than that
    assert padding.hears() == "row A, column 0: <bos>, id 1, mask 1, position 0"
    padding.press("Escape")
    assert padding.hears() == RIGHT


def test_it_is_also_told_as_tensors(padding):
    pre = padding.page.locator("details pre")
    assert not pre.is_visible()
    padding.focus("summary")
    padding.press("Enter")
    told = pre.inner_text()
    assert "[[0, 1, 1, 1, 1, 1, 1, 1],\n [0, 0, 1, 1, 1, 1, 1, 1]," in told
    padding.page.click("label:has-text('right')")
    assert "[[1, 1, 1, 1, 1, 1, 1, 0],\n [1, 1, 1, 1, 1, 1, 0, 0]," in pre.inner_text()


# --- a batch beside the same prompts alone ---


def test_it_opens_where_the_first_row_parts(compare):
    assert compare.at() == {"step": 5, "row": 0}
    assert compare.hears() == (
        "token 6: A differs from here, alone <eos>, in the batch 6, "
        "logit error 10 or more; B says <eos>, logit error 10 or more; "
        "C says n, logit error below 1e-4"
    )
    assert compare.page.locator(".ns-verdicts li").all_inner_texts() == [
        "Differs: A from token 6.",
        "Same tokens, other logits: B.",
        "Clean: C.",
    ]
    first = compare.page.locator(".ns-rectangle .ns-first")
    first = first.and_(compare.page.locator(".ns-token"))
    assert first.all_inner_texts() == ["<eos>", "6"]


def heights(reader: Reader, row: int) -> list[float]:
    bars = reader.page.locator(f'.ns-error[data-row="{row}"] i')
    return bars.evaluate_all("(all) => all.map((each) => each.offsetHeight)")


def test_the_strip_is_as_high_as_the_power_of_ten(compare, comparison):
    for number, row in enumerate(comparison.scene["rows"]):
        seen = heights(compare, number)
        assert len(seen) == len(row["errors"])
        order = sorted(range(len(seen)), key=seen.__getitem__)
        ranked = [row["errors"][each] for each in order]
        assert ranked == sorted(ranked)
        bars = compare.page.locator(f'.ns-error[data-row="{number}"] small')
        words = comparison._words
        assert bars.all_inner_texts() == [
            words[f"bar_{each}"] for each in row["errors"]
        ]
    assert max(heights(compare, 2)) <= 1 < 10 < min(heights(compare, 0))


@pytest.mark.parametrize(
    ("control", "start", "end"),
    [("back", 5, 4), ("forward", 5, 6), ("previous_event", 9, 5), ("next_event", 2, 5)],
)
def test_buttons_step_and_jump(compare, control, start, end):
    compare.page.evaluate("(step) => instrument.set({ step })", start)
    before, heard = compare.sees(), compare.hears()
    compare.page.locator(f'[data-control="{control}"]').click()
    assert compare.at()["step"] == end
    assert compare.hears() != heard
    assert compare.sees() != before
    assert compare.page.locator(".ns-now").inner_text() == f"token {end + 1} of 16"


def test_keys_alone_do_all(compare):
    compare.focus("[role=listbox]")
    for key, step in [
        ("Home", 0),
        ("ArrowLeft", 0),
        ("ArrowRight", 1),
        ("PageDown", 5),
        ("End", 15),
        ("ArrowRight", 15),
        ("PageUp", 5),
        ("ArrowLeft", 4),
    ]:
        before, was = compare.sees(), compare.at()["step"]
        heard = compare.hears()
        compare.press(key)
        assert compare.at()["step"] == step, key
        assert (compare.sees() != before) == (was != step), key
        assert (compare.hears() != heard) == (was != step), key
    for key, row in [("ArrowDown", 1), ("End", 1), ("ArrowDown", 2), ("ArrowDown", 2)]:
        compare.press(key)
        assert compare.at()["row"] == row
    active = compare.page.get_attribute("[role=listbox]", "aria-activedescendant")
    option = compare.page.locator(f"#{active}")
    assert option.inner_text() == "C says <eos>, logit error below 1e-4"
    compare.press("ArrowUp")
    assert option.get_attribute("aria-selected") == "false"


def test_the_slider_takes_keys_and_the_picture_clicks(compare):
    slider = compare.page.locator("input[type=range]")
    slider.focus()
    compare.press("ArrowRight")
    assert compare.at()["step"] == 6
    assert slider.get_attribute("aria-valuetext") == "token 7 of 16"
    assert "A has parted, alone nothing, in the batch 7; B is over" in compare.hears()
    before = compare.sees()
    compare.page.click('.ns-column[data-step="2"]')
    assert compare.at()["step"] == 2
    assert compare.sees() != before
    compare.page.click('.ns-token[data-row="2"][data-step="8"] >> nth=1')
    assert compare.at() == {"step": 8, "row": 2}


def test_play_walks_to_the_end(compare):
    compare.page.evaluate("instrument.set({ step: 13 })")
    play = compare.page.locator('[data-control="play"]')
    assert play.get_attribute("aria-label") == "Play"
    before = compare.sees()
    play.focus()
    compare.press("Space")
    assert play.get_attribute("aria-label") == "Pause"
    compare.page.wait_for_function("instrument.state.step === 15")
    compare.page.wait_for_function(
        "document.querySelector('[data-control=play]').ariaLabel === 'Play'"
    )
    assert compare.sees() != before
    assert compare.hears().startswith("token 16: ")


def test_all_tokens_stand_in_a_table(compare):
    table = compare.page.locator("details table")
    assert not table.is_visible()
    compare.page.click("summary")
    lines = [row.split("\t") for row in table.locator("tr").all_inner_texts()]
    assert lines[0] == ["row", "token", "alone", "batch", "logit error"]
    assert ["A", "6", "<eos>", "6", "10 or more"] in lines
    assert ["A", "7", "", "7", ""] in lines
    assert ["C", "1", "t", "t", "below 1e-4"] in lines
    compare.focus("details [tabindex='0']")
    compare.press("End")  # its own: the table scrolls
    assert compare.at()["step"] == 5


def test_nan_is_crossed_and_named(open_page):
    made = CompareAlone(canary("canary"), THREE, bug="minus-inf")
    reader = Reader(open_page(instrument_html(made)))
    assert reader.hears().startswith(
        "token 1: A differs from here, alone 1, in the batch (error), logit error NaN"
    )
    assert reader.page.locator(".ns-nan small").all_inner_texts() == ["NaN", "NaN"]


def test_with_nothing_to_find_it_opens_at_the_end(open_page):
    made = CompareAlone(canary("canary"), THREE[:2])
    reader = Reader(open_page(instrument_html(made)))
    assert reader.at()["step"] == 5
    for name in ("previous_event", "next_event"):
        assert reader.page.locator(f'[data-control="{name}"]').is_disabled()
    assert reader.page.locator(".ns-verdicts li").all_inner_texts() == ["Clean: A, B."]


# --- the memory calculator ---


def sees_what_python_says(reader: Reader, shown: MemoryCalculator) -> dict[str, Any]:
    """All words on the page, and the boxes of the bar; returns the state."""
    page, state = reader.page, reader.at()
    told = memory_calculator.told(shown.scene, state)
    assert reader.hears() == told["sentence"]
    parts = [words for _, _, words in told["parts"]]
    assert page.locator(".ns-legend li").all_inner_texts() == parts
    sums = page.locator(".ns-sums > div").evaluate_all(
        "(all) => all.map((each) => [...each.children].map((one) => one.textContent))"
    )
    assert sums == told["sums"]
    assert page.locator(".ns-more p").all_inner_texts() == told["notes"]
    fit = memory_scene.sums(shown.scene, state)["fit"]
    boxes = page.locator('.ns-card [data-part="sequences"]').count()
    assert boxes == (fit if fit <= memory_calculator.MOST_DRAWN else 1)
    widths = page.locator(".ns-card > div").evaluate_all(
        "(all) => all.map((each) => each.getBoundingClientRect().width)"
    )
    whole = sum(count for _, count, _ in told["parts"])
    for width, (kind, count, _) in zip(widths, told["parts"], strict=True):
        assert width == pytest.approx(count / whole * sum(widths), abs=6), kind
    return state


def test_all_is_chosen_by_mouse_and_by_key_and_told_as_python_tells_it(
    open_page, calculator
):
    reader = Reader(open_page(instrument_html(calculator)))
    page = reader.page
    assert sees_what_python_says(reader, calculator) == calculator.scene["opens"]
    model, card = page.get_by_label("model"), page.get_by_label("memory of the card")
    context = page.get_by_label("tokens a sequence")
    share = page.get_by_label("gpu_memory_utilization")
    model.select_option("Llama-3.1-70B")
    context.focus()
    for key, tokens in [("End", 131_072), ("ArrowLeft", 65_536), ("Home", 512)]:
        reader.press(key)
        assert sees_what_python_says(reader, calculator)["context"] == tokens
    reader.press("End")
    assert context.get_attribute("aria-valuetext") == "131,072"
    model.focus()
    reader.press("ArrowUp")  # a model of 8,192 tokens: no more than that
    assert sees_what_python_says(reader, calculator)["context"] == 8192
    page.click("label:has-text('int8')")
    page.click("label:has-text('fp8')")
    share.focus()
    reader.press("ArrowLeft", "ArrowLeft")
    state = sees_what_python_says(reader, calculator)
    assert (state["weights"], state["kv"], state["share"]) == ("int8", "fp8", 90)
    page.locator("input:checked").first.focus()
    reader.press("ArrowLeft")
    assert sees_what_python_says(reader, calculator)["weights"] == "bf16"
    assert "does not fit" in reader.hears()
    card.select_option("192 GB (MI300X)")
    assert sees_what_python_says(reader, calculator)["card"] == 192
    slide = share.bounding_box()
    page.mouse.click(slide["x"] + 2, slide["y"] + slide["height"] / 2)
    assert sees_what_python_says(reader, calculator)["share"] == 80
    page.evaluate("document.activeElement.blur()")
    kinds = ["select-one", "radio", "radio", "range", "select-one", "range"]
    page.mouse.click(5, 5)
    for kind in kinds:
        reader.press("Tab")
        reached, name, quiet, ring = reader.focused()
        assert (reached, quiet) == (kind, True)
        assert name and ring != "none", kind
    page.emulate_media(media="print")
    assert page.locator(".ns-sentence").is_visible()
    assert page.locator(".ns-card").is_visible()
    assert not page.locator(".ns-fields").is_visible()


def test_every_choice_comes_to_what_python_computes(open_page, calculator):
    scene = calculator.scene
    states = [
        {"model": model["name"], "context": context, "weights": weights, "kv": kv}
        | {"card": card["gb"], "share": share}
        for model, weights, kv, card, share in product(
            scene["models"],
            memory_scene.WEIGHTS,
            memory_scene.KV,
            scene["cards"],
            memory_scene.SHARES,
        )
        for context in model["contexts"]
    ]
    page = Reader(open_page(instrument_html(calculator))).page
    said = page.evaluate(  # as one string: thousands of objects take long to cross
        """(states) => JSON.stringify(JSON.parse(states).map((state) => {
        instrument.state = state; return instrument.told(); }))""",
        json.dumps(states),
    )
    for state, found in zip(states, json.loads(said), strict=True):
        assert found == memory_calculator.told(scene, state), state


# --- for every reader ---


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1000])
def test_axe_finds_nothing(
    open_page, explorer, comparison, calculator, tmp_path, scheme, width
):
    page = open_page(
        instrument_html(explorer, comparison, calculator),
        color_scheme=scheme,
        viewport={"width": width, "height": 900},
    )
    for summary in page.locator("summary").all():
        summary.click()
    page.locator("[role=listbox]").first.focus()
    page.keyboard.press("ArrowRight")
    page.screenshot(path=tmp_path / f"{scheme}-{width}.png", full_page=True)
    assert accessibility.problems(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("which", ["explorer", "comparison"])
def test_tab_reaches_every_control_and_each_has_a_name(open_page, which, request):
    shown = request.getfixturevalue(which)
    reader = Reader(open_page(instrument_html(shown)))
    reader.page.click("summary")
    if which == "comparison":
        reader.page.evaluate(
            "instrument.set({ step: 2 })"
        )  # all but one can be pressed
    reader.page.evaluate("document.activeElement.blur()")
    reached = {}
    for _ in range(reader.page.locator(FOCUSABLE).count() + 1):
        reader.press("Tab")
        kind, name, quiet, ring = reader.focused()
        if kind == "BODY":
            continue
        assert name, kind
        assert quiet, kind  # or JupyterLab takes its arrow keys
        assert ring != "none", kind
        reached[kind] = name
    expected = {
        "explorer": {"radio", "listbox", "SUMMARY", "group"},
        "comparison": {
            "listbox", "back", "play", "forward", "next_event", "range", "SUMMARY",
            "group",
        },
    }  # fmt: skip
    assert set(reached) == expected[which]


@pytest.mark.parametrize("which", ["explorer", "comparison"])
def test_light_dark_and_print(open_page, which, request, tmp_path):
    html = instrument_html(request.getfixturevalue(which))
    shots = {}
    for scheme in ("light", "dark"):
        reader = Reader(open_page(html, color_scheme=scheme))
        shots[scheme] = reader.sees()
    assert shots["light"] != shots["dark"]
    reader.page.emulate_media(media="print")
    reader.page.screenshot(path=tmp_path / f"{which}-print.png")
    ink = "getComputedStyle(instrument.root).getPropertyValue('--ns-ink')"
    assert reader.page.evaluate(ink).strip() == "#000"
    for name in (".ns-controls", ".ns-head", ".ns-after", ".ns-prompts", ".ns-choices"):
        for each in reader.page.locator(name).all():
            assert not each.is_visible(), name
    assert reader.page.locator(".ns-rectangle").is_visible()


def test_nothing_moves_by_itself(open_page, comparison):
    reader = Reader(open_page(instrument_html(comparison), reduced_motion="reduce"))
    moving = reader.page.evaluate(
        """() => [...document.querySelectorAll("*")].map((each) =>
        getComputedStyle(each)).filter((style) => style.animationName !== "none"
        || style.transitionDuration !== "0s").length"""
    )
    assert moving == 0
    before = reader.at()
    reader.page.wait_for_timeout(1200)
    assert reader.at() == before


def test_where_scripts_do_not_run_the_still_picture_stands(open_page, comparison):
    page = open_page(instrument_html(comparison), java_script_enabled=False)
    image = page.locator("noscript img")
    assert image.is_visible()
    assert image.bounding_box()["width"] > 400


def test_two_on_a_page_do_not_meet(open_page, explorer, comparison):
    page = open_page(instrument_html(explorer, comparison, explorer))
    page.wait_for_selector(".ns-rectangle >> nth=2")
    page.locator("label:has-text('right')").first.click()
    checked = page.locator("input[type=radio]").evaluate_all(
        "(all) => all.map((each) => each.checked)"
    )
    assert checked == [False, True, True, False]
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
