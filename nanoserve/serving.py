"""Requests in, answers out: running an engine until nothing is left."""

from __future__ import annotations

from collections.abc import Iterable

from .engine import Engine
from .errors import invalid
from .request import GenerationResult, Request
from .sequence import check_kind


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
        for sequence in engine.live():
            if sequence not in spared:
                engine.abort(sequence.request_id)
        raise
    return {each.request_id: each.result(engine.lm) for each in sequences}


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
