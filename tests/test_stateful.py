"""The continuous engine in any order of events, held against a model on paper.

Add, step, abort, preempt, interrupt, in whatever order hypothesis comes upon; after
every step the engine stands where the paper says, and the laws hold.
"""

from __future__ import annotations

import functools
from itertools import chain

import laws
import pytest
import simulator
import tiny
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from nanoserve import ContinuousBatchEngine, Request, SamplingParams

PROMPTS = st.lists(st.integers(4, 63), min_size=1, max_size=9)
PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.sampled_from([6, 5, 4, 2, 1]),
    temperature=st.sampled_from([1.0, 0.0]),
    seed=st.integers(0, 3),
    ignore_eos=st.just(True),
)
# 9 in and 6 out are 14 tokens to hold: what fits one alone is enough for all
OPTIONS = st.fixed_dictionaries(
    {
        "max_num_seqs": st.integers(1, 4),
        "max_num_batched_tokens": st.sampled_from([4, 6, 16]),
        "enable_chunked_prefill": st.booleans(),
        "kv_blocks": st.integers(14, 20),
        "preemption": st.sampled_from(["recompute", "swap"]),
    }
)


@functools.cache
def alone(prompt, params):
    return laws.alone(tiny.tiny_lm("llama"), Request(list(prompt), params))


class Machine(RuleBasedStateMachine):
    """``drafts`` are the requests on paper, ``said`` what each was given."""

    @initialize(
        options=OPTIONS,
        size=st.sampled_from([1, 2, 4]),
        first=st.lists(st.tuples(PROMPTS, PARAMS), min_size=2, max_size=5),
        steps=st.integers(1, 4),
    )
    def begin(self, options, size, first, steps):
        options["kv_blocks"] = -(-options["kv_blocks"] // size)
        if not options["enable_chunked_prefill"]:
            options["max_num_batched_tokens"] = 16
        self.engine = ContinuousBatchEngine(
            tiny.tiny_lm("llama"), max_model_len=16, block_size=size, **options
        )
        self.paper = simulator.Continuous(
            options["max_num_seqs"],
            options["max_num_batched_tokens"],
            options["kv_blocks"],
            size,
            swap=options["preemption"] == "swap",
            whole=not options["enable_chunked_prefill"],
        )
        self.asked, self.said, self.ends, self.drafts = {}, {}, {}, {}
        self.aborted, self.recomputed, self.passes = [], 0, 0
        self.interrupted = False
        for prompt, params in first:
            self.add(prompt, params)
        self.step(steps)

    @rule(prompt=PROMPTS, params=PARAMS)
    def add(self, prompt, params):
        name = self.engine.add_request(Request(prompt, params))
        self.asked[name], self.said[name] = (tuple(prompt), params), []
        self.drafts[name] = simulator.Draft(len(prompt), params.max_tokens, name)
        self.paper.line.append(self.drafts[name])

    @precondition(lambda self: self.engine.has_work())
    @rule(steps=st.integers(1, 6))
    def step(self, steps):
        for _ in range(steps):
            outputs = self.engine.step()
            for output in outputs:
                assert output.request_id not in self.ends, "reported after its end"
                self.said[output.request_id] += output.token_ids
                if output.finished:
                    self.ends[output.request_id] = output.finish_reason
            told = [o.request_id for o in outputs if o.finish_reason == "abort"]
            assert told == self.aborted
            self.aborted, self.interrupted = [], False
            shares = self.paper.step() if self.paper.line else []
            self.passes += bool(shares)
            self.recomputed += sum(share.again for share in shares)
            assert sum(share.fed for share in shares) <= self.paper.budget
            got = [o.request_id for o in outputs if o.token_ids]
            assert got == [share.draft.name for share in shares if share.emits]
            self.paper.leave()

    @precondition(lambda self: self.engine.live())
    @rule(which=st.integers(0, 9))
    def abort(self, which):
        row = self.engine.live()[which % len(self.engine.live())]
        assert self.engine.abort(row.request_id)
        assert not self.engine.abort(row.request_id), "it has ended already"
        self.aborted.append(row.request_id)
        self.paper.end(self.drafts[row.request_id])

    @precondition(lambda self: self.engine.running)
    @rule()
    def preempt(self):
        self.engine.preempt(self.engine.running[-1])
        self.paper.preempt_youngest()

    @precondition(lambda self: self.paper.line)
    @rule(call=st.integers(1, 3))
    def interrupt(self, call):
        """Ctrl-C in the midst of a pass: it is run again, as if nothing had been."""
        with laws.crash(call, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
            self.engine.step()
        self.paper.form()  # they are seated, and have blocks for what they would feed
        self.interrupted = True

    @invariant()
    def answers_so_far_are_those_alone(self):
        for name, tokens in getattr(self, "said", {}).items():
            ref = alone(*self.asked[name])
            reason = self.ends.get(name, "abort")
            whole = reason == "length"
            tokens_alone = ref.answer.token_ids
            expected = tokens_alone if whole else tokens_alone[: len(tokens)]
            told = laws.Alone(ref.request, laws.Answer(expected, reason), ref.margins)
            assert not laws.unlike([laws.Answer(tokens, reason)], [told])

    @invariant()
    def the_paper_agrees(self):
        if not hasattr(self, "engine"):
            return
        engine, paper = self.engine, self.paper
        assert [row.request_id for row in engine.live()] == [d.name for d in paper.line]
        seated = [row.request_id for row in engine.running]
        assert seated == [draft.name for draft in paper.seated]
        waits = [row.request_id for row in engine.waiting]
        assert seated + waits == [draft.name for draft in paper.line], "first come"
        ledger = engine.trace.ledger()
        assert ledger.passes == self.passes
        assert ledger.recomputed_tokens == self.recomputed
        assert ledger == engine.trace.ledger(self.passes)

    @invariant()
    def every_block_has_one_owner_and_free_ones_are_empty(self):
        if not hasattr(self, "engine"):
            return
        cache = self.engine.cache
        taken = list(chain.from_iterable(cache.tables))
        assert len(taken) == len(set(taken)), "a block has two owners"
        assert cache.free_blocks == cache.blocks - len(taken)
        assert cache.free_slots == self.paper.seats - len(self.paper.seated)
        held = {row.slot: row.kv_length for row in self.engine.running}
        for slot, table in enumerate(cache.tables):
            needed = cache.blocks_for(held.get(slot, 0))
            assert len(table) == needed or self.interrupted and len(table) > needed
        free = [block for block in range(cache.blocks) if block not in taken]
        by_block = cache.keys.unflatten(2, (cache.blocks, cache.block_size))
        assert not by_block[:, :, free].any(), "a free block is not empty"

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        for _ in range(1000):
            if not self.engine.has_work():
                break
            self.step(1)
        assert not self.engine.has_work()
        assert self.ends.keys() == self.asked.keys()
        self.answers_so_far_are_those_alone()
        self.every_block_has_one_owner_and_free_ones_are_empty()


def test_any_order_of_events_goes_as_on_paper():
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=max(25, settings().max_examples),
            stateful_step_count=25,
            derandomize=True,
        ),
    )
