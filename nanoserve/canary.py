"""The canary's language: prompts with one right answer that anyone can see.

    count from 3 to 6      ->  3 4 5 6
    repeat x 4 times       ->  x x x x
    copy c a d             ->  c a d
    reverse b c d          ->  d c b

The prompt chooses the length of its answer, so a batch is as ragged as we like, and
a padding, mask or position bug becomes a wrong answer instead of slightly worse
prose. Both built-in models speak this language; `data/make_canary.py` trains them.
Only the standard library is imported here, so that lessons and tests can too.
"""

import random
import string

PAD, BOS, EOS, ANSWER, UNK = SPECIALS = ("<pad>", "<bos>", "<eos>", "<answer>", "<unk>")
WORDS = ("count", "from", "to", "repeat", "times", "copy", "reverse")
LETTERS = tuple(string.ascii_lowercase)
LARGEST = 520
NUMBERS = tuple(str(number) for number in range(LARGEST + 1))
VOCABULARY = SPECIALS + WORDS + LETTERS + NUMBERS  # a token's id is its place here
MAX_LENGTH = 640  # positions of both models: prompt and answer together

# What training covers. Beyond it the models guess, and answer() still knows.
MAX_REPEATS, MAX_COPY, MAX_REVERSE = 120, 40, 20


def answer(prompt: str) -> str:
    """Return the right answer: answer("count from 3 to 6") is "3 4 5 6".

    Raises ValueError, with one line that says what is wrong, for anything that is
    not a canary prompt.
    """
    match prompt.split():
        case ["count", "from", first, "to", last]:
            return _count(_number(first, prompt), _number(last, prompt))
        case ["repeat", letter, times, "times"]:
            return _repeat(letter, _number(times, prompt), prompt)
        case ["copy", *letters] if letters:
            return " ".join(_letters(letters, prompt))
        case ["reverse", *letters] if letters:
            return " ".join(reversed(_letters(letters, prompt)))
    raise ValueError(
        f"not a canary prompt: {prompt!r}; say 'count from 3 to 6', "
        "'repeat x 4 times', 'copy c a d' or 'reverse b c d'"
    )


def text(prompts) -> str:
    """Write a conversation as the model sees it, up to where it has to answer.

    Every prompt but the last is followed by its right answer and `<eos>`:
    text(["copy a b", "count from 3 to 5"]) is
    "<bos> copy a b <answer> a b <eos> count from 3 to 5 <answer>".
    """
    *earlier, last = prompts
    turns = [f"{prompt} {ANSWER} {answer(prompt)} {EOS}" for prompt in earlier]
    return " ".join([BOS, *turns, last, ANSWER])


def messages(prompts) -> list[dict]:
    """The same conversation for `tokenizer.apply_chat_template`."""
    *earlier, last = prompts
    turns = []
    for prompt in earlier:
        turns.append({"role": "user", "content": prompt})
        turns.append({"role": "assistant", "content": answer(prompt)})
    return [*turns, {"role": "user", "content": last}]


def random_prompt(
    rng: random.Random, weights=(6, 5, 8, 6), few_letters: bool = False
) -> str:
    """Draw one prompt from what the models were trained on (long ones included).

    `weights` say how often to count, repeat, copy and reverse. With `few_letters`
    half the copies and reverses use 2 to 6 different letters, the hardest kind: what
    follows an `a` then depends on which `a` it is.
    """
    task = rng.choices(("count", "repeat", "copy", "reverse"), weights)[0]
    if task == "count":
        return _random_count(rng)
    if task == "repeat":
        return f"repeat {rng.choice(LETTERS)} {rng.randint(1, MAX_REPEATS)} times"
    most = MAX_COPY if task == "copy" else MAX_REVERSE
    length = rng.randint(1, 12 if rng.random() < 0.7 else most)
    letters = list(LETTERS)
    if few_letters and rng.random() < 0.5:
        letters = rng.sample(LETTERS, rng.randint(2, 6))
    return " ".join([task, *rng.choices(letters, k=length)])


def short_prompt(rng: random.Random) -> str:
    """Draw a prompt whose answer has at most about 20 tokens: an earlier turn."""
    task = rng.choice(("count", "repeat", "copy", "reverse"))
    length = rng.randint(1, 20)
    if task == "count":
        first = rng.randint(0, 120)
        return f"count from {first} to {first + length - 1}"
    if task == "repeat":
        return f"repeat {rng.choice(LETTERS)} {length} times"
    return " ".join([task, *rng.choices(LETTERS, k=min(length, 12))])


def _random_count(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.04:  # long counts train the far positions and the large numbers
        first = rng.choice((0, 1, rng.randint(0, LARGEST)))
        return f"count from {first} to {rng.randint(first, LARGEST)}"
    first = rng.randint(0, 120)
    items = rng.randint(1, 60) if kind < 0.6 else rng.randint(1, 120)
    return f"count from {first} to {first + items - 1}"


def _count(first: int, last: int) -> str:
    if first > last:
        raise ValueError(f"cannot count from {first} up to {last}")
    return " ".join(NUMBERS[first : last + 1])


def _repeat(letter: str, times: int, prompt: str) -> str:
    if times < 1:
        raise ValueError(f"repeat at least 1 time, not {times}, in {prompt!r}")
    return " ".join(_letters([letter], prompt) * times)


def _letters(words: list[str], prompt: str) -> list[str]:
    for word in words:
        if word not in LETTERS:
            raise ValueError(f"{word!r} is not a letter a to z, in {prompt!r}")
    return words


def _number(word: str, prompt: str) -> int:
    if word not in NUMBERS:
        raise ValueError(f"{word!r} is not a number 0 to {LARGEST}, in {prompt!r}")
    return int(word)
