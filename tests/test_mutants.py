"""Each law has a check that goes red: bugs are planted, one at a time, and must show.

The mutants are the planted bugs of ``nanoserve.pitfalls`` and more, that no lesson
tells of. One is killed by a way of answering in which some row no longer equals the
request run alone (``laws.unlike``, the very check of the property tests). The table of
who kills whom is printed at the end of the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import laws
import pytest
import tiny
import torch

from nanoserve import Request, SamplingParams, StaticBatchEngine, sampling
from nanoserve.attention import keep_chunk, keep_mask
from nanoserve.cache import SlotCache
from nanoserve.engine import emit, finish_reason
from nanoserve.padding import positions
from nanoserve.pitfalls import distinct, swap
from nanoserve.sampling import generator_for

release = SlotCache.release

# name -> the functions it replaces: "room.function" -> the wrong one
MUTANTS: dict[str, Mapping[str, Callable[..., Any]]] = {
    bug.name: bug.replaces for bug in distinct()
}


def mutant(name: str, place: str):
    """Enter the decorated function, in place of the right one, under ``name``."""

    def enter(wrong):
        MUTANTS[name] = {place: wrong}
        return wrong

    return enter


@mutant("decode repeats the last position", "padding.positions")
def _(mask, step=0):
    return positions(mask, step) - (step > 0)


@mutant("keep_mask not causal", "attention.keep_mask")
def _(mask, step=0):
    keep = keep_mask(mask, step)
    return keep if step else keep | mask[:, None, None]


@mutant("keep_mask one column short", "attention.keep_mask")
def _(mask, step=0):
    return keep_mask(mask, step)[..., :-1] if step else keep_mask(mask)


@mutant("keep_mask grown by zeros but for the newest", "attention.keep_mask")
def _(mask, step=0):
    keep = keep_mask(mask, step).clone()
    keep[..., mask.shape[1] : -1] &= step == 0
    return keep


@mutant("a slot's newest token not seen", "attention.keep_stored")
def _(lengths, width):
    newest = (lengths - 1).clamp(min=1)[:, None]
    return (torch.arange(width) < newest)[:, None, None]


@mutant("a chunk not causal", "attention.keep_chunk")
def _(start, count, device):
    return torch.ones(1, 1, count, start + count, dtype=torch.bool, device=device)


@mutant("a chunk sees nothing before itself", "attention.keep_chunk")
def _(start, count, device):
    keep = keep_chunk(start, count, device)
    keep[..., :start] = False
    return keep


@mutant("an unfinished chunk is answered", "engine.emit")
def _(rows, tokens, eos_token_ids):
    for row in rows:
        row.kv_length += row.unfed > 1
    return emit(rows, tokens, eos_token_ids)


@mutant("the first request's generator for all", "sampling.generator_for")
def _(request, shared=[]):  # noqa: B006
    if not shared:
        shared.append(generator_for(request))
    return shared[0] if request.params.temperature else None


@mutant("seed forgotten", "sampling.generator_for")
def _(request):
    generator = generator_for(request)
    return generator.manual_seed(0) if generator else None


@mutant("limit off by one", "engine.finish_reason")
def _(row, eos_token_ids):
    reason = finish_reason(row, eos_token_ids)
    limit = row.request.params.max_tokens
    return None if reason == "length" and len(row.token_ids) == limit else reason


@mutant("stop tokens ignored", "engine.finish_reason")
def _(row, eos_token_ids):
    limit = row.request.params.max_tokens
    return "length" if len(row.token_ids) >= limit else None


@mutant("one row's end ends all", "engine.emit")
def _(rows, tokens, eos_token_ids):
    outputs = emit(rows, tokens, eos_token_ids)
    ended = [row.finish_reason for row in rows if row.finished]
    for row in rows if ended else ():
        row.finish_reason = row.finish_reason or ended[0]
    return outputs


@mutant("rows in another order than their tokens", "engine.emit")
def _(rows, tokens, eos_token_ids):
    return emit(rows, [*tokens[1:], *tokens[:1]], eos_token_ids)


@mutant("rows compacted without their cache", "engine.slots_of")
def _(rows):
    compact = sorted(rows, key=lambda row: row.finished)
    return [compact.index(row) for row in rows]


@mutant("only K scrubbed", "cache.release")
def _(cache, slot):
    values = cache.values.clone()
    release(cache, slot)
    cache.values.copy_(values)


@mutant("scrubbed by x 0", "cache.release")
def _(cache, slot):
    cache.keys[:, slot] *= 0
    cache.values[:, slot] *= 0
    cache.lengths[slot] = 0
    release(cache, slot)


# --- who is asked, and in which way ---


def after_a_bad_tenant(lm, requests):
    """The static engine; those who sat in its slots before left NaN there."""
    static = StaticBatchEngine(lm, 3)
    for _ in range(3):
        static.add_request(Request([7] * 20, SamplingParams(3, ignore_eos=True)))
    static.step()
    for store in (static.cache.keys, static.cache.values):
        store[:, :, :, :20] = torch.nan
    while static.has_work():
        static.step()
    return laws.by_engine(lambda _: static)(lm, requests)


def beside_a_bad_row(lm, requests):
    """The rectangle; one row's first logits are not finite, and it must say so."""
    logits = lm.model.logits
    asked = []

    def broken(hidden):
        out = logits(hidden)
        if not asked:
            out[2] = torch.nan
        asked.append(1)
        return out

    with mock.patch.object(lm.model, "logits", broken):
        answers = laws.by_generate_batch("left")(lm, requests)
    if answers[2] == laws.Answer([], "error"):
        answers[2] = laws.by_generate_one(lm, requests)[2]
    return answers


WAYS = {
    **laws.RECTANGLES,
    **laws.ENGINES,
    "slots of NaN": after_a_bad_tenant,
    "a bad row": beside_a_bad_row,
}
SETS = {
    "greedy": laws.ragged(ignore_eos=True),
    "stops": laws.ragged(stop_token_ids=tuple(range(30, 45))),
    "sampled": laws.ragged(temperature=1.0, seed=11),
}
MODELS = ("gpt2", "llama")


@pytest.fixture(scope="module")
def expected():
    """What each request says alone, before anything is planted."""
    laws.REPORT.lines.append(
        f"mutants killed (x) on {' and on '.join(MODELS)}, by {', '.join(WAYS)}:"
    )
    return {
        (model, name): [laws.alone(tiny.tiny_lm(model), each) for each in requests]
        for model in MODELS
        for name, requests in SETS.items()
    }


def killed_by(expected, model, ways=WAYS):
    """The ways in which some row of some set differs from the request alone."""
    lm, killers = tiny.tiny_lm(model), []
    for name, way in ways.items():
        for asked, requests in SETS.items():
            try:
                broken = laws.unlike(way(lm, requests), expected[model, asked])
            except Exception as error:
                broken = [repr(error)]  # a crash is seen, too
            if broken:
                killers.append(name)
                break
    return killers


@pytest.fixture
def tally_apart(monkeypatch):
    """Rows of mutants are no rows of the engine's."""
    monkeypatch.setattr(laws.REPORT, "tally", laws.Tally())


@pytest.mark.usefixtures("tally_apart")
def test_without_a_mutant_nothing_is_killed(expected):
    assert {model: killed_by(expected, model) for model in MODELS} == {
        "gpt2": [],
        "llama": [],
    }


@pytest.mark.usefixtures("tally_apart")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_killed(expected, name):
    with swap(MUTANTS[name]):
        killers = {model: killed_by(expected, model) for model in MODELS}
    row = "  ".join(
        "".join("x" if way in killers[model] else "." for way in WAYS)
        for model in MODELS
    )
    laws.REPORT.lines.append(f"{row}  {name}")
    assert killers["gpt2"], "nobody noticed"
    assert killers["llama"], "nobody noticed"


@pytest.mark.usefixtures("tally_apart")
def test_which_bug_shows_under_which_side(expected):
    """What the lessons say, and why a test needs both sides and both models: a shift
    of all positions by the same number, for one, changes nothing under RoPE."""
    left, right = laws.RECTANGLES
    shows = {
        "index-positions": {"gpt2": {left, right}, "llama": {right}},
        "prefill-only": {"gpt2": {left, right}},
        "last-column": {"gpt2": {right}, "llama": {right}},
        "sum-minus-one": {"gpt2": {left}, "llama": {left}},
    }
    for name, models in shows.items():
        with swap(MUTANTS[name]):
            for model, ways in models.items():
                killers = killed_by(expected, model, laws.RECTANGLES)
                assert set(killers) == ways, (name, model)


def test_outputs_and_results_are_two_views_of_one_answer(llama):
    """``emit`` reports what it appends: a row appended to in silence would differ."""
    static = StaticBatchEngine(llama, 3)
    for request in SETS["stops"]:
        static.add_request(request)
    rows = static.live()
    outputs = []
    while static.has_work():
        outputs += static.step()
    for row in rows:
        mine = [o for o in outputs if o.request_id == row.request_id]
        assert [t for o in mine for t in o.token_ids] == row.token_ids
        assert [o.finished for o in mine] == [False] * (len(mine) - 1) + [True]


# --- the check itself ---

ALONE = laws.Alone(laws.ragged()[0], laws.Answer([4, 5, 6], "length"), [1.0, 9e-5, 2.0])


@pytest.mark.usefixtures("tally_apart")
@pytest.mark.parametrize(
    ("tokens", "reason", "near_ties"),
    [
        ([4, 5, 6], "length", 0),
        ([4, 7, 8], "length", 1),  # parts where the best two were 9e-5 apart
        ([4, 7], "stop", 1),  # what comes after a near-tie is another story
    ],
)
def test_what_equals_a_request_alone(tokens, reason, near_ties):
    assert laws.unlike([laws.Answer(tokens, reason)], [ALONE]) == []
    assert laws.REPORT.tally.near_ties == near_ties


@pytest.mark.usefixtures("tally_apart")
@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([5, 5, 6], "length"),  # sure by 1.0
        ([4, 5, 7], "length"),
        ([4, 5], "length"),
        ([4, 5, 6, 7], "length"),
        ([4, 5, 6], "stop"),
        ([], "error"),
    ],
)
def test_what_does_not_equal_a_request_alone(tokens, reason):
    assert len(laws.unlike([laws.Answer(tokens, reason)], [ALONE])) == 1
    assert laws.REPORT.tally.near_ties == 0


def test_an_answer_that_is_missing_is_noticed():
    with pytest.raises(AssertionError, match="one answer for each"):
        laws.unlike([], [ALONE])


def test_near_ties_are_one_row_in_a_thousand():
    assert not laws.Tally(rows=10, near_ties=1).too_many()
    assert not laws.Tally(rows=3000, near_ties=3).too_many()
    assert laws.Tally(rows=2000, near_ties=3).too_many()


def test_how_sure_a_greedy_token_is():
    row = torch.tensor([1.0, 3.5, 3.0])
    assert laws.margin(row, SamplingParams(), None) == 0.5


def test_how_sure_a_drawn_token_is_and_that_asking_draws_nothing():
    row, params = torch.tensor([1.0, 3.5, 3.0]), SamplingParams(temperature=0.5, seed=3)
    generator = sampling.generator_for(Request([5], params))
    before = generator.get_state()
    sure = laws.margin(row, params, generator)
    assert torch.equal(generator.get_state(), before)
    scores = sampling.perturbed(row, params, generator).sort().values
    assert sure == pytest.approx(float(scores[-1] - scores[-2]) * 0.5)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_k=2, seed=1),  # the second and the third
        SamplingParams(temperature=1.0, top_p=0.25, seed=1),  # the first is 0.25
    ],
)
def test_a_token_on_the_edge_of_a_filter_is_not_sure(params):
    generator = sampling.generator_for(Request([5], params))
    assert laws.margin(torch.zeros(4), params, generator) == 0
