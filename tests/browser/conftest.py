"""A real browser for the instruments. Without one these tests are left out, and the
summary says so in one line; in CI that is a failure."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PLACES = (
    "/usr/bin/chromium",
    "/snap/bin/chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str | None:
    found = [os.environ.get("CHROMIUM"), *map(shutil.which, NAMES), *PLACES]
    return next((path for path in found if path and Path(path).exists()), None)


def missing() -> str:
    try:
        import axe_playwright_python
        import playwright  # noqa: F401
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed: make setup"
    assert axe_playwright_python
    if find_chromium() is None:
        return "no chromium found: apt install chromium, or set CHROMIUM to its path"
    return ""


# Of a module, not of the session: while it is open, Playwright keeps an event loop
# running in this thread, and a later test's asyncio.run would fail.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One chromium for a module."""
    reason = missing()
    if reason and os.environ.get("CI"):
        pytest.fail(f"browser tests must run in CI: {reason}")
    if reason:
        pytest.skip(f"browser tests left out: {reason}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=find_chromium(), args=ARGUMENTS
        )
        yield chromium
        chromium.close()
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


class Pages:
    """Pages with the network cut, opened once and used again: a new one costs a
    second, and a document loaded anew has no memory of the one before."""

    VIEWPORT = {"width": 1000, "height": 900}
    LOOK = {"color_scheme": "light", "reduced_motion": "no-preference"}

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.free: dict[tuple[Any, ...], list[Any]] = {}
        self.used: list[tuple[tuple[Any, ...], Any]] = []
        self.outside: list[str] = []
        self.complaints: list[str] = []

    def open(self, url: str, viewport: Any = VIEWPORT, **options: Any) -> Any:
        look = {key: options.pop(key, usual) for key, usual in self.LOOK.items()}
        key = tuple(sorted(options.items()))
        free = self.free.setdefault(key, [])
        page = free.pop() if free else self.new(**options)
        self.used.append((key, page))
        page.set_viewport_size(viewport)
        page.emulate_media(media="null", **look)
        page.goto(url)
        return page

    def new(self, **options: Any) -> Any:
        context = self.browser.new_context(**options)
        context.route("**/*", self.ask)
        context.set_offline(True)
        page = context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text))
        return page

    def ask(self, route: Any) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            self.outside.append(route.request.url)
            route.abort()

    def leave(self) -> tuple[list[str], list[str]]:
        """Empty the pages; gives who asked for the network, and what was said."""
        for key, page in self.used:
            page.mouse.move(0, 0)
            page.goto("about:blank")
            self.free[key].append(page)
        heard = self.outside[:], self.complaints[:]
        for each in (self.used, self.outside, self.complaints):
            each.clear()
        return heard


@pytest.fixture(scope="module")
def pages(browser: Any) -> Pages:
    return Pages(browser)


@pytest.fixture
def open_page(pages: Pages, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open HTML, or a file, from disk with the network cut; nothing may ask for it,
    nothing may complain. Further arguments are those of a Playwright context."""

    def open_(html: str | Path, **options: Any) -> Any:
        path = html if isinstance(html, Path) else tmp_path / f"{len(pages.used)}.html"
        if path != html:
            path.write_text(html, "utf-8")
        return pages.open(path.as_uri(), **options)

    yield open_
    assert pages.leave() == ([], [])
