"""Instruments without a browser: their scenes against counts made by hand."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import nbformat
import pytest
import tiny
import torch

import nanoserve
from nanoserve import attention, padding, pitfalls

pytest.importorskip("anywidget")

from nanoserve.widgets import (
    grid,
    instrument,
    mask_explorer,
    nan_microscope,
    nan_scene,
)
from nanoserve.widgets.mask_explorer import MaskExplorer
from nanoserve.widgets.nan_microscope import NaNMicroscope

VIEW = "application/vnd.jupyter.widget-view+json"
PROMPTS = ["count from 1 to 5", "copy d o g", "copy t h e l o n g e s t"]
LENGTHS = [7, 6, 13]  # with <bos> and <answer>
IDS = [[5, 6, 7, 8, 9, 10], [11, 12, 13], [14]]
MADE = (MaskExplorer, NaNMicroscope)


@pytest.fixture(scope="module")
def canary():
    return nanoserve.load("canary", device="cpu")


@pytest.fixture(scope="module")
def explorer(canary):
    return MaskExplorer(canary, PROMPTS)


def lines_of(scene: dict[str, Any], row: int, shown: str = "both") -> list[str]:
    return [scene["lines"][n] for n in scene["rows"][row]["matrix"][shown]]


# --- what a notebook keeps ---


@pytest.mark.parametrize("make", MADE)
def test_beside_the_live_view_stand_picture_steps_and_scene(canary, make):
    made = make(canary, PROMPTS)
    data, _ = made._repr_mimebundle_()
    kind = f"application/vnd.nanoserve.{made.name}+json"
    assert set(data) == {VIEW, "text/plain", "text/html", kind}
    assert data[kind] == made.scene
    image = re.search(r'<img alt="([^"]*)" src="([^"]*)">', data["text/html"])
    assert image is not None
    source, _, code = image[2].partition(",")
    assert source == "data:image/svg+xml;base64"
    assert base64.b64decode(code).decode() == made.svg(made.scene)
    assert "<details>" in data["text/html"]
    assert not re.search(
        r"<(svg|style|script|iframe)|style=|onclick", data["text/html"]
    )
    assert max(map(len, data["text/plain"].split("\n"))) <= 80


@pytest.mark.parametrize("make", MADE)
def test_the_same_run_leaves_the_same_bytes(canary, make):
    first, again = (make(canary, PROMPTS)._repr_mimebundle_()[0] for _ in range(2))
    assert first.pop(VIEW) != again.pop(VIEW)
    assert json.dumps(first) == json.dumps(again)


@pytest.mark.parametrize("make", MADE)
def test_a_scene_is_small_and_holds_no_number_of_the_processor(canary, make):
    stored = json.dumps(make(canary, PROMPTS).scene)
    assert len(stored) < 14_000
    assert not re.search(r"\d\.\d|\de[-+]\d", stored)


def test_what_stands_in_a_still_is_well_formed(canary):
    from xml.etree import ElementTree

    odd = ["copy < & >", "copy <b>"]  # the tokenizer says <unk> to both
    for make in MADE:
        ElementTree.fromstring(make(canary, PROMPTS).svg(make(canary, odd).scene))


# --- who sees whom ---


@pytest.mark.parametrize("side", ["left", "right"])
def test_each_cell_is_what_one_would_write_by_hand(canary, side):
    scene = MaskExplorer(canary, PROMPTS, padding_side=side).scene
    width = max(LENGTHS)
    for row, length in enumerate(LENGTHS):
        first = width - length if side == "left" else 0
        real = set(range(first, first + length))
        for query, line in enumerate(lines_of(scene, row)):
            assert len(line) == max(width, query + 1)
            for key, code in enumerate(line):
                pad = key < width and key not in real
                if key > query:
                    assert code == "l"
                elif pad:
                    assert code == ("i" if key == query else "p")
                else:
                    assert code == "s"


def test_parts_of_the_mask_alone(explorer):
    scene = explorer.scene
    for row, length in enumerate(LENGTHS):
        pads = 13 - length
        for query in range(13):
            causal, padding_, none = (
                lines_of(scene, row, shown)[query]
                for shown in ("causal", "padding", "none")
            )
            assert causal == "s" * (query + 1) + "l" * (12 - query)
            assert padding_ == "p" * pads + "s" * length
            assert none == "s" * 13


def test_decode_grows_it_by_what_was_fed(canary, explorer):
    scene = explorer.scene
    answers = nanoserve.generate_batch(canary, PROMPTS, max_new_tokens=8)
    longest = max(len(each.token_ids) for each in answers)
    assert scene["steps"] == longest - 1
    for row, answer in zip(scene["rows"], answers, strict=True):
        assert len(row["tokens"]) == len(row["kinds"]) == 13 + longest - 1
        made = row["tokens"][13:][: len(answer.token_ids)]
        said = canary.tokenizer.convert_ids_to_tokens(answer.token_ids)
        assert made == said[: longest - 1]
        # what is fed once the row has ended is nobody's
        assert row["kinds"][13:].count("g") == min(len(said), longest) - 1
        assert (row["answer"], row["same"]) == (answer.text, True)


MASKS = ["mask-dropped", "mask-at-prefill-only", "mask-not-grown", "mask-transposed"]


@pytest.mark.parametrize("bug", MASKS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_planted_mask_is_shown_as_it_was(canary, bug, side):
    scene = MaskExplorer(canary, PROMPTS, padding_side=side, bug=bug).scene
    ids = [canary.encode(prompt) for prompt in PROMPTS]
    _, mask = padding.pad_batch(ids, canary.pad_token_id, side)
    wrong = pitfalls.BUGS[bug].replaces["attention.keep_mask"]
    for row in range(3):
        lines = lines_of(scene, row)
        for step in range(scene["steps"] + 1):
            used = wrong(mask, step).expand(3, 1, -1, -1)[row, 0]
            right = attention.keep_mask(mask, step).expand(3, 1, -1, -1)[row, 0]
            first = 13 + step - 1 if step else 0
            for query, (is_used, is_right) in enumerate(zip(used, right, strict=True)):
                line = lines[first + query]
                assert [code in "six" for code in line] == is_used.tolist()
                assert [code in "sio" for code in line] == is_right.tolist()


def test_answers_stand_beside_those_of_each_prompt_alone(canary):
    prompts = pitfalls.EXAMPLES["mask-dropped"][0].prompts
    scene = MaskExplorer(canary, prompts, bug="mask-dropped").scene
    with pitfalls.plant("mask-dropped"):
        wrong = nanoserve.generate_batch(canary, prompts, max_new_tokens=8)
    for row, prompt, answer in zip(scene["rows"], prompts, wrong, strict=True):
        alone = nanoserve.generate_one(canary, prompt, max_new_tokens=8)
        assert (row["answer"], row["right"]) == (answer.text, alone.text)
        assert row["same"] == (answer.token_ids == alone.token_ids)
    assert not all(row["same"] for row in scene["rows"])


@pytest.mark.parametrize(
    ("bug", "opens", "code"),
    [
        ("bool-mask-added", 0, "x"),
        ("minus-inf", 0, "n"),
        ("min-plus-min", 0, "n"),
        ("causal-at-decode", 1, "o"),
        ("mask-not-grown", 1, "o"),
        ("mask-at-prefill-only", 1, "x"),
        ("mask-dropped", 0, "x"),
    ],
)
def test_it_opens_where_the_bug_is_to_be_seen(canary, bug, opens, code):
    scene = MaskExplorer(canary, PROMPTS, bug=bug).scene
    state = scene["opens"]
    assert state["step"] == opens
    row = scene["rows"][state["row"]]
    line = scene["lines"][row["matrix"]["both"][state["query"]]]
    assert code in line
    assert row["kinds"][state["query"]] in "rg"
    assert bug in scene["title"]


def test_what_attention_did_counts_and_not_what_its_mask_says(canary):
    """The mask of this bug is right; it is added instead of filled in."""
    scene = MaskExplorer(canary, PROMPTS, bug="bool-mask-added").scene
    for row in range(3):
        lines = lines_of(scene, row)
        assert all(set(line) <= set("six") for line in lines)
        assert lines[0].count("x") == 12


def test_without_a_bug_nothing_is_wrong_on_any_model(llama, gpt2):
    for lm in (llama, gpt2, nanoserve.load("canary-rope", device="cpu")):
        prompts = PROMPTS if "canary" in lm.name else IDS
        scene = MaskExplorer(lm, prompts).scene
        assert not set("".join(scene["lines"])) & set("xon")


def test_a_query_in_words(explorer):
    said = mask_explorer.sentence(
        explorer.scene, {"row": 1, "query": 9, "step": 0, "shown": "both"}
    )
    assert said == (
        "Row B, query 10, d, of the prompt: 3 of 13 keys seen: <bos>, copy, d."
    )
    pad = mask_explorer.sentence(
        explorer.scene, {"row": 1, "query": 2, "step": 0, "shown": "causal"}
    )
    assert pad == (
        "Row B, query 3, <pad>, a pad: 3 of 13 keys seen: 3 × <pad>. This is the "
        "causal part alone, not what ran."
    )


# --- where it is NaN ---


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_states_are_nan_where_those_of_transformers_are(family):
    """The same classic mask, as -inf, in transformers' eager attention."""
    lm = tiny.tiny_lm(family)
    scene = NaNMicroscope(lm, IDS).scene
    theirs = tiny.tiny_transformer(family, attn_implementation="eager")
    ids, mask = padding.pad_batch(IDS, lm.pad_token_id, "left")
    keep = torch.ones(6, 6).tril().bool() & mask[:, None, None, :]
    float_mask = torch.zeros(keep.shape).masked_fill(~keep, -torch.inf)
    with torch.inference_mode():
        told = theirs(
            ids,
            attention_mask=float_mask,
            position_ids=(mask.cumsum(1) - 1).clamp(min=0),
            output_hidden_states=True,
        )
    for row, found in enumerate(scene["fills"]["minus-inf"]):
        for layer, states in zip(found["layers"], told.hidden_states[1:], strict=True):
            line = scene["lines"][layer["hidden"]]
            nan = states[row].isnan().any(dim=-1).tolist()
            assert [code == "n" for code in line] == nan
            assert set(line) <= {"n", "f"}


def test_nan_begins_in_the_pads_and_is_in_the_words_one_layer_later(canary):
    scene = NaNMicroscope(canary, PROMPTS).scene
    assert scene["layers"] == 4
    for row, length in enumerate(LENGTHS):
        ill, well = (scene["fills"][fill][row] for fill in ("minus-inf", "lowest"))
        assert (well["pads"], well["real"]) == (None, None)
        pads = 13 - length
        expected = ["f" * 13] * 4
        if pads:
            expected = ["n" * pads + "f" * length, *["n" * 13] * 3]
        hidden = [scene["lines"][layer["hidden"]] for layer in ill["layers"]]
        assert hidden == expected
        assert (ill["pads"], ill["real"]) == ((1, 2) if pads else (None, None))
        right = nanoserve.generate_one(canary, PROMPTS[row], max_new_tokens=1)
        assert (
            well["next"] == canary.tokenizer.convert_ids_to_tokens(right.token_ids)[0]
        )
        assert ill["next"] == (None if pads else well["next"])


def test_scores_weights_and_values_layer_by_layer(canary):
    scene = NaNMicroscope(canary, PROMPTS).scene

    def line(fill: str, layer: int, what: str, query: int | None = None) -> str:
        found = scene["fills"][fill][1]["layers"][layer][what]
        return scene["lines"][found if query is None else found[query]]

    # row B: 7 pads, then 6 tokens; query 9 is its third token
    assert line("minus-inf", 0, "scores", 9) == "i" * 7 + "fff" + "iii"
    assert line("lowest", 0, "scores", 9) == "l" * 7 + "fff" + "lll"
    assert line("minus-inf", 0, "weights", 9) == "z" * 7 + "fff" + "zzz"
    assert line("minus-inf", 0, "scores", 3) == "i" * 13  # a pad may see nothing
    assert line("minus-inf", 0, "weights", 3) == "n" * 13
    assert line("lowest", 0, "weights", 3) == "f" * 13  # but weighs all alike
    assert line("minus-inf", 0, "values") == "f" * 13
    assert line("minus-inf", 0, "out") == "n" * 7 + "f" * 6
    # one layer on: weights as they should be, values NaN, and 0 x NaN
    assert line("minus-inf", 1, "weights", 9) == "z" * 7 + "fff" + "zzz"
    assert line("minus-inf", 1, "values") == "n" * 7 + "f" * 6
    assert line("minus-inf", 1, "out") == "n" * 13
    assert line("minus-inf", 1, "why") == "b" * 7 + "v" * 6
    assert line("minus-inf", 2, "why") == "b" * 7 + "q" * 6
    # a masked score is -inf, whatever it was; what is left of them is NaN
    assert line("minus-inf", 2, "scores", 9) == "i" * 7 + "nnn" + "iii"
    assert {line("lowest", n, "why") for n in range(4)} == {"m" * 7 + "f" * 6}


def test_a_cell_shows_the_worst_of_what_it_stands_for():
    inf, nan, lowest = torch.inf, torch.nan, nan_scene.LOWEST
    x = torch.tensor(
        [[1, nan], [-inf, 1], [inf, 1], [0, 2], [0, 0], [lowest, 0], [-inf, nan]]
    )
    assert "".join(map(chr, nan_scene._worst(x, 1).tolist())) == "nipfzln"


def test_under_right_padding_nothing_is_nan(canary):
    scene = NaNMicroscope(canary, PROMPTS, padding_side="right").scene
    for fill in ("lowest", "minus-inf"):
        assert all(
            found["pads"] is found["real"] is None for found in scene["fills"][fill]
        )
    assert "n" not in "".join(scene["lines"])


def test_the_longest_row_is_right_to_the_last_bit(canary):
    """Both runs differ in one number, and the longest row never meets it."""
    runs = [
        nan_scene._run(canary, PROMPTS, "left", number)
        for number in nan_scene.FILLS.values()
    ]
    assert torch.equal(runs[0][1][2], runs[1][1][2])
    assert runs[1][1][:2].isnan().all()


def test_what_is_planted_around_them_does_not_matter(canary):
    plain = NaNMicroscope(canary, PROMPTS).scene
    with pitfalls.plant("mask-dropped"):
        assert NaNMicroscope(canary, PROMPTS).scene == plain


# --- what is refused, and what is asked for ---


@pytest.mark.parametrize("make", MADE)
@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ("copy a", {}, "prompts='copy a': must be a list of prompts"),
        (["copy a"] * 9, {}, "prompts='9 prompts': 1 to 8 of them fit into a picture"),
        ([], {}, "prompts='0 prompts': 1 to 8 of them fit into a picture"),
        (["copy a", ""], {}, "prompt='': is empty: it needs one token"),
        (["copy a"], {"padding_side": "up"}, 'must be "left" or "right"'),
        ([[1] * 80], {}, "prompt and answer may have 72 together in a picture"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_one_line(
    canary, make, prompts, options, message
):
    with pytest.raises(nanoserve.InvalidInputError) as caught:
        make(canary, prompts, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_bug_is_refused(canary):
    with pytest.raises(nanoserve.InvalidInputError, match="bug='mask': must be one of"):
        MaskExplorer(canary, PROMPTS, bug="mask")


def test_typed_prompts_are_run_and_refusals_told(canary):
    made = MaskExplorer(canary, PROMPTS)
    made._asked = {"prompts": "copy a b\n\ncopy c", "nth": 1}
    assert made.scene["prompts"] == ["copy a b", "copy c"]
    assert made._problem == ""
    before = made.scene
    made._asked = {"prompts": "", "nth": 2}
    assert made._problem == ("prompts='0 prompts': 1 to 8 of them fit into a picture")
    assert made.scene is before
    made.show(padding_side="right")
    assert "right" in made.scene["title"] and made.scene["prompts"][1] == "copy c"


# --- words and marks ---


@pytest.mark.parametrize("name", ["mask-explorer", "nan-microscope"])
def test_each_word_is_used_and_each_mark_is_named(name):
    words = instrument.words_of(name)
    module = {"mask-explorer": mask_explorer, "nan-microscope": nan_microscope}[name]
    own = name.replace("-", "_")
    code = "\n".join(
        (instrument.HERE / file).read_text("utf-8")
        for file in (f"{own}.js", f"{own}.py", "instrument.js", "instrument.py")
    )
    families = (
        "kind_",
        "shown_",
        "stage_",
        "fill_",
        "said_",
        "count_",
        "why_",
        "state_",
    )
    marks = set(module.CODES.values())
    for key in words:
        named = re.findall(rf"""words\.{key}\b|["']{key}["'](?!:)""", code)
        assert named or key.startswith(families) or key in marks, key
    for mark in filter(None, marks):
        assert mark in words and mark in grid.MARKS


# --- a page ---


def test_a_stored_scene_becomes_an_instrument_of_the_offline_page(canary, tmp_path):
    pytest.importorskip("nbconvert")
    from nanoserve.course import site

    made = MaskExplorer(canary, PROMPTS)
    cells = [nbformat.v4.new_markdown_cell("# 98 Instruments")]
    for each in (made, NaNMicroscope(canary, PROMPTS)):
        data = each.still_bundle()
        output = nbformat.v4.new_output("execute_result", data, execution_count=1)
        cells.append(nbformat.v4.new_code_cell("it", outputs=[output]))
    path = tmp_path / "98_instruments.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    page = site.lesson_page(path, None, None)
    assert page.count('<div data-instrument="') == 2
    assert page.count("<noscript><img") == 2
    assert page.count('<script type="module">') == 1
    stored = re.findall(r'json">(.*?)</script>', page, re.S)
    assert json.loads(stored[0])["scene"] == made.scene
    assert 'KINDS["mask-explorer"]' in page and 'KINDS["nan-microscope"]' in page
