"""Lesson 06: its exercises, as learners may answer them, and what it says of tests.

The general checks (the reference passes, every planted mistake is named, the cells fit)
are in test_exercises.py, for all lessons.
"""

from __future__ import annotations

import copy

import pytest
import run_all
import torch

from nanoserve import attention, generate, load, padding, pitfalls
from nanoserve.course import checks, lessons, panels, trial, values
from nanoserve.course.forward import Forward
from nanoserve.course.lessons import lesson_06
from nanoserve.course.lessons.lesson_06 import MUTANTS, Alone, Batch

EXERCISES = lessons.exercises()
LM = load("canary", device="cpu")
EOS = 2


def ids(*prompts):
    return [LM.encode(prompt) for prompt in prompts]


def says(*answers):
    """The tokens of right answers, as anyone can work them out."""
    known = LM.tokenizer.get_vocab()
    return [[*(known[word] for word in answer.split()), EOS] for answer in answers]


# Worked out by hand: a reference is not its own judge.
BY_HAND = [
    (
        "generate_batch",
        (Forward(LM), ids("count from 7 to 11", "copy x", "reverse a b c"), 9),
        says("7 8 9 10 11", "x", "c b a"),
    ),
    (
        "generate_batch",
        (Forward(LM), ids("repeat q 4 times", "copy n o w"), 2),
        [says("q q")[0][:2], says("n o")[0][:2]],
    ),
    ("equals_alone", (Batch(0), Alone()), True),
    *(
        ("equals_alone", (Batch(n, bug), Alone()), False)
        for n, bug in enumerate(MUTANTS)
    ),
]
ANSWERS = {"equal_lengths_see": 0, "neighbour_changes": "identical"}


@pytest.mark.parametrize(("exercise", "arguments", "answer"), BY_HAND)
def test_the_reference_is_right(exercise, arguments, answer):
    given = trial.run(EXERCISES[exercise].reference, arguments)
    assert values.same(answer, given.value)


def by_hand(**wrong):
    """As a learner might write it, with one part of it replaced."""
    part = {
        "side": "left",
        "start": lambda mask: (mask.long().cumsum(1) - 1).clamp(0),
        "position": lambda mask, step: mask.sum(1, keepdim=True) + step - 1,
        "last": lambda mask: mask.long().cumsum(1).argmax(1),
        "keep": lambda mask: causal(mask) & mask[:, None, None, :] | itself(mask),
        "grown": lambda mask, step: grow(mask, step, True),
        "new": lambda answers, tokens: [
            a if EOS in a else a + [t] for a, t in zip(answers, tokens, strict=True)
        ],
        **wrong,
    }

    def generate_batch(forward, prompts, limit):
        ids, mask = padding.pad_batch(prompts, 0, part["side"])
        logits = forward(ids, part["start"](mask), part["keep"](mask))
        logits = logits[torch.arange(len(prompts)), part["last"](mask)]
        answers = part["new"]([[] for _ in prompts], logits.argmax(-1).tolist())
        for step in range(1, limit):
            tokens = logits.argmax(-1)[:, None]
            keep = part["grown"](mask, step)
            logits = forward(tokens, part["position"](mask, step), keep)[:, -1]
            answers = part["new"](answers, logits.argmax(-1).tolist())
        return answers

    return generate_batch


def causal(mask):
    return torch.ones(len(mask), 1, *[mask.shape[1]] * 2).tril().bool()


def itself(mask):
    return torch.eye(mask.shape[1]).bool()


def grow(mask, step, seen):
    return torch.cat([mask, torch.full((len(mask), step), seen)], 1)[:, None, None]


def column(mask, step):
    return torch.full((len(mask), 1), mask.shape[1] + step - 1)


def columns(mask):
    return torch.arange(mask.shape[1]).expand_as(mask)


def of_all(answers, tokens):
    if any(EOS in answer for answer in answers):
        return answers
    return [a + [t] for a, t in zip(answers, tokens, strict=True)]


def to_all(answers, tokens):
    return [a + [t] for a, t in zip(answers, tokens, strict=True)]


# "any of the above", as course.md has it: written anew, not as they are planted.
LISTED = [
    ("generate_batch", "index-positions", by_hand(start=columns, position=column)),
    ("generate_batch", "prefill-only", by_hand(position=column)),
    ("generate_batch", "prefill-only", by_hand(position=column, side="right")),
    ("generate_batch", "decode-only", by_hand(start=columns)),
    (
        "generate_batch",
        "last-column",
        by_hand(side="right", last=lambda mask: torch.full((len(mask),), -1)),
    ),
    ("generate_batch", "sum-minus-one", by_hand(last=lambda mask: mask.sum(1) - 1)),
    (
        "generate_batch",
        "mask-dropped",
        by_hand(keep=causal, grown=lambda mask, step: grow(mask | True, step, True)),
    ),
    (
        "generate_batch",
        "mask-at-prefill-only",
        by_hand(grown=lambda mask, step: grow(mask | True, step, True)),
    ),
    (
        "generate_batch",
        "mask-not-grown",
        by_hand(grown=lambda mask, step: grow(mask, step, False)),
    ),
    (
        "generate_batch",
        "mask-transposed",
        by_hand(keep=lambda mask: causal(mask) & mask[:, None, :, None] | itself(mask)),
    ),
    ("generate_batch", "appends to finished", by_hand(new=to_all)),
    ("generate_batch", "one stop ends all", by_hand(new=of_all)),
]


@pytest.mark.parametrize(("exercise", "mistake", "function"), LISTED)
def test_what_the_course_lists_is_caught(exercise, mistake, function):
    verdict = checks.check(EXERCISES[exercise], function)
    assert (verdict.status, verdict.mistake) == ("wrong", mistake)


@pytest.mark.parametrize("side", ["left", "right"])
def test_either_side_is_right(side):
    assert checks.check(EXERCISES["generate_batch"], by_hand(side=side)).status == (
        "passed"
    )


def asks(prompts, compare):
    return lambda batch, alone: compare(batch(prompts), [alone(p) for p in prompts])


def equal(one, other):
    return one == other


TESTS = [
    (["copy d o g", "copy c a t"], equal, "one row"),
    (["repeat a 2 times", "repeat b 9 times"], equal, "equal lengths"),
    (["count from 1 to 9"], equal, "one row"),
    (["copy d o g", "copy c o l d d u c k s"], lambda b, a: len(b) == len(a), "shapes"),
    (
        ["copy d o g", "copy c o l d d u c k s"],
        lambda b, a: b[-1] == a[-1],  # the longest is right
        "one row",
    ),
    (["copy d o g", "copy c o l d d u c k s"], lambda b, a: b is a, "cries wolf"),
]


@pytest.mark.parametrize(("prompts", "compare", "mistake"), TESTS)
def test_a_blind_test_is_told_why(prompts, compare, mistake):
    verdict = checks.check(EXERCISES["equals_alone"], asks(prompts, compare))
    assert verdict.status == "wrong"
    assert verdict.mistake.startswith(mistake)


@pytest.mark.parametrize(
    "prompts",
    [
        ["copy d o g", "count from 1 to 9"],
        ["reverse s t o p", "repeat x 9 times", "copy a"],
        ["count from 3 to 12", "copy c o l d d u c k s", "copy d o g"],
    ],
)
def test_a_test_that_bites_passes(prompts):
    verdict = checks.check(EXERCISES["equals_alone"], asks(prompts, equal))
    assert verdict.status == "passed"


def test_a_mutant_that_survives_is_named():
    verdict = checks.check(EXERCISES["equals_alone"], lesson_06.tests_equal_lengths)
    assert repr(panels.of_verdict(verdict)).endswith(
        """\
  In this case: equals_alone(mutant_3, alone)
  of the engine with sum-minus-one, your test:
  expected  says: it differs
  yours     says: equal
            ^^^^^^^^^^^"""
    )


def test_the_prompt_of_the_row_that_fails_is_drawn_in_words():
    verdict = checks.check(EXERCISES["generate_batch"], lesson_06.one_token_more)
    told = repr(panels.of_verdict(verdict))
    assert "prompt    <bos>  copy  c  a  t  s  <answer>" in told
    assert "expected  c      a     t\n" in told


# ---- forward ---------------------------------------------------------------------


def test_forward_is_the_model_and_remembers():
    forward, prompts = Forward(LM), ids("copy d o g", "count from 1 to 5")
    tokens, mask = padding.pad_batch(prompts, 0)
    logits = forward(tokens, padding.positions(mask), attention.keep_mask(mask))
    right = generate.next_token_logits(LM, prompts)
    assert torch.allclose(logits[:, -1], right, atol=1e-4)
    new = right.argmax(-1)
    keep = attention.keep_mask(mask, 1)
    logits = forward(new[:, None].tolist(), padding.positions(mask, 1), keep)
    longer = [p + [t] for p, t in zip(prompts, new.tolist(), strict=True)]
    right = generate.next_token_logits(LM, longer)
    assert torch.allclose(logits[:, 0], right, atol=1e-4)
    assert copy.deepcopy(forward).columns == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ids": [1, 2, 3]}, "ids="),
        ({"positions": [[0, 1]]}, "positions=[1, 2]: must be as ids are"),
        ({"positions": [[-1, 0, 1]]}, "positions=-1: must be 0 or more"),
        ({"keep": torch.ones(1, 1, 3, 2)}, "keep=[1, 1, 3, 2]: must be [1, 1, 3, 3]"),
        ({"keep": torch.ones(3, 3)}, "all columns so far"),
    ],
)
def test_forward_tells_what_it_cannot_take(change, words):
    right = {
        "ids": [[1, 2, 3]],
        "positions": [[0, 1, 2]],
        "keep": torch.ones(1, 1, 3, 3),
    }
    with pytest.raises(ValueError) as told:
        Forward(LM)(**{**right, **change})
    assert words in str(told.value)


def test_a_mask_that_is_a_column_short_is_told():
    """In many libraries nothing would be raised, and every answer be wrong."""
    short = by_hand(grown=lambda mask, step: grow(mask, step - 1, True))
    verdict = checks.check(EXERCISES["generate_batch"], short)
    assert verdict.status == "raised"
    assert "all columns so far" in repr(panels.of_verdict(verdict)).replace("\n  ", " ")


# ---- what the lesson says --------------------------------------------------------


def test_eight_bugs_show_under_one_side_only_and_equal_lengths_see_none():
    sided = [bug.name for bug in pitfalls.distinct() if bug.side]
    assert len(sided) == 8
    table = pitfalls.kill_table()
    seen = {row[0]: dict(zip(table.heads, row, strict=True)) for row in table.rows}
    assert {seen[name]["equal"] for name in sided} == {"."}


def test_a_neighbours_content_changes_no_bit_and_its_length_only_the_last_digits():
    mine, one, other = "count from 1 to 5", "copy a b c d e f", "reverse f e d c b a"
    logits = [generate.next_token_logits(LM, [mine, each])[0] for each in (one, other)]
    assert torch.equal(*logits)
    alone = generate.next_token_logits(LM, [mine])[0]
    assert (alone - logits[0]).abs().max() < 1e-4


def test_the_books_test_of_two_rows():
    """24 `a` and 3 `b`: the tokens of a right engine are equal, too."""
    a, b = ids("copy a")[0][2], ids("copy b")[0][2]
    prompts = [[a] * 24, [b] * 3]
    assert not pitfalls.compare(LM, prompts, max_new_tokens=6, ignore_eos=True).wrong
    rows = generate.generate_batch(LM, prompts, max_new_tokens=6, ignore_eos=True)
    assert [row.generated_tokens for row in rows] == [6, 6]


@pytest.mark.slow
def test_wrong_answers_never_break_run_all(fresh_kernel):
    assert run_all.with_wrong_answers("06") == 5


@pytest.mark.slow
def test_right_answers_of_any_form_run_the_lesson(fresh_kernel):
    def generate_batch(forward, prompts, limit):
        answers = lesson_06.generate_batch(forward, prompts, limit)
        return tuple(map(torch.tensor, answers))

    def equals_alone(batch, alone):
        return int(lesson_06.equals_alone(batch, alone))

    run_all.with_answers("06", generate_batch, equals_alone)
