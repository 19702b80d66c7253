"""Lesson 06, A batch that equals alone: the whole of it, and a test that bites."""

# mypy: disable-error-code="var-annotated"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ... import generate, padding, pitfalls
from ...pitfalls.comparison import letter
from ...pitfalls.examples import CHATS, USUAL, canary
from ..exercises import Exercise, Guess, Lesson
from ..forward import Forward
from ..rows import Cell, Row

BUGS = {
    "index-positions": "left",
    "prefill-only": "left",
    "decode-only": "left",
    "last-column": "right",
    "sum-minus-one": "left",
    "mask-dropped": "left",
    "mask-at-prefill-only": "left",
    "mask-not-grown": "left",
    "mask-transposed": "left",
}


def words_of_bug(name: str) -> str:
    names = " or ".join(f"`{each}`" for each in pitfalls.BUGS[name].names)
    return f"{{row}} is just what {names} gives. {pitfalls.BUGS[name].cause}"


WORDS: dict[str, Any] = {
    "title": "A batch that equals alone",
    "row": "row",
    "prompt": "prompt",
    "engine 0": "of the engine as it is, your test",
    "engine": "of the engine with {bug}, your test",
    "equal": "says: equal",
    "differs": "says: it differs",
    "generate_batch": {
        "title": "generate_batch, by hand",
        "hint": "Before the loop: pad, run `forward` over the whole rectangle, and "
        "take each row's logits at its last real token, `logits[range(rows), last]`. "
        "In the loop, for step 1, 2, ..: choose the tokens with `argmax`, give one to "
        "each row that has not ended, and run `forward` over the new tokens, [rows, "
        "1], with `padding.positions(mask, step)` and `attention.keep_mask(mask, "
        "step)`.",
        **{name: words_of_bug(name) for name in BUGS},
        "appends to finished": "{row} goes on after its `<eos>`. A row that has ended "
        "is still computed, but what comes out belongs to nobody.",
        "one stop ends all": "{row} was cut off when another row said `<eos>`. The "
        "batch goes on until all have ended.",
        "eos in the prompt": "{row} ended before it began: an `<eos>` stands in its "
        "*prompt*, after an earlier turn. Only a new token ends a row.",
        "drops the eos": "The `<eos>` of {row} is missing. It is a token like any "
        "other, and a pass was run for it.",
        "one too many": "{row} has one token more than `limit` allows.",
        "with the prompt": "{row} begins with its own prompt. Asked are the *new* "
        "tokens.",
    },
    "equals_alone": {
        "title": "A test that kills three mutants",
        "hint": "Choose prompts that make the batch ragged: one long, one short, and "
        "answers of different length. Ask `batch` for all of them in one call, "
        "`alone` for each, and compare the tokens themselves.",
        "equal lengths": "It kills two of the three. The third takes each row's first "
        "token from the wrong column, and that is the right column as long as all "
        "prompts have the *same length*: there are no pads.",
        "one row": "It kills only what is wrong even without a neighbour. Padding and "
        "ragged ends need a second row: one with another length of prompt, and one "
        "that ends earlier. (And do not look at the longest row alone: it is right.)",
        "shapes only": "It kills none of them. The answers have the right number and "
        "the right form, and say the wrong thing: compare the *tokens*.",
        "cries wolf": "It says that the engine differs when nothing is planted in it. "
        "A test that is always red is switched off within a week.",
    },
    "equal_lengths_see": {
        "question": "Eight bugs of this course show under one padding side only: they "
        "have to do with pads. How many of them does a test see whose prompts are all "
        "of *one* length?",
        "nudge": "How many pads does such a batch have?",
        "all": "That is what the test was written for. But which pads does it have?",
        "why": "None. Without pads, columns are positions, the last column is the last "
        "token, and there is nothing to mask. The wrong code and the right one do the "
        "same.",
    },
    "neighbour_changes": {
        "question": "A neighbour's prompt is exchanged for another of the *same* "
        'length. What happens to your logits: are they `"identical"`, bit by bit, '
        '`"close"`, or `"different"`?',
        "nudge": "Is anything in your row computed from a neighbour's numbers? Does "
        "the shape of anything change?",
        "close": "Close, and more than that: the same sums are done in the same order. "
        "It is when the *shape* of the batch changes that the last digits move.",
        "different": "Then your answer would depend on who sits beside you. That is "
        "what must never be.",
        "why": "The shapes are the same, so the same sums run in the same order, and "
        "nothing of a neighbour enters yours. Not a bit may change.",
    },
}


# --- generate_batch, by hand ---


def generate_batch(forward, prompts, limit):
    """Answer all prompts together, greedily, each as if it were alone.

    forward(ids, positions, keep) runs the model and remembers what it
    has read. ids and positions: [rows, n], first the padded prompts,
    then one token a row. keep: bool [rows, 1, n, columns so far], True
    where a query may look. Gives logits, [rows, n, vocab].
    prompts: token ids, [[1, 10, 12, 3], [1, 9, 3]]. <pad> is 0.
    A row ends with its first new <eos>, 2, or after `limit` new tokens.
    Return the new tokens of each row, <eos> included.
    """
    from nanoserve import attention, padding

    ids, mask = padding.pad_batch(prompts, 0)  # [rows, width]
    logits = forward(ids, padding.positions(mask), attention.keep_mask(mask))
    logits = logits[range(len(prompts)), padding.last_column(mask)]
    answers = [[] for _ in prompts]
    for step in range(1, limit + 1):
        tokens = logits.argmax(dim=-1)  # [rows]
        for answer, token in zip(answers, tokens.tolist(), strict=True):
            if 2 not in answer:
                answer.append(token)
        if step == limit or all(2 in answer for answer in answers):
            return answers
        positions = padding.positions(mask, step)  # [rows, 1]
        keep = attention.keep_mask(mask, step)
        logits = forward(tokens[:, None], positions, keep)[:, 0]


def batch_cases():
    lm = canary("canary")
    together = [
        ("count from 3 to 6",),
        ("copy d o g", "copy c a t"),
        USUAL,
        (CHATS[0], "count from 1 to 9", "copy b"),
        ("copy c a t s", "repeat x 9 times", "copy t h e l o n g e s t"),
    ]
    limits = (6, 5, 20, 10, 3)
    return [
        (Forward(lm), [lm.encode(prompt) for prompt in prompts], limit)
        for prompts, limit in zip(together, limits, strict=True)
    ]


def planted(name: str, side: str) -> Callable[..., Any]:
    """The reference with a bug of the catalogue in it, under this padding side."""

    def pad_batch(prompts, pad_token_id):
        return padding_of(prompts, pad_token_id, side)

    def wrong(forward, prompts, limit):
        with pitfalls.swap({"padding.pad_batch": pad_batch}), pitfalls.plant(name):
            return generate_batch(forward, prompts, limit)

    wrong.__name__ = name.replace("-", "_")
    return wrong


padding_of = padding.pad_batch  # the right one, whatever is swapped in for it


def goes_on(forward, prompts, limit):
    """Rows that nothing ends."""
    options = {"max_new_tokens": limit, "ignore_eos": True}
    results = generate.generate_batch(forward.lm, prompts, **options)
    return [result.token_ids for result in results]


def first_end(answer):
    """How many tokens up to the first <eos>, with it."""
    return answer.index(2) + 1 if 2 in answer else len(answer)


def appends_until_all_end(forward, prompts, limit):
    answers = goes_on(forward, prompts, limit)
    longest = max(map(first_end, answers))
    return [answer[:longest] for answer in answers]


def stops_all(forward, prompts, limit):
    answers = goes_on(forward, prompts, limit)
    shortest = min(map(first_end, answers))
    return [answer[:shortest] for answer in answers]


def stops_by_the_prompt(forward, prompts, limit):
    right = generate_batch(forward, prompts, limit)
    pairs = zip(prompts, right, strict=True)
    return [answer[:1] if 2 in prompt else answer for prompt, answer in pairs]


def stops_before_it_begins(forward, prompts, limit):
    right = generate_batch(forward, prompts, limit)
    pairs = zip(prompts, right, strict=True)
    return [[] if 2 in prompt else answer for prompt, answer in pairs]


def drops_the_eos_of_all(forward, prompts, limit):
    right = generate_batch(forward, prompts, limit)
    return [[token for token in answer if token != 2] for answer in right]


def one_token_more(forward, prompts, limit):
    return generate_batch(forward, prompts, limit + 1)


def prompt_and_answer(forward, prompts, limit):
    right = generate_batch(forward, prompts, limit)
    return [prompt + new for prompt, new in zip(prompts, right, strict=True)]


def words_of(tokens):
    tokenizer = canary("canary").tokenizer
    return tokenizer.convert_ids_to_tokens([int(token) for token in tokens])


def draw_answers(arguments, answer):
    return [
        Row.of(f"{WORDS['row']} {letter(number)}", words_of(tokens), "generated")
        for number, tokens in enumerate(answer)
    ]


def given_prompt(arguments, number):
    return [Row.of(WORDS["prompt"], words_of(arguments[1][number]), "prompt")]


GENERATE_BATCH = Exercise(
    reference=generate_batch,
    words=WORDS["generate_batch"],
    cases=batch_cases,
    mistakes={
        **{name: (planted(name, side),) for name, side in BUGS.items()},
        "appends to finished": (goes_on, appends_until_all_end),
        "one stop ends all": (stops_all,),
        "eos in the prompt": (stops_by_the_prompt, stops_before_it_begins),
        "drops the eos": (drops_the_eos_of_all,),
        "one too many": (one_token_more,),
        "with the prompt": (prompt_and_answer,),
    },
    minutes=15,
    draw=draw_answers,
    given=given_prompt,
)


# --- a test that kills three mutants ---

MOST = 16  # new tokens of an answer


class Batch:
    """``batch(prompts)``: answers as token ids, from an engine with a bug, or none."""

    def __init__(self, number: int, bug: str = "") -> None:
        self.bug = bug
        self.name = f"mutant_{number}" if number else "batch"

    def __repr__(self) -> str:
        return self.name

    def __deepcopy__(self, memo: Any) -> Batch:
        return self

    def __call__(self, prompts):
        if not self.bug:
            return tokens_of(prompts)
        with pitfalls.plant(self.bug):
            return tokens_of(prompts)


def tokens_of(prompts):
    lm = canary("canary")
    results = generate.generate_batch(lm, list(prompts), max_new_tokens=MOST)
    return [result.token_ids for result in results]


class Alone(Batch):
    """``alone(prompt)``: the answer to one prompt, as token ids."""

    def __init__(self) -> None:
        super().__init__(0)
        self.name = "alone"

    def __call__(self, prompt):
        lm = canary("canary")
        return generate.generate_one(lm, prompt, max_new_tokens=MOST).token_ids


# The easiest to kill first: in any row; where rows end apart; where lengths differ.
MUTANTS = ("causal-at-decode", "finished-appended", "sum-minus-one")


def equals_alone(batch, alone):
    """Does `batch` answer every prompt as if it were alone?

    batch(prompts)  answers a list of prompts in one batch: a list of
                    token ids for each
    alone(prompt)   answers one prompt: a list of token ids
    Choose prompts that bring a bug to light, such as "copy d o g",
    "count from 1 to 9", "repeat x 5 times" and "reverse s t o p".
    Return True if the batch is right, False if it differs anywhere.
    """
    prompts = ["count from 1 to 9", "copy d o g", "copy a l o n g e r r o w"]
    return batch(prompts) == [alone(prompt) for prompt in prompts]


def equals_cases():
    canary("canary")  # loaded here, and not within the time of the first attempt
    mutants = [Batch(number, bug) for number, bug in enumerate(MUTANTS, 1)]
    return [(each, Alone()) for each in (Batch(0), *mutants)]


def tests_equal_lengths(batch, alone):
    prompts = ["count from 1 to 9", "count from 3 to 6"]
    return batch(prompts) == [alone(prompt) for prompt in prompts]


def tests_one_row(batch, alone):
    return batch(["copy d o g"]) == [alone("copy d o g")]


def tests_shapes(batch, alone):
    prompts = ["count from 1 to 9", "copy d o g"]
    answers = batch(prompts)
    return len(answers) == len(prompts) and all(map(len, answers))


def cries_wolf(batch, alone):
    return False


def cries_wolf_over_types(batch, alone):
    return batch(["copy d o g"]) == alone("copy d o g")


def draw_test(arguments, answer):
    batch = arguments[0]
    label = WORDS["engine" if batch.bug else "engine 0"].format(bug=batch.bug)
    if not isinstance(answer, bool | int):
        return []  # drawn as it is
    return [Row(label, (Cell(WORDS["equal" if answer else "differs"]),))]


EQUALS_ALONE = Exercise(
    reference=equals_alone,
    words=WORDS["equals_alone"],
    cases=equals_cases,
    mistakes={
        "equal lengths": (tests_equal_lengths,),
        "one row": (tests_one_row,),
        "shapes only": (tests_shapes,),
        "cries wolf": (cries_wolf, cries_wolf_over_types),
    },
    minutes=8,
    draw=draw_test,
)


# --- questions before running ---

EQUAL_LENGTHS_SEE = Guess(
    "equal_lengths_see", 0, WORDS["equal_lengths_see"], wrong=[(8, "all")]
)
NEIGHBOUR_CHANGES = Guess(
    "neighbour_changes",
    "identical",
    WORDS["neighbour_changes"],
    wrong=[("close", "close"), ("different", "different")],
)

LESSON = Lesson(
    "06",
    WORDS["title"],
    exercises=(GENERATE_BATCH, EQUALS_ALONE),
    guesses=(EQUAL_LENGTHS_SEE, NEIGHBOUR_CHANGES),
)
