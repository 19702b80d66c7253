"""The slot player in a page of its own: no kernel, no network, one file.

For the offline edition and for a server's ``/slots``. Needs no widget library.
"""

from __future__ import annotations

import json
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from .. import look, picture
from ..errors import invalid
from ..trace import SlotTrace

HERE = Path(__file__).parent
# Joined in this order they are one module; each is plain enough to be read alone.
SCRIPTS = (
    "dom.js",
    "read.js",
    "brush.js",
    "draw.js",
    "panel.js",
    "controls.js",
    "slot_player.js",
)
STYLES = ("look.css", "slot_player.css")

PAGE = """<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ margin: 0; background: #fdfdfb; font-family: system-ui, sans-serif; }}
main {{ max-width: 1600px; margin: auto; }}
h1 {{ margin: 0; padding: 18px 18px 0; font-size: 20px; color: #1f2328; }}
@media (prefers-color-scheme: dark) {{
  body {{ background: #17191c; }}
  h1 {{ color: #eceef1; }}
}}
@media print {{ body {{ background: #fff; }} h1 {{ color: #000; padding: 0 0 12px; }} }}
{styles}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{player}
</main>
<script type="module">
{script}
</script>
</body>
</html>
"""
# The one script of a page, however many players stand in it.
BOOT = """
for (const place of document.querySelectorAll("[data-slot-player]")) {
  const data = JSON.parse(place.querySelector("script").textContent);
  window.player = place.player = mount(place, data);
}
"""


@cache
def script() -> str:
    """The player as one JavaScript module, without a build step."""
    return "\n".join(without_imports(HERE / name) for name in SCRIPTS)


@cache
def styles() -> str:
    return "\n".join((HERE / name).read_text("utf-8") for name in STYLES)


def without_imports(path: Path) -> str:
    # every import stands on one line, and names something that is joined here too
    lines = path.read_text("utf-8").splitlines()
    return "\n".join(line for line in lines if not line.startswith("import "))


def as_traces(trace: Any, below: Any = None) -> list[SlotTrace]:
    """One or two traces, or what ``to_dict`` stored of them.

    Raises ``InvalidInputError`` for anything else, and for another format.
    """
    given = [trace] if below is None else [trace, below]
    return [_as_trace(each) for each in given]


def _as_trace(given: Any) -> SlotTrace:
    if isinstance(given, SlotTrace):
        return given
    if isinstance(given, dict):
        return SlotTrace.from_dict(given)
    hint = "; an engine has one: engine.trace" if hasattr(given, "trace") else ""
    raise invalid("trace", given, f"must be a SlotTrace{hint}")


def player_data(*traces: SlotTrace) -> dict[str, Any]:
    """All that ``mount`` needs, as JSON."""
    return {
        "traces": [trace.to_dict() for trace in traces],
        "look": look.for_script(),
        "words": dict(look.WORDS),
    }


def player_element(trace: Any, below: Any = None, **start: Any) -> str:
    """The place of one player in a page that has ``styles()`` and ``boot_script()``.

    Traces are ``SlotTrace`` or its ``to_dict()``; ``start`` may name ``pass``,
    ``playing`` and ``speed``. Raises ``InvalidInputError``. Where scripts do not run,
    the still picture stands.
    """
    traces = as_traces(trace, below)
    still = "".join(picture.mime_bundle(each)["text/html"] for each in traces)
    data = in_script(player_data(*traces) | start)
    return (
        f'<div data-slot-player><script type="application/json">{data}</script>'
        f"<noscript>{still}</noscript></div>"
    )


def boot_script() -> str:
    """A module that mounts every player of its page."""
    return script() + BOOT


def player_html(
    trace: Any,
    below: Any = None,
    *,
    title: str = "nanoserve",
    lang: str = "en",
    **start: Any,
) -> str:
    """A whole page with the player of one trace, or of two on one clock."""
    return PAGE.format(
        lang=escape(lang),
        title=escape(title),
        styles=styles(),
        script=boot_script(),
        player=player_element(trace, below, **start),
    )


def in_script(data: Any) -> str:
    """JSON that may stand inside a script element: a token may be ``</script>``."""
    return json.dumps(data, ensure_ascii=False).replace("<", "\\u003c")
