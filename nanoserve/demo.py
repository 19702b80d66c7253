"""``nanoserve demo``: a static batch in the terminal, told in about fifteen seconds.

A real engine serves the built-in canary. Each frame is drawn from the engine's trace
after a pass, slowed down so that an eye can follow.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from . import checkpoint, look
from .ledger import Run
from .picture import bill
from .request import Request, SamplingParams
from .static import StaticBatchEngine
from .trace import SlotTrace

PROMPTS = (
    "count from 1 to 5",
    "count from 3 to 12",
    "repeat a 4 times",
    "count from 1 to 24",
    "copy c a d",
    "reverse b c d",
)
SLOTS = 3
SECONDS = 11.0  # for all passes together; the rest is loading and reading
MARKS = {"prefill": "P", "decode": "=", "finished": "x"}


def run(model: str = "canary", seconds: float = SECONDS) -> None:
    """Serve ``PROMPTS`` in ``SLOTS`` slots and show every pass.

    Where nobody can watch (a pipe, a log), only the last frame and the story appear.
    """
    console = Console(highlight=False)
    console.print(f"{len(PROMPTS)} prompts, {SLOTS} slots, one real model: {model}.")
    engine = StaticBatchEngine(checkpoint.load(model), SLOTS, max_model_len=64)
    prompts = {_add(engine, prompt): prompt for prompt in PROMPTS}
    pause = seconds / 36 if console.is_terminal else 0.0
    with Live(console=console, auto_refresh=False) as live:
        while engine.has_work():
            engine.step()
            live.update(frame(engine.trace, prompts), refresh=console.is_terminal)
            time.sleep(pause)
        live.refresh()
    for line in story(engine.trace):
        console.print(line)


def _add(engine: StaticBatchEngine, prompt: str) -> str:
    params = SamplingParams(max_tokens=32)
    return engine.add_request(Request(engine.lm.encode(prompt), params))


def frame(trace: SlotTrace, prompts: dict[str, str]) -> RenderableType:
    """The slots after the newest pass, and who waits."""
    table = Table.grid(padding=(0, 1))
    for slot in range(trace.max_num_seqs):
        runs = [run for run in trace.runs if run.slot == slot]
        table.add_row(f"slot {slot}", strip(trace, runs))
        table.add_row("", tenant(trace, runs, prompts))
    head = Text(f"\npass {trace.passes}", style="bold")
    return Group(head, table, waiting(trace, prompts))


def strip(trace: SlotTrace, runs: list[Run]) -> Text:
    """One slot's life so far, a character a pass."""
    marks = Text("." * trace.passes, style="dim")
    for run in runs:
        hue = look.hue(run.request)
        style = {"prefill": f"bold {hue} reverse", "decode": f"bold {hue}"}
        piece = Text(MARKS[run.state] * run.passes, style=style.get(run.state, hue))
        marks = marks[: run.start] + piece + marks[run.end :]
    return marks


def tenant(trace: SlotTrace, runs: list[Run], prompts: dict[str, str]) -> Text:
    """Who sits there now, what was asked, what has come."""
    if not runs or runs[-1].end < trace.passes:
        return Text("empty", style="dim")
    index = runs[-1].request
    record = trace.requests[index]
    said = " ".join(trace.piece_of(token) for token in record.token_ids[-12:])
    dots = "... " if len(record.token_ids) > 12 else ""
    line = Text(f"{record.request_id} ", style=f"bold {look.hue(index)}")
    line.append(f"{prompts[record.request_id]}: ", style="default not bold")
    line.append(dots + said, style="bold default")
    if runs[-1].state == "finished":
        line.append("  done, and holds the seat", style="default dim not bold")
    return line


def waiting(trace: SlotTrace, prompts: dict[str, str]) -> Text:
    seated = {run.request for run in trace.runs}
    names = [
        f"{record.request_id} {prompts[record.request_id]}"
        for index, record in trace.requests.items()
        if index not in seated
    ]
    return Text("waits: " + ("; ".join(names) or "nobody"), style="dim")


def story(trace: SlotTrace) -> Iterator[str]:
    """What to have seen, from the trace, then the bill."""
    held = {run.request: run.passes for run in trace.runs if run.state == "finished"}
    worst = max(held, key=held.__getitem__)
    start = min(run.start for run in trace.runs if run.request == worst)
    batch = [run.request for run in trace.runs if run.start == start]
    slowest = max(batch, key=lambda index: trace.requests[index].finished or 0)
    made = len(trace.requests[worst].token_ids)
    yield "\nP prefill   = decode   x finished, seat still held   . empty\n"
    yield (
        f"{trace.requests[worst].request_id} was done after {made} tokens and held its "
        f"seat for {held[worst]} more passes, until "
        f"{trace.requests[slowest].request_id} was done."
    )
    yield "Whoever waited could have used it. That is the price of a static batch:\n"
    yield from bill(trace)
    yield "\nWhy, and what cures it: make lab, lesson 07."
