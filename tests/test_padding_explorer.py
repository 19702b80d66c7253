"""The padding explorer without a browser: its rectangle, its words, what it refuses."""

from __future__ import annotations

import base64
import json
import re
import xml.dom.minidom
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nanoserve
from nanoserve import InvalidInputError, pitfalls
from nanoserve.pitfalls.examples import canary

pytest.importorskip("anywidget")
from nanoserve.widgets import padding_explorer
from nanoserve.widgets.padding_scene import scene, typed

WIDGETS = Path(padding_explorer.__file__).parent
SCENE = "application/vnd.nanoserve.padding-explorer+json"
PROMPTS = ["count from 3 to 12", "copy c a d", "reverse b c d e f"]  # 7, 6, 8 tokens
LONG = ["count from 1 to 5", "copy t h e l o n g e s t h a s n o p a d s"]


@pytest.fixture(scope="module")
def lm():
    return canary("canary")


def explorer(lm: Any, prompts: Any = PROMPTS, **options: Any) -> Any:
    return nanoserve.PaddingExplorer(lm, prompts, **options)


def bundle(*args: Any, **options: Any) -> dict[str, Any]:
    data, _ = explorer(*args, **options)._repr_mimebundle_()
    return data


# --- the rectangle ---


def test_a_rectangle_counted_by_hand(lm):
    made = scene(lm, PROMPTS)
    left, right = made["sides"]["left"], made["sides"]["right"]
    assert (made["pads"], made["cells"], made["share"]) == (3, 24, "12.5%")
    assert made["names"] == ["A", "B", "C"]
    assert left["mask"][1] == [0, 0, 1, 1, 1, 1, 1, 1]
    assert right["mask"][1] == [1, 1, 1, 1, 1, 1, 0, 0]
    assert [left["positions"][1][2:], right["positions"][1][:6]] == [[*range(6)]] * 2
    assert left["last"] == [7, 7, 7]
    assert right["last"] == [6, 5, 7]
    assert left["next"] == right["next"] == [7, 6, 8]
    words = [made["tokens"][str(each)] for each in right["ids"][1]]
    assert words == ["<bos>", "copy", "c", "a", "d", "<answer>", "<pad>", "<pad>"]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("prompts", [PROMPTS, LONG, ["copy a"]])
def test_transformers_pads_the_same(lm, side, prompts):
    made = scene(lm, prompts, side)["sides"][side]
    theirs = lm.tokenizer(prompts, padding=True, padding_side=side)
    assert made["ids"] == theirs.input_ids
    assert made["mask"] == theirs.attention_mask


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_real_token_has_the_position_it_has_alone(lm, side):
    made = scene(lm, LONG, side)["sides"][side]
    for row, prompt in enumerate(LONG):
        real = [each == 1 for each in made["mask"][row]]
        alone = lm.tokenizer(prompt).input_ids
        pairs = zip(made["ids"][row], made["positions"][row], real, strict=True)
        seen = [(token, at) for token, at, is_real in pairs if is_real]
        assert seen == [(token, at) for at, token in enumerate(alone)]
        assert made["next"][row] == len(alone)
        assert made["last"][row] == max(at for at, each in enumerate(real) if each)


def test_it_shows_the_engine_as_it_is_planted(lm):
    with pitfalls.plant("index-positions"):
        made = scene(lm, PROMPTS)["sides"]["left"]
    assert made["positions"] == [[*range(8)]] * 3
    assert made["next"] == [8, 8, 8]


def test_token_ids_are_prompts_too(lm):
    ids = lm.encode("copy c a d")
    by_ids, by_text = scene(lm, [ids, "copy a"]), scene(lm, ["copy c a d", "copy a"])
    assert by_ids.pop("prompts") == [str(ids), "copy a"]
    del by_text["prompts"]
    assert by_ids == by_text
    assert typed(f"{ids}\ncopy a\n") == [ids, "copy a"]


# --- what it refuses, in one line ---


@pytest.mark.parametrize(
    ("prompts", "line"),
    [
        ([], "prompts='0 prompts': 1 to 16 of them fit into a picture"),
        (["a"] * 17, "prompts='17 prompts': 1 to 16 of them fit into a picture"),
        ("copy a", "prompts='copy a': must be a list of prompts"),
        (["copy a", "  "], "prompt 2=' ': is empty: it needs one token"),
        (["copy you"], "prompt 1='you': is not in the vocabulary of canary"),
        (["copy a", [1, 999]], "prompt=999: token ids are 0 to 558 here"),
    ],
)
def test_a_bad_prompt_is_one_line(lm, prompts, line):
    with pytest.raises(InvalidInputError) as caught:
        explorer(lm, prompts)
    assert str(caught.value) == line


def test_what_no_picture_can_hold_is_refused(lm):
    with pytest.raises(InvalidInputError, match="has 98 tokens; 96 fit into a picture"):
        explorer(lm, ["copy " + "a " * 95])
    explorer(lm, ["copy " + "a " * 93])
    with pytest.raises(InvalidInputError, match='must be "left" or "right"'):
        explorer(lm, PROMPTS, padding_side="up")


def test_an_unknown_word_that_was_asked_for_is_none(lm):
    assert scene(lm, ["copy <unk>"])["tokens"]["4"] == "<unk>"


def test_where_the_unknown_token_is_eos_it_means_nothing(lm):
    like_gpt2 = replace(lm, eos_token_ids=frozenset({lm.tokenizer.unk_token_id}))
    scene(like_gpt2, ["copy you"])


# --- typing ---


def ask(widget: Any, lines: str) -> None:
    """What the page does some moments after the last key."""
    widget._asked = {"prompts": lines, "nth": len(lines)}


def test_typing_draws_other_prompts(lm):
    widget = explorer(lm)
    ask(widget, "copy a\ncopy a b c\n")
    assert widget._problem == ""
    assert widget.scene["prompts"] == ["copy a", "copy a b c"]
    assert (widget.scene["pads"], widget.scene["cells"]) == (2, 12)
    assert "2 of 12 cells are pads: 16.7%" in bundle_of(widget)["text/plain"]


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ("copy hello", "prompt 1='hello': is not in the vocabulary of canary"),
        ("copy a\n\ncopy b", "prompt 2='': is empty: it needs one token"),
        ("", "prompt 1='': is empty: it needs one token"),
        ("[1, 999]", "prompt=999: token ids are 0 to 558 here"),
    ],
)
def test_typing_nonsense_tells_why_and_loses_nothing(lm, lines, line):
    widget = explorer(lm, padding_side="right")
    before = widget.scene
    ask(widget, lines)
    assert widget._problem == line
    assert widget.scene == before
    ask(widget, "copy a")
    assert widget._problem == ""
    assert widget.scene["opens"]["side"] == "right"


# --- what a notebook keeps ---


def bundle_of(widget: Any) -> dict[str, Any]:
    return widget._repr_mimebundle_()[0]


def test_beside_the_live_view_stand_picture_text_and_scene(lm):
    data = bundle(lm)
    told = {"instrument": "padding-explorer", "title": "padding on the left"}
    assert data[SCENE] == {**told, **scene(lm, PROMPTS)}
    assert json.loads(json.dumps(data[SCENE])) == data[SCENE]
    image = re.search(r'<img alt="([^"]*)" src="([^"]*)">', data["text/html"])
    assert image is not None
    assert image[1] == "Padding explorer: padding on the left"
    picture = base64.b64decode(image[2].partition(",")[2]).decode()
    drawn = xml.dom.minidom.parseString(picture)
    words = [each.firstChild.data for each in drawn.getElementsByTagName("text")]
    assert words.count("<answer>") == 3
    assert "3 of 24 cells are pads: 12.5%" in words
    hatched = [
        path.getAttribute("d").count("M")
        for path in drawn.getElementsByTagName("path")
        if path.getAttribute("fill").startswith("url(#pad")
    ]
    assert sum(hatched) == 3 + 2  # the pads, on the bar, in the legend
    assert not re.search(r"<(svg|style|script)|style=", data["text/html"])


def test_the_text_tells_all_of_it(lm):
    assert bundle(lm, PROMPTS[:2], padding_side="right")["text/plain"] == (
        "Pads on the right: 1 of 14 cells are pads: 7.1%. "
        "The last real tokens stand in\n"
        "the columns 6, 5.\n"
        "\n"
        "column      0     1     2    3  4  5          6\n"
        "A  token    <bos> count from 3  to 12         [<answer>]\n"
        "   id       1     5     6    41 7  50         3\n"
        "   mask     1     1     1    1  1  1          1\n"
        "   position 0     1     2    3  4  5          6\n"
        "B  token    <bos> copy  c    a  d  [<answer>] <pad>\n"
        "   id       1     10    14   12 15 3          0\n"
        "   mask     1     1     1    1  1  1          0\n"
        "   position 0     1     2    3  4  5          5\n"
        "\n"
        "The next tokens will stand at the positions 7, 6."
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_text_and_picture_of_the_widest_hold_their_measure(lm, side):
    widest = ["copy " + "a " * 93, "copy a"] * 8
    data = bundle(lm, widest, padding_side=side)
    assert max(map(len, data["text/plain"].splitlines())) <= 80
    again = bundle(lm, widest, padding_side=side)
    for kind in ("text/plain", "text/html", SCENE):
        assert data[kind] == again[kind]


def test_every_word_is_used():
    source = "".join(
        (WIDGETS / name).read_text("utf-8")
        for name in ("padding_explorer.py", "padding_explorer.js", "instrument.js")
    )
    told = source[: source.index("WORDS = {")] + source[source.index("\nMARKS") :]
    made = {"left", "right", "prompt_mark", "pad_mark", "last_mark", "generated_mark"}
    for key in padding_explorer.WORDS.keys() - made:
        assert re.search(rf"""["'.]{key}\b""", told), key
