"""Engines side by side: the same traffic at several loads, in passes or in seconds.

>>> engines = {"sequential": lambda: SequentialEngine(lm),
...            "static": lambda: StaticBatchEngine(lm, max_num_seqs=8)}
>>> card = scorecard.in_seconds(engines, scorecard.book_trace, loads=[2, 8])
>>> card.chart("ttft")

In passes a card is exact, and the same on every machine. In seconds it holds under its
``conditions``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from . import metrics, serving, traffic
from .card import Limits, Row, Scorecard, Unit
from .conditions import conditions
from .engine import Engine
from .errors import invalid
from .metrics import Timeline
from .request import Request, SamplingParams, positive
from .traffic import Arrival

if TYPE_CHECKING:
    from .checkpoint import LanguageModel

__all__ = ["Scorecard", "book_trace", "conditions", "in_passes", "in_seconds"]

Engines = Mapping[str, Callable[[], Engine]]
Traffic = Callable[[float], Iterable[Arrival]]

TOLD = "{} requests, prompts of {} tokens, outputs of {}"


def book_trace(load: float, count: int = 40, seed: int = 7) -> list[Arrival]:
    """Who comes in the chapter on static batching: ``load`` a second (8 there), by
    Poisson; prompts of 32 to 96 tokens, outputs of 16 to 48.

    Of the same seed, the same requests come at every load, only faster.
    """
    when = traffic.poisson(load, count, seed=seed)
    return traffic.drawn(
        when, traffic.Uniform(32, 96), traffic.Uniform(16, 48), seed=seed
    )


def in_passes(
    engines: Engines,
    traffic_at: Traffic,
    loads: Iterable[float],
    limits: Limits | None = None,
    *,
    progress: bool = False,
) -> Scorecard:
    """Run every engine at every load, on the clock of passes.

    ``engines``     for each name, what makes a fresh engine
    ``traffic_at``  for a load, in requests a pass, who comes when: the same requests
                    at every load. Its seconds are taken as passes, the fraction cut
    ``limits``      of TTFT and TPOT, in passes

    No prompt has a meaning, and none ends before its limit. Raises
    ``InvalidInputError``.
    """

    def run(engine: Engine, came: list[Arrival]) -> list[Timeline]:
        steps = [int(each.seconds) for each in came]
        asked = zip(requests(engine.lm, came), steps, strict=True)
        serving.serve(engine, [replace(r, arrival_step=step) for r, step in asked])
        return metrics.in_passes(engine.trace)

    return _card("passes", run, engines, traffic_at, loads, limits, progress)


def in_seconds(
    engines: Engines,
    traffic_at: Traffic,
    loads: Iterable[float],
    limits: Limits | None = None,
    *,
    progress: bool = False,
) -> Scorecard:
    """As ``in_passes``, by the clock on the wall: each request is added when it is
    due, and waited for. Load, goodput and limits are in seconds.

    Each engine runs a few tokens first, unmeasured. It takes as long as the traffic
    does, or longer: 40 requests at 0.5 a second, 80 seconds an engine.
    """

    def run(engine: Engine, came: list[Arrival]) -> list[Timeline]:
        asked = requests(engine.lm, came)
        due = [each.seconds for each in came]
        return metrics.in_seconds(
            serving.serve_due(engine, asked, due, progress=progress)
        )

    return _card("seconds", run, engines, traffic_at, loads, limits, progress)


def _card(
    unit: Unit,
    run: Callable[[Engine, list[Arrival]], list[Timeline]],
    engines: Engines,
    traffic_at: Traffic,
    loads: Iterable[float],
    limits: Limits | None,
    progress: bool,
) -> Scorecard:
    from tqdm.auto import tqdm

    _check_engines(engines)
    if limits is not None:
        limits = _limits(limits)
    came = _same_at_every_load(traffic_at, loads)
    first = next(iter(came.values()))
    under = {"traffic": _told(first)}
    if unit == "seconds":
        warmed = [warm_up(_fresh(engines, name), first) for name in engines]
        under = {**_conditions(warmed), **under}

    def row(load: float, name: str) -> Row:  # its engine is gone before the next comes
        engine = _fresh(engines, name)
        found = metrics.measure(run(engine, came[load]), limits)
        return Row(name, load, engine.trace.ledger().slot_utilization, found)

    pairs = [(load, name) for load in came for name in engines]
    rows = [row(*pair) for pair in tqdm(pairs, disable=not progress, unit="run")]
    return Scorecard(unit, rows, under, limits)


def _fresh(engines: Engines, name: str) -> Engine:
    engine = engines[name]()
    if not isinstance(engine, Engine) or engine.trace.requests:
        raise invalid(
            f"engines[{name!r}]", engine, "must make a fresh engine each time"
        )
    return engine


def requests(lm: LanguageModel, came: Iterable[Arrival]) -> list[Request]:
    """Of these lengths, with prompts drawn from the vocabulary, the same every time."""
    random, ids = Random(0), range(lm.vocab_size)
    return [
        Request(
            random.choices(ids, k=each.prompt),
            SamplingParams(max_tokens=each.output, ignore_eos=True),
        )
        for each in came
    ]


def warm_up(engine: Engine, came: list[Arrival]) -> LanguageModel:
    """Fill all seats once, for 4 tokens: what is slow only the first time is over."""
    first = [each._replace(output=min(4, each.output)) for each in came]
    serving.serve(engine, requests(engine.lm, first[: engine.max_num_seqs]))
    return engine.lm


def _conditions(models: list[LanguageModel]) -> dict[str, str]:
    """Of all: where they differ, all values are told."""
    under = [conditions(lm) for lm in models]
    return {
        key: "; ".join(dict.fromkeys(each[key] for each in under)) for key in under[0]
    }


def _same_at_every_load(
    traffic_at: Traffic, loads: Iterable[float]
) -> dict[float, list[Arrival]]:
    if not callable(traffic_at):
        raise invalid("traffic_at", traffic_at, "must say who comes at a load")
    came = {load: list(traffic_at(load)) for load in _loads(loads)}
    first = next(iter(came.values()))
    for load, others in came.items():
        if not others:
            raise invalid("traffic_at", load, "brings no requests")
        if [each[1:] for each in others] != [each[1:] for each in first]:
            raise invalid("traffic_at", load, "must bring the same requests as others")
    return came


def _loads(loads: Iterable[float]) -> list[float]:
    """As plain numbers, so that a card with NumPy's can be stored as JSON."""
    if not isinstance(loads, Iterable) or isinstance(loads, str):
        raise invalid("loads", loads, "must be a list, in requests a unit of time")
    plain = [positive("loads", load) for load in loads]
    if not plain:
        raise invalid("loads", [], "needs one load at least")
    return [int(load) if load.is_integer() else load for load in plain]


def _told(came: list[Arrival]) -> str:
    prompts, outputs = [each.prompt for each in came], [each.output for each in came]
    return TOLD.format(len(came), _ends(prompts), _ends(outputs))


def _ends(tokens: list[int]) -> str:
    low, high = min(tokens), max(tokens)
    return f"{low} to {high}" if low < high else f"{low}"


def _check_engines(engines: Engines) -> None:
    if not isinstance(engines, Mapping) or not engines:
        raise invalid("engines", engines, "must be a dict, a name for each engine")
    for name, make in engines.items():
        if not callable(make):
            raise invalid(f"engines[{name!r}]", make, "must make an engine when called")


def _limits(limits: Limits) -> Limits:
    if not isinstance(limits, tuple) or len(limits) != 2:
        raise invalid("limits", limits, "must be two: of TTFT and of TPOT")
    return positive("limits", limits[0]), positive("limits", limits[1])
