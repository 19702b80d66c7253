"""What a trace of lengths costs in passes, without a model.

The rules of admission are the engines' own (``admission.py``). A request here is two
numbers, and between one finish and the next nothing happens, so the clock jumps there.
Passes, seats and pads are counted by the same ledger as an engine's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from . import admission
from .ledger import Run, SlotLedger
from .request import one_of, whole

ORDERS = ("arrival", "prompt", "output")
# an engine's rule, and whether it pads the prompts that it prefills together
ENGINES: dict[str, tuple[admission.Rule, bool]] = {
    "static": (admission.Static(), True),
    "continuous": (admission.Continuous(), False),
}


class Lengths(Protocol):
    """Tokens in and tokens out of one request; ``traffic.Arrival`` has them."""

    @property
    def prompt(self) -> int: ...
    @property
    def output(self) -> int: ...


L = TypeVar("L", bound=Lengths)


@dataclass(eq=False)
class Job:
    """Stands in for a request and its model: it ends when its passes are over."""

    prompt: int
    output: int
    index: int
    arrival: int = 0
    finished: bool = False
    start: int = 0  # its first pass
    pads: int = 0

    @property
    def end(self) -> int:
        """One past its last useful pass: its prefill makes a token, too."""
        return self.start + self.output

    def runs(self, left: int) -> list[Run]:
        """What its seat did from the first pass until it was given back."""
        prompt, after = self.prompt, self.output - 1
        prefill = Run(
            0, self.index, "prefill", self.start, 1, prompt, self.pads, 1, prompt
        )
        decode = Run(
            0, self.index, "decode", self.start + 1, after, 1, 0, 1, prompt + 1
        )
        held = Run(
            0,
            self.index,
            "finished",
            self.end,
            left - self.end,
            0,
            0,
            0,
            prompt + after,
        )
        return [prefill, decode, held]


def replay(
    lengths: Iterable[Lengths],
    max_num_seqs: int,
    rule: admission.Rule,
    *,
    padded: bool = False,
) -> SlotLedger:
    """Serve ``lengths``, all of them waiting from the beginning; returns the bill.

    A prompt takes one pass, whatever its length: there is no token budget, and no
    limit to memory (KV that is *reserved* is not billed). ``padded``: those who join
    together are padded to the longest of them.
    """
    whole("max_num_seqs", max_num_seqs, at_least=1)
    queue: admission.Queue[Job] = admission.Queue(max_num_seqs)
    queue.waiting = [Job(e.prompt, e.output, index) for index, e in enumerate(lengths)]
    ledger = SlotLedger(max_num_seqs)
    while queue.waiting or queue.running:
        _seat(queue, rule.joins(queue), padded)
        ends = [job.end for job in queue.running if not job.finished]
        if not ends:  # the rule waits for company: time goes on, without a pass
            queue.clock += 1
            continue
        ledger.passes += min(ends) - queue.clock
        queue.clock = min(ends)
        for job in queue.running:
            job.finished = job.end <= queue.clock
        for job in rule.leaves(queue):
            queue.running.remove(job)
            for run in job.runs(left=queue.clock):
                ledger.count(run, run.passes)
    return ledger


def _seat(queue: admission.Queue[Job], joining: list[Job], padded: bool) -> None:
    width = max((job.prompt for job in joining), default=0)
    queue.seat(joining)
    for job in joining:
        job.start = queue.clock
        job.pads = width - job.prompt if padded else 0


def bills(
    lengths: Iterable[Lengths], max_num_seqs: Sequence[int]
) -> list[dict[str, Any]]:
    """Static against continuous for each number of slots, as JSON-ready rows."""
    lengths = list(lengths)
    return [
        row(name, replay(lengths, slots, rule, padded=padded))
        for slots in max_num_seqs
        for name, (rule, padded) in ENGINES.items()
    ]


def row(engine: str, ledger: SlotLedger) -> dict[str, Any]:
    """What matters of a bill. Fractions are of the slot-steps, of the prompt tokens
    computed, and of all seats."""
    prompts, pads = ledger.prompt_tokens, ledger.pad_tokens
    return {
        "max_num_seqs": ledger.max_num_seqs,
        "engine": engine,
        "passes": ledger.passes,
        "total_slot_steps": ledger.total_slot_steps,
        "wasted_slot_steps": ledger.wasted_slot_steps,
        "wasted_fraction": ledger.wasted_fraction,
        "prompt_tokens": prompts,
        "pad_tokens": pads,
        "pad_fraction": pads / (prompts + pads) if prompts else 0.0,
        "slot_utilization": ledger.slot_utilization,
    }


def ordered(lengths: Iterable[L], order: str = "arrival", window: int = 256) -> list[L]:
    """Sort by prompt or by output within each ``window`` requests, the longest last.

    An output's length is known only afterwards: sorting by it is what a perfect
    prediction would give. Raises ``InvalidInputError``.
    """
    one_of("order", order, ORDERS)
    whole("window", window, at_least=1)
    queue = list(lengths)
    if order == "arrival":
        return queue
    windows = (queue[at : at + window] for at in range(0, len(queue), window))
    return [
        each
        for some in windows
        for each in sorted(some, key=lambda one: getattr(one, order))
    ]


def text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as a table, two lines for each number of slots."""
    heads = ("slots", "engine", "passes", "slot-steps", "wasted", "pads", "seats used")
    lines = [
        (
            f"{each['max_num_seqs']}",
            each["engine"],
            f"{each['passes']:,}",
            f"{each['total_slot_steps']:,}",
            f"{each['wasted_fraction']:.1%}",
            f"{each['pad_fraction']:.1%}",
            f"{each['slot_utilization']:.1%}",
        )
        for each in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *lines, strict=True)]
    return "\n".join(
        "  ".join(map(str.rjust, line, widths)) for line in (heads, *lines)
    )
