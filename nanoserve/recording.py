"""What attention was given and what it gave back, layer by layer: one hook for all.

>>> lm = nanoserve.load("canary")
>>> with recording.record(lm) as record:
...     nanoserve.generate_batch(lm, ["count from 1 to 5", "copy d o g"])
>>> record.at(0, layer=3).keep.shape

The hook stands outside of ``attention.attend``, so that it sees what a planted bug
makes of it too, whichever was there first. While nobody records there is no hook.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from . import attention, batch
from .checkpoint import LanguageModel


@dataclass(frozen=True, eq=False)
class Call:
    """One call of ``attention.attend``: its arguments and its answer, copied.

    ``layer``    counted from 0
    ``step``     the pass, counted from 0 where the recording began
    ``q``        [batch, heads, queries, head_dim], as is ``out``
    ``k``, ``v`` [batch, kv_heads, keys, head_dim]
    ``keep``     bool [batch, 1, queries, keys], or what a bug made of it
    ``weights``  float32 [batch, heads, queries, keys]: each key's share in ``out``,
                 asked of the code itself. None, unless ``record(weights=True)``
    """

    layer: int
    step: int
    q: Tensor
    k: Tensor
    v: Tensor
    keep: Tensor
    out: Tensor
    weights: Tensor | None = None

    @property
    def scores(self) -> Tensor:
        """q . k / sqrt(head_dim) before any mask, float32 [batch, heads, queries,
        keys]: worked out when it is asked for."""
        group = self.q.shape[1] // self.k.shape[1]
        k = self.k.float().repeat_interleave(group, dim=1)
        return self.q.float() @ k.transpose(-1, -2) / self.q.shape[-1] ** 0.5


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of the model over N flat tokens.

    ``ids``, ``positions``  int64 [N], what it was fed
    ``calls``               of attention, in order
    ``hidden``              for each layer [N, hidden size], as it leaves the layer
    """

    ids: Tensor
    positions: Tensor
    calls: list[Call] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)


class Record:
    """What ``record`` took down: ``passes``, in order."""

    def __init__(self, weights: bool) -> None:
        self.passes: list[Pass] = []
        self.weights = weights
        self.alive = True  # a copied context may outlive the block
        self.running: Pass | None = None
        self.layer = 0

    @property
    def calls(self) -> list[Call]:
        """All calls of attention, pass after pass, layer after layer."""
        return [call for each in self.passes for call in each.calls]

    def at(self, step: int, layer: int) -> Call:
        """The first call of this layer in this pass, both counted from 0."""
        return next(call for call in self.passes[step].calls if call.layer == layer)

    def take(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor, out: Tensor) -> None:
        if self.running is None:
            return  # another model's
        weights = asked_weights(q, k, keep) if self.weights else None
        # k and v are views of a cache that goes on changing
        q, k, v, keep, out = (x.detach().clone() for x in (q, k, v, keep, out))
        step = len(self.passes) - 1
        call = Call(self.layer, step, q, k, v, keep, out, weights)
        self.running.calls.append(call)


def asked_weights(q: Tensor, k: Tensor, keep: Tensor) -> Tensor:
    """The share of each key, float32 [batch, heads, queries, keys], by asking
    ``attention.attend`` with values that are 1 at one key and 0 at all others.

    So it is what the code in use really does, planted or fused, and no second
    account of it. As many keys fit into one question as a head has dimensions.
    """
    (rows, kv_heads, keys, size), answers = k.shape, []
    one_hot = torch.eye(keys, dtype=k.dtype, device=k.device)  # [keys, keys]
    for few in one_hot.split(size, dim=1):
        value = torch.zeros(rows, kv_heads, keys, size, dtype=k.dtype, device=k.device)
        value[..., : few.shape[1]] = few
        answers.append(attention.attend(q, k, value, keep)[..., : few.shape[1]].float())
    return torch.cat(answers, dim=-1)


# --- the hook ---

_records: ContextVar[tuple[Record, ...]] = ContextVar("records", default=())
_lock = threading.Lock()
_listening = 0  # how many record, in all threads


class _Listener:
    """Stands where ``batch`` finds the room ``attention`` while somebody records."""

    def __getattr__(self, name: str) -> Any:
        return getattr(attention, name)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        out = attention.attend(q, k, v, keep)
        for each in _records.get():
            if each.alive:
                each.take(q, k, v, keep, out)
        return out


@contextmanager
def record(lm: LanguageModel, *, weights: bool = False) -> Iterator[Record]:
    """Take down every pass of ``lm`` in this block, in this thread.

    ``weights`` also asks for each key's share, at the price of a few more calls. All
    tensors are copied and stay on their device: it is for lessons, not for servers.
    """
    made = Record(weights)
    with ExitStack() as stack:
        # first what ends the recording, so that nothing can be left behind
        stack.callback(_end, made)
        stack.enter_context(_listener())
        _follow(made, lm.model, stack)
        _records.set((*_records.get(), made))
        yield made


def _end(made: Record) -> None:
    made.alive = False
    _records.set(tuple(each for each in _records.get() if each.alive))


@contextmanager
def _listener() -> Iterator[None]:
    global _listening
    with _lock:
        _listening += 1
        if _listening == 1:
            batch.attention = _Listener()  # type: ignore[assignment]
    try:
        yield
    finally:
        with _lock:
            _listening -= 1
            if not _listening:
                batch.attention = attention


def _follow(made: Record, model: Any, stack: ExitStack) -> None:
    """Let the model say which pass and which layer it is in."""

    def mine() -> bool:
        return made.alive and made in _records.get()

    def begins(_: Any, fed: tuple[Any, ...]) -> None:
        if mine():
            made.running = Pass(fed[0].clone(), fed[1].clone())
            made.passes.append(made.running)

    def ends(*_: Any) -> None:
        if mine():
            made.running = None

    def enters(layer: int) -> Any:
        def note(*_: Any) -> None:
            if mine():
                made.layer = layer

        return note

    def leaves(_: Any, fed: Any, hidden: Tensor) -> None:
        if mine() and made.running:
            made.running.hidden.append(hidden.detach().clone())

    def until_the_end(handle: RemovableHandle) -> None:
        stack.callback(handle.remove)

    until_the_end(model.register_forward_pre_hook(begins))
    # also when the pass breaks off, or another model's would be taken for ours
    until_the_end(model.register_forward_hook(ends, always_call=True))
    for layer, block in enumerate(model.blocks):
        until_the_end(block.register_forward_pre_hook(enters(layer)))
        until_the_end(block.register_forward_hook(leaves))
