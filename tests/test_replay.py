"""The bill of a trace without a model: against engines, paper, and published counts."""

from __future__ import annotations

import json
from random import Random

import laws
import pytest
import real_traffic
import simulator
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from nanoserve import (
    ContinuousBatchEngine,
    InvalidInputError,
    Request,
    SamplingParams,
    StaticBatchEngine,
    admission,
    cli,
    replay,
    serve,
)
from nanoserve.traffic import Arrival

KINDS = {"static": StaticBatchEngine, "continuous": ContinuousBatchEngine}


def lengths(*pairs):
    return [Arrival(0.0, prompt, output) for prompt, output in pairs]


def bill(asked, slots, engine):
    rule, padded = replay.ENGINES[engine]
    return replay.replay(asked, slots, rule, padded=padded)


def passes(asked, slots):
    return [bill(asked, slots, engine).passes for engine in ("static", "continuous")]


LENGTHS = st.lists(
    st.builds(Arrival, st.just(0.0), st.integers(1, 9), st.integers(1, 8)), max_size=9
)
COUNTS = [
    "passes",
    "total_slot_steps",
    "useful_slot_steps",
    "wasted_slot_steps",
    "idle_slot_steps",
    "prompt_tokens",
    "pad_tokens",
    "generated_tokens",
    "kv_live_token_steps",
    "kv_finished_token_steps",
    "slot_utilization",
]


@pytest.mark.parametrize("engine", KINDS)
@given(asked=LENGTHS, slots=st.integers(1, 4))
def test_a_replay_counts_what_the_engine_counts(llama, engine, asked, slots):
    running = KINDS[engine](llama, slots)
    params = [SamplingParams(each.output, ignore_eos=True) for each in asked]
    prompts = [[7] * each.prompt for each in asked]
    serve(running, map(Request, prompts, params))
    ledger, replayed = running.trace.ledger(), bill(asked, slots, engine)
    for name in COUNTS:
        assert getattr(replayed, name) == getattr(ledger, name), name


@given(asked=LENGTHS, slots=st.integers(1, 4))
def test_a_static_replay_is_what_happens_on_paper(asked, slots):
    jobs = [simulator.Job(each.prompt, each.output) for each in asked]
    paper = simulator.bill(simulator.static(jobs, slots), slots, 0)
    replayed = bill(asked, slots, "static")
    assert {n: getattr(replayed, n) for n in COUNTS} == {n: paper[n] for n in COUNTS}


@given(asked=LENGTHS, slots=st.integers(1, 4))
def test_a_continuous_replay_is_what_happens_on_paper(asked, slots):
    paper = simulator.Continuous(slots)
    paper.line = [simulator.Draft(each.prompt, each.output) for each in asked]
    count = rows = 0
    while paper.line:
        rows += len(paper.step())
        count += 1
        paper.leave()
    replayed = bill(asked, slots, "continuous")
    assert (replayed.passes, replayed.total_slot_steps) == (count, rows)


# --- counts that stand in the lessons ---


def test_10_500_50():
    ledger = bill(lengths((1, 10), (1, 500), (1, 50)), 3, "static")
    assert (ledger.total_slot_steps, ledger.useful_slot_steps) == (1500, 560)


def test_10_500_50_over_and_over():
    asked = lengths(*[(1, 10), (1, 500), (1, 50)] * 8)
    assert passes(asked, 3) == [4000, 1670]
    assert passes(asked, 8) == [1500, 680]


def test_a_b_c():
    ledger = bill(lengths((4, 3), (6, 5), (2, 2)), 3, "static")
    assert (ledger.passes, ledger.total_slot_steps, ledger.pad_tokens) == (5, 15, 6)
    assert (ledger.kv_live_token_steps, ledger.kv_finished_token_steps) == (60, 21)


# ../shared/data/README.md: batch, waste and pads of conv, waste and pads of code
PUBLISHED = [
    (2, 0.277, 0.307, 0.360, 0.335),
    (4, 0.429, 0.488, 0.590, 0.518),
    (8, 0.517, 0.603, 0.732, 0.621),
    (16, 0.571, 0.669, 0.822, 0.676),
    (32, 0.616, 0.708, 0.879, 0.703),
    (64, 0.655, 0.732, 0.915, 0.719),
]


@pytest.mark.parametrize(("slots", "conv", "pads", "code", "code_pads"), PUBLISHED)
def test_real_traffic_agrees_to_three_decimals(slots, conv, pads, code, code_pads):
    for name, *expected in (("conv", conv, pads), ("code", code, code_pads)):
        row = replay.row("static", bill(real_traffic.trace(name), slots, "static"))
        got = [round(row["wasted_fraction"], 3), round(row["pad_fraction"], 3)]
        assert got == expected, name


def test_the_code_trace_at_32_slots():
    assert passes(real_traffic.trace("code"), 32) == [63409, 8328]


def test_the_conversation_trace_at_32_slots():
    static, continuous = passes(real_traffic.trace("conv"), 32)
    assert (static, continuous) == (332741, 128102)
    tokens = sum(each.output for each in real_traffic.trace("conv"))
    assert (
        bill(real_traffic.trace("conv"), 64, "continuous").useful_slot_steps == tokens
    )


def test_the_draw_that_is_run_on_smollm2():
    """64 of the conversations, cut down to 128 tokens at most."""
    drawn = Random(7).sample(real_traffic.trace("conv"), 64)

    def cut(tokens, longest):
        return min(max(round(tokens * 128 / longest), 1), 128)

    asked = lengths(*[(cut(p, 4142), cut(o, 1000)) for _, p, o in drawn])
    assert sum(each.prompt for each in asked) == 2023
    assert sum(each.output for each in asked) == 1880
    assert passes(asked, 8) == [500, 280]


@pytest.mark.parametrize(
    ("name", "order", "pads", "waste"),
    [
        ("conv", "arrival", 0.60, 0.52),
        ("conv", "prompt", 0.06, 0.31),
        ("conv", "output", 0.51, 0.06),
        ("code", "arrival", 0.62, 0.73),
        ("code", "prompt", 0.05, 0.72),
        ("code", "output", 0.61, 0.31),
    ],
)
def test_what_sorting_within_256_can_do(name, order, pads, waste):
    queue = replay.ordered(real_traffic.trace(name), order)
    row = replay.row("static", bill(queue, 8, "static"))
    assert row["pad_fraction"] == pytest.approx(pads, abs=0.006)
    assert row["wasted_fraction"] == pytest.approx(waste, abs=0.006)


# --- order ---


def test_sorting_stays_within_its_window_and_is_stable():
    asked = lengths((3, 1), (1, 5), (1, 2), (9, 9), (2, 2))
    by_prompt = replay.ordered(asked, "prompt", window=3)
    assert by_prompt == lengths((1, 5), (1, 2), (3, 1), (2, 2), (9, 9))
    by_output = replay.ordered(asked, "output", window=9)
    assert by_output == lengths((3, 1), (1, 2), (2, 2), (1, 5), (9, 9))
    assert replay.ordered(asked, window=2) == asked


@pytest.mark.parametrize(
    ("options", "message"),
    [({"order": "size"}, "order='size': must be"), ({"window": 0}, "window=0: must")],
)
def test_an_order_there_is_not_is_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        replay.ordered(lengths((1, 1)), **options)


# --- another rule fits the same place ---


class Window(admission.Static):
    """Dynamic batching: a batch leaves when it is full, or its oldest has waited."""

    def joins(self, queue):
        here = super().joins(queue)
        full = len(here) == queue.max_num_seqs
        late = bool(here) and queue.clock - here[0].arrival >= 4
        return here if full or late else []


def test_a_rule_may_let_seats_stand_empty(llama):
    """Time goes on meanwhile, and no pass is counted."""
    asked = lengths((2, 3), (2, 1), (2, 2))
    assert replay.replay(asked, 2, Window()).passes == 5
    running = StaticBatchEngine(llama, 2)
    running.rule = Window()
    results = serve(
        running,
        [
            Request([7, 8], SamplingParams(each.output, ignore_eos=True))
            for each in asked
        ],
    )
    assert [len(result.token_ids) for result in results.values()] == [3, 1, 2]
    assert running.trace.passes == 5
    assert running.trace.jumps == [(3, 4)]


class Overfilled(admission.Static):
    def joins(self, queue):
        return queue.arrived()


def test_a_rule_that_seats_too_many_is_told_so(llama):
    with pytest.raises(InvalidInputError, match="joins=3: .* 2 seats are free"):
        replay.replay(lengths((1, 1), (1, 1), (1, 1)), 2, Overfilled())
    running = StaticBatchEngine(llama, 2)
    running.rule = Overfilled()
    with pytest.raises(InvalidInputError, match="joins=3: .* 2 seats are free"):
        serve(running, [Request([7])] * 3)
    assert running.cache.free_slots == 2
    assert not running.live()


class ShortestFirst(admission.Continuous):
    """By the limit, but who has waited for ``patience`` passes comes first."""

    patience = 6

    def joins(self, queue):
        def rank(row):
            aged = queue.clock - row.arrival >= self.patience
            return (0, row.arrival) if aged else (1, row.request.params.max_tokens)

        return sorted(queue.arrived(), key=rank)[: queue.free_seats]


def test_a_rule_may_choose_whom_it_likes(llama):
    running = ContinuousBatchEngine(llama, 1)
    running.rule = ShortestFirst()
    asked = [
        Request([7, 8, 9], SamplingParams(limit, ignore_eos=True))
        for limit in (3, 2, 6, 1)
    ]
    expected = [laws.alone(llama, request) for request in asked]
    results = serve(running, asked)
    got = [laws.Answer(r.token_ids, r.finish_reason) for r in results.values()]
    assert not laws.unlike(got, expected)
    ends = sorted(running.trace.requests.values(), key=lambda each: each.finished)
    assert [each.request_id for each in ends] == ["D", "B", "A", "C"]


# --- the command ---


def run(*arguments):
    result = CliRunner().invoke(cli.build_app(), ["replay", *map(str, arguments)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture
def file(tmp_path):
    rows = ["2023-11-16 18:00:0{}.0000000,{},{}".format(*each) for each in
            ((0, 4, 3), (1, 6, 5), (2, 2, 2))]  # fmt: skip
    path = tmp_path / "abc.csv"
    path.write_text(
        "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]), "utf-8-sig"
    )
    return path


ABC = [
    {
        "max_num_seqs": 3,
        "engine": "static",
        "passes": 5,
        "total_slot_steps": 15,
        "wasted_slot_steps": 5,
        "wasted_fraction": 5 / 15,
        "prompt_tokens": 12,
        "pad_tokens": 6,
        "pad_fraction": 6 / 18,
        "slot_utilization": 10 / 15,
    },
    {
        "max_num_seqs": 3,
        "engine": "continuous",
        "passes": 5,
        "total_slot_steps": 10,
        "wasted_slot_steps": 0,
        "wasted_fraction": 0.0,
        "prompt_tokens": 12,
        "pad_tokens": 0,
        "pad_fraction": 0.0,
        "slot_utilization": 10 / 15,
    },
]


def test_the_command_says_what_it_counted(file):
    code, out, err = run(file, "--max-num-seqs", "3,1")
    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["slots", "engine", "passes", "slot-steps", "wasted", "pads", "seats", "used"],
        ["3", "static", "5", "15", "33.3%", "33.3%", "66.7%"],
        ["3", "continuous", "5", "10", "0.0%", "0.0%", "66.7%"],
        ["1", "static", "10", "10", "0.0%", "0.0%", "100.0%"],
        ["1", "continuous", "10", "10", "0.0%", "0.0%", "100.0%"],
    ]


def test_the_command_writes_json(file, tmp_path):
    there = tmp_path / "rows.json"
    assert run(file, "--max-num-seqs", 3, "--json", there)[0] == 0
    assert json.loads(there.read_text("utf-8")) == ABC
    code, out, _ = run(file, "--max-num-seqs", 3, "--json", "-")
    assert (code, json.loads(out)) == (0, ABC)


def test_the_command_sorts(file):
    _, out, _ = run(file, "--max-num-seqs", 2, "--order", "output", "--json", "-")
    assert json.loads(out)[0]["passes"] == 3 + 5  # C with A, then B
    _, out, _ = run(
        file, "--max-num-seqs", 2, "--order", "output", "--window", 2, "--json", "-"
    )
    assert json.loads(out)[0]["passes"] == 5 + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-num-seqs", "1,x"], "max_num_seqs='1,x': must be numbers like 1,2,4"),
        (["--max-num-seqs", "2,0"], "max_num_seqs=0: must be an integer"),
        (["--order", "size"], "order='size': must be one of arrival, prompt, output"),
        (["--window", "0"], "window=0: must be an integer of at least 1"),
    ],
)
def test_a_mistake_is_one_line(file, arguments, message):
    code, out, err = run(file, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    code, _, err = run(tmp_path / "none.csv")
    assert code == 2
    assert err.endswith("none.csv: No such file or directory\n")


def test_the_command_on_real_traffic():
    _, out, _ = run(real_traffic.path("code"), "--max-num-seqs", 32, "--json", "-")
    assert [row["passes"] for row in json.loads(out)] == [63409, 8328]
