"""How long the slot player takes to open, and how much script a step costs.

    python benchmarks/player.py [--slots 64] [--passes 2000] > data/results/player.json

A static engine really serves the canary until the trace is long enough; chromium then
opens the player's own page. Needs playwright and a chromium (CHROMIUM names another).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
from datetime import date
from pathlib import Path
from random import Random
from typing import Any

import torch

import nanoserve
from nanoserve import Request, SamplingParams, SlotTrace
from nanoserve.widgets.standalone import player_html

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"]
VIEWPORT = {"width": 1280, "height": 900}
LONGEST = 60

# From the navigation to the frame in which the player is painted.
OPENED = """() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => {
  const paint = performance.getEntriesByName("first-contentful-paint")[0];
  done({ painted: paint.startTime, responsive: performance.now() });
})))"""
MOUNT = """() => {
  const place = document.querySelector("[data-slot-player] script");
  const data = JSON.parse(place.textContent);
  const start = performance.now();
  const again = new player.constructor(data);
  document.body.append(again.root);
  again.start({});
  const spent = performance.now() - start;
  again.destroy();
  return spent; }"""
# One step a frame, as when it is played; only the script in it is counted.
STEP = """(count) => new Promise((done) => { const spent = []; player.go(0);
  const frame = () => { const start = performance.now(); player.go(player.column + 1);
    spent.push(performance.now() - start);
    if (spent.length < count) requestAnimationFrame(frame); else done(spent); };
  requestAnimationFrame(frame); })"""
WHOLE = """() => { const start = performance.now(); player.zoom = null; player.redraw();
  return performance.now() - start; }"""


def record(slots: int, passes: int) -> SlotTrace:
    """The trace of a static engine that runs until it has made ``passes`` passes."""
    torch.set_num_threads(1)  # so small a model is slower on more
    lm = nanoserve.load("canary")
    engine = nanoserve.StaticBatchEngine(lm, max_num_seqs=slots, max_model_len=128)
    draw = Random(0)
    while engine.trace.passes < passes:
        if not engine.has_work():
            for _ in range(slots):
                params = SamplingParams(draw.randint(1, LONGEST), ignore_eos=True)
                prompt = [draw.randrange(5, 40) for _ in range(draw.randint(2, 40))]
                engine.add_request(Request(prompt, params))
        engine.step()
    return engine.trace


def measure(browser: Any, html: str, steps: int, opens: int = 7) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "player.html")
        path.write_text(html, "utf-8")
        opened, mounted = [], []
        for _ in range(opens):
            page = browser.new_context(viewport=VIEWPORT).new_page()
            page.goto(path.as_uri())
            opened.append(page.evaluate(OPENED))
            mounted.append(page.evaluate(MOUNT))
            if len(opened) < opens:
                page.context.close()
        spent = page.evaluate(STEP, steps)
        whole = page.evaluate(WHOLE)
        page.context.close()
    return {
        "page_kb": round(len(html.encode()) / 1000),
        "open_to_paint_ms": median(each["painted"] for each in opened),
        "open_to_responsive_ms": median(each["responsive"] for each in opened),
        "mount_script_ms": median(mounted),
        "step_script_ms": {
            "steps": len(spent),
            "median": median(spent),
            "p95": round(sorted(spent)[int(0.95 * len(spent))], 2),
            "worst": round(max(spent), 2),
        },
        "draw_all_passes_ms": round(whole, 1),
    }


def median(values: Any) -> float:
    return round(statistics.median(values), 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--passes", type=int, default=2000)
    given = parser.parse_args()
    from playwright.sync_api import sync_playwright

    trace = record(given.slots, given.passes)
    with sync_playwright() as playwright:
        chromium = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        result = {
            "what": "slot player in its own page",
            "date": date.today().isoformat(),
            "browser": f"chromium {browser.version}, headless, no GPU, {VIEWPORT}",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
            f"{platform.system()}",
            "load_before": round(os.getloadavg()[0], 1) if os.name == "posix" else None,
            "trace": f"{trace.engine}, {trace.max_num_seqs} slots, {trace.passes} "
            f"passes, {len(trace.requests)} requests, {len(trace.runs)} runs",
            "one": measure(browser, player_html(trace), steps=600),
            "two": measure(browser, player_html(trace, trace), steps=600),
        }
        browser.close()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
