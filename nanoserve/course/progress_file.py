"""Which exercises have been passed, kept outside the notebook.

One small JSON file, {"passed": ["07.passes_to_come", ..]}: no names, no times. It is a
convenience: a file that is missing, damaged or not to be written breaks nothing.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

_since_start: set[str] = set()  # what was passed in this kernel, kept or not


def path() -> Path:
    """NANOSERVE_PROGRESS, a file; or a place of this user's own data."""
    if chosen := os.environ.get("NANOSERVE_PROGRESS"):
        place = Path(chosen).expanduser()
        return place / "progress.json" if place.is_dir() else place
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_DATA_HOME"
    base = os.environ.get(variable)
    home = Path(base) if base else Path.home() / ".local" / "share"
    return home / "nanoserve" / "progress.json"


def passed() -> set[str]:
    """What is kept and what was passed since the kernel started."""
    return _kept() | _since_start


def note(exercise: str) -> bool:
    """Remember "07.passes_to_come"; False where that could not be kept."""
    _since_start.add(exercise)
    kept = _kept()
    return exercise in kept or _write(sorted(kept | _since_start))


def is_kept() -> bool:
    return _since_start <= _kept()


def _kept() -> set[str]:
    try:
        stored = json.loads(path().read_text("utf-8"))["passed"]
        return {each for each in stored if isinstance(each, str)}
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):
        return set()  # RuntimeError: Path.home() of a user who has none


def _write(names: list[str]) -> bool:
    """Under another name first, then renamed: never half a file."""
    try:
        target = path()
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=".progress-")
        with open(handle, "w", encoding="utf-8") as file:
            json.dump({"passed": names}, file, indent=1)
        os.replace(part, target)
    except (OSError, RuntimeError):
        return False
    return True
