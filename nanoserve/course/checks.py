"""Judge an attempt: run it on every case, and say one thing that helps.

Only behaviour counts. The attempt, the reference and the planted mistakes are run the
same way, and their answers are compared. Nothing here depends on what was tried before
or how long it took: the same function always gets the same verdict.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from . import rows as drawing
from . import trial, values
from .exercises import Exercise
from .rows import Row
from .trial import Outcome
from .words import WORDS

Status = Literal[
    "passed", "untouched", "unfinished", "wrong", "raised", "stopped", "arguments"
]
STUB_CODE = {"RESUME", "NOP", "LOAD_CONST", "RETURN_VALUE", "RETURN_CONST"}


@dataclass(frozen=True)
class Verdict:
    """``lines`` is what is said, ``call`` the case as code, ``rows`` its picture below
    the heading ``place``, ``mistake`` the planted one that was recognised."""

    name: str
    status: Status
    lines: tuple[str, ...] = ()
    mistake: str = ""
    call: str = ""
    place: str = ""
    rows: tuple[Row, ...] = ()
    printed: str = ""
    cases: int = 0


def check(exercise: Exercise, function: Callable[..., Any]) -> Verdict:
    cases = exercise.cases()
    if not takes(function, cases[0]):
        call = f"{exercise.name}{inspect.signature(exercise.reference)}"
        line = WORDS["how it is called"].format(call=call)
        return Verdict(exercise.name, "arguments", (line,))
    outcomes = trial.run_all(function, cases)
    expected = trial.run_all(exercise.reference, cases)
    if all(untouched(outcome, function) for outcome in outcomes):
        printed, line = outcomes[0].printed, WORDS["how to attempt"]
        return Verdict(exercise.name, "untouched", (line,), printed=printed)
    for number, outcome in enumerate(outcomes):
        if not right(exercise, expected[number], outcome):
            return failed(exercise, outcomes, expected, number)
    return passed(exercise, outcomes)


def takes(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a function that does not tell; then the call will
        return True
    return True


def untouched(outcome: Outcome, function: Callable[..., Any]) -> bool:
    if outcome.kind == "raised":
        return outcome.error == "NotImplementedError"
    if outcome.kind == "stopped":
        return False
    return outcome.value is Ellipsis or (outcome.value is None and is_stub(function))


def is_stub(function: Callable[..., Any]) -> bool:
    """Does its body do nothing: `...`, `pass`, or a docstring only?"""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    return {each.opname for each in dis.get_instructions(code)} <= STUB_CODE


def right(exercise: Exercise, expected: Outcome, outcome: Outcome) -> bool:
    if exercise.inputs == "keep" and outcome.changed:
        return False
    return agree(expected, outcome)


def agree(one: Outcome, other: Outcome) -> bool:
    if one.kind != other.kind or one.kind == "stopped":
        return False
    return one.error == other.error and values.same(one.value, other.value)


def passed(exercise: Exercise, outcomes: list[Outcome]) -> Verdict:
    changed = sorted({number for outcome in outcomes for number in outcome.changed})
    lines = []
    if changed and exercise.inputs == "note":
        names = arguments_named(exercise, changed)
        lines.append(WORDS["changed, a note"].format(arguments=names))
    lines.append(WORDS["from here on"].format(name=exercise.name))
    return Verdict(
        exercise.name,
        "passed",
        tuple(lines),
        printed=outcomes[0].printed,
        cases=len(outcomes),
    )


def failed(
    exercise: Exercise, outcomes: list[Outcome], expected: list[Outcome], number: int
) -> Verdict:
    """The verdict on case ``number``, the first that is not right."""
    outcome, arguments = outcomes[number], exercise.cases()[number]
    status, place = status_of(outcome), ""
    rows: tuple[Row, ...] = ()
    if status == "wrong":
        want, have = expected[number].value, outcome.value
        place, rows = picture(exercise, arguments, want, have)
    mistake = "" if status == "unfinished" else recognised(exercise, outcomes)
    if mistake:
        lines = [sentence(exercise.words[mistake], place)]
    else:
        lines = complaint(exercise, expected[number], outcome, status)
    if status == "raised":
        lines += error_lines(outcome)
    call = f"{exercise.name}({', '.join(values.code(each) for each in arguments)})"
    return Verdict(
        exercise.name, status, tuple(lines), mistake, call, place, rows, outcome.printed
    )


def sentence(words: str, place: str) -> str:
    """The row's label in place of {row}, with a capital where it begins."""
    told = words.replace("{row}", place or WORDS["this row"])
    return told[:1].upper() + told[1:]


def status_of(outcome: Outcome) -> Status:
    if outcome.kind == "gave":
        return "unfinished" if values.unfinished(outcome.value) else "wrong"
    if outcome.error == "NotImplementedError":
        return "unfinished"
    return outcome.kind


def recognised(exercise: Exercise, outcomes: list[Outcome]) -> str:
    """The planted mistake that answers every case as this attempt does, or ""."""
    pairs = list(zip(exercise.cases(), outcomes, strict=False))
    for name, functions in exercise.mistakes.items():
        for function in functions:
            # one case at a time: most of them part at the first
            if all(agree(trial.run(function, given), got) for given, got in pairs):
                return name
    return ""


def complaint(
    exercise: Exercise, expected: Outcome, outcome: Outcome, status: Status
) -> list[str]:
    """What to say of a case that no planted mistake explains."""
    if status == "stopped":
        return [WORDS["too slow"].format(seconds=f"{trial.SECONDS:g}")]
    if status == "raised":
        endless = outcome.error == "RecursionError"
        return [WORDS["no end of calls"]] if endless else []
    if status == "unfinished":
        return [nothing_given(exercise, outcome)]
    if odd := values.odd_part(outcome.value):
        key = "is no answer" if odd is outcome.value else "holds no answer"
        return [WORDS[key].format(what=odd.what)]
    if outcome.changed and agree(expected, outcome):
        names = arguments_named(exercise, outcome.changed)
        return [WORDS["changed, a fault"].format(arguments=names)]
    return shapes_told(expected.value, outcome.value)


def nothing_given(exercise: Exercise, outcome: Outcome) -> str:
    if outcome.value is not None or outcome.kind == "raised":
        return WORDS["still open"]
    if outcome.changed:
        names = arguments_named(exercise, outcome.changed)
        return WORDS["gives nothing but changes"].format(arguments=names)
    return WORDS["gives nothing but prints" if outcome.printed else "gives nothing"]


def shapes_told(expected: Any, got: Any) -> list[str]:
    want, have = values.shape(expected), values.shape(got)
    if not want or not have or want == have:  # a scalar's shape, [], explains nothing
        return []
    return [WORDS["other shape"].format(expected=want, got=have)]


def error_lines(outcome: Outcome) -> list[str]:
    key = "an error with words" if outcome.message else "an error"
    lines = [WORDS[key].format(error=outcome.error, message=outcome.message)]
    if outcome.line:
        lines.append(WORDS["its line"].format(line=outcome.line))
    return lines


def arguments_named(exercise: Exercise, numbers: tuple[int, ...] | list[int]) -> str:
    names = list(inspect.signature(exercise.reference).parameters)
    return ", ".join(f"`{names[number]}`" for number in numbers)


def picture(
    exercise: Exercise, arguments: tuple[Any, ...], expected: Any, got: Any
) -> tuple[str, tuple[Row, ...]]:
    """One failing row: its label, and what is given, expected and ours."""
    found = difference(exercise, arguments, expected, got)
    if found is None:  # the answer is right, and an argument was changed
        return "", ()
    number, want, have = found
    given = exercise.given(arguments, number) if exercise.given else []
    return have.label, (
        *given,
        Row(WORDS["expected"], want.cells),
        Row(WORDS["got"], have.cells),
    )


def difference(
    exercise: Exercise, arguments: tuple[Any, ...], expected: Any, got: Any
) -> tuple[int, Row, Row] | None:
    draw = exercise.draw or (lambda _, value: drawing.of_value(value))
    try:
        mine = draw(arguments, got)
    except Exception:  # an answer of another form, which this drawing does not know
        mine = []
    found = drawing.first_difference(draw(arguments, expected), mine) if mine else None
    if found:
        return found
    whole = [Row("", (drawing.Cell(value),)) for value in (expected, got)]
    return drawing.first_difference(whole[:1], whole[1:])
