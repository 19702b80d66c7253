"""Every planted bug: what it is, which rows it hits, what it answers, who kills it.

The answers of all examples stand in ``pitfalls.txt``; after retraining a canary
``python tests/test_pitfalls.py`` writes it anew, and its diff is to be read.
"""

import functools
import inspect
import re
from pathlib import Path

import pytest
import tiny
import torch

import nanoserve
from nanoserve import InvalidInputError, canary, pitfalls
from nanoserve.pitfalls import BUGS, EXAMPLES, compare, planting
from nanoserve.pitfalls.comparison import SMALL, abridged, rounded
from nanoserve.pitfalls.examples import z_is_nan

ANSWERS = Path(__file__).with_name("pitfalls.txt")
NAMES = [bug.name for bug in pitfalls.distinct()]
PAGED = [bug.name for bug in pitfalls.distinct() if bug.paged]
MODELS = ("canary", "canary-rope")

# --- the catalogue ---


def test_every_place_of_the_design_has_its_bugs():
    assert set(NAMES) >= {
        "mask-from-ids",
        "index-positions",
        "prefill-only",
        "decode-only",
        "last-column",
        "sum-minus-one",
        "mask-dropped",
        "mask-not-grown",
        "bool-mask-added",
        "minus-inf",
        "min-plus-min",
        "shared-generator",
        "eos-in-prompt",
        "one-stop-ends-all",
        "finished-appended",
        "not-scrubbed",
        "rows-compacted",
        "stale-block",
        "block-off-by-one",
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_bug_is_told_in_full(name):
    bug = BUGS[name]
    assert re.fullmatch(
        r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", bug.report
    )
    for told in (bug.symptom, bug.cause, bug.fix):
        assert told[0].isupper() or told[0] == "`"
        assert told.endswith(".")
    assert bug.side in (None, "left", "right")
    assert max(len(line) for line in bug.text().splitlines()) <= 80
    assert bug.text().startswith(name)
    assert name in repr(bug)
    assert "0x" not in repr(bug)


def test_a_bug_of_two_names_stands_under_both():
    pair = BUGS["prefill-only"]
    assert pair is BUGS["continued-from-padded-length"]
    assert pair.names == ("prefill-only", "continued-from-padded-length")
    assert len(NAMES) == len(set(BUGS.values())) == len(BUGS) - 1


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_function_is_a_drop_in_for_the_right_one(name):
    for place, wrong in BUGS[name].replaces.items():
        owner, attribute = planting._locate(place)
        right = inspect.signature(getattr(owner, attribute))
        assert list(inspect.signature(wrong).parameters) == list(right.parameters)


# --- which rows a bug hits: on random models, by their logits ---

LONGEST = [5, 9, 33, 7, 21, 40, 11, 6, 13, 50, 22, 8]
PROMPTS = [LONGEST, [41], [23, tiny.PAD, 31, 8, 52], [55, 36, 4]]
SHORTER, ALL, NONE = [1, 2, 3], [0, 1, 2, 3], []

# bug: rows that differ from the prompt alone under left and under right padding
ROWS = {
    "mask-from-ids": ([2], [2]),  # its prompt holds the pad
    "index-positions": (SHORTER, SHORTER),
    "prefill-only": (SHORTER, SHORTER),
    "decode-only": (SHORTER, NONE),
    "last-column": (NONE, SHORTER),
    "sum-minus-one": (SHORTER, NONE),
    "mask-dropped": (SHORTER, SHORTER),
    "mask-at-prefill-only": (SHORTER, SHORTER),
    "mask-not-grown": (ALL, ALL),
    "mask-transposed": (SHORTER, NONE),
    "bool-mask-added": (ALL, ALL),
    "minus-inf": (SHORTER, NONE),
    "min-plus-min": (SHORTER, NONE),
    "causal-at-decode": (ALL, ALL),
}
ON_ROPE = {
    # distances are right, and so is everything else
    "index-positions": (NONE, SHORTER),
}
AT_ONCE = {  # the first token's logits are wrong already, under left padding
    "mask-from-ids": [2],
    "index-positions": SHORTER,
    "decode-only": SHORTER,
    "sum-minus-one": SHORTER,
    "mask-dropped": SHORTER,
    "mask-transposed": SHORTER,
    "bool-mask-added": ALL,
    "minus-inf": SHORTER,
    "min-plus-min": SHORTER,
}


def off(result, first=False):
    """The rows whose logits are off."""
    return [
        number
        for number, row in enumerate(result.rows)
        if not (row.first_error if first else row.largest_error) <= SMALL
    ]


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_which_rows_a_bug_hits(name, family):
    lm = tiny.tiny_lm(family)
    expected = ROWS[name]
    if family != "gpt2":
        expected = ON_ROPE.get(name, expected)
    for side, rows in zip(("left", "right"), expected, strict=True):
        options = {"max_new_tokens": 5, "ignore_eos": True, "padding_side": side}
        result = compare(lm, PROMPTS, name, **options)
        assert off(result) == rows, f"{side}: {result.text()}"
        assert set(result.wrong) <= set(rows)
        if side == "left":
            at_once = AT_ONCE.get(name, NONE)
            if family == "llama" and "positions" in BUGS[name].where:
                at_once = NONE  # one shift for a whole prompt is nothing to RoPE
            assert off(result, first=True) == at_once


def test_two_names_for_one_bug_answer_alike(gpt2, llama):
    """True positions at prefill only under left padding, continued from the padded
    length under right padding; there, index positions come to the same."""
    for lm in (gpt2, llama):
        runs = [
            compare(lm, PROMPTS, name, padding_side=side, max_new_tokens=6)
            for name, side in (
                ("prefill-only", None),
                ("continued-from-padded-length", None),
                ("index-positions", "right"),
            )
        ]
        assert "left" in runs[0].title
        assert "right" in runs[1].title
        answers = [[row.batch for row in run.rows] for run in runs]
        assert answers[0] == answers[1] == answers[2]
        assert runs[0].wrong


# --- NaN: where it starts, where it goes, where it stops ---


@pytest.mark.parametrize("name", ["minus-inf", "min-plus-min"])
def test_nan_starts_in_the_pads_and_reaches_real_tokens_a_layer_later(lm, name):
    with pitfalls.plant(name), outputs_of_attention() as layers:
        nanoserve.next_token_logits(lm, PROMPTS)
    real = laws_mask(PROMPTS)
    first, second = (layer.isnan().any(dim=1).any(dim=-1) for layer in layers[:2])
    assert torch.equal(first, ~real)  # [rows, width]: the pads, all of them
    assert second[1:].all()  # every position of every padded row
    assert not second[0].any()  # and none of the longest


@pytest.mark.parametrize("name", ["minus-inf", "min-plus-min"])
def test_nan_stays_in_its_row(lm, name):
    result = compare(lm, PROMPTS, name, max_new_tokens=4)
    assert [row.finite for row in result.rows] == [True, False, False, False]
    assert [row.batch_text for row in result.rows[1:]] == ["(error)"] * 3
    with pitfalls.plant(name):
        beside = nanoserve.next_token_logits(lm, PROMPTS)[0]
        others = [LONGEST, *([token] * 3 for token in (9, 10, 11))]
        assert torch.equal(beside, nanoserve.next_token_logits(lm, others)[0])


def test_one_layer_is_not_enough_for_nan_to_reach_a_real_token():
    lm = tiny.tiny_lm("llama")
    with pitfalls.plant("minus-inf"), outputs_of_attention() as layers:
        nanoserve.next_token_logits(lm, PROMPTS)
    assert not layers[0][:, :, -1].isnan().any()


def outputs_of_attention():
    """What attention gives to each layer, as it is planted now."""
    from contextlib import contextmanager
    from unittest import mock

    from nanoserve import attention

    @contextmanager
    def noting():
        attend, seen = attention.attend, []

        def note(*args):
            seen.append(attend(*args))
            return seen[-1]

        with mock.patch.object(attention, "attend", note):
            yield seen

    return noting()


def laws_mask(prompts):
    from nanoserve import padding

    return padding.pad_batch(prompts, tiny.PAD)[1]


def test_unchecked_nan_is_token_0(lm):
    with pitfalls.plant("nan-unchecked"):
        result = compare(lm, PROMPTS, "minus-inf", max_new_tokens=4)
    assert [row.batch for row in result.rows[1:]] == [[0] * 4] * 3
    assert result.rows[0].equal
    # the check that is switched off matters to nobody who is well
    well = compare(lm, PROMPTS, "nan-unchecked", max_new_tokens=4)
    assert not well.wrong


# --- stopping and drawing ---


def test_a_shared_generator_makes_rows_depend_on_each_other(lm):
    drawn = {"temperature": 1.0, "seed": 7, "max_new_tokens": 6, "ignore_eos": True}
    result = compare(lm, PROMPTS, "shared-generator", **drawn)
    assert result.rows[0].batch[0] == result.rows[0].alone[0]  # it draws first
    assert result.wrong == ALL
    assert not compare(lm, PROMPTS, "shared-generator", max_new_tokens=4).wrong
    assert not compare(lm, PROMPTS[:1], "shared-generator", **drawn).wrong


def test_eos_in_the_prompt_ends_that_row_only(lm):
    prompts = [LONGEST, [14, tiny.EOS, 52, 10]]
    lm = without_stops(lm)
    result = compare(lm, prompts, "eos-in-prompt", max_new_tokens=6)
    assert result.wrong == [1]
    assert len(result.rows[1].batch) == 1
    assert not off(result)


def test_one_stop_ends_all_rows_at_the_same_length(lm):
    row, options = stopping(lm)
    result = compare(lm, PROMPTS, "one-stop-ends-all", **options)
    assert {len(each.batch) for each in result.rows} == {len(result.rows[row].alone)}
    assert result.wrong == [number for number in ALL if number != row]
    assert not off(result)


def test_a_finished_row_is_appended_to_and_the_rest_stays_right(lm):
    row, options = stopping(lm)
    result = compare(lm, PROMPTS, "finished-appended", **options)
    assert result.wrong == [row]
    alone, batch = result.rows[row].alone, result.rows[row].batch
    assert batch[: len(alone)] == alone
    assert len(batch) == 8
    assert not off(result)


def without_stops(lm):
    from dataclasses import replace

    return replace(lm, eos_token_ids=frozenset({tiny.EOS}))


def stopping(lm):
    """A row, and options under which it stops early and no other does."""
    said = [
        nanoserve.generate_one(lm, prompt, max_new_tokens=8, ignore_eos=True).token_ids
        for prompt in PROMPTS
    ]
    row, stop = next(
        (row, token)
        for row, tokens in enumerate(said)
        for token in tokens[:6]
        if sum(token in others for others in said) == 1
    )
    return row, {"max_new_tokens": 8, "stop_token_ids": [stop], "ignore_eos": True}


# --- slots ---

TENANTS = [LONGEST, LONGEST[:8], [55, 36], LONGEST[1:]]


def test_stale_columns_are_harmless_while_they_are_finite(lm):
    result = compare(lm, TENANTS, "not-scrubbed", seats=2, max_new_tokens=5)
    assert not result.wrong
    assert not off(result)


def test_a_window_that_is_not_bounded_shows_stale_columns(lm):
    options = {"seats": 2, "max_new_tokens": 5, "ignore_eos": True}
    empty = compare(lm, TENANTS, "whole-window", **options)
    stale = compare(lm, TENANTS, "stale-slot", **options)
    # a shorter row sees beyond its own; the longest of each batch does not
    assert off(empty) == off(stale) == [1, 2]
    assert stale.rows[2].largest_error != empty.rows[2].largest_error


def test_nan_in_a_reused_slot_takes_the_next_tenant(lm):
    options = {"seats": 2, "max_new_tokens": 5, "ignore_eos": True}
    ill = poisoned_by(lm, LONGEST[1])
    prompts = [LONGEST, [12] * 8, [55, 36], [10] * 9]
    assert not compare(ill, prompts, **options).wrong
    result = compare(ill, prompts, "not-scrubbed", **options)
    assert result.wrong == [2]
    assert result.rows[2].batch_text.endswith("(error)")
    assert result.rows[0].alone_text == "(error)"


def poisoned_by(lm, token):
    import copy
    from dataclasses import replace

    from nanoserve.pitfalls.examples import Poisoned

    model = copy.deepcopy(lm.model)
    model.embedding.__class__ = Poisoned
    model.embedding.token = token
    return replace(lm, model=model)


def test_the_ill_model_leaves_the_loaded_one_well():
    lm = trained("canary")
    ill = z_is_nan(lm)
    assert nanoserve.generate_one(ill, "copy z a").finish_reason == "error"
    assert nanoserve.generate_one(ill, "copy a b").text == "a b"
    assert nanoserve.generate_one(lm, "copy z a").text == "z a"


def trained(name):
    try:
        return nanoserve.load(name, device="cpu")
    except nanoserve.ModelNotFoundError as missing:
        pytest.skip(str(missing))


# --- a batch beside the same prompts alone ---


def test_with_nothing_planted_every_row_is_equal(lm):
    for options in ({}, {"padding_side": "right"}, {"seats": 2}):
        result = compare(lm, PROMPTS, max_new_tokens=4, **options)
        assert result.wrong == off(result) == []
        assert "none of 4 rows differ" in result.headline()
        assert result.text().count("logit error below 1e-4") == 4
        assert [row.alone for row in result.rows] == [row.batch for row in result.rows]


def test_it_compares_what_is_planted_around_it_with_what_is_right(gpt2):
    with pitfalls.plant("sum-minus-one"):
        around = compare(gpt2, PROMPTS, max_new_tokens=4)
    named = compare(gpt2, PROMPTS, "sum-minus-one", max_new_tokens=4)
    assert around.rows == named.rows
    assert around.wrong


def test_a_bug_is_shown_under_its_side_unless_another_is_asked_for(gpt2):
    for name, side in (("last-column", "right"), ("sum-minus-one", "left")):
        assert side in compare(gpt2, PROMPTS, name, max_new_tokens=2).title
    other = compare(gpt2, PROMPTS, "last-column", padding_side="left", max_new_tokens=2)
    assert "left" in other.title
    assert not other.wrong


def test_options_may_be_lists_one_value_a_prompt(gpt2):
    limits = [1, 2, 3, 4]
    for seats in (None, 2):
        result = compare(
            gpt2, PROMPTS, seats=seats, max_new_tokens=limits, ignore_eos=True
        )
        assert [len(row.batch) for row in result.rows] == limits
        assert not result.wrong


def test_where_rows_part_and_by_how_much(gpt2):
    result = compare(gpt2, PROMPTS, "prefill-only", max_new_tokens=6, ignore_eos=True)
    for row in result.rows[1:]:
        assert row.first_error < SMALL  # the prompt was right
        assert row.largest_error > 0.1
    row = result.rows[result.wrong[0]]
    assert row.batch[: row.differs_at] == row.alone[: row.differs_at]
    assert row.batch[row.differs_at] != row.alone[row.differs_at]
    assert f"differs from token {row.differs_at + 1}" in row.remark()


def test_bad_input_is_refused(gpt2):
    with pytest.raises(InvalidInputError, match="bug='mask'"):
        compare(gpt2, PROMPTS, "mask")
    with pytest.raises(InvalidInputError, match="padding_side"):
        compare(gpt2, PROMPTS, padding_side="top")
    with pytest.raises(InvalidInputError, match="max_new_tokens"):
        compare(gpt2, PROMPTS, max_new_tokens=[1])
    with pytest.raises(InvalidInputError, match="bug='no'"):
        pitfalls.demonstrate("no")


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (0.0, "below 1e-4"),
        (9.9e-5, "below 1e-4"),
        (1.2e-4, "0.0001"),
        (0.0321, "0.03"),
        (0.55, "0.6"),
        (6.94, "7"),
        (12.7, "10"),
        (float("inf"), "NaN"),
        (float("nan"), "NaN"),
    ],
)
def test_errors_are_rounded_to_what_is_stable(error, shown):
    assert rounded(error) == shown


def test_long_answers_are_abridged_in_the_middle():
    assert abridged("1 2 3", 20) == "1 2 3"
    numbers = " ".join(map(str, range(1, 100)))
    assert abridged(numbers, 30) == "1 2 3 4 5 6 .. 96 97 98 99"


def test_it_shows_itself_as_text_and_as_html(gpt2):
    result = compare(gpt2, PROMPTS, "minus-inf", max_new_tokens=4)
    bundle = result._repr_mimebundle_()
    assert bundle["text/plain"] == result.text() == repr(result)
    assert max(len(line) for line in result.text().splitlines()) <= 80
    html = bundle["text/html"]
    assert html.count("<tr>") == 1 + len(PROMPTS)
    assert html.count("&ne;") == 3  # not by colour alone
    assert "(error)" in html


def test_an_answer_cannot_break_the_page(gpt2):
    """``<pad>`` in an answer is a symptom, and markup if nobody escapes it."""
    with pitfalls.plant("nan-unchecked"):
        result = compare(gpt2, PROMPTS, "minus-inf", max_new_tokens=2)
    assert "<pad> <pad> (limit)" in result.text()
    assert "&lt;pad&gt; &lt;pad&gt; (limit)" in result.html()
    assert "<pad>" not in result.html()


# --- the examples: what anyone can see ---

SHOWN = [(name, number) for name in NAMES for number in range(len(EXAMPLES[name]))]


demonstrated = functools.cache(pitfalls.demonstrate)


def shown(name, number):
    """A section of ``pitfalls.txt``."""
    example = EXAMPLES[name][number]
    text = demonstrated(name, number).text()
    return f"== {name} on {example.model}\n{text}\nright: {example.clean}\n"


def sections():
    stored = re.split(r"^(?=== )", ANSWERS.read_text(), flags=re.MULTILINE)
    return {part.split("\n")[0]: part.rstrip() + "\n" for part in stored if part}


def test_every_bug_has_an_example_and_no_other():
    assert list(EXAMPLES) == NAMES
    assert BUGS["minus-inf"].example is EXAMPLES["minus-inf"][0]
    titles = [f"== {name} on {EXAMPLES[name][i].model}" for name, i in SHOWN]
    assert list(sections()) == titles


@pytest.mark.parametrize(("name", "number"), SHOWN)
def test_an_example_shows_its_bug_and_nothing_has_changed(name, number):
    trained(EXAMPLES[name][number].model)
    got = shown(name, number)
    assert got == sections()[got.split("\n")[0]], "python tests/test_pitfalls.py"


@pytest.mark.parametrize(("name", "number"), SHOWN)
def test_an_example_can_be_seen(name, number):
    example = EXAMPLES[name][number]
    trained(example.model)
    result = demonstrated(name, number)
    assert result.wrong
    for row in result.rows:
        if not row.equal:
            assert row.batch_text != row.alone_text, "no difference to be seen"
        if row.alone_text != "(error)":
            asked = row.prompt.split(" <eos> ")[-1]  # after an earlier turn
            assert row.alone_text == canary.answer(asked), "wrong even alone"
    well = example.run(None)
    assert not well.wrong
    assert not [row for row in well.rows if row.largest_error > SMALL]


def test_the_opening_of_the_course():
    """You asked for 5; in a batch, it counted to 12."""
    trained("canary")
    row = pitfalls.demonstrate("mask-dropped").rows[0]
    assert row.prompt == "count from 1 to 5"
    assert row.alone_text == "1 2 3 4 5"
    assert row.batch_text == "1 2 3 4 5 6 7 8 9 10 11 12"


def test_index_positions_do_not_show_under_rope():
    lm = trained("canary-rope")
    result = compare(lm, EXAMPLES["index-positions"][0].prompts, "index-positions")
    assert not result.wrong
    assert not off(result)


def test_the_other_name_of_a_pair_is_shown_under_the_other_side():
    trained("canary")
    one = pitfalls.demonstrate("prefill-only")
    other = pitfalls.demonstrate("continued-from-padded-length")
    assert "left" in one.title
    assert "right" in other.title
    assert [row.batch for row in one.rows] == [row.batch for row in other.rows]


# --- all at a glance ---


def test_the_table_shows_what_each_bug_answers():
    trained("canary")
    table = pitfalls.table()
    assert [row[0] for row in table.rows] == NAMES
    lines = table.text().splitlines()
    assert len(lines) == 1 + len(NAMES)
    assert max(map(len, lines)) <= 80
    assert table.html().count("<tr>") == len(lines)
    assert table.markdown().count("\n") == len(NAMES) + 1
    assert table._repr_mimebundle_()["text/plain"] == table.text() == repr(table)


@pytest.mark.parametrize("model", MODELS)
def test_every_bug_is_seen_by_some_check_and_by_none_too_many(model):
    trained(model)
    table = pitfalls.kill_table(model)
    checks = table.heads[1:]
    seen = {row[0]: dict(zip(checks, row[1:], strict=True)) for row in table.rows}
    assert list(seen) == [name for name in NAMES if name not in PAGED]
    blind = [name for name, marks in seen.items() if "x" not in marks.values()]
    assert not blind
    # why a test with rows of one length proves little
    padded = [name for name in seen if BUGS[name].side]
    assert {seen[name]["equal"] for name in padded} == {"."}
    assert {seen[name]["one"] for name in padded} == {"."}
    left = seen["index-positions"]["left"]
    assert left == ("x" if model == "canary" else ".")
    assert max(map(len, table.text().splitlines())) <= 80


@pytest.mark.parametrize("model", MODELS)
def test_every_bug_of_a_continuous_engine_is_seen_by_some_check(model):
    trained(model)
    table = pitfalls.kill_table(model, paged=True)
    seen = {
        row[0]: dict(zip(table.heads[1:], row[1:], strict=True)) for row in table.rows
    }
    assert list(seen) == PAGED == ["rows-compacted", "stale-block", "block-off-by-one"]
    # one after the other and all alike, there is nothing to be seen but the block
    assert [seen[name]["one"] for name in PAGED] == [".", ".", "x"]
    assert seen["rows-compacted"]["seats"] == "x"
    assert seen["stale-block"] == {
        "one": ".",
        "equal": ".",
        "seats": ".",
        "blocks": "x",
    }


def test_a_bug_of_a_continuous_engine_is_nothing_to_the_others(lm):
    for name in PAGED:
        assert not compare(lm, TENANTS, name, seats=2, max_new_tokens=4).wrong
        assert not compare(lm, TENANTS, name, max_new_tokens=4).wrong


if __name__ == "__main__":
    ANSWERS.write_text("\n".join(shown(name, number) for name, number in SHOWN))
