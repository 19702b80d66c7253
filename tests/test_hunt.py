"""The bug hunt: it can be solved by looking, and it helps who is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nanoserve import InvalidInputError, course, generate_one, pitfalls
from nanoserve.course import hunt as hunts
from nanoserve.course import panels
from nanoserve.course.hunt import SUSPECTS, WORDS, Hunt

# Between them they hold every suspect.
SEEDS = (4711, 0, 2, 3, 5, 7, 9, 13, 14, 17, 19)


@pytest.fixture(autouse=True)
def shown(monkeypatch):
    found = []
    monkeypatch.setattr(panels, "show", found.append)
    return found


# ---- a detective who has done lessons 03 to 05 -----------------------------------


def where_it_stands(hunt):
    """Lesson 03: positions of the prompt, of the next token, and what is read."""
    sides = hunt.padding().scene["sides"]
    for side, rows in sides.items():
        lengths = [sum(mask) for mask in rows["mask"]]
        real = [
            [p for p, keep in zip(positions, mask, strict=True) if keep]
            for positions, mask in zip(rows["positions"], rows["mask"], strict=True)
        ]
        prompt_right = real == [list(range(length)) for length in lengths]
        next_right = rows["next"] == lengths
        if not prompt_right:
            return "decode-only" if next_right else "index-positions"
        if not next_right:
            return "prefill-only"
        width = len(rows["mask"][0])
        ends = [width - 1 if side == "left" else length - 1 for length in lengths]
        if rows["last"] != ends:
            return "sum-minus-one" if side == "left" else "last-column"
    return None


def who_sees_whom(hunt):
    """Lessons 04 and 05: what real tokens see at the prompt, and new ones later."""
    scene = hunt.masks().scene
    width, marks = scene["width"], set()
    for row in scene["rows"]:
        queries = [scene["lines"][number] for number in row["matrix"]["both"]]
        for query, line in enumerate(queries):
            when = "prompt" if query < width else "decode"
            if row["kinds"][query] == "p":
                continue
            marks |= {(when, mark) for mark in line if mark in "xon"}
            if "x" in line[query + 1 :]:
                return "bool-mask-added"  # it sees the future
    if ("prompt", "n") in marks:
        return "minus-inf"
    return {
        frozenset({("prompt", "x"), ("decode", "x")}): "mask-dropped",
        frozenset({("decode", "x")}): "mask-at-prefill-only",
        frozenset({("prompt", "x")}): "mask-transposed",
        frozenset({("decode", "o")}): "mask-not-grown",
    }[frozenset(marks)]


@pytest.mark.parametrize("seed", SEEDS)
def test_it_can_be_solved_by_looking(seed):
    hunt = Hunt(seed)
    assert any(row["verdict"] != "clean" for row in hunt.compare().scene["rows"]) or (
        hunt._bug.side == "right"
    )
    diagnosis = where_it_stands(hunt) or who_sees_whom(hunt)
    told = repr(hunt.verdict(diagnosis))
    assert told.startswith(f"✓ hunt {seed}: found in {len(hunt.looks)} looks: ")
    assert len(hunt.looks) in (2, 3)
    bug = pitfalls.BUGS[diagnosis]
    for line in (bug.symptom, bug.cause, bug.fix, bug.where, bug.report):
        assert line in " ".join(told.split())


def test_these_seeds_hold_every_suspect():
    assert {Hunt(seed)._bug.name for seed in SEEDS} == set(SUSPECTS)
    assert Hunt(4711)._bug is Hunt(4711)._bug


@pytest.mark.parametrize("seed", SEEDS)
def test_a_wrong_diagnosis_gets_a_line_that_helps(seed, shown):
    for wrong in SUSPECTS:
        hunt = Hunt(seed)
        if wrong in hunt._bug.names:
            continue
        hunt.diagnose(wrong)
        told = " ".join(repr(shown[-1]).split())
        assert f"it is not `{wrong}`" in told
        assert pitfalls.BUGS[wrong].symptom in told
        clue = hunts.telling_apart(wrong, hunt._bug.name)
        assert clue != "answers", "nothing tells them apart"
        assert WORDS[clue].format(name=wrong) in told
        assert not set(hunt._bug.names) & set(told.replace("`", " ").split())


def test_either_name_of_a_pair_counts():
    seed = next(s for s in SEEDS if Hunt(s)._bug.name == "prefill-only")
    for name in ("prefill-only", "continued-from-padded-length", " Prefill-Only "):
        assert repr(Hunt(seed).verdict(name)).startswith("✓")


# ---- looks -----------------------------------------------------------------------


def test_looks_are_counted_once():
    hunt = Hunt(4711)
    assert "found in no look at all" in repr(hunt.verdict(hunt._bug.name))
    hunt.padding()
    hunt.padding()
    assert "found in 1 look:" in repr(hunt.verdict(hunt._bug.name))
    hunt.padding(padding_side="right")
    hunt.compare(hunt.prompts[:1])
    hunt.compare(tuple(hunt.prompts[:1]))
    assert "found in 3 looks:" in repr(hunt.verdict(hunt._bug.name))
    assert "Looks so far: 3." in repr(hunt)


def test_wrong_diagnoses_are_told_and_each_once():
    hunt = Hunt(4711)
    for name in ("last-column", "last-column", "nothing of the kind"):
        hunt.diagnose(name)
    assert "after 1 wrong diagnosis:" in repr(hunt.verdict(hunt._bug.name))
    hunt.diagnose("minus-inf")
    assert "after 2 wrong diagnoses:" in repr(hunt.verdict(hunt._bug.name))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_look_gives_the_name_away(seed):
    hunt = Hunt(seed)
    for look in (hunt.compare(), hunt.padding(), hunt.masks()):
        stored = json.dumps(look.still_bundle()) + json.dumps(look.scene) + repr(look)
        for name in hunt._bug.names:
            assert f'"{name}"' not in stored
            assert f"{name}," not in stored
        assert "nothing planted" not in stored
        assert f"hunt {seed}" in look.scene["title"]


def test_the_bug_is_in_the_look_and_nowhere_else():
    hunt = Hunt(4711)
    look = hunt.compare()
    assert not pitfalls.compare(hunt.lm, hunt.prompts, max_new_tokens=4).wrong
    assert generate_one(hunt.lm, "count from 1 to 5").text == "1 2 3 4 5"
    # and still there when other prompts are typed into it
    look.show(prompts=["copy d o g", *hunt.prompts[-1:]])
    assert {row["verdict"] for row in look.scene["rows"]} > {"clean"}
    assert look.scene["title"].startswith("hunt 4711")


def test_a_look_that_cannot_be_taken_is_not_counted():
    hunt = Hunt(1)
    for prompts, side in (([], "left"), (["copy a"], "top")):
        with pytest.raises(InvalidInputError):
            hunt.compare(prompts, side)
    assert hunt.looks == []


# ---- whatever is said ------------------------------------------------------------


class Evil:
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize("said", [None, ...])
def test_no_diagnosis_is_not_wrong(said, shown):
    hunt = Hunt(4711)
    hunt.diagnose(said)
    assert repr(shown[-1]).startswith("○ hunt 4711: no diagnosis yet")
    assert hunt.wrong == []


@pytest.mark.parametrize("said", [5, Evil(), "x" * 10**6, "<script>", ["a"], "\ud800"])
def test_whatever_is_diagnosed(said, shown):
    Hunt(4711).diagnose(said)
    bundle = shown[-1]._repr_mimebundle_()
    assert bundle["text/plain"].startswith("? hunt 4711: no bug has this name")
    assert "<script" not in bundle["text/html"]
    json.dumps(bundle).encode("utf-8")


def test_a_slip_of_the_pen_is_understood(shown):
    hunt = Hunt(4711)
    hunt.diagnose("mask-droped")
    assert "Did you mean `mask-dropped`?" in repr(shown[-1])
    hunt.diagnose("stale-slot")
    assert "no suspect here" in repr(shown[-1])


@pytest.mark.parametrize("seed", [-1, 1.5, "4711", None])
def test_a_seed_that_is_none(seed):
    with pytest.raises(InvalidInputError, match="seed="):
        Hunt(seed)


def test_it_shows_what_can_be_done():
    hunt = course.Hunt(4711)
    bundle = hunt._repr_mimebundle_()
    for word in (*hunts.INSTRUMENTS, *hunts.known_names()):
        assert word in bundle["text/plain"]
        assert word in bundle["text/html"]
    assert max(map(len, bundle["text/plain"].splitlines())) <= 80
    assert "`" not in bundle["text/html"]


def test_every_word_is_used():
    source = Path(hunts.__file__).read_text("utf-8")
    made = {f"look {kind}" for kind in hunts.INSTRUMENTS}
    clues = set(hunts.observed("last-column"))
    for key in set(WORDS) - made - clues:
        assert len(re.findall(f"""["']{key}["']""", source)) > 1, key
