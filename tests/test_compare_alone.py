"""CompareAlone without a browser: who differs, from where, and how far."""

from __future__ import annotations

import base64
import json
import math
import re
import xml.dom.minidom
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

import nanoserve
from nanoserve import InvalidInputError, pitfalls
from nanoserve.pitfalls.examples import USUAL, canary, z_is_nan

pytest.importorskip("anywidget")
from nanoserve.widgets import compare_alone, compare_scene
from nanoserve.widgets.compare_alone import text
from nanoserve.widgets.compare_scene import error_class

ROOT = Path(__file__).parents[1]
SCENE = "application/vnd.nanoserve.compare-alone+json"
# The second is right by luck when the mask is dropped; the longest has no pads.
THREE = [USUAL[0], "count from 34 to 38", USUAL[4]]
COUNT = ["1", "2", "3", "4", "5", "<eos>"]
LUCKY = ["34", "35", "36", "37", "38", "<eos>"]
LONGEST = [*"thelongesthasnop"]  # of 21 tokens the first 16


@pytest.fixture(scope="module")
def lm():
    return canary("canary")


@pytest.fixture(scope="module")
def theirs():
    """The same weights, run by transformers."""
    return AutoModelForCausalLM.from_pretrained(ROOT / "data" / "canary").eval()


def scene(*args: Any, **options: Any) -> dict[str, Any]:
    shown: dict[str, Any] = nanoserve.CompareAlone(*args, **options).scene
    return shown


def rows(made: dict[str, Any], key: str) -> list[Any]:
    return [row[key] for row in made["rows"]]


# --- who differs ---


def test_with_nothing_planted_all_rows_are_clean(lm):
    made = scene(lm, THREE)
    assert rows(made, "alone") == rows(made, "batch") == [COUNT, LUCKY, LONGEST]
    assert rows(made, "verdict") == ["clean"] * 3
    assert rows(made, "errors") == [[0] * 6, [0] * 6, [0] * 16]
    assert (made["steps"], made["opens"]["step"]) == (16, 15)  # nothing to see before
    assert made["title"] == "nothing planted, left padding"


def test_a_dropped_mask_counts_to_12(lm):
    made = scene(lm, THREE, bug="mask-dropped")
    assert rows(made, "batch")[0] == [*map(str, range(1, 13)), "<eos>"]
    assert rows(made, "alone") == [COUNT, LUCKY, LONGEST]
    assert rows(made, "differs") == [5, None, None]
    assert rows(made, "verdict") == ["differs", "lucky", "clean"]
    assert (made["steps"], made["opens"]["step"]) == (16, 5)
    # up to the first token that differs, with it; every token is far off
    assert [len(each) for each in rows(made, "errors")] == [6, 6, 16]
    assert min(made["rows"][0]["errors"] + made["rows"][1]["errors"]) >= 4
    assert set(made["rows"][2]["errors"]) == {0}


@torch.inference_mode()
def test_transformers_says_the_same_alone(lm, theirs):
    made = scene(lm, THREE)
    for prompt, words in zip(THREE, rows(made, "alone"), strict=True):
        ids = lm.tokenizer(prompt, return_tensors="pt").input_ids
        said = theirs.generate(ids, max_new_tokens=16, do_sample=False)[
            0, ids.shape[1] :
        ]
        assert lm.tokenizer.convert_ids_to_tokens(said) == words


@torch.inference_mode()
def test_transformers_errs_as_far_without_a_mask(lm, theirs):
    """The first token of each row, with the true positions and no padding mask."""
    made = scene(lm, THREE, bug="mask-dropped")
    padded = lm.tokenizer(THREE, padding=True, return_tensors="pt", padding_side="left")
    positions = (padded.attention_mask.cumsum(1) - 1).clamp(min=0)
    everything = torch.ones_like(padded.attention_mask)
    got = theirs(padded.input_ids, attention_mask=everything, position_ids=positions)
    for row, prompt in enumerate(THREE):
        alone = theirs(lm.tokenizer(prompt, return_tensors="pt").input_ids)
        error = float((alone.logits[0, -1] - got.logits[row, -1]).abs().max())
        assert made["rows"][row]["errors"][0] == error_class(error)


def test_nan_ends_the_padded_rows_and_only_those(lm):
    made = scene(lm, THREE, bug="minus-inf")
    assert rows(made, "batch") == [["(error)"], ["(error)"], LONGEST]
    assert rows(made, "differs") == [0, 0, None]
    assert rows(made, "errors")[:2] == [[compare_scene.NAN]] * 2
    assert rows(made, "verdict") == ["differs", "differs", "clean"]


def test_who_is_ill_alone_is_not_called_clean(lm):
    made = scene(z_is_nan(lm), ["copy z o o", "copy d o g"], max_new_tokens=8)
    assert rows(made, "verdict") == ["ill", "clean"]
    assert rows(made, "errors")[0] == [compare_scene.NAN_ALONE]
    assert rows(made, "alone")[0] == rows(made, "batch")[0] == ["(error)"]


def test_an_answer_cut_short_says_so_where_the_other_goes_on(lm):
    made = scene(lm, THREE, bug="one-stop-ends-all")
    assert rows(made, "batch")[2] == [*"thelon", "(stopped)"]
    assert rows(made, "differs") == [None, None, 6]


def test_a_bug_under_the_other_side_goes_by_its_other_name(lm):
    other_name = "continued-from-padded-length"
    one = scene(lm, USUAL, bug="prefill-only")
    other = scene(lm, USUAL, bug=other_name, padding_side="right")
    assert rows(one, "batch") == rows(other, "batch")
    assert "differs" in rows(one, "verdict")


@pytest.mark.parametrize("bug", pitfalls.BUGS)
def test_any_bug_is_in_the_batch_and_never_in_the_rows_alone(lm, bug):
    made = scene(lm, THREE, bug=bug, max_new_tokens=6)
    assert rows(made, "alone") == [COUNT, LUCKY, LONGEST[:6]]
    assert text(made).startswith(f"{bug}, left padding.")
    for row in made["rows"]:
        told = row["differs"] is None or row["differs"] <= len(row["batch"])
        assert told, row


def test_it_reads_what_pitfalls_compare_found(lm):
    made = scene(lm, USUAL, bug="index-positions")
    found = pitfalls.compare(lm, USUAL, "index-positions", max_new_tokens=16)
    assert rows(made, "differs") == [row.differs_at for row in found.rows]
    for row, verdict in zip(made["rows"], found.rows, strict=True):
        assert row["errors"] == [error_class(error) for error in verdict.errors]
        assert verdict.largest_error == max(verdict.errors)
        assert verdict.first_error == verdict.errors[0]


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (0.0, "below 1e-4"),
        (9e-5, "below 1e-4"),
        (1e-4, "1e-4 to 0.001"),
        (0.05, "0.01 to 0.1"),
        (1.0, "1 to 10"),
        (9.99, "1 to 10"),
        (10.0, "10 or more"),
        (1e30, "10 or more"),
        (math.inf, "NaN"),
        (math.nan, "NaN, alone too"),
    ],
)
def test_errors_are_told_by_their_power_of_ten(error, told):
    assert compare_alone.WORDS[f"class_{error_class(error)}"] == told


# --- what it refuses ---


@pytest.mark.parametrize(
    ("prompts", "options", "line"),
    [
        (THREE, {"bug": "typo"}, r"bug='typo': must be one of mask-from-ids, "),
        ([], {}, "prompts='0 prompts': 1 to 16 of them fit into a picture"),
        (["copy a"] * 17, {}, "prompts='17 prompts': 1 to 16 of them"),
        (THREE, {"max_new_tokens": 0}, "max_new_tokens=0: "),
        (THREE, {"max_new_tokens": 97}, "max_new_tokens=97: "),
        (THREE, {"padding_side": "up"}, 'must be "left" or "right"'),
        (["copy a", ""], {}, "is empty: it needs one token"),
        ("copy a b c d e f g", {}, "must be a list of prompts"),
        ("copy a", {}, "prompts='copy a': must be a list of prompts"),
    ],
)
def test_bad_input_is_one_line(lm, prompts, options, line):
    with pytest.raises(InvalidInputError, match=line) as caught:
        nanoserve.CompareAlone(lm, prompts, **options)
    assert "\n" not in str(caught.value)


# --- what a notebook keeps ---


def bundle(*args: Any, **options: Any) -> dict[str, Any]:
    data, _ = nanoserve.CompareAlone(*args, **options)._repr_mimebundle_()
    return data


def test_beside_the_live_view_stand_picture_text_and_scene(lm):
    data = bundle(lm, THREE, bug="mask-dropped")
    assert data[SCENE] == scene(lm, THREE, bug="mask-dropped")
    assert json.loads(json.dumps(data[SCENE])) == data[SCENE]
    # nothing whose last digits depend on the processor
    assert "." not in json.dumps(data[SCENE])
    image = re.search(r'<img alt="([^"]*)" src="([^"]*)">', data["text/html"])
    assert image is not None
    assert image[1] == "Batch beside alone: mask-dropped, left padding"
    picture = base64.b64decode(image[2].partition(",")[2]).decode()
    drawn = xml.dom.minidom.parseString(picture)
    words = [each.firstChild.data for each in drawn.getElementsByTagName("text")]
    assert words.count("12") == 1 + 1  # the step and the answer
    assert words.count("=") == 16
    assert "Differs: A from token 6. Same tokens, other logits: B. Clean: C." in words


def test_the_text_tells_all_of_it(lm):
    assert bundle(lm, THREE[:1] + THREE[2:], max_new_tokens=8, bug="mask-dropped")[
        "text/plain"
    ] == (
        "mask-dropped, left padding. Differs: A from token 6. Clean: B.\n"
        "\n"
        "A  count from 1 to 5\n"
        "   token 1  2  3  4  5  6     7 8\n"
        "   alone 1  2  3  4  5  <eos>\n"
        "   batch 1  2  3  4  5  6     7 8\n"
        "   error 10 10 10 10 10 10\n"
        "\n"
        "B  copy t h e l o n g e s t h a s n o p a d s\n"
        "   token 1 2 3 4 5 6 7 8\n"
        "   alone t h e l o n g e\n"
        "   batch t h e l o n g e\n"
        "   error = = = = = = = ="
    )


def test_text_and_picture_of_the_longest_hold_their_measure(lm):
    prompts = ["count from 100 to 199", "copy " + "a " * 60, "repeat x 90 times"]
    data = bundle(lm, prompts, max_new_tokens=96, bug="mask-not-grown")
    assert max(map(len, data["text/plain"].splitlines())) <= 80
    again = bundle(lm, prompts, max_new_tokens=96, bug="mask-not-grown")
    for kind in ("text/plain", "text/html", SCENE):
        assert data[kind] == again[kind]


def test_every_word_is_used():
    folder = Path(compare_alone.__file__).parent
    names = ("compare_alone.py", "compare_alone.js", "instrument.js", "dom.js")
    source = "".join((folder / name).read_text("utf-8") for name in names)
    told = source[: source.index("WORDS = {")] + source[source.index("\nMARKS") :]
    made = r"left|right|(class|bar)_\d|ended_\w+|(first|bare|generated)_mark"
    for key in compare_alone.WORDS:
        if not re.fullmatch(made, key):
            assert re.search(rf"""["'.]{key}\b""", told), key
    assert {f"class_{each}" for each in range(compare_scene.NAN_ALONE + 1)} == {
        key for key in compare_alone.WORDS if key.startswith("class_")
    }
