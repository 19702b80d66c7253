"""The NaN microscope: where a softmax over nothing becomes NaN, and how far it gets."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill as wrapped
from typing import Any

from .. import look
from ..checkpoint import LanguageModel
from ..generate import Prompt
from . import nan_scene
from .grid import Sheet
from .instrument import Instrument
from .nan_scene import CODES, FILLS, STAGES

WORDS = {
    "name": "NaN microscope",
    "title": "{rows} rows, padding on the {side}, {layers} layers",
    "left": "left",
    "right": "right",
    "prompts": "prompts, one a line",
    # controls
    "row": "row",
    "query": "Query of row {row}",
    "steps": "layer and stage",
    "at": "layer {layer} of {layers}: {stage}",
    "stage_scores": "scores",
    "stage_weights": "weights",
    "stage_out": "weights × V",
    "stage_hidden": "hidden state",
    # the picture
    "fill_lowest": "masked with the lowest finite number",
    "fill_minus-inf": "masked with -inf",
    "said_lowest": "Lowest number",
    "said_minus-inf": "-inf",
    "values": "V",
    "out": "out",
    "hidden": "state",
    "clean": "clean",
    "poisoned": "NaN: pads from layer {pads}, real tokens from layer {real}",
    "pads_only": "NaN in the pads from layer {pads}",
    "next": "next: {token}",
    "no_next": "next: none (NaN)",
    # marks
    "finite": "a number",
    "zero": "exactly zero",
    "lowest": "the lowest finite number",
    "minus-inf": "-inf",
    "plus-inf": "+inf",
    "nan": "NaN",
    "not-yet": "not yet computed",
    # in words
    "said": "Layer {layer} of {layers}, {stage}. Row {row}, query {query}, {token}. "
    "{told}",
    "said_fill": "{fill}: {told}.",
    "said_scores": "of {keys} scores {counts}",
    "said_weights": "of {keys} weights {counts}",
    "count_f": "{count} are numbers",
    "count_z": "{count} are zero",
    "count_l": "{count} are the lowest number",
    "count_i": "{count} are -inf",
    "count_p": "{count} are +inf",
    "count_n": "{count} are NaN",
    "joined_by": ", ",
    "why_f": "what it gathers is a number",
    "why_m": "it may see nothing, so all scores are equal and it gathers the mean of "
    "all values, pads too",
    "why_b": "it may see nothing, and a softmax of -inf alone is 0 / 0: NaN",
    "why_v": "its weights are numbers, but 0 × NaN is NaN: the values at the pads are "
    "NaN",
    "why_q": "its own query is NaN, and so are its weights",
    "state_f": "the state that goes on is finite",
    "state_z": "the state that goes on is zero",
    "state_i": "the state that goes on has -inf in it",
    "state_p": "the state that goes on has +inf in it",
    "state_n": "the state that goes on is NaN",
}


def say(key: str, **values: object) -> str:
    return WORDS[key].format(**values)


class NaNMicroscope(Instrument):
    """Scores, weights and states as they are, layer by layer, two runs side by side.

    Both are real runs of one padded prefill through a softmax written by hand, with
    the classic mask (causal and padding, and no more): left pads may see nothing. One
    masks with the lowest finite number, the other with ``-inf``. A cell shows the
    worst over all heads. Raises ``InvalidInputError``.
    """

    name = "nan-microscope"

    def __init__(
        self,
        lm: LanguageModel,
        prompts: Sequence[Prompt],
        *,
        padding_side: str = "left",
    ) -> None:
        self.lm = lm
        super().__init__(prompts=prompts, padding_side=padding_side)

    def build(self, **settings: Any) -> dict[str, Any]:
        made = nan_scene.scene(self.lm, **settings)
        side, layers = WORDS[settings["padding_side"]], made["layers"]
        title = say("title", rows=len(made["rows"]), side=side, layers=layers)
        return {"title": title, **made}

    def text(self, scene: dict[str, Any]) -> str:
        return text(scene)

    def svg(self, scene: dict[str, Any]) -> str:
        return svg(scene)


# --- in words ---


def sentence(scene: dict[str, Any], state: dict[str, Any]) -> str:
    """The state in words; nan_microscope.js says the same."""
    row, query = scene["rows"][state["row"]], state["query"]
    layer, stage = divmod(state["step"], len(STAGES))
    told = [
        say("said_fill", fill=WORDS[f"said_{name}"], told=each)
        for name in FILLS
        for each in [_told(scene, name, state["row"], layer, STAGES[stage], query)]
    ]
    return say(
        "said",
        layer=layer + 1,
        layers=scene["layers"],
        stage=WORDS[f"stage_{STAGES[stage]}"],
        row=row["name"],
        query=query + 1,
        token=row["tokens"][query],
        told=" ".join(told),
    )


def _told(
    scene: dict[str, Any], name: str, row: int, layer: int, stage: str, query: int
) -> str:
    found = scene["fills"][name][row]["layers"][layer]
    if stage == "out":
        return WORDS[f"why_{scene['lines'][found['why']][query]}"]
    if stage == "hidden":
        return WORDS[f"state_{scene['lines'][found['hidden']][query]}"]
    line = scene["lines"][found[stage][query]]
    codes = [key.removeprefix("count_") for key in WORDS if key.startswith("count_")]
    counts = [
        say(f"count_{code}", count=line.count(code)) for code in codes if code in line
    ]
    told = WORDS["joined_by"].join(counts)
    return say(f"said_{stage}", keys=len(line), counts=told)


def verdict(found: dict[str, Any]) -> str:
    """What became of a row."""
    if found["real"]:
        return say("poisoned", **found)
    return say("pads_only", **found) if found["pads"] else WORDS["clean"]


def next_words(found: dict[str, Any]) -> str:
    if found["next"] is None:
        return WORDS["no_next"]
    return say("next", token=found["next"])


SIGNS = {"n": "N", "i": "-", "p": "+", "l": "_", "f": "#", "z": ".", "?": " "}


def text(scene: dict[str, Any]) -> str:
    """Both runs: each row's states by layer and what became of it; at most 80 columns
    for prompts that are not longer."""
    parts = [scene["title"]]
    for name in FILLS:
        parts += ["", WORDS[f"fill_{name}"]]
        for row, found in zip(scene["rows"], scene["fills"][name], strict=True):
            parts.append(f"{row['name']}  {row['prompt'][:40]}")
            parts.append(f"   {verdict(found)}; {next_words(found)}")
            parts += [
                f"   {number} {_signs(scene['lines'][layer['hidden']])}"
                for number, layer in enumerate(found["layers"], 1)
            ]
    parts += ["", f"# {WORDS['finite']}   N {WORDS['nan']}"]
    return "\n".join([*parts, "", wrapped(sentence(scene, still_state(scene)), 78)])


def _signs(line: str) -> str:
    return "".join(SIGNS[code] for code in line)


def still_state(scene: dict[str, Any]) -> dict[str, Any]:
    """Where most is to be seen at once: layer 2, at what the last real token of the
    opening row gathers."""
    row = scene["opens"]["row"]
    layer = min(1, scene["layers"] - 1)
    query = scene["rows"][row]["kinds"].rindex("r")
    return {"row": row, "query": query, "step": layer * 4 + STAGES.index("out")}


# --- as a still ---

PANEL = 470


def svg(scene: dict[str, Any]) -> str:
    """Both runs side by side: all rows' states, and one matrix of weights."""
    sheet, state = Sheet(), still_state(scene)
    below = max(
        _still_rows(sheet, scene, name, 14 + PANEL * place)
        for place, name in enumerate(FILLS)
    )
    for place, name in enumerate(FILLS):
        _still_matrix(sheet, scene, name, state, 14 + PANEL * place, below + 14)
    x, y = 14.0, sheet.height + 26
    for mark in ("finite", "zero", "nan"):
        sheet.mark(mark, x, y - 11, 14, scene["rows"][state["row"]]["hue"])
        sheet.write(WORDS[mark], x + 20, y)
        x += 48 + 6.7 * len(WORDS[mark])
    return sheet.svg(f"{WORDS['name']}: {scene['title']}")


def _still_rows(sheet: Sheet, scene: dict[str, Any], name: str, x: float) -> float:
    size = max(4.0, min(12.0, 400 // scene["width"], 120 // scene["layers"]))
    sheet.write(WORDS[f"fill_{name}"], x, 24, more='font-weight="bold"')
    y = 46.0
    for row, found in zip(scene["rows"], scene["fills"][name], strict=True):
        sheet.write(f"{row['name']}  {verdict(found)}", x, y)
        sheet.write(f"→ {found['next'] or WORDS['nan']}", x + 420, y)
        _still_layers(sheet, scene, found, x + 18, y + 8, size, row["hue"])
        y += 30 + size * scene["layers"]
    return y


def _still_layers(
    sheet: Sheet,
    scene: dict[str, Any],
    found: dict[str, Any],
    x: float,
    y: float,
    size: float,
    hue: str,
) -> None:
    lines = [scene["lines"][layer["hidden"]] for layer in found["layers"]]
    sheet.grid(_marks(lines), x, y, size, hue)
    stride = 1 if size >= 10 else 5
    for number in range(0, len(lines), stride):
        sheet.write(str(number + 1), x - 5, y + size * number + 9, "end", look.FAINT)


def _still_matrix(
    sheet: Sheet,
    scene: dict[str, Any],
    name: str,
    state: dict[str, Any],
    x: float,
    y: float,
) -> None:
    """Weights of one row in one layer; V above them, and at the right what came out."""
    row = scene["rows"][state["row"]]
    layer = scene["fills"][name][state["row"]]["layers"][state["step"] // 4]
    size = max(5.0, min(15.0, 330 // scene["width"]))
    stage, number = WORDS["stage_weights"], state["step"] // 4 + 1
    at = say("at", layer=number, layers=scene["layers"], stage=stage)
    sheet.write(f"{row['name']}, {at}", x, y, more='font-weight="bold"')
    left, top, hue = x + 76, y + 40, row["hue"]
    values, out = (_marks([scene["lines"][layer[key]]]) for key in ("values", "out"))
    sheet.write(WORDS["values"], left - 8, top - 10, "end", look.FAINT)
    sheet.grid(values, left, top - 8 - size, size, hue)
    sheet.grid(
        _marks([scene["lines"][n] for n in layer["weights"]]), left, top, size, hue
    )
    right = left + size * scene["width"] + 8
    sheet.grid([[mark] for mark in out[0]], right, top, size, hue)
    sheet.write(WORDS["out"], right - 2, top - 10, colour=look.FAINT)
    for place, token in enumerate(row["tokens"]):
        sheet.write(token[:9], left - 8, top + size * (place + 0.5) + 4, "end")


def _marks(lines: list[str]) -> list[list[str]]:
    return [[CODES[code] for code in line] for line in lines]
