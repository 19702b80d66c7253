"""JupyterLab as `make lab` starts it, with settings and progress of its own."""

from __future__ import annotations

import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nanoserve.course import lab

ROOT = Path(__file__).parents[2]
# The line below the notebook. Its other sign, a circle, says "idle" already while
# there is no kernel; cells run then lose their outputs, and nothing runs.
READY = '#jp-main-statusbar >> text="Python 3 (ipykernel) | Idle"'

# A quick lesson is through between two looks at its prompts: so each change is seen.
WATCH = """() => {
  window.busy = () => [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")]
    .some((each) => each.textContent === "[*]:");
  window.begun = false;
  new MutationObserver(() => { window.begun ||= window.busy(); })
    .observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


@contextmanager
def started(folder: Path, home: Path) -> Iterator[str]:
    """Lab in `folder`; whatever it keeps goes to `home`. Gives its address."""
    kept = {f"JUPYTER_{name}_DIR": str(home / name) for name in ("CONFIG", "DATA")}
    kept |= {f"JUPYTERLAB_{name}_DIR": str(home / name) for name in ("WORKSPACES",)}
    kept |= {"NANOSERVE_PROGRESS": str(home / "progress.json")}
    kept |= {"NANOSERVE_CACHE": str(home / "cache")}  # nothing has been fetched
    kept |= {"PYTHONPATH": str(ROOT)}
    more = ["--no-browser", "--port=0", "--IdentityProvider.token="]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(
            [*lab.command(more), "--LabApp.extension_manager=readonly"],
            cwd=folder,
            stderr=log,
            env=os.environ | kept,
        )
        try:
            yield address(home / "log", server)
        finally:
            server.terminate()
            _ended(server)


def _ended(server: subprocess.Popen[bytes]) -> None:
    """A server that still waits for its kernels on a busy machine fails no test."""
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        server.kill()  # its kernels see that it is gone, and end
        server.wait()


def address(log: Path, server: subprocess.Popen[bytes]) -> str:
    """Where it says that it listens, once it answers."""
    for _ in range(240):
        found = re.search(r"http://(localhost|127\.0\.0\.1):\d+/", log.read_text())
        if found:
            try:
                urllib.request.urlopen(found[0] + "api", timeout=5)
                return found[0]
            except OSError:
                pass
        assert server.poll() is None, log.read_text()
        time.sleep(0.5)
    raise AssertionError(log.read_text())


def run_all(page: Any) -> None:
    """Run > Run All Cells, once the kernel is there; returns when all have run."""
    page.wait_for_selector(READY, timeout=120_000)
    page.evaluate(WATCH)
    page.click(".lm-MenuBar-item:has-text('Run')")
    page.click('li[data-command="runmenu:run-all"]')
    page.wait_for_function("window.begun && !window.busy()", timeout=180_000)
    page.wait_for_selector(READY, timeout=120_000)


def run_cell(page: Any, cell: int) -> None:
    """Click into a cell and press Shift+Enter, once the kernel is there."""
    page.wait_for_selector(READY, timeout=120_000)
    page.click(f".jp-Notebook .jp-CodeCell >> nth={cell} >> .cm-content")
    page.keyboard.press("Shift+Enter")
