"""``make lab``: the learner's copies in JupyterLab, on lesson 00.

    python -m nanoserve.course.lab [any option of jupyter lab]

Where there is no browser, JupyterLab prints the address to open.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from . import glossary, workspace

FIRST = "00_start_here.ipynb"
# Without them the first thing a learner sees is a question about Jupyter's news, and
# JupyterLab asks the network for it.
SETTINGS = Path(__file__).parent / "lab_settings"


def command(more: list[str]) -> list[str]:
    """How JupyterLab is started: here, in the folder of the copies."""
    lab = [sys.executable, "-m", "jupyterlab"]
    options = [
        f"--LabApp.default_url=/lab/tree/{FIRST}",
        f"--LabApp.app_settings_dir={SETTINGS}",
    ]
    if hasattr(os, "getuid") and os.getuid() == 0:  # in a container one is root
        options.append("--allow-root")
    return [*lab, *options, *more]


def main(more: list[str]) -> int:
    status = workspace.main([])
    if status:
        return status
    glossary.write(workspace.MINE)  # the lessons link to it, and nobody edits it
    print("Where no browser opens, open the address that is printed below.")
    try:
        return subprocess.run(command(more), cwd=workspace.MINE, check=False).returncode
    except KeyboardInterrupt:  # JupyterLab has had it too, and has said so
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
