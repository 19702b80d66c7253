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
    """One chromium for a module, each test in a fresh profile of its own."""
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


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open HTML, or a file, from disk with the network cut; nothing may ask for it,
    nothing may complain. Further arguments are those of a Playwright context."""
    contexts, outside, complaints = [], [], []

    def ask(route: Any) -> None:
        if route.request.url.startswith("file:"):
            route.continue_()
        else:
            outside.append(route.request.url)
            route.abort()

    def open_(html: str | Path, **options: Any) -> Any:
        path = html if isinstance(html, Path) else tmp_path / f"{len(contexts)}.html"
        if path != html:
            path.write_text(html, "utf-8")
        viewport = {"width": 1000, "height": 900}
        context = browser.new_context(**{"viewport": viewport, **options})
        contexts.append(context)
        context.route("**/*", ask)
        context.set_offline(True)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text))
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert outside == []
    assert complaints == []
