"""Cells in rows and columns: what the pictures of tokens share, as words and as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from .. import look, picture
from ..checkpoint import LanguageModel

LETTER = 6.7  # pixels a letter in a still, and a little room
NARROW = 26.0
FILLS = {"prompt": ".62", "generated": ".28"}  # how strong the hue of a cell is
BOLD = 'font-weight="bold"'


def piece(lm: LanguageModel, token: int) -> str:
    """A token as a picture writes it, special tokens too."""
    return picture.piece(lm.tokenizer.decode([token], skip_special_tokens=False))


# --- as text ---


def blocks(
    heads: Sequence[str], columns: Sequence[Sequence[str]], width: int = 78
) -> Iterator[str]:
    """Columns of words as lines of text: as many side by side as there is room for,
    then the others below, each time behind the same heads."""
    left = list(columns)
    while left:
        block, room = [heads], width - widest(heads)
        while left and (len(block) == 1 or room > widest(left[0])):
            room -= 1 + widest(left[0])
            block.append(left.pop(0))
        yield ""
        widths = [widest(column) for column in block]
        for line in zip(*block, strict=True):
            yield " ".join(map(str.ljust, line, widths)).rstrip()


def widest(words: Sequence[str]) -> int:
    return max(map(len, words))


# --- as a still ---


def edges(start: float, columns: Iterable[Sequence[str]]) -> list[float]:
    """Where columns begin that are as wide as their longest word, and the last ends."""
    widths = (max(NARROW, LETTER * widest(words) + 8) for words in columns)
    return list(accumulate(widths, initial=start))


def cell(x: float, y: float, width: float, height: float, kind: str, hue: str) -> str:
    """A box that looks as a prompt, a pad, what was generated, or "bare"."""
    edge = f'stroke="{hue}" stroke-width=".8"'
    box = (x + 1, y, width - 2, height)
    if kind == "pad":
        return picture.rect(*box, f"url(#pad-{hue[1:]})", edge)
    if kind == "bare":
        return picture.rect(*box, "none", edge)
    return picture.rect(*box, hue, f'fill-opacity="{FILLS[kind]}" {edge}')


def frame(x: float, y: float, width: float, height: float) -> str:
    edge = f'stroke="{look.INK}" stroke-width="2"'
    return picture.rect(x, y, width, height, "none", edge)


def name(x: float, y: float, words: str, hue: str) -> str:
    """A row's letter beside a bar in its hue."""
    bar = picture.rect(x, y, 4, 22, hue)
    return bar + picture.write(x + 10, y + 15, words, look.INK, "start", BOLD)


def legend(x: float, y: float, items: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Samples with their words, side by side: (kind or "frame", words)."""
    for kind, words in items:
        box = (x, y - 10, 18.0, 12.0)
        yield frame(*box) if kind == "frame" else cell(*box, kind, look.FAINT)
        yield picture.write(x + 24, y, words, look.INK, "start")
        x += 42 + LETTER * len(words)


def legend_width(items: Iterable[tuple[str, str]]) -> float:
    return sum(42 + LETTER * len(words) for _, words in items)
