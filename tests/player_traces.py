"""Traces made by hand or at random, for the tests of the slot player.

Here no model runs: a test of a picture wants a trace of a certain shape, also of
shapes that no engine of ours makes yet (chunked prefill, preemption).
"""

from __future__ import annotations

from collections import Counter
from random import Random

from nanoserve import SlotTrace
from nanoserve.ledger import Cell, State

# among them what could break a page: markup, braces, white space, a bell, a long one
PIECES = ("a", "12", " b", "\n", " ", "</script>", "{slot}", "\x07", "é中", "x" * 50)


def scheduled(
    outputs: list[int],
    slots: int,
    *,
    continuous: bool = False,
    prompts: list[int] | None = None,
    arrivals: list[int] | None = None,
    capacity: int = 64,
) -> SlotTrace:
    """What a static (or continuous) engine records of such requests, A, B, .."""
    name = "continuous" if continuous else "static"
    trace = SlotTrace(name, slots, capacity, piece_of=str)
    arrivals = arrivals or [0] * len(outputs)
    prompts = prompts or [2 + 7 * i % 13 for i in range(len(outputs))]
    asked = zip(prompts, outputs, arrivals, strict=True)
    for index, (prompt, limit, arrival) in enumerate(asked):
        trace.add(_letter(index), prompt, limit, arrival)
    waiting, seats, clock = list(range(len(outputs))), dict[int, int](), 0
    while waiting or seats:
        if not seats:
            clock = max(clock, arrivals[waiting[0]])
        if continuous or not seats:
            _seat(seats, waiting, slots, arrivals, clock)
        _one_pass(trace, seats, clock, padded=not continuous)
        clock += 1
        over = [slot for slot, i in seats.items() if trace.requests[i].finish_reason]
        if continuous or len(over) == len(seats):
            for slot in over:
                del seats[slot]
    return trace


def _letter(index: int) -> str:
    return chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "")


def _seat(
    seats: dict[int, int], waiting: list[int], slots: int, arrivals: list[int], now: int
) -> None:
    for slot in range(slots):
        if slot not in seats and waiting and arrivals[waiting[0]] <= now:
            seats[slot] = waiting.pop(0)


def _one_pass(
    trace: SlotTrace, seats: dict[int, int], clock: int, *, padded: bool
) -> None:
    records = {slot: trace.requests[i] for slot, i in seats.items()}
    fresh = [r.prompt_tokens for r in records.values() if not r.token_ids]
    cells = []
    for slot, record in sorted(records.items()):
        made, prompt = len(record.token_ids), record.prompt_tokens
        kv = prompt + made
        if record.finish_reason:
            cells.append(Cell(slot, seats[slot], "finished", 0, 0, 0, kv - 1))
        elif made:
            cells.append(Cell(slot, seats[slot], "decode", 1, 0, 1, kv))
        else:
            pads = max(fresh) - prompt if padded else 0
            cells.append(Cell(slot, seats[slot], "prefill", prompt, pads, 1, kv))
    trace.record(cells, clock)
    for cell in cells:
        record = trace.requests[cell.request]
        if cell.emitted:
            trace.token(cell.request, len(record.token_ids) + 1)
            if len(record.token_ids) == record.max_tokens:
                trace.finish(cell.request, "length")


def random_trace(
    seed: int, passes: int = 60, slots: int | None = None, history: int | None = None
) -> SlotTrace:
    """Anything a trace may hold: chunks, pauses without budget, preemptions, errors,
    seats held or left, jumps of the clock, odd tokens."""
    draw = Random(seed)
    slots = slots or draw.randint(1, 11)
    piece_of = dict(enumerate(PIECES)).__getitem__
    trace = SlotTrace(
        "random",
        slots,
        40,
        piece_of=piece_of,
        block_size=4 if seed % 2 else None,
        history=history,
    )
    most: Counter[int] = Counter()  # what each request has held
    queue: list[int] = []
    seats: dict[int, tuple[int, int]] = {}  # slot -> (request, tokens held)
    clock = 0
    for number in range(passes):
        if draw.random() < 0.5:
            arrival = clock + draw.choice((0, 0, 3))
            queue.append(trace.add(f"r{number}", 6, 9, arrival))
        cells: list[Cell] = []
        for slot in range(slots):
            _random_cell(draw, trace, slot, queue, seats, cells, clock, most)
        clock += draw.choice((1, 1, 1, 5)) if not cells else 0
        trace.record(cells, clock)
        clock += 1
        for cell in cells:
            _random_end(draw, trace, cell)
    return trace


def _random_cell(
    draw: Random,
    trace: SlotTrace,
    slot: int,
    queue: list[int],
    seats: dict[int, tuple[int, int]],
    cells: list[Cell],
    clock: int,
    most: Counter[int],
) -> None:
    ready = [i for i in queue if trace.requests[i].arrival <= clock]
    if slot not in seats and ready and draw.random() < 0.7:
        seats[slot] = (ready[0], 0)
        queue.remove(ready[0])
    if slot not in seats or draw.random() < 0.05:
        return
    index, kv = seats[slot]
    record = trace.requests[index]
    if record.finish_reason and draw.random() < 0.4:
        del seats[slot]
    elif record.finish_reason:
        cells.append(Cell(slot, index, "finished", 0, 0, 0, kv))
    elif kv and draw.random() < 0.06:  # preempted: its K and V are dropped
        del seats[slot]
        queue.append(index)
    else:
        need = record.prompt_tokens + len(record.token_ids) - kv
        fed = draw.randint(1, need) if need > 1 else 1
        state: State = "prefill" if need > 1 or not kv else "decode"
        pads = draw.choice((0, 0, 4)) if state == "prefill" else 0
        again = min(max(most[index] - kv, 0), fed) if state == "prefill" else 0
        answer = fed - again if state == "prefill" and record.token_ids else 0
        held = kv + fed
        cells.append(
            Cell(slot, index, state, fed, pads, int(fed == need), held, again, answer)
        )
        seats[slot] = (index, held)
        most[index] = max(most[index], held)


def _random_end(draw: Random, trace: SlotTrace, cell: Cell) -> None:
    record = trace.requests[cell.request]
    if cell.emitted:
        trace.token(cell.request, draw.randrange(len(PIECES)))
        if len(record.token_ids) == record.max_tokens or draw.random() < 0.1:
            trace.finish(cell.request, "stop")
    elif cell.state == "prefill" and draw.random() < 0.05:
        trace.finish(cell.request, "error")
