"""What was measured on SmolLM2 (data/smollm2_speed.py), held against what we say."""

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[1] / "data" / "results" / "smollm2_speed.json"
recorded = json.loads(RESULTS.read_text("utf-8"))
ways = recorded["serving"]["ways"]


def seconds(name: str) -> float:
    took = sorted(ways[name]["seconds"])
    return took[len(took) // 2]


def test_its_conditions_are_told():
    said = recorded["conditions"]
    assert {"model", "hardware", "threads", "versions", "date"} <= said.keys()
    assert "134,515,008 parameters, float32" in said["model"]
    assert all(len(way["seconds"]) >= 3 for way in ways.values())


def test_the_same_answers_in_280_passes_and_in_500():
    assert {name: way["passes"] for name, way in ways.items()} == {
        "generate": 500,
        "static": 500,
        "continuous": 280,
    }
    assert [way["answers_as_continuous"] for way in ways.values()] == [64] * 3
    assert recorded["serving"]["prompt_tokens"] == 2023
    assert recorded["serving"]["generated_tokens"] == 1880


def test_seconds_follow_passes_within_a_tenth():
    ratio = seconds("static") / seconds("continuous")
    assert ratio == pytest.approx(500 / 280, rel=0.1)


def test_generate_takes_at_least_2_2_times_as_long():
    assert seconds("generate") / seconds("continuous") >= 2.2


def test_a_pass_is_the_models_but_for_less_than_a_twentieth():
    assert recorded["decode"]["8"]["median_own_share"] < 0.05


def test_packed_weights_multiply_faster_at_every_number_of_rows():
    shares = [each["plain_over_packed"] for each in recorded["linear"].values()]
    assert len(shares) == 5 and min(shares) > 1
