"""Lesson 12, Prefill against decode: who feeds how many tokens to a pass."""

from __future__ import annotations

import itertools
from typing import Any

from ..exercises import Exercise, Guess, Lesson

WORDS: dict[str, Any] = {
    "title": "Prefill against decode",
    "plan_pass": {
        "title": "Plan a pass",
        "hint": "Begin with one token for each name in `decoding`, and take as many "
        "off the budget. Then go through the prompts in order: each gets "
        "`min(left, budget)` tokens. Who gets a token? All who decode, and each prompt "
        "of which nothing is left.",
        "prefill first": "The prompts were served first. Then who is in the midst of "
        "an answer waits for every newcomer, and that is the stutter this is to end.",
        "a token from an unfinished chunk": "A prompt that is not read to its end "
        "gives no token: what the model says after half a question answers half a "
        "question.",
        "counts requests": "The budget counts *tokens*, and a prompt of 100 takes 100 "
        "of them. Here it counts requests, so a long prompt comes in whole.",
        "decodes are free": "Those who decode take a token of the budget each. What is "
        "left is for the prompts.",
        "whole prompts only": "A prompt that is longer than what is left may come in "
        "part. That is what chunked prefill means.",
        "overtakes": "A later prompt was fed before the earlier one was read to its "
        "end. First come, first served.",
        "zeros": "Who feeds nothing is not in the pass: leave the name out.",
        "no newcomer answers": "A prompt that *is* read to its end in this pass gives "
        "its first token in this very pass.",
    },
    "longest_gap": {
        "title": "The longest gap",
        "hint": "Take two neighbours of `passes`, such as 2 and 5. The reader has the "
        "first token at the end of pass 2, so the gap is what passes 3, 4 *and* 5 fed: "
        "`sum(fed[3:6])`. Neighbours are `passes[n - 1]` and `passes[n]`.",
        "counts passes": "That is a gap in passes. On that clock a pass with a long "
        "prompt is as short as any other.",
        "mean": "That is the mean of the gaps, in which one long gap among many short "
        "ones is lost. Asked is the longest.",
        "the wait for the first": "The time before the first token is no gap between "
        "two: that wait is TTFT.",
        "not the last pass": "The pass in which the later token comes is missing: the "
        "token comes at its *end*. (And the pass of the earlier one was over.)",
        "one pass": "That is the longest pass in which it got a token. Where it got "
        "none for some passes, the gap is all of them together.",
    },
    "choose_budget": {
        "title": "Choose a budget",
        "hint": "Go through the budgets whose time is at most `limit_ms`, and keep the "
        "largest. Those who decode take `decodes` tokens of each pass; the prompt gets "
        "the rest. The number of its passes is rounded up.",
        "ignores the limit": "A pass of that budget takes longer than the limit, and "
        "everybody's stream waits that long.",
        "strictly below": "A pass that takes just the limit keeps it.",
        "smallest": "That keeps the limit, and the long prompt waits longer than it "
        "must. Of those that keep it, take the largest.",
        "decodes are free": "The number of passes is for a prompt that has the whole "
        "budget. Those who decode take their tokens first.",
        "rounds down": "The last, smaller chunk needs a pass too.",
        "time": "Asked is the number of passes, not their time.",
    },
    "tokens_of_that_pass": {
        "question": "Three requests are in the midst of their answers, and a prompt of "
        "243 tokens comes in. It is read whole, in one pass, and the three go on "
        "beside it. How many tokens does that pass feed?",
        "nudge": "The prompt, and how many from each of the others?",
        "only the prompt": "That is the prompt. The three are in the pass too.",
        "rows": "4 is the number of requests. One of them feeds 243 tokens.",
        "why": "243 + 3 = 246. The passes before and after feed 3.",
    },
    "passes_in_chunks": {
        "question": "The same, with a budget of 32 tokens a pass. In how many passes "
        "is the prompt of 243 tokens read?",
        "nudge": "Who is served first, and what is left of the 32?",
        "one short": "8 x 32 would be enough, if the prompt had the whole budget. The "
        "three take one token each: 8 x 29 is 232, and eleven tokens are left.",
        "why": "Three of the 32 are for those who decode. 243 / 29 is a little more "
        "than 8, so it takes 9.",
    },
    "who_gets_a_token": {
        "question": "A, B and C decode, and in the same pass 29 of the 243 tokens of D "
        'are read. Who gets a new token? Write a set, such as `{"A"}`.',
        "nudge": "What would D's token be an answer to?",
        "D too": "D's question is not read to its end. What the model says after 29 of "
        "its tokens is dropped.",
        "only D": "D reads, and the others go on: that is what is new here.",
        "why": "A, B and C. D gets its first token in the pass that reads the *last* "
        "of its prompt.",
    },
}


# --- the longest gap ---


def longest_gap(fed, passes):
    """The longest gap between two tokens of one answer, in tokens fed.

    fed[n]  how many tokens pass n fed, all rows together
    passes  in which passes the answer got a token, two or more:
            the token comes at the end of the pass
    longest_gap([9, 2, 2, 50, 2], [0, 1, 4]) is 54: after pass 1 the
    reader waits while 2, 50 and 2 tokens are fed.
    """
    gaps = []
    for number in range(1, len(passes)):
        first, last = passes[number - 1] + 1, passes[number]
        gaps.append(sum(fed[first : last + 1]))
    return max(gaps)


def gap_cases():
    return [
        ([9, 2, 2, 50, 2], [0, 1, 4]),
        ([21, 3, 3, 246, 3], [0, 1, 2, 3, 4]),
        ([80, 4, 4, 6, 4], [1, 2, 3, 4]),
        ([5, 5, 40, 5, 5, 5], [1, 3, 5]),
        ([7, 3, 60], [0, 1]),
    ]


def gaps_of(fed, passes):
    return [sum(fed[a + 1 : b + 1]) for a, b in itertools.pairwise(passes)]


def gap_in_passes(fed, passes):
    return max(b - a for a, b in itertools.pairwise(passes))


def gap_mean(fed, passes):
    return sum(gaps_of(fed, passes)) / (len(passes) - 1)


def gap_mean_of_tokens(fed, passes):
    return sum(gaps_of(fed, passes)) / len(passes)


def gap_with_the_first(fed, passes):
    return max([sum(fed[: passes[0] + 1]), *gaps_of(fed, passes)])


def gap_before_the_last(fed, passes):
    return max(sum(fed[a:b]) for a, b in itertools.pairwise(passes))


def gap_between(fed, passes):
    return max(sum(fed[a + 1 : b]) for a, b in itertools.pairwise(passes))


def gap_of_one_pass(fed, passes):
    return max(fed[number] for number in passes[1:])


def gap_of_any_pass(fed, passes):
    return max(fed[number] for number in passes)


LONGEST_GAP = Exercise(
    reference=longest_gap,
    words=WORDS["longest_gap"],
    cases=gap_cases,
    mistakes={
        "counts passes": (gap_in_passes,),
        "mean": (gap_mean, gap_mean_of_tokens),
        "the wait for the first": (gap_with_the_first,),
        "not the last pass": (gap_before_the_last, gap_between),
        "one pass": (gap_of_one_pass, gap_of_any_pass),
    },
    minutes=6,
)


# --- plan a pass ---


def plan_pass(decoding, prompts, budget):
    """Who feeds how many tokens to the next pass, and who gets a token.

    decoding  names in the midst of an answer; each feeds one token
    prompts   [name, tokens still to be read], first come first:
              [["C", 10], ["D", 4]]
    budget    tokens the pass may feed, at least one for each of decoding
    Return a dict and a set: plan_pass(["A", "B"], [["C", 10]], 8) is
    {"A": 1, "B": 1, "C": 6} and {"A", "B"}. A prompt may be read in
    part. Who feeds nothing is not in the dict.
    """
    fed = dict.fromkeys(decoding, 1)
    budget -= len(fed)
    gets = set(decoding)
    for name, left in prompts:
        if budget > 0:
            fed[name] = min(left, budget)
            budget -= fed[name]
            if fed[name] == left:
                gets.add(name)
    return fed, gets


def plan_cases():
    return [
        (["A", "B"], [["C", 10]], 8),
        (["A"], [["C", 3], ["D", 4]], 16),
        (["A", "B"], [["C", 5], ["D", 9], ["E", 2]], 10),
        ([], [["C", 40], ["D", 2]], 16),
        (["A", "B", "C"], [["D", 7]], 3),
        (["A", "B"], [], 8),
        (["A"], [["C", 7]], 8),
    ]


def plan_with(decoding, prompts, budget, *, cost=1, whole=False, answers="read"):
    """As right as can be, but for one part."""
    fed, gets = dict.fromkeys(decoding, 1), set(decoding)
    budget -= cost * len(fed)
    for name, left in prompts:
        if budget <= 0 or (whole and left > budget):
            break
        fed[name] = min(left, budget)
        budget -= fed[name]
        if answers == "all" or (answers == "read" and fed[name] == left):
            gets.add(name)
    return fed, gets


def plan_prefill_first(decoding, prompts, budget):
    fed, gets = {}, set()
    for name, left in prompts:
        if budget > 0:
            fed[name] = min(left, budget)
            budget -= fed[name]
            if fed[name] == left:
                gets.add(name)
    for name in decoding[: max(budget, 0)]:
        fed[name] = 1
        gets.add(name)
    return fed, gets


def plan_prefill_alone(decoding, prompts, budget):
    """As vLLM's first generation did: a pass is all prefill or all decode."""
    if prompts:
        return plan_prefill_first([], prompts, budget)
    return plan_with(decoding, prompts, budget)


def plan_answers_all(decoding, prompts, budget):
    return plan_with(decoding, prompts, budget, answers="all")


def plan_answers_decodes(decoding, prompts, budget):
    return plan_with(decoding, prompts, budget, answers="none")


def plan_of_requests(decoding, prompts, budget):
    fed = dict.fromkeys(decoding, 1)
    room = max(budget - len(fed), 0)
    fed.update(dict(prompts[:room]))
    return fed, set(fed)


def plan_decodes_free(decoding, prompts, budget):
    return plan_with(decoding, prompts, budget, cost=0)


def plan_whole(decoding, prompts, budget):
    return plan_with(decoding, prompts, budget, whole=True)


def plan_whole_overtaking(decoding, prompts, budget):
    fitting, left_over = [], budget - len(decoding)
    for name, left in prompts:
        if left <= left_over:
            fitting.append([name, left])
            left_over -= left
    return plan_with(decoding, fitting, budget)


def plan_shortest_first(decoding, prompts, budget):
    ordered = sorted(prompts, key=lambda each: each[1])
    return plan_with(decoding, ordered, budget)


def plan_zeros(decoding, prompts, budget):
    fed, gets = plan_pass(decoding, prompts, budget)
    return fed | {name: 0 for name, _ in prompts if name not in fed}, gets


PLAN_PASS = Exercise(
    reference=plan_pass,
    words=WORDS["plan_pass"],
    cases=plan_cases,
    mistakes={
        "prefill first": (plan_prefill_first, plan_prefill_alone),
        "a token from an unfinished chunk": (plan_answers_all,),
        "counts requests": (plan_of_requests,),
        "decodes are free": (plan_decodes_free,),
        "whole prompts only": (plan_whole, plan_whole_overtaking),
        "overtakes": (plan_shortest_first,),
        "zeros": (plan_zeros,),
        "no newcomer answers": (plan_answers_decodes,),
    },
    minutes=10,
)


# --- * choose a budget ---


def choose_budget(pass_ms, limit_ms, decodes, prompt):
    """The largest budget that keeps the limit, and what a prompt pays.

    pass_ms   how long a pass of so many tokens takes, in milliseconds,
              such as {64: 20, 256: 26, 1024: 70}; one fits at least
    limit_ms  the longest gap that a stream may have
    decodes   how many requests decode beside the prompt, fewer than any
              budget
    prompt    tokens of the long prompt
    Return the budget, and in how many passes the prompt is then read:
    choose_budget(pass_ms, 30, 6, 1000) is (256, 4).
    """
    budget = max(tokens for tokens, ms in pass_ms.items() if ms <= limit_ms)
    chunk = budget - decodes
    return budget, -(-prompt // chunk)


def budget_cases():
    small = {64: 20, 256: 26, 1024: 70}
    return [
        (small, 30, 6, 1000),
        (small, 26, 6, 900),
        (small, 25, 32, 65),
        ({128: 11, 512: 19, 2048: 64, 8192: 240}, 64, 48, 6000),
        (small, 500, 24, 2000),
    ]


def budget_with(pass_ms, limit_ms, decodes, prompt, *, pick=max, kept=None, up=True):
    fitting = kept or (lambda ms: ms <= limit_ms)
    budget = pick(tokens for tokens, ms in pass_ms.items() if fitting(ms))
    chunk = budget - decodes
    return budget, -(-prompt // chunk) if up else prompt // chunk


def budget_largest(pass_ms, limit_ms, decodes, prompt):
    return budget_with(pass_ms, limit_ms, decodes, prompt, kept=lambda ms: True)


def budget_below(pass_ms, limit_ms, decodes, prompt):
    fits = {tokens: ms for tokens, ms in pass_ms.items() if ms < limit_ms}
    return budget_with(fits or pass_ms, limit_ms, decodes, prompt)


def budget_smallest(pass_ms, limit_ms, decodes, prompt):
    return budget_with(pass_ms, limit_ms, decodes, prompt, pick=min)


def budget_decodes_free(pass_ms, limit_ms, decodes, prompt):
    return budget_with(pass_ms, limit_ms, 0, prompt)


def budget_rounds_down(pass_ms, limit_ms, decodes, prompt):
    return budget_with(pass_ms, limit_ms, decodes, prompt, up=False)


def budget_in_time(pass_ms, limit_ms, decodes, prompt):
    budget, passes = choose_budget(pass_ms, limit_ms, decodes, prompt)
    return budget, passes * pass_ms[budget]


CHOOSE_BUDGET = Exercise(
    reference=choose_budget,
    words=WORDS["choose_budget"],
    cases=budget_cases,
    mistakes={
        "ignores the limit": (budget_largest,),
        "strictly below": (budget_below,),
        "smallest": (budget_smallest,),
        "decodes are free": (budget_decodes_free,),
        "rounds down": (budget_rounds_down,),
        "time": (budget_in_time,),
    },
    minutes=6,
    starred=True,
)


# --- questions before running ---

TOKENS_OF_THAT_PASS = Guess(
    "tokens_of_that_pass",
    246,
    WORDS["tokens_of_that_pass"],
    wrong=[(243, "only the prompt"), (4, "rows")],
)
PASSES_IN_CHUNKS = Guess(
    "passes_in_chunks",
    9,
    WORDS["passes_in_chunks"],
    wrong=[(8, "one short")],
)
WHO_GETS_A_TOKEN = Guess(
    "who_gets_a_token",
    {"A", "B", "C"},
    WORDS["who_gets_a_token"],
    wrong=[({"A", "B", "C", "D"}, "D too"), ({"D"}, "only D")],
)

LESSON = Lesson(
    "12",
    WORDS["title"],
    exercises=(LONGEST_GAP, PLAN_PASS, CHOOSE_BUDGET),
    guesses=(TOKENS_OF_THAT_PASS, PASSES_IN_CHUNKS, WHO_GETS_A_TOKEN),
)
