"""What all instruments share: a scene, a still, and a place in a page.

Python computes a *scene* from a real run: JSON, the same bytes on every machine. The
JavaScript draws it and counts nothing anew. The same scene is drawn live in a
notebook, stands as a picture with its steps where there is no kernel, and moves again
in a page of the offline edition.

An instrument named "mask-explorer" is the module ``mask_explorer`` here, with its
table of ``WORDS``, and the files ``mask_explorer.js`` and (if any) ``.css``.
"""

from __future__ import annotations

from functools import cache
from html import escape
from importlib import import_module
from typing import Any, ClassVar

import anywidget
import traitlets

from .. import picture
from ..errors import NanoserveError
from . import grid, standalone
from .standalone import HERE, in_script

NAMES = (
    "padding-explorer",
    "mask-explorer",
    "nan-microscope",
    "compare-alone",
    "memory-calculator",
)
SCRIPTS = ("dom.js", "grid.js", "instrument.js")  # before each instrument's own
STYLES = (*standalone.STYLES, "instrument.css")

# Words that all of them need; an instrument's own table comes on top.
WORDS = {
    "steps_as_text": "the same as text",
    "no_kernel": "To type prompts of your own, run the notebook.",
    "back": "One step back",
    "play": "Play",
    "pause": "Pause",
    "forward": "One step forward",
    "steps": "step",
}

BOOT = """
for (const place of document.querySelectorAll("[data-instrument]")) {
  const data = JSON.parse(place.querySelector("script").textContent);
  window.instrument = place.instrument = mount(place, data);
}
"""


class Instrument(anywidget.AnyWidget):
    """An instrument of the course. A subclass says

    ``name``    one of ``NAMES``
    ``build``   settings to a scene, which may raise a ``NanoserveError``
    ``text``    a scene as plain text of at most 80 columns
    ``svg``     a scene as a still picture

    A scene holds at least ``title`` (one line) and ``opens`` (the state it is shown
    in first), and with a field for prompts ``prompts``, as they were typed.
    """

    name: ClassVar[str] = ""
    _esm = ""
    _scene = traitlets.Dict().tag(sync=True)
    _words = traitlets.Dict().tag(sync=True)
    _look = traitlets.Dict().tag(sync=True)
    _asked = traitlets.Dict().tag(sync=True)  # what the page wants to see instead
    _problem = traitlets.Unicode().tag(sync=True)  # why it cannot

    def __init_subclass__(cls, **options: Any) -> None:
        if "name" in vars(cls):  # traitlets subclasses it once more, with traits
            cls._esm, cls._css = script(cls.name), styles(cls.name)
        super().__init_subclass__(**options)

    def __init__(self, **settings: Any) -> None:
        self.settings = settings
        data = page_data(self.scene_of(settings))
        super().__init__(**{f"_{name}": value for name, value in data.items()})

    def build(self, **settings: Any) -> dict[str, Any]:
        raise NotImplementedError

    def text(self, scene: dict[str, Any]) -> str:
        raise NotImplementedError

    def svg(self, scene: dict[str, Any]) -> str:
        raise NotImplementedError

    # --- what is shown ---

    @property
    def scene(self) -> dict[str, Any]:
        """What is drawn now, as JSON."""
        shown: dict[str, Any] = self._scene
        return shown

    def scene_of(self, settings: dict[str, Any]) -> dict[str, Any]:
        return {"instrument": self.name, **self.build(**settings)}

    def show(self, **settings: Any) -> None:
        """Run again with other settings, by the constructor's names, and draw that.

        Raises what the constructor raises; the picture stays as it was then.
        """
        together = {**self.settings, **settings}
        self._scene = self.scene_of(together)
        self.settings = together

    def typed(self, lines: str) -> list[Any]:
        """The prompts in a text field: one a line."""
        return [line for line in lines.split("\n") if line.strip()]

    @traitlets.observe("_asked")
    def _answer(self, change: dict[str, Any]) -> None:
        asked = {key: value for key, value in change["new"].items() if key != "nth"}
        try:
            if "prompts" in asked:
                asked["prompts"] = self.typed(asked["prompts"])
            self.show(**asked)
        except NanoserveError as error:
            self._problem = str(error)
        else:
            self._problem = ""

    # --- what stays when the widget is gone ---

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.scene['title']})"

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        view = super()._repr_mimebundle_()
        data, metadata = view if view is not None else ({}, {})
        return {**data, **self.still_bundle()}, metadata

    def still_bundle(self) -> dict[str, Any]:
        """Always the same for the same scene."""
        drawn, told = self.svg(self.scene), self.text(self.scene)
        title = f"{words_of(self.name)['name']}: {self.scene['title']}"
        still = picture.still(drawn, title, told, WORDS["steps_as_text"])
        return {**still, mime_type(self.name): self.scene}


def mime_type(name: str) -> str:
    """Under which a notebook stores the scene."""
    return f"application/vnd.nanoserve.{name}+json"


def words_of(name: str) -> dict[str, str]:
    module = import_module(f".{name.replace('-', '_')}", __package__)
    return {**WORDS, **module.WORDS}


# --- in a page of its own: no kernel, no network ---


def page_data(scene: dict[str, Any]) -> dict[str, Any]:
    """All that ``mount`` needs, as JSON: a stored scene has no words of its own."""
    words = words_of(scene["instrument"])
    return {"scene": scene, "words": words, "look": grid.for_script()}


@cache
def script(*names: str) -> str:
    """These instruments as one JavaScript module, without a build step."""
    shared = [standalone.without_imports(HERE / each) for each in SCRIPTS]
    files = (f"{name.replace('-', '_')}.js" for name in names if name)
    # each in a block of its own: two may call a thing by the same name
    own = [f"{{\n{standalone.without_imports(HERE / each)}\n}}" for each in files]
    return "\n".join([*shared, *own])


@cache
def styles(*names: str) -> str:
    own = (HERE / f"{name.replace('-', '_')}.css" for name in names if name)
    files = [
        *(HERE / name for name in STYLES),
        *filter(lambda path: path.exists(), own),
    ]
    return "\n".join(path.read_text("utf-8") for path in files)


def element(scene: dict[str, Any], still: str = "") -> str:
    """The place of one instrument in a page; ``still`` is shown without JavaScript."""
    data = in_script(page_data(scene))
    return (
        f'<div data-instrument="{scene["instrument"]}">'
        f'<script type="application/json">{data}</script>'
        f"<noscript>{still}</noscript></div>"
    )


def boot_script(*names: str) -> str:
    """A module that mounts every instrument of its page; these are among them."""
    return script(*names) + BOOT


def instrument_html(*shown: Instrument, title: str = "nanoserve") -> str:
    """A whole page with these instruments, one below the other."""
    names = sorted({each.name for each in shown})
    stills = (each.still_bundle()["text/html"] for each in shown)
    places = [
        element(each.scene, still) for each, still in zip(shown, stills, strict=True)
    ]
    return standalone.PAGE.format(
        lang="en",
        title=escape(title),
        styles=styles(*names),
        script=boot_script(*names),
        player="\n".join(places),
    )
