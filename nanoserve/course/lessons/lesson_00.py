"""Lesson 00, Start here: the shape of the scores, and one row of softmax."""

from __future__ import annotations

import math
from typing import Any

import torch

from ..exercises import Exercise, Guess, Lesson

WORDS: dict[str, Any] = {
    "title": "Start here",
    "score_shape": {
        "title": "The shape of the scores",
        "hint": "Write the last two dimensions of both factors below each other: "
        "`[tokens, head_dim] @ [head_dim, tokens]`. What is left of a product of two "
        "matrices? The first two dimensions only say how many such products there are.",
        "tokens x head_dim": "That is the shape of `q` itself. The product adds up "
        "over `head_dim`, so it is gone: each score is one number.",
        "one score a token": "That is one score for each token. But every token is "
        "scored against every token, so there is a square of them.",
        "one head": "That is right for one head. Each head makes scores of its own.",
    },
    "softmax_row": {
        "title": "One row of softmax",
        "hint": "Subtract the row's largest score from all of them first. The weights "
        "stay the same (above and below the line of the fraction, the same factor "
        "appears), and the largest number to be raised is 0.",
        "overflow": "`exp(1000)` is too large for a float: it becomes `inf`, and `inf "
        "/ inf` is NaN (Python's own `math.exp` raises OverflowError). Only the "
        "*differences* between scores matter. Which number can you take off all of "
        "them?",
        "no exp": "These are the scores divided by their sum. The weights are the "
        "*exponentials* divided by theirs; without `exp`, a score below 0 becomes a "
        "negative weight.",
        "no sum": "These are the exponentials, not yet divided by their sum. The "
        "weights of a row add up to 1.",
    },
    "scores_per_head": {
        "question": "`q` and `k` hold 5 tokens each. How many scores does one head "
        "compute?",
        "nudge": "Each of the 5 tokens asks, and each of the 5 is asked about.",
        "one each": "5 would be one score for each token. How many tokens does each "
        "one look at?",
        "causal": "Only 15 of them are *used*, since no token looks ahead: that is "
        "the mask's work, and it comes after. How many does `q @ k.T` compute?",
        "why": "5 x 5: every token asks, and every token is asked about. No token may "
        "look ahead, so the mask then drops 10 of them; they have been computed all "
        "the same.",
    },
    "who_sits_idle": {
        "question": "In which passes does C hold its seat and make nothing? Step "
        "through the player and write the passes as a set, such as `{1, 2}`.",
        "nudge": "Look for the crossed cells in the row of C. The numbers of the "
        "passes stand above the score.",
        "too early": "In pass 4 C still makes a token: the `<eos>` by which it stops. "
        "That is a token like any other.",
        "why": "C makes `a a a` and then `<eos>`, four tokens in four passes. It keeps "
        "its seat until B, the slowest, is done in pass 11.",
    },
    "all_masked": {
        "question": "And if *all* of them are minus infinity? Write what you expect as "
        'a string: `"zeros"`, `"equal"` or `"nan"`.',
        "nudge": "Each `exp` is 0. The weights are these, divided by their sum.",
        "zeros": "Each `exp` is 0, that is true. But a weight is that 0 divided by the "
        "sum, and the sum is 0 too.",
        "equal": "That would be so for equal *finite* scores, even very low ones: 0.5 "
        "and 0.5. Infinity minus infinity, however, is no number.",
        "why": "0 / 0 is no number. A row that may look at nothing has no weights.",
    },
    "equal_scores": {
        "question": "Four keys have the same score, 7. Which weight does each get?",
        "nudge": "The four weights are equal, and they add up to 1.",
        "why": "Equal scores share the weight equally, however large they are: 1 / 4. "
        "Only differences between scores count.",
    },
}


# --- the shape of the scores ---


def score_shape(batch, heads, tokens, head_dim):
    """The shape of the attention scores, q @ k.transpose(-1, -2).

    Both q and k have the shape [batch, heads, tokens, head_dim].
    Remember: a [2, 3] matrix @ a [3, 5] matrix is a [2, 5] matrix.
    Return a list of numbers.
    """
    return [batch, heads, tokens, tokens]


def shape_cases():
    return [(1, 2, 5, 8), (3, 4, 6, 16), (2, 1, 1, 4)]


def shape_of_q(batch, heads, tokens, head_dim):
    return [batch, heads, tokens, head_dim]


def shape_of_k_turned(batch, heads, tokens, head_dim):
    return [batch, heads, head_dim, tokens]


def shape_without_square(batch, heads, tokens, head_dim):
    return [batch, heads, tokens]


def shape_one_wide(batch, heads, tokens, head_dim):
    return [batch, heads, tokens, 1]


def shape_of_one_head(batch, heads, tokens, head_dim):
    return [batch, tokens, tokens]


SCORE_SHAPE = Exercise(
    reference=score_shape,
    words=WORDS["score_shape"],
    cases=shape_cases,
    mistakes={
        "tokens x head_dim": (shape_of_q, shape_of_k_turned),
        "one score a token": (shape_without_square, shape_one_wide),
        "one head": (shape_of_one_head,),
    },
    minutes=2,
)


# --- one row of softmax ---


def softmax_row(scores):
    """Turn one row of scores, a float tensor [S], into weights, [S].

    A weight is the exp of its score, divided by the sum of the exps of
    all: they add up to 1. A score of -inf (a masked token) gets 0.
    Equal scores share: softmax_row(torch.tensor([7., 7.])) is
    [0.5, 0.5]. A score may be as large as 1000.
    """
    exps = (scores - scores.max()).exp()
    return exps / exps.sum()


def softmax_cases():
    rows = ([1, 2, 3], [0, 0], [-1, 0, 2], [2, -math.inf, 1], [1000, 1001], [-1000])
    return [(torch.tensor(row, dtype=torch.float32),) for row in rows]


def softmax_unsafe(scores):
    return scores.exp() / scores.exp().sum()


def softmax_unsafe_by_math(scores):
    exps = [math.exp(score) for score in scores]
    return [each / sum(exps) for each in exps]


def softmax_without_exp(scores):
    return scores / scores.sum()


def softmax_without_exp_by_math(scores):
    return [float(score) / float(sum(scores)) for score in scores]


def softmax_without_sum(scores):
    return (scores - scores.max()).exp()


def softmax_without_sum_unsafe(scores):
    return scores.exp()


SOFTMAX_ROW = Exercise(
    reference=softmax_row,
    words=WORDS["softmax_row"],
    cases=softmax_cases,
    mistakes={
        "overflow": (softmax_unsafe, softmax_unsafe_by_math),
        "no exp": (softmax_without_exp, softmax_without_exp_by_math),
        "no sum": (softmax_without_sum, softmax_without_sum_unsafe),
    },
    minutes=3,
)


# --- questions before running ---

SCORES_PER_HEAD = Guess(
    "scores_per_head",
    25,
    WORDS["scores_per_head"],
    wrong=[(5, "one each"), (15, "causal")],
)
EQUAL_SCORES = Guess("equal_scores", 0.25, WORDS["equal_scores"])
WHO_SITS_IDLE = Guess(
    "who_sits_idle",
    {5, 6, 7, 8, 9, 10, 11},
    WORDS["who_sits_idle"],
    wrong=[({4, 5, 6, 7, 8, 9, 10, 11}, "too early")],
)
ALL_MASKED = Guess(
    "all_masked",
    "nan",
    WORDS["all_masked"],
    wrong=[("zeros", "zeros"), ("equal", "equal")],
)

LESSON = Lesson(
    "00",
    WORDS["title"],
    exercises=(SCORE_SHAPE, SOFTMAX_ROW),
    guesses=(WHO_SITS_IDLE, SCORES_PER_HEAD, ALL_MASKED, EQUAL_SCORES),
)
