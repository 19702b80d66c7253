"""Requests in, answers out: running an engine until nothing is left."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable

from .engine import Engine
from .errors import invalid
from .request import GenerationResult, Request, real
from .sequence import Sequence, check_kind


def serve(
    engine: Engine, requests: Iterable[Request], *, progress: bool = False
) -> dict[str, GenerationResult]:
    """Add ``requests``, run the engine until nothing is left, return every answer.

    The answers are in the order of the requests. What was queued before is served
    too and is among them. A request that is refused (``InvalidInputError``) is
    refused before anything runs, and takes back those that came with it. Ctrl-C ends
    them all: the slots come back, and the engine can be used again.
    """
    requests = _listed(requests)
    spared = engine.live()
    engine.keep_free(request.request_id for request in requests)
    try:
        for request in requests:
            engine.add_request(request)
        spared, sequences = [], engine.live()
        _drain(engine, len(sequences), progress)
    except BaseException:
        _abort(engine, spared)
        raise
    return {each.request_id: each.result(engine.lm) for each in sequences}


def serve_due(
    engine: Engine,
    requests: Iterable[Request],
    due: Iterable[float],
    *,
    progress: bool = False,
) -> list[Sequence]:
    """Add each request when it is ``due``, in seconds from now; run until none is left.

    Returns the sequences as they came, for ``metrics.in_seconds``. Who comes during a
    pass has waited from then on: the time of arrival is when it was due, not when the
    pass was over. A request that could never be served is refused before anything
    runs (``InvalidInputError``). Ctrl-C ends all that were added, as in ``serve``.
    """
    requests = _listed(requests)
    for request in requests:
        engine.check(request)
    _check_ids(engine, requests)
    engine.keep_free(request.request_id for request in requests)
    times = _times(due, len(requests))
    coming = sorted(zip(times, requests, strict=True), key=lambda pair: pair[0])
    try:
        return _as_they_come(engine, deque(coming), progress)
    except BaseException:
        _abort(engine, [])
        raise


def _as_they_come(
    engine: Engine, coming: deque[tuple[float, Request]], progress: bool
) -> list[Sequence]:
    from tqdm.auto import tqdm

    rows: list[Sequence] = []
    start = time.perf_counter()
    with tqdm(total=len(coming), disable=not progress, unit="request") as bar:
        while coming or engine.has_work():
            now = time.perf_counter()
            while coming and start + coming[0][0] <= now:
                at, request = coming.popleft()
                engine.add_request(request)
                rows.append(engine.live()[-1])
                rows[-1].arrived_at = start + at
            if engine.has_work():
                engine.step()
                bar.update(len(rows) - len(engine.live()) - bar.n)
            else:
                time.sleep(start + coming[0][0] - now)
    return rows


def _check_ids(engine: Engine, requests: list[Request]) -> None:
    taken = {each.request_id for each in engine.live()}
    for request in requests:
        if request.request_id in taken:
            limit = "is waiting or running already, or comes twice"
            raise invalid("request_id", request.request_id, limit)
        if request.request_id is not None:
            taken.add(request.request_id)


def _times(due: Iterable[float], count: int) -> list[float]:
    times = [real(each) for each in due]
    if len(times) != count:
        raise invalid("due", len(times), f"must be {count} times, one a request")
    for each in times:
        if not math.isfinite(each):
            raise invalid("due", each, "must be a finite number of seconds")
    return times


def _abort(engine: Engine, spared: list[Sequence]) -> None:
    for sequence in engine.live():
        if sequence not in spared:
            engine.abort(sequence.request_id)


def _drain(engine: Engine, total: int, progress: bool) -> None:
    from tqdm.auto import tqdm

    with tqdm(total=total, disable=not progress, unit="request") as bar:
        while engine.has_work():
            engine.step()  # may report aborts too of requests that are not counted
            bar.update(total - len(engine.live()) - bar.n)


def _listed(requests: Iterable[Request]) -> list[Request]:
    if isinstance(requests, Request) or not isinstance(requests, Iterable):
        raise invalid("requests", requests, "must be a list of requests")
    listed = list(requests)
    for request in listed:
        check_kind(request)
    return listed
