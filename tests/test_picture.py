"""A trace in words and as a picture: the same bytes each time, and never broken."""

from __future__ import annotations

import base64
import re
import time
from xml.etree import ElementTree

import pytest
import strategies as draws
from hypothesis import given
from hypothesis import strategies as st
from player_traces import random_trace, scheduled
from simulator import Job
from traces import ABC, run, synthetic

from nanoserve import (
    ContinuousBatchEngine,
    Request,
    SamplingParams,
    SlotTrace,
    StaticBatchEngine,
    look,
    picture,
    serve,
)
from nanoserve.ledger import Cell

SVG = "{http://www.w3.org/2000/svg}"
JOBS = st.lists(
    st.builds(Job, st.integers(1, 12), st.integers(1, 30), st.just(0)),
    min_size=1,
    max_size=6,
)
# what no XML, or no single line, can hold as it is
NASTY = [
    '<a>&"',
    "'",
    "]]>",
    "\0",
    "\x1b[2J",
    "\n",
    "a\nb",
    "\u2028",
    "\ud800",
    "\ufffe",
]


def named(lm, *names):
    engine = StaticBatchEngine(lm, 2)
    params = SamplingParams(3, ignore_eos=True)
    serve(engine, [Request([5, 6], params, request_id=name) for name in names])
    return engine.trace


def words_of(svg):
    """Every text in the picture; raises when it is no XML."""
    root = ElementTree.fromstring(svg.encode())
    return [node.text for node in root.iter(f"{SVG}text")]


def assert_plain(text):
    """Lines of about a terminal's width, of characters that can be shown."""
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert max(len(line) for line in lines) <= 90


# --- in words ---


def test_the_steps_of_a_b_c(llama):
    lines = run(llama, ABC).text().splitlines()
    assert lines[0] == "static: 3 slots, 5 passes"
    grid = {line[:6]: line[6:].split() for line in lines if line.startswith("slot ")}
    assert [len(grid[f"slot {slot}"]) for slot in range(3)] == [5, 5, 5]
    assert grid["slot 0"][3:] == ["A--", "A--"]
    assert grid["slot 1"][0].startswith("B[")
    assert grid["slot 2"][2:] == ["C--"] * 3
    assert "A: 4 in, 3 of at most 3 out, length" in lines
    assert "passes              5" in lines
    assert "empty seats         5 of 15 (0 idle, 5 finished)" in lines
    assert "slot-steps         15: 10 useful, 5 wasted (33.3%)" in lines
    assert "tokens             10 made, 12 of prompts, 6 pads" in lines


def test_each_cell_shows_the_token_made_there(llama):
    trace = run(llama, [Job(4, 3)], seats=1)
    tokens = [llama.tokenizer.decode([t]) for t in trace.requests[0].token_ids]
    (row,) = [line for line in trace.text().splitlines() if line.startswith("slot 0")]
    assert row.split()[2:] == [f"A[{tokens[0]}]", *tokens[1:]]


@given(jobs=JOBS, seats=st.integers(1, 4))
def test_words_are_lines_of_a_terminals_width(gpt2, jobs, seats):
    assert_plain(run(gpt2, jobs, seats).text())


def test_a_long_trace_is_told_by_its_runs(llama):
    text = run(llama, [Job(4, 200), Job(3, 2)], seats=2).text()
    assert "slot 0: A prefill 1; A decode 2-200" in text
    assert "slot 1: B prefill 1; B decode 2; B finished 3-200" in text
    assert len(text.splitlines()) < 20


def test_a_trace_of_nothing_can_be_shown(llama):
    trace = StaticBatchEngine(llama, 2).trace
    assert trace.text().startswith("static: 2 slots, 0 passes")
    assert words_of(trace.svg())


@given(jobs=JOBS, seats=st.integers(1, 4))
def test_each_pass_is_a_sentence(gpt2, jobs, seats):
    trace = run(gpt2, jobs, seats)
    for number in range(trace.passes):
        sentence = picture.sentence(trace, number)
        assert sentence.startswith(f"pass {number + 1}: slot 0 ")
        assert sentence.count("slot ") == seats
        assert "\n" not in sentence


def test_a_sentence_says_what_each_slot_does(llama):
    trace = run(llama, ABC, seats=4)
    token = llama.tokenizer.decode(trace.requests[1].token_ids[2:3])
    said = picture.sentence(trace, 2)
    assert "slot 0 decodes A" in said
    assert f"slot 1 decodes B: {token}" in said
    assert "slot 2 finished, held by C" in said
    assert "slot 3 idle" in said


def test_of_many_slots_a_sentence_tells_sums(llama):
    trace = run(llama, [*ABC, *ABC, *ABC], seats=10)
    said = picture.sentence(trace, 1)
    assert said.startswith("pass 2: 9 slots decode, 0 prefill, 0 finished")
    assert said.endswith("1 idle; 3 end here")


# --- as a picture ---


@given(jobs=JOBS, seats=st.integers(1, 4))
def test_the_picture_is_xml_and_names_every_slot(gpt2, jobs, seats):
    words = words_of(run(gpt2, jobs, seats).svg())
    assert [w for w in words if w.startswith("slot ")] == [
        f"slot {slot}" for slot in range(seats)
    ]


def test_the_same_run_makes_the_same_bytes(lm):
    first, second = run(lm, ABC), run(lm, ABC)
    assert first.text() == second.text()
    assert first.svg() == second.svg() == first.svg()


def test_every_request_has_its_name_in_the_picture(llama):
    words = words_of(run(llama, [*ABC, *ABC]).svg())
    assert set("ABCDEF") <= set(words)


@pytest.mark.parametrize("name", NASTY)
def test_no_name_breaks_a_picture(llama, name):
    trace = named(llama, name, name * 50, "plain")
    assert "plain" in words_of(trace.svg())
    assert_plain(trace.text())


@draws.examples(5)
@given(piece=st.text(max_size=20))
def test_no_token_breaks_a_picture(piece):
    trace = SlotTrace("static", 1, 8, piece_of=lambda _: piece)
    index = trace.add("A", 2, 3, 0)
    for cell in (
        Cell(0, index, "prefill", 2, 0, 1, 2),
        Cell(0, index, "decode", 1, 0, 1, 3),
    ):
        trace.record([cell])
        trace.token(index, 7)
    words_of(trace.svg())
    assert len(trace.text().splitlines()) == 14


def test_a_name_is_escaped_not_dropped(llama):
    assert "<b>" in words_of(named(llama, "<b>", "x").svg())


def test_a_notebook_shows_the_picture_as_an_image_and_the_steps_as_text(llama):
    trace = named(llama, "<b>", "x")
    shown = trace._repr_mimebundle_()
    assert shown["text/plain"] == trace.text()
    page = ElementTree.fromstring(
        f"<p>{shown['text/html']}</p>".replace('">', '"/>', 1)
    )
    image, details = page
    data = image.get("src").removeprefix("data:image/svg+xml;base64,")
    assert base64.b64decode(data).decode() == trace.svg()
    assert details.find("pre").text == trace.text()


# --- of very long traces ---

BOX = re.compile(r"M(\d+) (\d+)h(\d+)v26h-(\d+)z")
LONG = {
    "static": scheduled([1 + 17 * i % 60 for i in range(300)], 8),
    "continuous": scheduled([1 + 37 * i % 90 for i in range(900)], 8, continuous=True),
    "anything": random_trace(7, passes=1500, slots=5),
}


def pixels(svg):
    """(slot, pixel) -> (colour, state), as the paths of a miniature paint them."""
    painted = {}
    for path in ElementTree.fromstring(svg).iter(f"{SVG}path"):
        if "v26" not in path.get("d"):
            continue  # of a pattern
        fill, hue = path.get("fill"), path.get("stroke")
        state = "finished" if fill.startswith("url") else "prefill"
        state = "decode" if path.get("fill-opacity") else state
        for x, y, wide, back in BOX.findall(path.get("d")):
            assert wide == back
            for pixel in range(int(x) - 64, int(x) - 64 + int(wide)):
                assert painted.setdefault((int(y) - 34, pixel), (hue, state)) == (
                    hue,
                    state,
                )
    return {(y // 32, x): look_ for (y, x), look_ in painted.items()}


@pytest.mark.parametrize("name", LONG)
def test_each_pixel_of_a_long_trace_shows_what_was_done_in_its_middle(name):
    trace = LONG[name]
    column, shown = 848 / trace.passes, {}
    assert column < 1
    for each in trace.runs:
        for pixel in range(848):
            if each.start <= (pixel + 0.5) / column < each.end:
                shown[each.slot, pixel] = (
                    look.hue(each.request),
                    each.state == "finished",
                )
    drawn = pixels(trace.svg())
    assert {key: (hue, state == "finished") for key, (hue, state) in drawn.items()} == (
        shown
    )
    if name != "anything":  # every prompt is read in less than a pixel
        assert {state for _, state in drawn.values()} <= {"decode", "finished"}


def test_a_prompt_read_in_many_passes_is_seen_in_a_long_trace():
    trace = SlotTrace("chunked", 1, 4096)
    index = trace.add("A", 2000, 9, 0)
    for number in range(1000):
        last = int(number == 999)
        trace.record([Cell(0, index, "prefill", 2, 0, last, 2 * number + 2)])
    seen = set(pixels(trace.svg()).values())
    assert seen == {(look.hue(index), "prefill")}


def test_a_long_trace_makes_no_large_picture():
    busy = scheduled([1 + 17 * i % 60 for i in range(64 * 34)], 64, capacity=128)
    assert busy.passes > 1900
    assert busy.svg() == busy.svg()
    assert len(busy.svg()) < 220_000  # every box on its own took 1,490,000


def test_names_in_a_long_trace_are_whole_or_left_out():
    names = words_of(LONG["continuous"].svg())
    own = {record.request_id for record in LONG["continuous"].requests.values()}
    assert not [word for word in names if word and "…" in word]
    assert len(own & set(names)) > 20


@pytest.mark.parametrize("make", [SlotTrace.text, SlotTrace.svg, SlotTrace.to_dict])
def test_2000_passes_of_64_slots_are_shown_in_no_time(make):
    trace = synthetic(2000, 64, tenancy=100)
    start = time.process_time()
    made = make(trace)
    assert time.process_time() - start < 5  # it takes about 0.1 s
    assert len(made) < 2_000_000


def test_sentences_of_a_long_trace_come_quickly():
    trace = synthetic(2000, 8, tenancy=100)
    start = time.process_time()
    for number in range(0, 2000, 50):
        picture.sentence(trace, number)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("mode", "row", "again"), [("swap", "B:w45 ", ""), ("recompute", "B[w45]", "10")]
)
def test_who_was_preempted_is_named_when_it_is_back(llama, mode, row, again):
    engine = ContinuousBatchEngine(llama, 2, kv_blocks=6, block_size=2, preemption=mode)
    asked = [
        Request([7] * prompt, SamplingParams(limit, ignore_eos=True))
        for prompt, limit in ((4, 5), (3, 6), (5, 2))
    ]
    serve(engine, asked)
    lines = picture.text(engine.trace).splitlines()
    assert row in lines[3]
    assert ("A:x back, made x" in "\n".join(lines)) is (mode == "swap")
    (tokens,) = [line for line in lines if line.startswith("tokens")]
    assert tokens.endswith(f"0 pads, {again} fed again" if again else "0 pads")
