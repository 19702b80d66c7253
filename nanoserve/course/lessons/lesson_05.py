"""Lesson 05, The NaN leak: a softmax that survives, who is poisoned, a clean slot."""

from __future__ import annotations

from typing import Any

import torch

from ...pitfalls.comparison import letter
from ..exercises import Exercise, Guess, Lesson
from ..rows import Cell, Row

WORDS: dict[str, Any] = {
    "title": "The NaN leak",
    "query": "query",
    "scores": "scores",
    "mask": "mask",
    "pad": "pad",
    "real": "real",
    "nan": "NaN",
    "well": "well",
    "row": "row",
    "keys of": "K of slot {slot}",
    "values of": "V of slot {slot}",
    "before": "before",
    "safe_softmax": {
        "title": "A softmax that survives",
        "hint": "Fill what is hidden with a number so low that its `exp` is 0 beside "
        "any real score, and yet finite, so that number minus itself is 0 and not "
        "NaN. `torch.finfo(scores.dtype).min` is the lowest there is. Mind the "
        "dtype: the lowest of float32 is minus infinity in float16.",
        "bare -inf": "{row} keeps nothing, so all its scores are minus infinity, and "
        "infinity minus infinity is NaN. Which *finite* number hides a key just as "
        "well?",
        "nan_to_num": "`nan_to_num` makes every NaN look like a weight, also one that "
        "came in with a *kept* score: a fault of an earlier layer, and now nobody "
        "will ever see it. Keep the NaN from arising instead of painting it over.",
        "-1e9": "-1e9 is a fine floor in float32. But float16 ends at -65504: there "
        "it is refused, or it turns into minus infinity without a word, and a query "
        "that keeps nothing is NaN again. Ask the dtype for its own floor.",
        "upside down": "`keep` is True where the query *may* look. Here the kept keys "
        "were hidden and the hidden ones kept.",
        "after the softmax": "Here the weights were set to 0 after the softmax, so "
        "the hidden keys have taken their share of the 1 already: {row} adds up to "
        "less. Hide the *scores*, before.",
        "filled with 0": "A score of 0 hides nothing: `exp(0)` is 1. A hidden key "
        "needs a score far below all others.",
        "zeros": "All weights 0 where nothing is kept: that is safe too, and just what "
        "PyTorch's own kernel gives on the CPU. Here equal weights are asked for, "
        "which need no case of their own: any finite floor gives them.",
    },
    "who_is_poisoned": {
        "title": "Who is poisoned?",
        "hint": "Two questions. Layer 1: which tokens see nothing at all? Count the "
        "real tokens up to each column, `mask.cumsum(dim=1)`. Layer 2: who multiplies "
        "a weight, even one of 0, with the V of such a token? Nobody ever reads "
        "another row.",
        "all": "So a book says: the NaN corrupts every other sequence. But rows never "
        "mix: attention multiplies a row's weights with the *same row's* V. A row "
        "without a token that sees nothing stays well to the last bit.",
        "none": "It is not harmless: a pad at the left sees nothing, and its softmax "
        "is 0 / 0.",
        "pads only": "After layer 1 that is all. In layer 2 each real token of that "
        "row multiplies *all* V of the row with its weights. The pads' weights are 0, "
        "and 0 x NaN is NaN.",
        "right pads too": "A pad at the *right* has the whole text before it, and "
        "looks at that. It does see something, so its softmax is well. (That is why "
        "this NaN is a matter of left padding.)",
        "the rows at once": "In layer 1 the V still come from the embeddings, and "
        "these are well. So the NaN is in the outputs of those tokens that see "
        "nothing, and not yet in the rest of {row}.",
    },
    "scrub_slot": {
        "title": "Scrub a slot",
        "hint": "Write zeros over all the slot holds, in both. What does 0 times a "
        "NaN give?",
        "times zero": "0 x NaN is NaN: multiplying cleans nothing. *Write* the zeros: "
        "`keys[slot] = 0`.",
        "K only": "The other one still holds what the tenant left. A NaN in K makes "
        "the scores NaN, one in V makes the output NaN: each is enough.",
        "live columns only": "Only the columns of the text are clean. The pads beside "
        "it were computed and written too, and they are where the NaN began.",
        "NaN only": "The NaN is gone, and the text of the last tenant is still there. "
        "The mask hides it, so long as no other bug looks too far. Leave nothing.",
        "everybody": "All slots are empty now, also those of requests that are still "
        "running: {row} has lost its text.",
    },
    "lowest_everywhere": {
        "question": "Now all four scores of a row are the same *finite* number, the "
        'lowest there is. What are its weights? `"zeros"`, `"equal"` or `"nan"`.',
        "nudge": "Softmax looks at differences only. What is a finite number minus "
        "itself?",
        "zeros": "Each `exp` is not taken of the score, but of the score minus the "
        "row's largest. That is 0 here, and `exp(0)` is 1.",
        "nan": "That was so with minus infinity: infinity minus infinity is no "
        "number. A finite number minus itself is 0.",
        "why": "Four equal scores share the weight: 0.25 each. It means nothing, but "
        "it is a number, and nobody reads what a pad has to say.",
    },
    "who_is_ill": {
        "question": "B is the longest prompt; A and C are padded at the left. One "
        "book says that the NaN of a short row corrupts every other sequence. Which "
        'rows end in an error? Write a set, such as `{"A"}`.',
        "nudge": "Which rows hold a token that may look at nothing?",
        "all": "So the book says. Let us see whether B, which has no pads, is ill.",
        "B": "B has no pads: each of its tokens sees at least itself.",
        "nobody": "The pads' own answers are read by nobody, that is true. But their K "
        "and V are read by the real tokens of the row, in the next layer.",
        "why": "A and C hold pads at the left, which see nothing. B has none, and "
        "nothing in B is ever multiplied with anything of A or C.",
    },
    "zero_times_nan": {
        "question": "A token's weights are 1 and 0, so it does not look at the second "
        "key at all. The values are 5 and NaN. What does it read? Write a number, or "
        '`"nan"`.',
        "nudge": "The output is 1 x 5 + 0 x NaN.",
        "5": "So it would be if a weight of 0 meant *skip it*. But a matrix product "
        "skips nothing: it computes 1 x 5 + 0 x NaN.",
        "why": "1 x 5 + 0 x NaN, and anything times NaN is NaN. A mask hides only "
        "what is finite.",
    },
    "multinomial_rows": {
        "question": "Three rows of probabilities, and one of them is NaN. "
        "`torch.multinomial` draws a token for each row in one call. How many rows "
        "get a token?",
        "nudge": "It is one call. What does a function do with bad input?",
        "two": "That would be kind. But it is one call, it checks its input, and it "
        "raises.",
        "three": "The call looks at its input first: a probability that is NaN is "
        "refused.",
        "why": "It raises, for the whole batch. Two people who were well get nothing, "
        "for the fault of a third.",
    },
}


# --- a softmax that survives ---


def safe_softmax(scores, keep):
    """Attention weights: a softmax over the keys, the last dimension.

    scores  float [.., queries, keys], of any dtype, float16 too
    keep    bool, of that shape or one that broadcasts to it: True
            where a query may look at a key
    A key that is not kept gets 0. A query that may look at nothing (a
    pad) gets equal weights: finite, and nobody reads them. A NaN in a
    score that is kept must stay NaN: it is the trace of a fault.
    """
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~keep, lowest).softmax(dim=-1)


def softmax_cases():
    nan = torch.nan
    return [
        (torch.tensor([[2.0, 1.0], [1.0, 3.0]]), flags("10", "11")),
        (torch.tensor([[1.0, 2.0, 0.0], [3.0, 1.0, 2.0]]), flags("000", "110")),
        (torch.tensor([[-30.0, 50.0, -31.0]]), flags("101")),
        (torch.tensor([[nan, 1.0], [1.0, nan], [1.0, 2.0]]), flags("11", "10", "11")),
        # weights that float16 holds exactly, whatever they were computed in
        (
            torch.tensor([[1, 2], [4, 4], [4, 7]], dtype=torch.float16),
            flags("00", "11", "10"),
        ),
        (
            torch.tensor([[[[5.0, 5.0], [1.0, 1.0]], [[2.0, 2.0], [3.0, 9.0]]]]),
            flags("00", "10")[None, None],
        ),
    ]


def flags(*rows):
    """The row "101" is [True, False, True]."""
    return torch.tensor([[letter == "1" for letter in row] for row in rows])


def softmax_bare(scores, keep):
    return scores.masked_fill(~keep, -torch.inf).softmax(dim=-1)


def softmax_hides_nan(scores, keep):
    return softmax_bare(scores, keep).nan_to_num()


def softmax_hides_nan_equally(scores, keep):
    return softmax_bare(scores, keep).nan_to_num(1 / scores.shape[-1])


def softmax_hides_nan_before(scores, keep):
    return scores.masked_fill(~keep, -torch.inf).nan_to_num().softmax(dim=-1)


def softmax_billion(scores, keep):
    return scores.masked_fill(~keep, -1e9).softmax(dim=-1)


def softmax_lowest_of_another(scores, keep):
    return scores.masked_fill(~keep, torch.finfo(torch.float32).min).softmax(dim=-1)


def softmax_billion_cast(scores, keep):
    return torch.where(keep, scores, torch.tensor(-1e9).to(scores.dtype)).softmax(-1)


def softmax_billion_added(scores, keep):
    return (scores + (1 - keep.to(scores.dtype)) * -1e9).softmax(dim=-1)


def softmax_upside_down(scores, keep):
    return safe_softmax(scores, ~keep)


def softmax_upside_down_bare(scores, keep):
    return softmax_bare(scores, ~keep)


def softmax_then_masked(scores, keep):
    return scores.softmax(dim=-1) * keep


def softmax_then_filled(scores, keep):
    return scores.softmax(dim=-1).masked_fill(~keep, 0)


def softmax_of_zeros(scores, keep):
    return (scores * keep).softmax(dim=-1)


def softmax_filled_with_zeros(scores, keep):
    return scores.masked_fill(~keep, 0).softmax(dim=-1)


def softmax_zeros_for_pads(scores, keep):
    return safe_softmax(scores, keep) * keep.any(dim=-1, keepdim=True)


def draw_weights(arguments, answer):
    """One row a query."""
    shape = arguments[0].shape
    heads = torch.tensor(answer, dtype=torch.float64).reshape(-1, shape[-1]).tolist()
    return [
        Row.of(f"{WORDS['query']} {number}", weights)
        for number, weights in enumerate(heads)
    ]


def given_scores(arguments, number):
    """A query's scores; what it may not look at is hatched."""
    scores, keep = arguments
    keep = keep.expand_as(scores).flatten(0, -2)[number].tolist()
    pairs = zip(scores.flatten(0, -2)[number].tolist(), keep, strict=True)
    cells = [Cell(score, "" if kept else "pad") for score, kept in pairs]
    return [Row(WORDS["scores"], tuple(cells))]


SAFE_SOFTMAX = Exercise(
    reference=safe_softmax,
    words=WORDS["safe_softmax"],
    cases=softmax_cases,
    mistakes={
        "bare -inf": (softmax_bare,),
        "nan_to_num": (
            softmax_hides_nan,
            softmax_hides_nan_equally,
            softmax_hides_nan_before,
        ),
        "-1e9": (
            softmax_billion,
            softmax_lowest_of_another,
            softmax_billion_cast,
            softmax_billion_added,
        ),
        "upside down": (softmax_upside_down, softmax_upside_down_bare),
        "after the softmax": (softmax_then_masked, softmax_then_filled),
        "filled with 0": (softmax_of_zeros, softmax_filled_with_zeros),
        "zeros": (softmax_zeros_for_pads,),
    },
    minutes=8,
    draw=draw_weights,
    given=given_scores,
)


# --- who is poisoned? ---


def who_is_poisoned(mask, layers):
    """Where is NaN after so many layers of attention?

    Hidden keys have the score -inf and there is no guard: a token sees
    the real tokens up to its own column, and no pad.
    mask    bool [rows, columns]: True at real tokens, False at pads,
            which may stand at the left or at the right
    layers  how many layers have run: 1, 2, ..
    Return bool [rows, columns]: True where attention gave NaN.
    """
    sees_nothing = mask.cumsum(dim=1) == 0
    if layers == 1:
        return sees_nothing
    poisoned = sees_nothing.any(dim=1, keepdim=True)  # [rows, 1]
    return poisoned.expand_as(mask)


def poison_cases():
    left, right = flags("0011", "1111", "0111"), flags("1100", "1111", "1110")
    return [
        (left, 1),
        (left, 2),
        (right, 1),
        (right, 2),
        (flags("111", "111"), 4),
        (flags("00001", "11111"), 4),
    ]


def poisons_all(mask, layers):
    return torch.ones_like(mask)


def poisons_all_if_any(mask, layers):
    """Every row, from layer 2 on, as soon as there is one pad."""
    first = mask.cumsum(dim=1) == 0
    return first if layers == 1 else torch.ones_like(mask) & first.any()


def poisons_all_by_pads(mask, layers):
    return ~mask if layers == 1 else torch.ones_like(mask) & (~mask).any()


def poisons_none(mask, layers):
    return torch.zeros_like(mask)


def poisons_pads(mask, layers):
    return ~mask


def poisons_left_pads(mask, layers):
    return mask.cumsum(dim=1) == 0


def poisons_right_pads_too(mask, layers):
    return ~mask if layers == 1 else (~mask).any(1, keepdim=True).expand_as(mask)


def poisons_rows_at_once(mask, layers):
    return who_is_poisoned(mask, 2)


def poisons_padded_rows_at_once(mask, layers):
    return (~mask).any(dim=1, keepdim=True).expand_as(mask)


def draw_poison(arguments, answer):
    mask = arguments[0].tolist()
    return [
        Row(f"{WORDS['row']} {letter(number)}", tuple(cells_of_poison(real, ill)))
        for number, (real, ill) in enumerate(zip(mask, answer, strict=True))
    ]


def cells_of_poison(real, ill):
    for is_real, is_ill in zip(real, ill, strict=True):
        word = WORDS["nan" if is_ill else "well"]
        yield Cell(word, "prompt" if is_real else "pad")


def given_mask(arguments, number):
    cells = [
        Cell(WORDS["real" if real else "pad"], "prompt" if real else "pad")
        for real in arguments[0][number].tolist()
    ]
    return [Row(WORDS["mask"], tuple(cells))]


WHO_IS_POISONED = Exercise(
    reference=who_is_poisoned,
    words=WORDS["who_is_poisoned"],
    cases=poison_cases,
    mistakes={
        "all": (poisons_all, poisons_all_if_any, poisons_all_by_pads),
        "none": (poisons_none,),
        "pads only": (poisons_pads, poisons_left_pads),
        "right pads too": (poisons_right_pads_too,),
        "the rows at once": (poisons_rows_at_once, poisons_padded_rows_at_once),
    },
    minutes=8,
    draw=draw_poison,
    given=given_mask,
)


# --- * scrub a slot ---


def scrub_slot(keys, values, slot, mask):
    """Give back a slot so that nothing its tenant wrote is left.

    keys    float [slots, columns]; a number stands for a whole K
    values  the same for V
    slot    the one whose tenant leaves
    mask    bool [columns]: True where the tenant's text stands. Pads
            beside it were written too; what nobody has written is 0.
    Return keys and values. The other slots keep what they hold.
    """
    keys[slot] = 0
    values[slot] = 0
    return keys, values


def scrub_cases():
    nan = torch.nan
    written = [[1.0, 2.0, 3.0, 0.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 0.0, 0.0]]
    ill = [[1.0, 2.0, 3.0, 0.0], [nan, 5.0, 6.0, 7.0], [8.0, 9.0, 0.0, 0.0]]
    worse = [[1.0, nan, nan, 0.0], [4.0, 5.0, 6.0, 7.0], [nan, -torch.inf, 0.0, 0.0]]
    return [
        scrub_case(written, written, 2, "1100"),
        scrub_case(written, ill, 1, "0111"),
        scrub_case(ill, written, 1, "0111"),
        scrub_case(worse, worse, 2, "1100"),
        scrub_case(worse, worse, 0, "1000"),
    ]


def scrub_case(keys, values, slot, real):
    return torch.tensor(keys), torch.tensor(values), slot, flags(real)[0]


def scrubs_by_multiplying(keys, values, slot, mask):
    keys[slot] *= 0
    values[slot] *= 0
    return keys, values


def scrubs_live_by_multiplying(keys, values, slot, mask):
    keys[slot, mask] *= 0
    values[slot, mask] *= 0
    return keys, values


def scrubs_keys(keys, values, slot, mask):
    keys[slot] = 0
    return keys, values


def scrubs_values(keys, values, slot, mask):
    values[slot] = 0
    return keys, values


def scrubs_live(keys, values, slot, mask):
    keys[slot, mask] = 0
    values[slot, mask] = 0
    return keys, values


def scrubs_first_columns(keys, values, slot, mask):
    """As many columns as the text has tokens, counted from the left."""
    keys[slot, : mask.sum()] = 0
    values[slot, : mask.sum()] = 0
    return keys, values


def scrubs_nan(keys, values, slot, mask):
    keys[slot] = keys[slot].nan_to_num(0, 0, 0)
    values[slot] = values[slot].nan_to_num(0, 0, 0)
    return keys, values


def scrubs_everybody(keys, values, slot, mask):
    return keys.zero_(), values.zero_()


def draw_slots(arguments, answer):
    keys, values = answer
    return [
        Row.of(WORDS[name].format(slot=slot), columns)
        for name, rows in (("keys of", keys), ("values of", values))
        for slot, columns in enumerate(rows)
    ]


def given_slot(arguments, number):
    """The row as it was, the one that is to be scrubbed crossed."""
    keys, values, slot, _ = arguments
    rows = [*keys.tolist(), *values.tolist()]
    leaves = number % len(keys) == slot
    return [Row.of(WORDS["before"], rows[number], "finished" if leaves else "")]


SCRUB_SLOT = Exercise(
    reference=scrub_slot,
    words=WORDS["scrub_slot"],
    cases=scrub_cases,
    mistakes={
        "times zero": (scrubs_by_multiplying, scrubs_live_by_multiplying),
        "K only": (scrubs_keys, scrubs_values),
        "live columns only": (scrubs_live, scrubs_first_columns),
        "NaN only": (scrubs_nan,),
        "everybody": (scrubs_everybody,),
    },
    minutes=5,
    starred=True,
    inputs="free",  # an engine writes into its cache too
    draw=draw_slots,
    given=given_slot,
)


# --- questions before running ---

LOWEST_EVERYWHERE = Guess(
    "lowest_everywhere",
    "equal",
    WORDS["lowest_everywhere"],
    wrong=[("zeros", "zeros"), ("nan", "nan")],
)
WHO_IS_ILL = Guess(
    "who_is_ill",
    {"A", "C"},
    WORDS["who_is_ill"],
    wrong=[({"A", "B", "C"}, "all"), ({"B"}, "B"), (set(), "nobody")],
)
ZERO_TIMES_NAN = Guess(
    "zero_times_nan", "nan", WORDS["zero_times_nan"], wrong=[(5, "5")]
)
MULTINOMIAL_ROWS = Guess(
    "multinomial_rows",
    0,
    WORDS["multinomial_rows"],
    wrong=[(2, "two"), (3, "three")],
)

LESSON = Lesson(
    "05",
    WORDS["title"],
    exercises=(SAFE_SOFTMAX, WHO_IS_POISONED, SCRUB_SLOT),
    guesses=(LOWEST_EVERYWHERE, WHO_IS_ILL, ZERO_TIMES_NAN, MULTINOMIAL_ROWS),
)
