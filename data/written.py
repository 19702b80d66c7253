"""How results are written to a file: JSON that a diff shows well."""

import json
import re
from typing import Any


def indented(result: Any, row: str) -> str:
    """Indented, but each innermost object that begins with the key ``row`` on one
    line: a bill, a spread."""
    text = json.dumps(result, indent=2)
    return re.sub(rf'\{{\s+("{row}[^}}]*?)\s+\}}', _one_line, text) + "\n"


def _one_line(found: re.Match) -> str:
    return "{" + re.sub(r"\s+", " ", found[1]) + "}"
