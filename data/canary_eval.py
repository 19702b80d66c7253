"""Measure a canary: which prompts it answers exactly right, `<eos>` included.

Used by make_canary.py for the model cards and by tests/test_canary.py.
"""

import random
from collections import defaultdict

import torch

from nanoserve import canary

TOKEN_ID = {token: place for place, token in enumerate(canary.VOCABULARY)}
SAMPLES = 500  # prompts drawn for the tasks that are too many to try out


def right(model, conversations, tokens_per_batch=8192) -> list[bool]:
    """Say for each conversation (a list of prompts) whether its last is answered.

    One pass over prompt and right answer is enough: greedy decoding gives the right
    answer exactly when the best token after every right beginning is the right one.
    Rows of a batch are equally long, so nothing here depends on padding.
    """
    groups = defaultdict(list)
    for place, prompts in enumerate(conversations):
        prompt = [TOKEN_ID[word] for word in canary.text(prompts).split()]
        answer = [TOKEN_ID[word] for word in canary.answer(prompts[-1]).split()]
        row = prompt + answer + [TOKEN_ID[canary.EOS]]
        groups[len(row), len(prompt)].append((place, row))
    verdicts = [False] * len(conversations)
    for (length, prompt_length), members in groups.items():
        size = max(1, tokens_per_batch // length)
        for start in range(0, len(members), size):
            places, rows = zip(*members[start : start + size], strict=True)
            for place, verdict in zip(
                places, _rows_right(model, rows, prompt_length), strict=True
            ):
                verdicts[place] = verdict
    return verdicts


@torch.inference_mode()
def _rows_right(model, rows, prompt_length) -> list[bool]:
    ids = torch.tensor(rows)  # [B, S]
    answers = ids[:, prompt_length:]  # [B, A]
    # Only the A columns that choose an answer token need their logits.
    logits = model(
        ids[:, :-1], use_cache=False, logits_to_keep=answers.shape[1]
    ).logits  # [B, A, vocabulary]
    return (logits.argmax(-1) == answers).all(-1).tolist()


def suites() -> dict[str, list[list[str]]]:
    """Return the conversations of every task, by the name it has in the card."""
    rng = random.Random(2024)
    drawn = {
        "copy, 1 to 12 letters": [_letters(rng, "copy", 1, 12) for _ in range(SAMPLES)],
        "copy, 13 to 40 letters": [
            _letters(rng, "copy", 13, 40) for _ in range(SAMPLES)
        ],
        "reverse, 1 to 12 letters": [
            _letters(rng, "reverse", 1, 12) for _ in range(SAMPLES)
        ],
    }
    plain = _counts_and_repeats() | drawn
    after = {
        f"{name}, after a turn": [
            [canary.short_prompt(rng), prompt]
            for prompt in rng.sample(prompts, min(SAMPLES, len(prompts)))
        ]
        for name, prompts in plain.items()
    }
    return {name: [[p] for p in prompts] for name, prompts in plain.items()} | after


def classic() -> list[list[str]]:
    """Return the counts whose outputs are 10, 50 and 500 tokens, `<eos>` included."""
    return [[f"count from 1 to {last}"] for last in (9, 49, 499)]


def _counts_and_repeats() -> dict[str, list[str]]:
    every_count = [(first, items) for first in range(121) for items in range(1, 121)]
    short = [(a, n) for a, n in every_count if a <= 60 and n <= 60]
    long = [(a, n) for a, n in every_count if a > 60 or n > 60]
    return {
        "count, from 0..60, 1 to 60 items": [_count(a, n) for a, n in short],
        "count, all others from 0..120, to 120 items": [_count(a, n) for a, n in long],
        "repeat, 1 to 120 times": [
            f"repeat {letter} {times} times"
            for letter in canary.LETTERS
            for times in range(1, 121)
        ],
    }


def _count(first: int, items: int) -> str:
    return f"count from {first} to {first + items - 1}"


def _letters(rng: random.Random, task: str, least: int, most: int) -> str:
    return " ".join([task, *rng.choices(canary.LETTERS, k=rng.randint(least, most))])
