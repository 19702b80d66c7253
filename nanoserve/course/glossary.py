"""The words of the course, in one place: ``python -m nanoserve.course.glossary``.

Writes ``notebooks/glossary.md``, which the lessons link to where a word first comes
up: ``[slot](glossary.md#slot)`` works in JupyterLab, on GitHub and in the pages of
``make site``. A new word is one more ``Term``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .workspace import NOTEBOOKS

NAME = "glossary.md"
WORDS = {
    "title": "Glossary",
    "about": "The words of this course, as the papers and the engines use them. Where "
    "others say otherwise, it says so.",
    "elsewhere": "Elsewhere:",
    "lesson": "Lesson {lesson}.",
}


@dataclass(frozen=True)
class Term:
    """A word, the lesson that explains it, what it means, how others call it."""

    name: str
    lesson: str
    meaning: str
    elsewhere: str = ""

    @property
    def anchor(self) -> str:
        """What stands behind the ``#`` of a link, as GitHub makes it of a heading."""
        return self.name.lower().replace(" ", "-")


TERMS = (
    Term(
        "admission",
        "07",
        "Giving a waiting request a slot. Static and continuous batching differ in "
        "when they admit, and in little else.",
    ),
    Term(
        "aging",
        "10",
        "Who has waited for long enough comes first, whatever the order of the queue "
        "is otherwise. It bounds the waiting of those who are always overtaken.",
    ),
    Term(
        "batch",
        "00",
        "The rows that one pass computes together.",
    ),
    Term(
        "block",
        "11",
        "A fixed number of tokens' keys and values. With paged memory a request holds "
        "as many blocks as it needs, not a whole slot.",
        "a page; `block_size` tokens in vLLM",
    ),
    Term(
        "bucketing",
        "08",
        "Requests of about the same length share a batch: those who wait are sorted, "
        "or put into a bucket for each range of lengths.",
        "length-based batching, sorted batching",
    ),
    Term(
        "canary",
        "00",
        "The small language model of this course. It counts, repeats, copies and "
        "reverses, so a bug shows as a visibly wrong answer.",
    ),
    Term(
        "chunked prefill",
        "12",
        "Reading a long prompt in several passes, so that others' decodes need not "
        "wait for the whole of it.",
    ),
    Term(
        "continuous batching",
        "10",
        "A slot is given to the next request in the very pass after its tenant has "
        "ended.",
        "in-flight batching (TensorRT-LLM), iteration-level scheduling (Orca)",
    ),
    Term(
        "decode",
        "00",
        "The work of a slot in a pass that reads one token, the last that was made, "
        "and makes the next one.",
        "generation phase",
    ),
    Term(
        "dynamic batching",
        "08",
        "A server waits for a short time, or until enough requests are there, and "
        "forms a batch of them. That batch then runs as a static one.",
        "a delay window (Triton, TorchServe)",
    ),
    Term(
        "empty seat",
        "07",
        "A slot that does nothing useful in a pass: it is finished or idle.",
    ),
    Term(
        "finished",
        "07",
        "The state of a slot whose request has ended. It is still held, and in a "
        "static batch its row is still computed.",
    ),
    Term(
        "finite floor",
        "05",
        "The lowest finite number of a dtype, as the score of a key that is hidden: "
        "its weight is 0, and a row of nothing else is no NaN.",
        "`torch.finfo(dtype).min`",
    ),
    Term(
        "fragmentation",
        "11",
        "Memory that is held and not used: inside what somebody holds (internal), or "
        "in holes that are too small for anybody (external).",
    ),
    Term(
        "goodput",
        "13",
        "Requests per second of which every latency limit was kept. The largest batch "
        "that keeps them is an operating point, not a goodput.",
    ),
    Term(
        "head-of-line blocking",
        "10",
        "One that takes long stands at the front of a queue, and many short ones wait "
        "behind it.",
    ),
    Term(
        "idle",
        "07",
        "The state of a slot that nobody holds.",
    ),
    Term(
        "ITL",
        "12",
        "Inter-token latency: the gap between two tokens of one answer. All gaps of "
        "all answers count alike, so its mean is not that of TPOT.",
        "time between tokens (TBT)",
    ),
    Term(
        "KV cache",
        "00",
        "The keys and values of the tokens that have been read, kept so that no pass "
        "need read them again.",
    ),
    Term(
        "key",
        "04",
        "In attention, the vector by which a token is found; with its value it is kept "
        "in the KV cache.",
    ),
    Term(
        "ledger",
        "08",
        "The bill of a run, by count: passes, slot-steps (useful, wasted, idle), pads, "
        "tokens made, memory held.",
    ),
    Term(
        "logits",
        "03",
        "The scores of all words of the vocabulary, from which the next token is "
        "chosen. Two runs that agree in them choose alike.",
    ),
    Term(
        "mask",
        "00",
        "Which tokens may look at which. It hides the pads from everybody, and what "
        "comes later from what comes before.",
        "keep mask here; attention mask in transformers",
    ),
    Term(
        "mutant",
        "06",
        "A program with one bug put in on purpose. A test that does not fail on it "
        "would not have seen that bug; one that does is said to kill it.",
    ),
    Term(
        "NaN",
        "05",
        "Not a number: what 0 / 0 gives, and whatever is computed with it. 0 times NaN "
        "is NaN, so a weight of 0 does not hide one.",
    ),
    Term(
        "near-tie",
        "06",
        "The two best logits lie so close that rounding decides. Another batch size "
        "may then choose another token, with nothing wrong.",
    ),
    Term(
        "pad",
        "00",
        "A token that means nothing. It fills a short row up to the length of the "
        "longest, and it is computed like any other.",
    ),
    Term(
        "pad share",
        "02",
        "The share of a padded rectangle that is pads.",
        "padding overhead, padding waste",
    ),
    Term(
        "padding side",
        "02",
        'Where the pads go: before the prompt ("left") or behind it ("right").',
        "`padding_side` of a tokenizer in transformers",
    ),
    Term(
        "pass",
        "00",
        "One run of the model over all rows of a batch.",
        "an iteration (Orca), a step (vLLM), a forward pass",
    ),
    Term(
        "position",
        "03",
        "A token's place in its own text, from 0. Pads do not count, and the column in "
        "the batch is another thing.",
        "`position_ids` in transformers",
    ),
    Term(
        "prefill",
        "00",
        "The work of a slot in the pass that reads a whole prompt. The first token of "
        "the answer comes out of it.",
        "prompt phase, context phase",
    ),
    Term(
        "preemption",
        "11",
        "A running request loses its seat and its blocks, so that an older one can go "
        "on. It comes back later, and no token of its answer is lost or made twice.",
    ),
    Term(
        "query",
        "04",
        "In attention, the vector with which a token asks; it is compared with the "
        "keys of the tokens it may see.",
    ),
    Term(
        "ragged completion",
        "07",
        "The answers of a batch end at different times. The last sets the pace.",
    ),
    Term(
        "RoPE",
        "03",
        "Rotary position embedding: queries and keys are turned by an angle that grows "
        "with the position, so that attention sees distances.",
    ),
    Term(
        "row",
        "00",
        "A line of the tensor of one pass: what is computed for one request.",
    ),
    Term(
        "scrub",
        "05",
        "To write zeros over the keys and values that a tenant leaves in its slot.",
    ),
    Term(
        "selective batching",
        "10",
        "The tokens of all rows, prompts and single ones, lie one behind the other for "
        "whatever works on each token by itself; attention runs request by request. "
        "So rows of one pass may differ in length, without pads.",
        "packing, ragged or variable-length batches",
    ),
    Term(
        "slot",
        "00",
        "A seat in the batch, and the memory that goes with it. From lesson 11 on, "
        "memory belongs to blocks.",
        "llama.cpp says slot too; vLLM's slot mapping is something else, the place of "
        "one token in the KV cache",
    ),
    Term(
        "slot-step",
        "07",
        "One slot in one pass: the unit of the bill.",
    ),
    Term(
        "static batching",
        "07",
        "A batch is formed once and runs until its longest answer is done; only then "
        "comes the next.",
        "`generate_batch` of this course is static; transformers 5 gives that name to "
        "continuous batching",
    ),
    Term(
        "token budget",
        "12",
        "How many tokens a pass may feed, decodes and chunks of prompts together.",
        "`max_num_batched_tokens` in vLLM",
    ),
    Term(
        "token-step",
        "07",
        "One token's keys and values, held during one pass: the unit of memory over "
        "time.",
    ),
    Term(
        "TPOT",
        "01",
        "Time per output token: of one answer, the time from its first token to its "
        "last, divided by the tokens after the first.",
    ),
    Term(
        "TTFT",
        "01",
        "Time to first token, counted from the arrival of the request: waiting is "
        "part of it.",
    ),
)


def markdown() -> str:
    """The page, its words in the order of the alphabet."""
    entries = [entry(term) for term in sorted(TERMS, key=lambda term: term.anchor)]
    return "\n\n".join([f"# {WORDS['title']}", WORDS["about"], *entries]) + "\n"


def entry(term: Term) -> str:
    # JupyterLab and GitHub make different anchors of one heading: so ours stands by
    elsewhere = f" *{WORDS['elsewhere']}* {term.elsewhere}." if term.elsewhere else ""
    lesson = WORDS["lesson"].format(lesson=term.lesson)
    return (
        f'<a id="{term.anchor}"></a>\n\n## {term.name}\n\n'
        f"{term.meaning}{elsewhere} *{lesson}*"
    )


def write(folder: Path = NOTEBOOKS) -> Path:
    """Put the page beside the lessons, or beside a learner's copies of them."""
    path = folder / NAME
    path.write_text(markdown(), "utf-8")
    return path


if __name__ == "__main__":
    print(write())
