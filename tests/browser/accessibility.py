"""What axe-core, the usual checker of web pages, finds wrong in one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# Only faults are asked for and brought over: to tell of what passes takes axe as long
# again as to find it.
VIOLATIONS = "axe.run({ resultTypes: ['violations'] }).then((all) => all.violations)"


def problems(page: Any) -> list[str]:
    import axe_playwright_python

    source = Path(axe_playwright_python.__file__).with_name("axe.min.js")
    page.add_script_tag(content=source.read_text("utf-8"))
    found = page.evaluate(VIOLATIONS)
    return [
        f"{each['impact']}: {each['id']}: {node['html']}"
        for each in found
        for node in each["nodes"]
    ]
