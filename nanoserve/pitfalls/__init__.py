"""Bugs to plant: each one silent, each one seen in the wild.

>>> import nanoserve
>>> from nanoserve import pitfalls
>>> lm, prompts = nanoserve.load("canary"), ["count from 1 to 5", "copy q w e r t y"]
>>> with pitfalls.plant("mask-dropped"):
...     results = nanoserve.generate_batch(lm, prompts)

``BUGS`` maps each name to its :class:`Bug`: symptom, cause, fix, public report. The
engine itself holds no flags for them; a bug replaces one function, or two, for a
block. ``compare`` shows its answers beside the right ones, ``demonstrate`` does so on
a batch in which the bug is easy to see.
"""

from . import padded, running, seats  # noqa: F401  they fill BUGS
from .bug import BUGS, Bug, plant
from .comparison import Comparison, RowVerdict, compare
from .examples import EXAMPLES, Example, demonstrate
from .planting import swap, unplanted
from .table import Table, distinct, kill_table, table

__all__ = [
    "BUGS",
    "EXAMPLES",
    "Bug",
    "Comparison",
    "Example",
    "RowVerdict",
    "Table",
    "compare",
    "demonstrate",
    "distinct",
    "kill_table",
    "plant",
    "swap",
    "table",
    "unplanted",
]
