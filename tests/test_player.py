"""The slot player without a browser: what it stores, what it refuses, what it says."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from player_traces import random_trace, scheduled
from tiny import tiny_lm

import nanoserve
from nanoserve import SlotTrace, look, picture
from nanoserve.widgets import standalone
from nanoserve.widgets.standalone import player_html

anywidget = pytest.importorskip("anywidget")
TRACE = "application/vnd.nanoserve.trace+json"
VIEW = "application/vnd.jupyter.widget-view+json"
NODE = shutil.which("node")


def bundle(*traces: Any, **options: Any) -> dict[str, Any]:
    data, _ = nanoserve.SlotPlayer(*traces, **options)._repr_mimebundle_()
    return data


# --- what a notebook keeps ---


def test_beside_the_live_view_stand_picture_steps_and_trace():
    trace = scheduled([3, 5, 2], 3)
    data = bundle(trace)
    assert set(data) == {VIEW, "text/plain", "text/html", TRACE}
    assert data["text/plain"] == trace.text()
    assert SlotTrace.from_dict(data[TRACE]).svg() == trace.svg()
    image = re.search(r'<img alt="([^"]*)" src="([^"]*)">', data["text/html"])
    assert image is not None
    assert image[1] == "static, 3 slots, 5 passes"
    kind, _, code = image[2].partition(",")
    assert kind == "data:image/svg+xml;base64"
    assert base64.b64decode(code).decode() == trace.svg()
    assert "<details>" in data["text/html"]
    assert "A[1]" in data["text/html"]


def test_untrusted_html_holds_nothing_that_jupyterlab_drops():
    html = bundle(scheduled([3, 5, 2], 3))["text/html"]
    assert not re.search(r"<(svg|style|script|iframe)|style=|onclick", html)


def test_the_same_trace_leaves_the_same_bytes():
    first, again = (bundle(scheduled([3, 5, 2], 2)) for _ in range(2))
    assert first.pop(VIEW) != again.pop(VIEW)
    assert json.dumps(first) == json.dumps(again)


def test_where_the_player_stands_is_not_stored():
    first, again = (bundle(scheduled([3, 5, 2], 2), pass_=n) for n in (1, 4))
    del first[VIEW], again[VIEW]
    assert first == again


def test_of_two_traces_both_are_kept():
    one, two = (scheduled([3, 5, 2], 2, continuous=each) for each in (False, True))
    data = bundle(one, two)
    assert [SlotTrace.from_dict(each).engine for each in data[TRACE]] == [
        "static",
        "continuous",
    ]
    assert data["text/html"].count("<img") == 2
    assert data["text/plain"] == f"{one.text()}\n\n{two.text()}"


def test_a_trace_may_come_back_from_json():
    trace = scheduled([3, 5, 2], 3)
    stored = json.loads(json.dumps(trace.to_dict()))
    assert bundle(stored)["text/plain"] == trace.text()


def test_an_engine_that_goes_on_does_not_change_a_player():
    engine = nanoserve.StaticBatchEngine(tiny_lm("gpt2"), max_num_seqs=2)
    params = nanoserve.SamplingParams(max_tokens=4, ignore_eos=True)
    engine.add_request(nanoserve.Request([5, 6], params))
    engine.step()
    player = nanoserve.SlotPlayer(engine.trace)
    before = player._repr_mimebundle_()[0]
    nanoserve.serve(engine, [])
    assert engine.trace.passes == 4
    assert player._repr_mimebundle_()[0] == before


# --- what it takes and refuses ---


def test_importing_nanoserve_loads_no_widget_library():
    names = ("ipywidgets", "anywidget", "traitlets", "IPython", "plotly")
    code = f"import sys, nanoserve; print([n for n in {names} if n in sys.modules])"
    assert run_python(code) == "[]"


def test_without_the_widget_library_the_message_says_what_to_install():
    code = """
import sys
sys.modules["anywidget"] = None
import nanoserve
try:
    nanoserve.SlotPlayer
except ImportError as error:
    print(error)
"""
    assert run_python(code) == (
        "nanoserve.SlotPlayer needs anywidget: pip install 'nanoserve[course]'"
    )


def test_other_names_are_still_unknown():
    with pytest.raises(AttributeError, match="no attribute 'SlotPlay'"):
        nanoserve.SlotPlay  # noqa: B018


def run_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((3,), "trace=3: must be a SlotTrace"),
        ((None,), "trace=None: must be a SlotTrace"),
        (({"format": "x"},), "format='x': must be nanoserve.slot-trace/1"),
        (
            (scheduled([1], 1), {"format": "nanoserve.slot-trace/9"}),
            "format='nanoserve.slot-trace/9': must be nanoserve.slot-trace/1",
        ),
        ((scheduled([1], 1), "x"), "trace='x': must be a SlotTrace"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(given, message):
    for make in (nanoserve.SlotPlayer, player_html):
        with pytest.raises(nanoserve.InvalidInputError) as caught:
            make(*given)
        assert str(caught.value) == message


def test_an_engine_in_place_of_its_trace_is_told_so():
    engine = nanoserve.StaticBatchEngine(tiny_lm("gpt2"), max_num_seqs=2)
    with pytest.raises(nanoserve.InvalidInputError, match=r"engine\.trace$"):
        nanoserve.SlotPlayer(engine)


def test_pass_and_speed_can_be_set_within_their_limits():
    player = nanoserve.SlotPlayer(scheduled([3, 5, 2], 3))
    player.pass_, player.speed, player.playing = 5, 8, True
    assert (player.pass_, player.speed, player.playing) == (5, 8.0, True)
    for name, value in [("pass_", 6), ("pass_", -1), ("speed", 3)]:
        with pytest.raises(nanoserve.InvalidInputError, match=f"^{name}="):
            setattr(player, name, value)
    with pytest.raises(nanoserve.InvalidInputError, match=r"^pass_=0: "):
        nanoserve.SlotPlayer(scheduled([3], 1), pass_=0)


def test_two_traces_share_the_moments_in_which_either_ran():
    early = scheduled([2, 2], 1)  # at 0, 1, 2, 3
    late = scheduled([2, 2], 1, arrivals=[2, 9])  # at 2, 3, 9, 10
    assert nanoserve.SlotPlayer(early, late, pass_=6).pass_ == 6
    with pytest.raises(nanoserve.InvalidInputError, match="at most 6"):
        nanoserve.SlotPlayer(early, late, pass_=7)


def test_an_empty_trace_is_shown_and_does_not_fail():
    empty = SlotTrace("static", 2, 8)
    assert "static: 2 slots, 0 passes" in bundle(empty)["text/plain"]
    assert bundle(empty, scheduled([1], 1))[TRACE][0]["passes"] == 0


def test_of_a_bounded_history_the_last_passes_can_be_shown():
    player = nanoserve.SlotPlayer(random_trace(3, passes=200, slots=2, history=20))
    player.pass_ = 181
    with pytest.raises(nanoserve.InvalidInputError, match="at least 181"):
        player.pass_ = 180


# --- the page ---


def test_a_page_needs_nothing_from_outside():
    html = player_html(scheduled([3, 5, 2], 3), title="Seats & <slots>")
    assert not re.search(
        r"(src|href)=[\"'](?!data:)|@import|url\(|https?://(?!www\.w3)", html
    )
    assert "<title>Seats &amp; &lt;slots&gt;</title>" in html


def test_a_token_cannot_end_the_script_it_stands_in():
    trace = random_trace(1)
    assert "</script>" in trace.to_dict()["pieces"].values()
    html = player_html(trace)
    stored = re.search(r'application/json">(.*?)</script>', html, re.DOTALL)
    assert stored is not None
    assert json.loads(stored[1])["traces"] == [trace.to_dict()]


# --- words ---


def test_every_word_is_used_and_every_word_used_is_there():
    package = Path(nanoserve.__file__).parent
    widgets = [package / "widgets" / name for name in standalone.SCRIPTS]
    scripts = "".join(path.read_text() for path in widgets)
    assert set(re.findall(r"\bwords\.(\w+)", scripts)) <= set(look.WORDS)
    code = scripts + (package / "picture.py").read_text()
    built = ("slot_", "column_", "since_", "at_")  # from a state, a column, a clock
    for key in look.WORDS:
        used = re.search(rf"""words\.{key}\b|["']{key}["']|\b{key}: ["\[]""", code)
        assert used or key.startswith(built), key


def test_a_pass_in_words():
    trace = scheduled([1, 3], 3, prompts=[4, 2])
    assert picture.sentence(trace, 0) == (
        "pass 1: slot 0 prefills A: 1 and ends (length); slot 1 prefills B: 1; "
        "slot 2 idle"
    )
    assert picture.sentence(trace, 1) == (
        "pass 2: slot 0 finished, held by A; slot 1 decodes B: 2; slot 2 idle"
    )


def test_of_many_slots_only_the_sums_are_told():
    trace = scheduled([1, 2, 3, 4] * 2, 9)
    assert picture.sentence(trace, 1) == (
        "pass 2: 6 slots decode, 0 prefill, 2 finished and still held, 1 idle; "
        "2 end here"
    )


# --- the same sums and sentences in JavaScript ---

HARNESS = """
const given = JSON.parse(GIVEN);
const told = given.traces.map((stored) => {
  const trace = readTrace(stored);
  const shown = { length: trace.passes - trace.first };
  const passes = Array.from(shown, (_, place) => place + trace.first);
  return passes.map((pass) => ({
    ledger: ledger(trace, pass + 1),
    sentence: sentence(trace, pass, given.words, given.look.mostTold),
    clock: trace.clocks[pass],
    useful: usefulSlots(trace)[pass],
    shares: seatShares(trace, pass + 1),
    waiting: waiting(trace, pass, trace.clocks[pass]).map(([one]) => one.request_id),
  }));
});
console.log(JSON.stringify(told));
"""
needs_node = pytest.mark.skipif(NODE is None, reason="node is not on the PATH")


def in_node(traces: list[SlotTrace]) -> list[list[dict[str, Any]]]:
    given = json.dumps(json.dumps(standalone.player_data(*traces)))
    code = f"{standalone.script()}\n{HARNESS.replace('GIVEN', given)}"
    command = [NODE, "--input-type=module"]
    done = subprocess.run(command, input=code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


TRACES = [
    scheduled([3, 5, 2], 3),
    scheduled(
        [3, 9, 4, 12, 2, 7, 5], 3, continuous=True, arrivals=[0, 0, 2, 3, 30, 30, 60]
    ),
    *map(random_trace, range(12)),
]


@needs_node
def test_the_players_bill_is_the_ledger_at_every_pass():
    for trace, told in zip(TRACES, in_node(TRACES), strict=True):
        assert len(told) == trace.passes
        for number, said in enumerate(told, start=1):
            ledger = trace.ledger(number)
            sums = {name: getattr(ledger, name) for name in vars(ledger)}
            del sums["max_num_seqs"]
            assert {name: said["ledger"][name] for name in sums} == sums
            assert said["ledger"]["idle_slot_steps"] == ledger.idle_slot_steps
            assert said["ledger"]["empty_seats"] == ledger.empty_seats
            useful = sum(share[1] for share in said["shares"])
            wasted = sum(share[2] for share in said["shares"])
            assert (useful, wasted) == (
                ledger.useful_slot_steps,
                ledger.wasted_slot_steps,
            )


@needs_node
def test_the_player_says_what_python_says():
    for trace, told in zip(TRACES, in_node(TRACES), strict=True):
        for number, said in enumerate(told):
            assert said["sentence"] == picture.sentence(trace, number)
            assert said["clock"] == trace.clock_of(number)


@needs_node
def test_who_waits_and_how_many_slots_are_useful():
    for trace, told in zip(TRACES, in_node(TRACES), strict=True):
        for number, said in enumerate(told):
            here = [run for run in trace.runs if run.start <= number < run.end]
            useful = sum(run.state != "finished" for run in here)
            assert said["useful"] == useful
            names = {trace.requests[run.request].request_id for run in here}
            assert not names & set(said["waiting"])
    static = in_node([scheduled([2, 1, 1], 1, arrivals=[0, 1, 4])])[0]
    assert [said["waiting"] for said in static] == [[], ["B"], [], []]


@needs_node
def test_a_preempted_request_waits_again():
    from nanoserve.ledger import Cell

    trace = SlotTrace("static", 1, 8)
    for name in "AB":
        trace.add(name, 2, 3, 0)
    trace.record([Cell(0, 0, "prefill", 2, 0, 0, 2)], 0)
    trace.record([Cell(0, 1, "prefill", 2, 0, 0, 2)], 1)
    trace.record([], 2)  # B keeps its K and V: it only had no budget
    trace.record([Cell(0, 1, "decode", 1, 0, 0, 3)], 3)
    trace.record([Cell(0, 0, "prefill", 2, 0, 0, 2)], 4)
    told = in_node([trace])[0]
    assert [said["waiting"] for said in told] == [["B"], ["A"], ["A"], ["A"], ["B"]]


@needs_node
def test_a_bounded_history_has_the_bill_of_the_whole():
    bounded = random_trace(5, passes=200, slots=3, history=30)
    whole = random_trace(5, passes=200, slots=3)
    assert len(bounded.runs) < len(whole.runs)
    told = in_node([bounded])[0]
    assert len(told) == 30
    for number, said in enumerate(told, start=171):
        ledger = whole.ledger(number)
        for name in ("useful_slot_steps", "pad_tokens", "kv_live_token_steps"):
            assert said["ledger"][name] == getattr(ledger, name)
        assert said["sentence"] == picture.sentence(whole, number - 1)
