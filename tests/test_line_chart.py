"""The still chart of the lessons: its scale, its labels, its words."""

from __future__ import annotations

import re

import pytest

from nanoserve import InvalidInputError
from nanoserve.line_chart import LineChart, apart


def chart(lines, **options):
    ticks = range(1, len(next(iter(lines.values()))) + 1)
    return LineChart("Waste", ticks, lines, across="slots", **options)


def heights(svg):
    """Of each line, how high its points stand (upwards)."""
    found = re.findall(r'<polyline points="([^"]+)"', svg)
    return [[-float(p.split(",")[1]) for p in each.split()] for each in found]


def test_the_numbers_are_told_in_columns():
    told = chart({"conv": [0, 0.25], "code": [0.5, 1.0]}, form="{:.0%}").text()
    assert told.splitlines() == [
        "Waste",
        "slots    1     2",
        "conv    0%   25%",
        "code   50%  100%",
    ]


def test_the_places_along_it_need_not_be_whole():
    loads = LineChart("TTFT", [0.5, 8], {"a": [1, 2]}, across="requests a second")
    assert loads.text().splitlines()[1] == "requests a second  0.5  8"
    assert ">0.5</text>" in loads.svg()


def test_equal_steps_are_equally_high():
    (line,) = heights(chart({"a": [0, 1, 2]}).svg())
    assert line[1] - line[0] == pytest.approx(line[2] - line[1], abs=0.02)
    (line,) = heights(chart({"a": [10, 100, 1000]}, log=True).svg())
    assert line[0] < line[1]
    assert line[1] - line[0] == pytest.approx(line[2] - line[1], abs=0.02)


@pytest.mark.parametrize(
    ("values", "log", "marks"),
    [
        ([0.0, 0.35], False, [0, 0.1, 0.2, 0.3, 0.4]),
        ([0, 3], False, [0, 1, 2, 3]),
        ([0, 0], False, [0, 1]),
        ([4544, 245896], True, [1000, 10_000, 100_000, 1_000_000]),
        ([10, 10], True, [10, 100]),
    ],
)
def test_the_axis_holds_all_values(values, log, marks):
    found = chart({"a": values}, log=log)
    assert found.marks()[: len(marks)] == pytest.approx(marks)
    assert found.marks()[-1] >= max(values)
    assert found.svg()


def test_lines_differ_in_more_than_colour_and_are_named():
    svg = chart({"one": [1, 2], "other": [1, 2], "third": [3, 1]}).svg()
    dashes = re.findall(r'stroke-dasharray="([^"]*)"', svg)
    assert len(set(dashes)) == 3
    labels = {
        n: float(y) for y, n in re.findall(r'y="([\d.]+)"[^>]*>(\w+)</text>', svg)
    }
    assert abs(labels["one"] - labels["other"]) >= 14


def test_labels_keep_apart_and_in_order():
    placed = apart({"low": 30, "high": 10, "same": 10}, 14)
    assert sorted(placed, key=placed.get) == ["high", "same", "low"]
    assert placed == {"high": 10, "same": 24, "low": 38}


def test_every_name_stands_on_the_sheet():
    """Ten lines that end at 0: their names go on below the axis."""
    svg = chart({f"line{n}": [1, 0] for n in range(10)}).svg()
    tall = int(re.search(r'height="(\d+)"', svg)[1])
    names = re.findall(r'y="([\d.]+)"[^>]*>line\d</text>', svg)
    assert len(names) == 10
    assert max(map(float, names)) < tall


def test_it_shows_itself_everywhere():
    bundle = chart({"<b>": [1, 2]})._repr_mimebundle_()
    assert bundle["text/html"].startswith('<img alt="Waste" src="data:image/svg+xml')
    assert "&lt;b&gt;" in bundle["text/html"]
    assert bundle["text/plain"] == chart({"<b>": [1, 2]}).text()


@pytest.mark.parametrize(
    ("line", "options", "words"),
    [
        ([1], {}, "a=1: must have 2 values"),
        ([0, 1], {"log": True}, "a=0: must be above"),
        ([1, float("nan")], {}, "a=nan: must be a finite number"),
        ([float("inf"), 1], {"log": True}, "a=inf: must be a finite number"),
        ([1, -2], {}, "a=-2: must be a finite number, 0 or more"),
        ([1, None], {}, "a=None: must be a finite number"),
    ],
)
def test_what_cannot_be_drawn_is_refused(line, options, words):
    with pytest.raises(InvalidInputError, match=words):
        LineChart("Waste", [1, 2], {"a": line}, across="slots", **options)


@pytest.mark.parametrize(("ticks", "lines"), [([1], {}), ([], {"a": []})])
def test_nothing_is_no_chart(ticks, lines):
    with pytest.raises(InvalidInputError, match="lines=.*: needs one line"):
        LineChart("Waste", ticks, lines, across="slots")
