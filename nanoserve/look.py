"""One look: the colours, patterns and words of every picture, in one place.

Requests take the hues of Okabe and Ito (2008), which stay apart for colour-blind
eyes; a state never rests on colour alone, but on a pattern too. A still picture brings
its own paper, so that it reads the same on a light page, a dark one and in print.
"""

from __future__ import annotations

HUES = (
    "#0072b2",  # blue
    "#e69f00",  # orange
    "#009e73",  # green
    "#cc79a7",  # pink
    "#56b4e9",  # sky
    "#d55e00",  # vermilion
    "#8c6bb1",  # violet
    "#999933",  # olive
)
PAPER = "#fdfdfb"
INK = "#24292f"
FAINT = "#6b727b"

# Every word that stands in a picture. The player gets this table too, so a Chinese
# edition is one more table of the same keys; a test holds that each key is used.
WORDS = {
    # states
    "pad": "pad",
    "prefill": "prompt",
    "decode": "generated",
    "finished": "finished, still held",
    "idle": "idle",
    # a still picture
    "steps": "the steps as text",
    # a pass, slot by slot; of more than MOST_TOLD slots only sums are told
    "pass_is": "pass {number}: {slots}",
    "pass_many": "pass {number}: {decode} slots decode, {prefill} prefill, "
    "{finished} finished and still held, {idle} idle; {ends} end here",
    "slot_idle": "slot {slot} idle",
    "slot_finished": "slot {slot} finished, held by {request}",
    "slot_prefill": "slot {slot} prefills {request}",
    "slot_decode": "slot {slot} decodes {request}",
    "slot_token": "{said}: {token}",
    "slot_ends": "{said} and ends ({reason})",
    "joined_by": "; ",
    # the player
    "player": "Slot player: {titles}",
    "title": "{engine}, {slots} slots, {passes} passes",
    "size": "{slots} slots · {passes} passes · {requests} requests",
    "versus": " above, ",
    "below": "{title} below",
    "empty": "Nothing has run yet: this trace holds no pass.",
    "no_pass": "no pass: nobody is here, the clock jumps",
    "done": "done after {passes} passes",
    "of_engine": "{engine}, {said}",
    "axis": "pass",
    "clock": "clock {clock}",
    "waiting": "waiting",
    "nobody": "nobody",
    "asks": "{prompt} in, ≤ {limit} out",
    "since_pass": "since pass {clock}",
    "since_clock": "since clock {clock}",
    "at_pass": "at pass {clock}",
    "at_clock": "at clock {clock}",
    "more": "and {count} more",
    "to_come": "{count} to come, next {when}",
    "kv": "KV of {capacity}",
    "useful_share": "useful slots",
    "share": "{useful} of {slots}",
    "now": "pass {number} of {passes}",
    "scrubbed": "pass {number} of {passes}: {shares}",
    "cells": "Slots of this pass: {title}",
    "tip_pass": "pass {number}, {said}",
    "tip_prompt": "{fed} of the prompt fed, {pads} pads beside it",
    "tip_token": "token {nth} of at most {limit}",
    "tip_kv": "KV {kv} of {capacity}",
    "previous_event": "Previous event: a request joins, ends or loses its seat",
    "back": "One pass back",
    "play": "Play",
    "pause": "Pause",
    "forward": "One pass forward",
    "next_event": "Next event: a request joins, ends or loses its seat",
    "speed": "speed",
    "rate": "{rate} passes a second",
    "zoom_out": "Show more passes",
    "zoom_in": "Show larger cells",
    "table": "this pass and the seats as tables",
    "table_pass": "{engine}: this pass",
    "table_seats": "{engine}: who used the seats so far",
    "column_slot": "slot",
    "column_state": "state",
    "column_request": "request",
    "column_token": "token made",
    "column_kv": "KV held",
    "column_useful": "useful",
    "column_held": "held after its end",
    # the bill
    "bill": "the bill so far: {engine}",
    "passes": "passes",
    "empty_seats": "empty seats",
    "of": "of {total}",
    "group_seats": "slot-steps",
    "useful_slot_steps": "useful",
    "wasted_slot_steps": "wasted",
    "idle_slot_steps": "idle",
    "group_tokens": "tokens",
    "generated_tokens": "made",
    "prompt_tokens": "of prompts",
    "pad_tokens": "pads",
    "group_kv": "KV token-steps",
    "kv_live_token_steps": "live",
    "kv_finished_token_steps": "finished",
    "kv_free_token_steps": "free",
}
MOST_TOLD = 8


def say(key: str, **values: object) -> str:
    """A sentence of ``WORDS``; the player's JavaScript fills them in alike.

    >>> say("slot_finished", slot=1, request="B")
    'slot 1 finished, held by B'
    """
    return WORDS[key].format(**values)


def for_script() -> dict[str, object]:
    """What the player must know of all this, ready for JSON."""
    return {"hues": list(HUES), "mostTold": MOST_TOLD}


def hue(index: int) -> str:
    """A request keeps its colour from the queue to the bill."""
    return HUES[index % len(HUES)]
