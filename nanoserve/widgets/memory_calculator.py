"""The memory calculator: how many sequences' K and V fit beside a model's weights."""

from __future__ import annotations

from textwrap import wrap
from typing import Any, ClassVar

from .. import look
from . import cells, memory_scene
from .instrument import Instrument

WORDS = {
    "name": "Memory calculator",
    "title": "{model}, {context} tokens, {card} GB",
    # what can be chosen
    "model": "model",
    "weights": "weights",
    "kv": "K and V",
    "context": "tokens a sequence",
    "card": "memory of the card",
    "share": "gpu_memory_utilization",
    "card_of": "{gb} GB ({examples})",
    # numbers
    "gb": "{count} GB",
    "mb": "{count} MB",
    "bytes": "{count} bytes",
    "one_byte": "1 byte",
    "none": "none",
    # what it comes to
    "fits": "{model} in {weights} on {card} GB: {left} are left for K and V. A "
    "sequence of {context} tokens in {kv} takes {sequence}, so {fit} fit whole.",
    "fits_one": "{model} in {weights} on {card} GB: {left} are left for K and V. A "
    "sequence of {context} tokens in {kv} takes {sequence}, so 1 fits whole.",
    "fits_none": "{model} in {weights} on {card} GB: {left} are left for K and V. A "
    "sequence of {context} tokens in {kv} takes {sequence}, so not one fits whole.",
    "too_large": "{model} in {weights} does not fit on {card} GB: its weights alone "
    "take {weights_gb}, and there are {used} to use. No sequence can be served.",
    # the bar
    "part_weights": "weights: {gb}",
    "part_sequences": "K and V of {fit} sequences: {gb}",
    "part_sequence": "K and V of 1 sequence: {gb}",
    "part_rest": "left over, too little for one more: {gb}",
    "part_others": "not to be used: {gb}",
    "part_beyond": "for which there is no room: {gb}",
    # the sums
    "token_is": "one token",
    "token_sum": "2 × {layers} layers × {kv_heads} KV heads × {head_dim} numbers × "
    "{bytes} = {token}",
    "sequence_is": "one sequence",
    "sequence_sum": "{token} × {context} tokens = {sequence_bytes} bytes = {sequence}",
    "weights_is": "the weights",
    "weights_sum": "{parameters} × {bytes} = {weights_bytes} bytes = {weights_gb}",
    "left_is": "left for KV",
    "left_sum": "{share} % of {card} GB − the weights = {left_bytes} bytes = {left}",
    "left_nothing": "{share} % of {card} GB − the weights: less than nothing",
    "fit_is": "sequences",
    "fit_sum": "{left_bytes} ÷ {sequence_bytes}, rounded down: {fit}",
    "gib_note": "GB is 10^9 bytes. If the {card} on the card are GiB (2^30 bytes), "
    "{gib_used} can be used; sequences that fit then: {gib_fit}.",
    "not_counted": "Not counted: activations, the runtime, and the scales of small "
    "weights. On a server they take a part of what is left here.",
}
WEIGHTS_HUE, KV_HUE, BEYOND_HUE = look.FAINT, look.HUES[0], look.HUES[5]
MOST_DRAWN = 64  # sequences, one by one; more are one piece


def say(key: str, **values: object) -> str:
    return WORDS[key].format(**values)


class MemoryCalculator(Instrument):
    """How many sequences fit: card, less weights, by the K and V of one sequence.

    All choices are those of ``memory_scene``. ``weights`` and ``kv`` are formats,
    ``context`` is tokens a sequence (without one, 8,192, or as many as the model was
    made for if that is less), ``card`` is GB of 10^9 bytes, and
    ``gpu_memory_utilization`` is vLLM's name for the share of it to be used. Opens with
    the example of a well-known text on batching, all of an 80 GB card counted. Raises
    ``InvalidInputError`` for what is not among the choices.
    """

    name: ClassVar[str] = "memory-calculator"

    def __init__(
        self,
        model: str = "Llama-3-70B",
        *,
        weights: str = "int4",
        kv: str = "bf16",
        context: int | None = None,
        card: int = 80,
        gpu_memory_utilization: float = 1.0,
    ) -> None:
        super().__init__(
            model=model,
            weights=weights,
            kv=kv,
            context=context,
            card=card,
            gpu_memory_utilization=gpu_memory_utilization,
        )

    def build(self, **settings: Any) -> dict[str, Any]:
        made = memory_scene.scene(**settings)
        return {"title": title(made["opens"]), **made}

    def text(self, scene: dict[str, Any]) -> str:
        return text(scene)

    def svg(self, scene: dict[str, Any]) -> str:
        return svg(scene)


# --- in words; the calculator says the same in JavaScript ---


def told(scene: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    """All that is said about a state: ``sentence``, the ``sums`` as (what, sum), the
    ``parts`` of the bar as (kind, bytes, words), and ``notes``."""
    counts = memory_scene.sums(scene, state)
    values = _values(scene, state, counts)
    return {
        "sentence": say(_verdict(counts), **values),
        "sums": _sums(counts, values),
        "parts": _parts(state, counts),
        "notes": [say("gib_note", **values), WORDS["not_counted"]],
    }


def title(state: dict[str, Any]) -> str:
    return say("title", **{**state, "context": f"{state['context']:,}"})


def gb(count: int) -> str:
    """Bytes as GB, or as MB if there are few, to three digits."""
    key, unit = ("gb", 1e9) if count >= 1e9 else ("mb", 1e6)
    return say(key, count=f"{count / unit:#.3g}".removesuffix("."))


def _bytes(count: float) -> str:
    return WORDS["one_byte"] if count == 1 else say("bytes", count=count)


def _fit(count: int) -> str:
    return f"{count:,}" if count else WORDS["none"]


def _values(
    scene: dict[str, Any], state: dict[str, Any], counts: dict[str, int]
) -> dict[str, object]:
    model, _ = memory_scene.chosen(scene, state)
    return {
        **model,
        **state,
        "context": f"{state['context']:,}",
        "parameters": f"{model['parameters']:,}",
        "token": f"{counts['token']:,}",
        "sequence_bytes": f"{counts['sequence']:,}",
        "weights_bytes": f"{counts['weights']:,}",
        "left_bytes": f"{counts['left']:,}",
        "fit": _fit(counts["fit"]),
        "gib_fit": _fit(counts["gib_fit"]),
        "sequence": gb(counts["sequence"]),
        "weights_gb": gb(counts["weights"]),
        "used": gb(counts["used"]),
        "left": gb(counts["left"]),
        "gib_used": gb(counts["gib"]),
    }


def _verdict(counts: dict[str, int]) -> str:
    if counts["left"] < 0:
        return "too_large"
    return {0: "fits_none", 1: "fits_one"}.get(counts["fit"], "fits")


def _sums(counts: dict[str, int], values: dict[str, Any]) -> list[list[str]]:
    number = _bytes(memory_scene.KV[values["kv"]])
    weight = _bytes(memory_scene.WEIGHTS[values["weights"]])
    lines = {
        "token": say("token_sum", **values, bytes=number),
        "sequence": say("sequence_sum", **values),
        "weights": say("weights_sum", **values, bytes=weight),
    }
    if counts["left"] < 0:
        lines["left"] = say("left_nothing", **values)
    else:
        lines["left"] = say("left_sum", **values)
        lines["fit"] = say("fit_sum", **values)
    return [[WORDS[f"{what}_is"], line] for what, line in lines.items()]


def _parts(state: dict[str, Any], counts: dict[str, int]) -> list[list[Any]]:
    """What the bar is made of, from its left: (kind, bytes, words)."""
    if counts["left"] < 0:
        parts = {"weights": counts["used"], "beyond": -counts["left"]}
    else:
        held = counts["fit"] * counts["sequence"]
        parts = {"weights": counts["weights"], "sequences": held}
        parts |= {"rest": counts["rest"]}
        parts |= {"others": state["card"] * 10**9 - counts["used"]}
    return [
        [kind, count, _part_words(kind, count, counts)]
        for kind, count in parts.items()
        if count
    ]


def _part_words(kind: str, count: int, counts: dict[str, int]) -> str:
    one = kind == "sequences" and counts["fit"] == 1
    key = "part_sequence" if one else f"part_{kind}"
    whole = counts["weights"] if kind == "weights" else count
    return say(key, gb=gb(whole), fit=_fit(counts["fit"]))


def text(scene: dict[str, Any]) -> str:
    """What it opens with, in plain text of at most 80 columns."""
    said = told(scene, scene["opens"])
    room = cells.widest([what for what, _ in said["sums"]]) + 2
    sums = [
        line
        for what, said_sum in said["sums"]
        for line in wrap(f"{what:<{room}}{said_sum}", 80, subsequent_indent=" " * room)
    ]
    parts = [words for _, _, words in said["parts"]]
    blocks = [wrap(said["sentence"], 80), sums, parts]
    blocks += [wrap(note, 80) for note in said["notes"]]
    return "\n\n".join("\n".join(lines) for lines in blocks)


# --- as a still ---

LEFT, TOP, WIDE, TALL, LINE = 14, 70, 720, 44, 20
STILL = {  # kind of a part: how it is drawn, and its hue
    "weights": ("bar", WEIGHTS_HUE),
    "sequences": ("prompt", KV_HUE),
    "rest": ("bare", look.FAINT),
    "others": ("generated", look.FAINT),
    "beyond": ("generated", BEYOND_HUE),
}


def svg(scene: dict[str, Any]) -> str:
    """One SVG on its own paper: the sentence, the bar, its parts, the sums."""
    still, said = cells.Still(), told(scene, scene["opens"])
    for number, line in enumerate(wrap(said["sentence"], 104)):
        still.write(LEFT, 26 + number * 16, line, "start", more=cells.BOLD)
    _bar(still, said["parts"], memory_scene.sums(scene, scene["opens"])["fit"])
    y = TOP + TALL + 28
    for kind, _, words in said["parts"]:
        still.box(*STILL[kind], LEFT, y - 10, 18, 12)
        still.write(LEFT + 26, y, words, "start")
        y += LINE
    y += 8
    for what, line in said["sums"]:
        still.write(LEFT, y, what, "start", look.FAINT)
        still.write(LEFT + 100, y, line, "start")
        y += LINE
    return still.svg(LEFT + WIDE + 14, y, scene["title"])


def _bar(still: cells.Still, parts: list[list[Any]], fit: int) -> None:
    scale, x = WIDE / sum(count for _, count, _ in parts), float(LEFT)
    for kind, count, _ in parts:
        wide = scale * count
        pieces = fit if kind == "sequences" and fit <= MOST_DRAWN else 1
        for piece in range(pieces):
            left = x + piece * wide / pieces
            room = max(wide / pieces - 1, 0.5)
            still.box(*STILL[kind], left, TOP, room, TALL)
        x += wide
    if parts[-1][0] == "beyond":  # here the card ends
        end = LEFT + scale * parts[0][1]
        still.box("bar", look.INK, end - 2, TOP - 6, 4, TALL + 12)
