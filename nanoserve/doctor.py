"""`nanoserve doctor`: what is here, what ails, and what cures it.

A check is a small function that returns a Check. One that raises is reported as
a Check itself, so the doctor never dies of what it was asked to find.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import sys
import time
import webbrowser
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Status = Literal["ok", "warn", "bad"]
COLOURS: dict[str, str | None] = {"ok": None, "warn": "yellow", "bad": "red"}
GIBIBYTE = 2**30
PYTHONS = ((3, 11), (3, 13))
OLDEST_TORCH = (2, 11)
ROOT = Path(__file__).resolve().parents[1]  # of the checkout, if this is one
SETUP = "make setup, or pip install -c constraints.txt -e '.[all]'"
# What each extra brings, by the names that are imported
EXTRAS = {
    "course": ("jupyterlab", "ipywidgets", "anywidget", "plotly", "nbclient"),
    "cli": ("typer", "rich"),
    "gguf": ("gguf", "accelerate"),
    "serve": ("fastapi", "uvicorn", "pydantic"),
    "test": ("pytest", "hypothesis", "nbval"),
    "browser": ("playwright", "axe_playwright_python"),
}
BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "firefox",
    "microsoft-edge",
)
PROMPT, ANSWER = "count from 3 to 12", "3 4 5 6 7 8 9 10 11 12"


@dataclass(frozen=True)
class Check:
    """One finding. ``cure`` is one line, and empty when nothing ails."""

    name: str
    status: Status
    value: str
    cure: str = ""


def examine(checks: tuple[Callable[[], Check], ...] | None = None) -> list[Check]:
    """Run every check; one that raises becomes a bad finding of its own."""
    return [examined(each) for each in (CHECKS if checks is None else checks)]


def examined(check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        words = " ".join(f"{type(error).__name__}: {error}".split())
        name = check.__name__.removeprefix("check_").replace("_", " ")
        return Check(name, "bad", words[:160], SETUP)


def lines(checks: list[Check]) -> Iterator[tuple[str, str]]:
    """The report, line by line, each with the status that colours it."""
    for each in checks:
        yield f"{each.status:<5} {each.name:<13} {each.value}", each.status
        if each.cure:
            yield f"{'':<19} cure: {each.cure}", each.status
    bad = sum(each.status == "bad" for each in checks)
    warned = sum(each.status == "warn" for each in checks)
    if bad:
        yield f"{bad} to cure, {warned} to know about.", "bad"
    else:
        yield f"All is well{f', {warned} to know about' if warned else ''}.", "ok"


def exit_code(checks: list[Check]) -> int:
    return int(any(each.status == "bad" for each in checks))


# -- software --------------------------------------------------------------------


def check_python() -> Check:
    version = sys.version_info[:2]
    value = f"{platform.python_version()} in {sys.prefix}"
    if PYTHONS[0] <= version <= PYTHONS[1]:
        return Check("python", "ok", value)
    cure = "use Python 3.11 to 3.13: make setup PYTHON=/path/to/python3.13"
    return Check("python", "bad", value, cure)


def check_nanoserve() -> Check:
    from . import __version__

    here = Path.cwd() / "nanoserve"
    value = f"{__version__} from {ROOT}"
    if (here / "doctor.py").exists() and here.resolve() != ROOT / "nanoserve":
        cure = f"this folder's own package is not the one that runs: {SETUP}"
        return Check("nanoserve", "warn", value, cure)
    return Check("nanoserve", "ok", value)


def check_torch() -> Check:
    try:
        torch = importlib.import_module("torch")
    except ModuleNotFoundError:
        return Check("torch", "bad", "missing", torch_cure())
    version = torch.__version__
    if numbers(version) < OLDEST_TORCH:
        return Check("torch", "bad", f"{version}, older than 2.11", torch_cure())
    if torch.version.cuda and not torch.cuda.is_available():
        return Check("torch", "ok", f"{version}, CUDA build without a GPU: fine")
    return Check("torch", "ok", version)


def torch_cure() -> str:
    if sys.platform == "darwin" and platform.machine() == "x86_64":
        return (
            "Intel Macs have no torch wheels after 2.2: take conda-forge's, "
            "conda env create -f environment.yml"
        )
    return SETUP


def check_libraries() -> Check:
    names = ("transformers", "numpy", "tokenizers", "safetensors", "huggingface_hub")
    missing = [each for each in names if installed(each) is None]
    value = ", ".join(f"{each} {installed(each) or 'missing'}" for each in names)
    return Check(
        "libraries", "bad" if missing else "ok", value, SETUP if missing else ""
    )


def check_pins() -> Check:
    pins = ROOT / "constraints.txt"
    if not pins.exists():
        return Check("pins", "ok", "no checkout here, so nothing to compare with")
    differ = [
        f"{name} {found} (pinned {pin})"
        for name, pin in pinned(pins.read_text("utf-8")).items()
        if (found := installed(name)) and found.split("+")[0] != pin
    ]
    if not differ:
        return Check("pins", "ok", "every installed version is that of constraints.txt")
    shown = ", ".join(differ[:3]) + (f" and {len(differ) - 3} more" * (len(differ) > 3))
    cure = f"fine to work with; stored outputs may differ in last digits. {SETUP}"
    return Check("pins", "warn", shown, cure)


def pinned(text: str) -> dict[str, str]:
    """name: version, out of the lines `name==version`."""
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE))


def check_extras() -> Check:
    missing = [
        extra
        for extra, names in EXTRAS.items()
        if any(importlib.util.find_spec(each) is None for each in names)
    ]
    if not missing:
        return Check("extras", "ok", ", ".join(EXTRAS))
    cure = f'pip install "nanoserve[{",".join(missing)}]", in a checkout: {SETUP}'
    return Check("extras", "warn", f"missing: {', '.join(missing)}", cure)


def check_kernel() -> Check:
    """The Python that notebooks would run with."""
    if importlib.util.find_spec("jupyter_client") is None:
        return Check(
            "kernel", "warn", "no Jupyter here", 'the extra "course" brings it'
        )
    specs = importlib.import_module("jupyter_client.kernelspec").KernelSpecManager()
    python = specs.get_kernel_spec("python3").argv[0]
    # A bare "python" is replaced by the server's own interpreter.
    own = os.sep not in python or Path(python).parent == Path(sys.executable).parent
    if own:
        return Check("kernel", "ok", "python3 is this environment's")
    cure = f"{Path(sys.executable).name} -m ipykernel install --sys-prefix"
    return Check("kernel", "warn", f"python3 runs {python}, not this one", cure)


# -- machine ---------------------------------------------------------------------


def check_device() -> Check:
    import torch

    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0)
        more = f", {torch.cuda.device_count()} of them"
        size = f"{card.name}, {card.total_memory / GIBIBYTE:.0f} GiB"
        return Check("device", "ok", size + more * (torch.cuda.device_count() > 1))
    if torch.backends.mps.is_available():
        return Check("device", "ok", "mps (Apple GPU)")
    return Check("device", "ok", f"cpu, {torch.backends.cpu.get_cpu_capability()}")


def check_threads() -> Check:
    import torch

    threads, cores = torch.get_num_threads(), usable_cores()
    asked = os.environ.get("OMP_NUM_THREADS")
    value = f"{threads} for {cores} cores" + (
        f", OMP_NUM_THREADS={asked}" * bool(asked)
    )
    if threads > cores:
        cure = f"more threads than cores spin and wait: export OMP_NUM_THREADS={cores}"
        return Check("threads", "warn", value, cure)
    if asked and threads < cores / 2:
        cure = "fine, but slower than need be: unset OMP_NUM_THREADS"
        return Check("threads", "warn", value, cure)
    return Check("threads", "ok", value)


def usable_cores() -> int:
    """Cores this process may use, which a container may have made fewer."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def check_load() -> Check:
    if not hasattr(os, "getloadavg"):
        return Check("load", "ok", "not told by this system")
    load, cores = os.getloadavg()[0], usable_cores()
    value = f"{load:.1f} on {cores} cores over the last minute"
    if load <= cores + 0.5:
        return Check("load", "ok", value)
    cure = "another busy process makes a pass 10 times slower: measure when it is quiet"
    return Check("load", "warn", value, cure)


def check_memory() -> Check:
    free, total = memory()
    if free is None:
        return Check("memory", "ok", "not told by this system")
    value = f"{free / GIBIBYTE:.1f} GiB free"
    value += f" of {total / GIBIBYTE:.1f}" if total else ""
    if free < GIBIBYTE:
        return Check("memory", "bad", value, "close other programs: 1 GiB is needed")
    if free < 3 * GIBIBYTE:
        cure = "enough for the canary; smollm2 wants 3 GiB: close other programs"
        return Check("memory", "warn", value, cure)
    return Check("memory", "ok", value)


def memory() -> tuple[float | None, float | None]:
    """Bytes free and in all, by psutil (it comes with accelerate) or Linux's own."""
    if importlib.util.find_spec("psutil"):
        seen = importlib.import_module("psutil").virtual_memory()
        return seen.available, seen.total
    table = Path("/proc/meminfo")
    if not table.exists():
        return None, None
    rows = dict(re.findall(r"^(\w+):\s+(\d+) kB", table.read_text(), re.MULTILINE))
    return int(rows["MemAvailable"]) * 1024, int(rows["MemTotal"]) * 1024


# -- models ----------------------------------------------------------------------


def check_cache() -> Check:
    from . import locate

    place = locate.cache_dir()
    there = place
    while not there.exists():  # a cache that is not yet made lies in what will hold it
        there = there.parent
    free = shutil.disk_usage(there).free / GIBIBYTE
    value = f"{place}, {free:.1f} GiB free"
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        cure = "set NANOSERVE_CACHE to a folder that you may write to"
        return Check("cache", "bad", f"{place} is not writable", cure)
    if free < 1:
        cure = "smollm2 needs 0.8 GiB to be fetched: free some, or set NANOSERVE_CACHE"
        return Check("cache", "warn", value, cure)
    return Check("cache", "ok", value)


def check_canary() -> Check:
    return canary("canary")


def check_canary_rope() -> Check:
    return canary("canary-rope")


def canary(name: str) -> Check:
    """Ask for what can only be right or wrong, and show the answer."""
    import nanoserve

    started = time.perf_counter()
    lm = nanoserve.load(name)
    text = nanoserve.generate_one(lm, PROMPT).text
    took = f"{time.perf_counter() - started:.1f} s on {lm.device}"
    if text == ANSWER:
        return Check(name, "ok", f"{PROMPT}: {text} ({took})")
    cure = "git status shows what was changed; on a GPU, try CUDA_VISIBLE_DEVICES="
    return Check(name, "bad", f"{PROMPT}: {text!r}, expected {ANSWER}", cure)


def check_smollm2() -> Check:
    from . import fetch, locate

    place = locate.cache_dir() / "smollm2"
    if fetch.is_complete(place):
        return Check("smollm2", "ok", "fetched")
    if place.exists():
        return Check("smollm2", "bad", "not whole", "nanoserve fetch smollm2 --force")
    return Check("smollm2", "ok", "not fetched; when wanted: nanoserve fetch smollm2")


def check_hub() -> Check:
    endpoint = os.environ.get("HF_ENDPOINT", "the default")
    offline = [
        each
        for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        if os.environ.get(each, "").lower() in ("1", "true", "yes", "on")
    ]
    if offline:
        cure = f"built-in and local models work; to load others: unset {offline[0]}"
        return Check("model hub", "warn", f"offline by {offline[0]}", cure)
    return Check("model hub", "ok", f"endpoint {endpoint}; used for hub ids only")


def check_browser() -> Check:
    try:
        found = webbrowser.get().__class__.__name__
        name = getattr(webbrowser.get(), "name", found)
    except webbrowser.Error:
        name = next((each for each in BROWSERS if shutil.which(each)), "")
    if name:
        return Check("browser", "ok", str(name))
    return Check("browser", "ok", "none found: make lab prints an address to open")


# -- all of it ---------------------------------------------------------------------


def installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """(2, 13) of "2.13.0+cpu"."""
    return tuple(int(each) for each in re.findall(r"\d+", version)[:2])


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_nanoserve,
    check_torch,
    check_libraries,
    check_pins,
    check_extras,
    check_kernel,
    check_device,
    check_threads,
    check_load,
    check_memory,
    check_cache,
    check_canary,
    check_canary_rope,
    check_smollm2,
    check_hub,
    check_browser,
)


def main() -> int:
    """`python -m nanoserve.doctor`: the same, where typer is missing."""
    checks = examine()
    for line, _ in lines(checks):
        print(line)
    return exit_code(checks)


if __name__ == "__main__":
    sys.exit(main())
