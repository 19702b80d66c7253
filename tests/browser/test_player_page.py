"""The slot player as its reader meets it: a page from disk, no kernel, no network."""

from __future__ import annotations

from typing import Any

import accessibility
import pytest
from player_traces import random_trace, scheduled

from nanoserve import SlotTrace, picture
from nanoserve.widgets.standalone import player_element, player_html

# A, B, C in three slots: C ends in pass 2, A in 3, B in 5
SHORT = scheduled([3, 5, 2], 3)
LONGER = scheduled([3, 9, 4, 12, 2, 7, 5, 5], 3)
CONTINUOUS = scheduled([3, 9, 4, 12, 2, 7, 5, 5], 3, continuous=True)
PICTURE = """() => { const all = (name) => [...document.querySelectorAll(name)];
  return [...all("canvas").map((each) => each.toDataURL()),
  ...all(".ns-playhead, .ns-veil, .ns-thumb, .ns-window")
  .map((each) => each.getAttribute("style"))].join(); }"""
FOCUSABLE = "button, input, select, summary, [tabindex='0']"


class Reader:
    """What one sees, hears and does."""

    def __init__(self, page: Any) -> None:
        self.page = page
        page.wait_for_function("window.player.layout || !window.player.columns")

    def at(self) -> int:
        return self.page.evaluate("player.state.pass")

    def picture(self) -> str:
        return self.page.evaluate(PICTURE)

    def hears(self) -> str:
        """The live region, once it has caught up with the eyes."""
        self.page.wait_for_function(
            "player.live.textContent === player.said.textContent"
        )
        return self.page.text_content("[aria-live]")

    def bill(self, place: int = 0) -> dict[str, int]:
        return self.page.evaluate(
            """(place) => Object.fromEntries([...document.querySelectorAll(".ns-bill")
            [place].querySelectorAll("[data-bill]")].map((dd) => [dd.dataset.bill,
            [Number(dd.dataset.value), Number(dd.lastChild.textContent
              .replaceAll(",", ""))]]))""",
            place,
        )

    def press(self, *keys: str) -> None:
        if self.page.evaluate("document.activeElement === document.body"):
            self.focus("input")
        for key in keys:
            self.page.keyboard.press(key)

    def button(self, name: str) -> Any:
        return self.page.locator(f'[data-control="{name}"]')

    def focus(self, name: str) -> None:
        self.page.locator(name).first.focus()


@pytest.fixture
def reader(open_page):
    return Reader(open_page(player_html(SHORT)))


# --- what is to be seen ---


def test_it_opens_where_a_first_seat_is_held_for_nothing(reader):
    assert reader.at() == 3
    assert reader.hears() == picture.sentence(SHORT, 2)
    assert "finished, held by C" in reader.hears()
    colours = reader.page.evaluate(
        """() => { const canvas = document.querySelector(".ns-score canvas");
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width,
        canvas.height); return new Set(new Uint32Array(data.buffer)).size; }"""
    )
    assert colours > 30


def test_two_traces_open_where_the_first_of_either_ends(open_page):
    reader = Reader(open_page(player_html(LONGER, CONTINUOUS)))
    assert reader.at() == 4
    said = reader.hears().split("\n")
    assert said == [
        f"static, {picture.sentence(LONGER, 3)}",
        f"continuous, {picture.sentence(CONTINUOUS, 3)}",
    ]


def test_each_step_changes_picture_and_words(reader):
    reader.press("Home")
    seen, heard = set(), set()
    for number in range(1, SHORT.passes + 1):
        assert reader.at() == number
        assert reader.hears() == picture.sentence(SHORT, number - 1)
        seen.add(reader.picture())
        heard.add(reader.hears())
        reader.press("ArrowRight")
    assert (len(seen), len(heard)) == (SHORT.passes, SHORT.passes)


@pytest.mark.parametrize(
    "trace",
    [SHORT, LONGER, random_trace(3), random_trace(4, slots=20)],
    ids=["short", "longer", "random", "20 slots"],
)
def test_the_bill_is_the_ledger_at_every_pass(open_page, trace):
    reader = Reader(open_page(player_html(trace)))
    reader.press("Home")
    for number in range(1, trace.passes + 1):
        ledger = trace.ledger(number)
        bill = reader.bill()
        assert bill.pop("kv_free_token_steps")[1] == (
            ledger.kv_reserved_token_steps
            - ledger.kv_live_token_steps
            - ledger.kv_finished_token_steps
        )
        assert bill == {name: [getattr(ledger, name)] * 2 for name in bill}
        assert len(bill) == 10
        reader.press("ArrowRight")


def test_two_traces_share_one_clock_and_keep_two_bills(open_page):
    reader = Reader(open_page(player_html(LONGER, CONTINUOUS)))
    reader.press("End")
    assert reader.at() == LONGER.passes > CONTINUOUS.passes
    assert f"continuous, done after {CONTINUOUS.passes} passes" in reader.hears()
    for place, trace in enumerate((LONGER, CONTINUOUS)):
        assert reader.bill(place)["passes"][0] == trace.passes
        assert reader.bill(place)["empty_seats"][0] == trace.ledger().empty_seats
    reader.press("Home", "ArrowRight")
    assert [reader.bill(place)["passes"][0] for place in (0, 1)] == [2, 2]


def test_the_queue_says_who_waits_since_when_and_for_what(open_page):
    trace = scheduled([4, 2, 3], 1, prompts=[5, 6, 7], arrivals=[0, 1, 20])
    reader = Reader(open_page(player_html(trace, **{"pass": 2})))

    def queue() -> list[str]:
        lines = reader.page.inner_text(".ns-queue").split("\n")
        return [line for line in lines if line]

    assert queue() == [
        "waiting 1",
        "B",
        "6 in, ≤ 2 out",
        "since clock 2",
        "1 to come, next at clock 21",
    ]
    reader.press("End")
    assert reader.page.inner_text(".ns-now") == "pass 9 of 9 · clock 23"
    assert queue() == ["waiting 0", "nobody"]


def test_a_request_keeps_its_colour_from_the_queue_to_the_bill(open_page):
    trace = scheduled([2, 30], 1)
    reader = Reader(open_page(player_html(trace, **{"pass": 1})))
    chip = reader.page.locator(".ns-queue li b")
    orange = chip.evaluate("(chip) => getComputedStyle(chip).borderTopColor")
    assert orange in ("rgb(230, 159, 0)", "color(srgb 0.901961 0.623529 0)")
    reader.press("End")
    for canvas in (".ns-score canvas", ".ns-kv canvas", ".ns-seats"):
        assert reader.page.evaluate(HAS_ORANGE, canvas), canvas


HAS_ORANGE = """(name) => { const canvas = document.querySelector(name);
  const pen = canvas.getContext("2d");
  const { data } = pen.getImageData(0, 0, canvas.width, canvas.height);
  for (let at = 0; at < data.length; at += 4) {
    if (data[at] === 230 && data[at + 1] === 159 && data[at + 2] === 0) return true;
  } return false; }"""


# --- every control ---


@pytest.mark.parametrize(
    ("control", "start", "end"),
    [
        ("back", 4, 3),
        ("forward", 3, 4),
        ("next_event", 3, 5),  # A ends in 3, B in 5
        ("previous_event", 3, 2),  # C ends in 2
    ],
)
def test_step_and_event_buttons(reader, control, start, end):
    reader.page.evaluate("(to) => player.set({ pass: to })", start)
    before, heard = reader.picture(), reader.hears()
    reader.button(control).click()
    assert reader.at() == end
    assert reader.picture() != before
    assert reader.hears() != heard


def test_past_the_last_event_there_is_the_end_and_before_the_first_the_start(open_page):
    trace = random_trace(6)
    reader = Reader(open_page(player_html(trace)))
    for _ in range(trace.passes + 1):
        reader.button("next_event").click()
    assert reader.at() == trace.passes
    for _ in range(trace.passes + 1):
        reader.button("previous_event").click()
    assert reader.at() == 1


def test_play_runs_to_the_end_pauses_and_begins_again(open_page):
    reader = Reader(open_page(player_html(LONGER, speed=8)))
    play = reader.button("play")
    before = reader.picture()
    assert play.get_attribute("aria-label") == "Play"
    play.click()
    reader.page.wait_for_function("player.state.pass >= 6")
    assert play.get_attribute("aria-label") == "Pause"
    play.click()
    stopped = reader.at()
    assert reader.picture() != before
    assert reader.hears() == picture.sentence(LONGER, stopped - 1)
    reader.page.wait_for_timeout(400)
    assert reader.at() == stopped
    play.click()
    reader.page.wait_for_function("!player.state.playing")
    assert reader.at() == LONGER.passes
    play.click()
    reader.page.wait_for_function("player.state.playing && player.state.pass < 5")


def test_speed_is_passes_a_second(open_page):
    reader = Reader(open_page(player_html(LONGER)))
    spent = {}
    for speed in ("0.5", "8"):
        reader.page.select_option("select", speed)
        assert reader.page.evaluate("player.state.speed") == float(speed)
        spent[speed] = reader.page.evaluate(
            """() => new Promise((done) => { const start = performance.now();
            player.go(0); player.play(); const look = () => player.column >= 2
              ? (player.pause(), done(performance.now() - start))
              : setTimeout(look, 5); look(); })"""
        )
    assert spent["0.5"] > 1900  # two passes at one a second
    assert spent["8"] < spent["0.5"] / 2
    assert "16 passes a second" in reader.page.locator("select").get_attribute("title")


def test_zoom_shows_larger_cells_and_turns_pages(open_page):
    reader = Reader(open_page(player_html(LONGER)))
    bigger, smaller = reader.button("zoom_in"), reader.button("zoom_out")
    assert smaller.is_disabled()
    before = reader.picture()
    while bigger.is_enabled():
        bigger.click()
        assert reader.picture() != before
        before = reader.picture()
    assert reader.page.evaluate("player.layout.visible < player.columns")
    assert reader.page.locator(".ns-window").is_visible()
    reader.press("Home")
    first = reader.picture()
    reader.press("End")
    assert reader.page.evaluate("player.layout.first") > 0
    assert reader.picture() != first
    while smaller.is_enabled():
        smaller.click()
    assert not reader.page.locator(".ns-window").is_visible()


def test_the_strip_is_a_slider_for_keys(reader):
    reader.focus("input")
    strip = reader.page.locator("input")
    assert strip.get_attribute("aria-valuetext") == "pass 3 of 5: useful slots 2 of 3"
    reader.press("ArrowRight")
    assert strip.get_attribute("aria-valuetext") == "pass 4 of 5: useful slots 1 of 3"
    assert strip.input_value() == "4"
    strip.fill("2")  # what a screen reader does
    assert reader.at() == 2


def column_at(reader, number, name=".ns-track"):
    """The middle of a column on the page."""
    box = reader.page.locator(name).first.bounding_box()
    x = reader.page.evaluate(
        "(at) => player.layout.label + (at - 0.5) * player.layout.fitting", number
    )
    return box["x"] + x, box["y"] + box["height"] / 2


def test_the_strip_is_scrubbed_with_a_pointer(open_page):
    reader = Reader(open_page(player_html(LONGER)))
    before, heard = reader.picture(), reader.hears()
    mouse = reader.page.mouse
    mouse.move(*column_at(reader, 2))
    mouse.down()
    assert reader.at() == 2
    for number in (5, 9, 14):
        mouse.move(*column_at(reader, number))
        assert reader.at() == number
    mouse.up()
    mouse.move(*column_at(reader, 3))
    assert reader.at() == 14
    assert reader.picture() != before
    assert reader.hears() != heard


def test_the_strip_and_the_cells_take_a_finger(open_page):
    reader = Reader(open_page(player_html(LONGER), has_touch=True))
    reader.page.touchscreen.tap(*column_at(reader, 9))
    assert reader.at() == 9
    reader.page.touchscreen.tap(*column_at(reader, 4, ".ns-score"))
    assert reader.at() == 4
    assert reader.page.locator(".ns-tip").is_visible()


def test_pointing_at_a_cell_tells_its_token(open_page):
    reader = Reader(open_page(player_html(LONGER)))
    tip = reader.page.locator(".ns-tip")
    x, _ = column_at(reader, 2, ".ns-score")
    top = reader.page.locator(".ns-score").bounding_box()["y"]
    reader.page.mouse.move(x, top + reader.page.evaluate("player.layout.axis + 3"))
    assert tip.inner_text().split("\n") == [
        "pass 2, slot 0 decodes A: 2",
        "token 2 of at most 3",
        "KV 3 of 64",
    ]
    reader.page.mouse.move(5, 5)
    assert not tip.is_visible()
    reader.page.mouse.move(x, top + reader.page.evaluate("player.layout.axis + 3"))
    reader.page.mouse.down()
    reader.page.mouse.up()
    assert reader.at() == 2


def test_the_slots_of_a_pass_are_reached_by_keys(reader):
    reader.focus("[role=listbox]")
    tip = reader.page.locator(".ns-tip")
    seen = []
    for _ in range(4):  # one more than there are: it stays at the last
        seen.append(tip.inner_text().split("\n")[0])
        active = reader.page.get_attribute("[role=listbox]", "aria-activedescendant")
        option = reader.page.locator(f"#{active}")
        assert option.get_attribute("aria-selected") == "true"
        assert seen[-1] == f"pass 3, {option.inner_text()}"
        reader.press("ArrowDown")
    assert seen == [
        "pass 3, slot 0 decodes A: 3 and ends (length)",
        "pass 3, slot 1 decodes B: 3",
        "pass 3, slot 2 finished, held by C",
        "pass 3, slot 2 finished, held by C",
    ]
    reader.press("ArrowRight")
    assert tip.inner_text().startswith("pass 4, slot 2 finished")
    reader.press("ArrowUp")
    assert tip.inner_text().startswith("pass 4, slot 1 decodes B: 4")
    reader.press("Escape")
    assert not tip.is_visible()


def test_all_of_it_is_also_a_table(reader):
    assert not reader.page.locator("table").first.is_visible()
    reader.page.locator("summary").click()
    rows = reader.page.locator("table").first.locator("tbody tr")
    rows.first.wait_for()
    assert [row.split("\t") for row in rows.all_inner_texts()] == [
        ["0", "generated", "A", "3", "4"],
        ["1", "generated", "B", "3", "11"],
        ["2", "finished, still held", "C", "", "4"],
    ]
    seats = reader.page.locator("table").nth(1).locator("tbody tr")
    assert seats.all_inner_texts() == ["C\t2\t1", "A\t3\t0", "B\t3\t0"]
    reader.press("ArrowRight")
    assert "finished" in rows.all_inner_texts()[0]


def test_keys_alone_do_all(open_page):
    reader = Reader(open_page(player_html(LONGER)))
    reader.focus("[role=listbox]")
    reader.press("Home")
    ends = LONGER.passes
    for key, at in [
        ("ArrowRight", 2),
        ("ArrowRight", 3),
        ("ArrowLeft", 2),
        ("End", ends),
        ("ArrowRight", ends),
        ("Home", 1),
        ("ArrowLeft", 1),
        ("PageDown", 3),
        ("PageDown", 4),
        ("PageUp", 3),
    ]:
        before = reader.picture()
        was = reader.at()
        reader.press(key)
        assert reader.at() == at, key
        assert (reader.picture() != before) == (was != at)
    wide = reader.page.evaluate("player.layout.column")
    reader.press("+")
    assert reader.page.evaluate("player.layout.column") > wide
    reader.press("-")
    assert reader.page.evaluate("player.layout.column") == wide
    reader.press("Space")
    reader.page.wait_for_function("player.state.playing && player.state.pass > 3")
    reader.press("Space")
    assert not reader.page.evaluate("player.state.playing")
    reader.press("Control+ArrowRight")  # not ours
    assert not reader.page.evaluate("player.state.playing")


def test_on_each_control_its_own_keys_work(open_page):
    reader = Reader(open_page(player_html(LONGER)))
    assert reader.at() == 4
    for name, key, at in [
        ("forward", "Space", 5),
        ("back", "Enter", 4),
        ("next_event", "Enter", 9),
        ("previous_event", "Space", 4),
    ]:
        reader.focus(f'[data-control="{name}"]')
        reader.press(key)
        assert reader.at() == at, name
    reader.focus("select")
    reader.press("ArrowDown")
    assert (reader.at(), reader.page.evaluate("player.state.speed")) == (4, 2)
    reader.focus("summary")
    reader.press("Space")
    assert reader.page.locator("table").first.is_visible()
    assert not reader.page.evaluate("player.state.playing")
    reader.focus('[data-control="play"]')
    reader.press("Space")
    assert reader.page.evaluate("player.state.playing")


# What each control is for: by which key, and by which deed of a pointer. After either,
# something of STATE is another than before.
STATE = """() => [player.column, player.playing, player.speed, player.layout.column,
  player.table.open, player.tables[0].table.parentElement.scrollLeft].join()"""
DRIVEN = {
    "previous_event": ("Space", "click"),
    "back": ("Enter", "click"),
    "play": ("Enter", "click"),
    "forward": ("Space", "click"),
    "next_event": ("Enter", "click"),
    "zoom_in": ("Space", "click"),
    "zoom_out": ("Enter", "click"),
    "select": ("ArrowUp", "choose"),
    "input": ("End", "drag"),
    "summary": ("Enter", "click"),
    "listbox": ("ArrowRight", "point"),
    "tables": ("ArrowRight", "scroll"),
}
PLACES = {
    "select": "select",
    "input": "input",
    "summary": "summary",
    "listbox": "[role=listbox] >> nth=-1",
    "tables": ".ns-table > div",
}


def by_pointer(reader, place: str, deed: str) -> None:
    control = reader.page.locator(place)
    if deed == "choose":
        control.select_option("0.5")
    elif deed == "click":
        control.click()
    elif deed == "scroll":
        control.hover()
        reader.page.mouse.wheel(40, 0)
        reader.page.wait_for_timeout(300)
    else:
        name = ".ns-track" if deed == "drag" else ".ns-score >> nth=-1"
        reader.page.mouse.move(*column_at(reader, 6, name))
        reader.page.mouse.down()
        reader.page.mouse.up()


@pytest.mark.parametrize(
    "traces", [(LONGER,), (LONGER, CONTINUOUS)], ids=["one", "two"]
)
@pytest.mark.parametrize("way", ["key", "pointer"])
@pytest.mark.parametrize("name", DRIVEN)
def test_every_control_works_by_key_and_by_pointer(open_page, traces, name, way):
    reader = Reader(open_page(player_html(*traces, speed=2)))
    reader.page.evaluate("player.set({ pass: 8 })")
    if name == "zoom_out":
        reader.button("zoom_in").click()
    if name == "tables":  # narrow, or nothing scrolls
        reader.page.add_style_tag(content=".ns-table > div { width: 120px }")
        reader.page.locator("summary").click()
    place = PLACES.get(name, f'[data-control="{name}"]')
    before = reader.page.evaluate(STATE)
    if way == "key":
        reader.page.locator(place).press(DRIVEN[name][0])
        reader.page.wait_for_timeout(300)  # scrolling takes its time
    else:
        by_pointer(reader, place, DRIVEN[name][1])
    after = reader.page.evaluate(STATE)
    assert after != before
    if name == "tables":  # they scroll, and no pass goes by
        assert after.split(",")[0] == before.split(",")[0]


def test_of_two_scores_the_lower_obeys_too_and_moves_both(open_page):
    reader = Reader(open_page(player_html(LONGER, CONTINUOUS)))
    lower = reader.page.locator("[role=listbox] >> nth=1")
    tip = reader.page.locator(".ns-tip >> nth=1")
    lower.focus()
    assert tip.inner_text().startswith("pass 4, slot 0 ")
    assert not reader.page.locator(".ns-tip >> nth=0").is_visible()
    reader.press("ArrowDown", "ArrowRight")
    assert tip.inner_text().startswith("pass 5, slot 1 ")
    reader.page.mouse.click(*column_at(reader, 9, ".ns-score >> nth=1"))
    assert [reader.bill(place)["passes"][0] for place in (0, 1)] == [9, 9]
    assert [line.split(":")[0] for line in reader.hears().split("\n")] == [
        "static, pass 9",
        "continuous, pass 9",
    ]


def test_tab_reaches_every_control_and_each_has_a_name(open_page):
    reader = Reader(open_page(player_html(scheduled([60], 1))))
    reader.button("zoom_in").click()  # now both can be pressed
    reader.page.locator("summary").click()
    reached = {}
    for _ in range(reader.page.locator(FOCUSABLE).count() + 1):
        reader.page.keyboard.press("Tab")
        name, kind, quiet, ring = reader.page.evaluate(
            """() => { const { activeElement: at } = document; const style =
            getComputedStyle(at.type === "range" ? at.parentElement : at);
            return [at.ariaLabel || at.textContent || at.labels?.[0]?.textContent,
            at.dataset.control || (at.role === "listbox" ? "listbox" : at.matches("div")
            ? "tables" : at.tagName.toLowerCase()),
            at.dataset.lmSuppressShortcuts, style.outlineStyle]; }"""
        )
        if kind == "body":  # once round, past the browser's own
            continue
        assert name, kind
        assert quiet == "true", kind  # or JupyterLab takes its arrow keys
        assert ring == "solid", kind
        reached[kind] = name
    assert set(reached) == set(DRIVEN)  # and every one of them is driven above


# --- for every reader ---


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1000, 1400])
def test_axe_finds_nothing(open_page, scheme, width):
    reader = Reader(
        open_page(
            player_html(LONGER, CONTINUOUS),
            color_scheme=scheme,
            viewport={"width": width, "height": 900},
        )
    )
    reader.page.locator("summary").click()
    reader.focus("[role=listbox]")
    assert reader.page.locator(".ns-tip").first.is_visible()
    assert accessibility.problems(reader.page) == []


def test_a_screen_reader_is_not_talked_over_while_playing(open_page):
    trace = scheduled([200], 1, capacity=256)
    reader = Reader(open_page(player_html(trace, speed=8)))
    reader.hears()
    reader.page.evaluate(
        """() => { window.told = 0; new MutationObserver(() => { told += 1; }).observe(
        document.querySelector("[aria-live]"), { childList: true }); }"""
    )
    start = reader.at()
    reader.button("play").click()
    reader.page.wait_for_function("player.state.pass > 60")
    assert reader.at() - start > 50
    assert reader.page.evaluate("told") <= 2
    reader.button("play").click()
    assert reader.hears() == picture.sentence(trace, reader.at() - 1)


def test_nothing_moves_by_itself_where_stillness_is_asked_for(open_page):
    html = player_html(LONGER, playing=True)
    moving = Reader(open_page(html))
    assert moving.page.evaluate("player.state.playing")
    still = Reader(open_page(html, reduced_motion="reduce"))
    assert not still.page.evaluate("player.state.playing")
    durations = still.page.evaluate(
        """() => [...document.querySelectorAll("*")].map((each) =>
        getComputedStyle(each)).filter((style) => style.animationName !== "none"
        || style.transitionDuration !== "0s").length"""
    )
    assert durations == 0
    still.button("play").click()  # who asks for it may have it
    assert still.page.evaluate("player.state.playing")


def test_light_dark_and_print_differ_and_are_kept_for_the_eye(open_page, tmp_path):
    shots = {}
    for scheme in ("light", "dark"):
        page = open_page(player_html(LONGER, CONTINUOUS), color_scheme=scheme)
        reader = Reader(page)
        shot = page.screenshot(path=tmp_path / f"{scheme}.png")
        shots[scheme] = (reader.picture(), shot)
    reader.page.emulate_media(color_scheme="light")  # the same page follows its system
    reader.page.wait_for_function(
        "getComputedStyle(player.root).backgroundColor === 'rgb(253, 253, 251)'"
    )
    reader.page.wait_for_timeout(100)
    assert reader.picture() == shots["light"][0]
    assert shots["light"][0] != shots["dark"][0]
    assert shots["light"][1] != shots["dark"][1]


def test_paper_shows_the_whole_score_and_no_controls(open_page, tmp_path):
    reader = Reader(open_page(player_html(LONGER), color_scheme="dark"))
    for _ in range(6):
        if reader.button("zoom_in").is_enabled():
            reader.button("zoom_in").click()
    screen, at = reader.picture(), reader.at()
    reader.page.emulate_media(media="print")
    reader.page.wait_for_function("player.printing")
    assert reader.page.evaluate("player.layout.visible") == LONGER.passes
    assert reader.bill()["passes"][0] == LONGER.passes
    assert reader.picture() != screen
    for name in ("controls", "playhead", "veil", "queue", "thumb", "sentence"):
        assert not reader.page.locator(f".ns-{name}").first.is_visible(), name
    ink = "getComputedStyle(player.body).getPropertyValue('--ns-ink')"
    assert reader.page.evaluate(ink).strip() == "#000"
    reader.page.screenshot(path=tmp_path / "print.png")
    reader.page.emulate_media(media="screen")
    reader.page.wait_for_function("!player.printing")
    assert (reader.at(), reader.picture()) == (at, screen)


@pytest.mark.parametrize("width", [320, 360, 620, 760, 1000, 1400, 1920])
@pytest.mark.parametrize("slots", [3, 64])
def test_no_width_makes_the_page_wider_than_the_window(open_page, width, slots):
    trace = LONGER if slots == 3 else random_trace(2, slots=64, passes=300)
    reader = Reader(
        open_page(player_html(trace, trace), viewport={"width": width, "height": 800})
    )
    reader.page.locator("summary").click()
    reader.focus("[role=listbox]")
    wide = reader.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= width
    assert reader.page.locator(".ns-score canvas").first.bounding_box()["width"] > 180


def test_a_window_made_smaller_is_drawn_anew(open_page):
    reader = Reader(open_page(player_html(LONGER)))
    before = reader.page.evaluate("player.layout.width")
    reader.page.set_viewport_size({"width": 500, "height": 800})
    reader.page.wait_for_function("(was) => player.layout.width < was", arg=before)


# --- large, empty, bounded ---


def test_of_two_thousand_passes_only_a_page_is_drawn(open_page):
    trace = scheduled([1 + 7 * i % 60 for i in range(2100)], 64, capacity=128)
    assert trace.passes > 1900
    reader = Reader(open_page(player_html(trace)))
    assert reader.page.evaluate("player.layout.visible") < 200
    reader.press("End")
    assert reader.at() == trace.passes
    assert reader.bill()["useful_slot_steps"][0] == trace.ledger().useful_slot_steps
    assert reader.hears() == picture.sentence(trace, trace.passes - 1)
    nodes = reader.page.evaluate("document.querySelectorAll('*').length")
    assert nodes < 400


def test_a_trace_without_a_pass_says_so(open_page):
    reader = Reader(open_page(player_html(SlotTrace("static", 4, 8))))
    assert "Nothing has run yet" in reader.page.inner_text("main")
    assert reader.page.locator(FOCUSABLE).count() == 0
    beside = Reader(open_page(player_html(SlotTrace("static", 3, 8), CONTINUOUS)))
    beside.press("End")
    assert beside.bill(1)["passes"][0] == CONTINUOUS.passes


def test_of_a_bounded_history_the_last_passes_are_shown(open_page):
    trace = random_trace(5, passes=200, slots=3, history=30)
    reader = Reader(open_page(player_html(trace)))
    reader.press("Home")
    assert reader.at() == 171
    reader.press("End")
    assert reader.bill()["useful_slot_steps"][0] == trace.ledger().useful_slot_steps
    assert reader.page.inner_text(".ns-now").startswith("pass 200 of 200")


def test_where_scripts_do_not_run_the_still_picture_stands(open_page):
    page = open_page(player_html(LONGER, CONTINUOUS), java_script_enabled=False)
    images = page.locator("noscript img")
    assert images.count() == 2
    assert images.first.is_visible()
    assert images.first.bounding_box()["width"] > 500


def test_a_page_may_hold_several_players(open_page):
    html = player_html(SHORT).replace("</main>", player_element(LONGER) + "</main>")
    page = open_page(html)
    page.wait_for_function("player.layout")
    players = page.locator(".ns-player")
    assert players.count() == 2
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((one) => one.id)")
    assert len(ids) == len(set(ids))
    players.first.locator("input").focus()
    page.keyboard.press("End")
    now = page.locator(".ns-now")
    assert now.all_inner_texts() == ["pass 5 of 5", "pass 4 of 26"]
