"""Cells in rows and columns: what the pictures of tokens share, as words and as SVG."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate

from .. import look, picture
from ..checkpoint import LanguageModel

LETTER = 6.7  # pixels a letter in a still, and a little room
NARROW = 26.0
BOLD, SMALL = 'font-weight="bold"', 'font-size="9"'

# How a kind of cell is filled and edged, in the order in which they are drawn.
KINDS = {
    "prompt": 'fill="{hue}" fill-opacity=".62" stroke="{hue}" stroke-width=".8"',
    "generated": 'fill="{hue}" fill-opacity=".28" stroke="{hue}" stroke-width=".8"',
    "pad": 'fill="url(#pad-{name})" stroke="{hue}" stroke-width=".8"',
    "bare": 'fill="none" stroke="{hue}" stroke-width=".8"',
    "bar": 'fill="{hue}"',
    "crossed": 'fill="url(#held-{name})" stroke="{hue}" stroke-width=".8"',
    "frame": 'fill="none" stroke="{hue}" stroke-width="2"',
}


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


class Still:
    """A still in the making. What looks alike becomes one element: small files."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[str, str], list[str]] = {}
        self.words: dict[tuple[str, str, str], list[str]] = {}

    def box(
        self, kind: str, hue: str, x: float, y: float, wide: float, tall: float
    ) -> None:
        """A box of one of ``KINDS`` in a hue."""
        path = f"M{_n(x)} {_n(y)}h{_n(wide)}v{_n(tall)}h{_n(-wide)}z"
        self.boxes.setdefault((kind, hue), []).append(path)

    def write(
        self,
        x: float,
        y: float,
        words: object,
        anchor: str = "middle",
        fill: str = look.INK,
        more: str = "",
    ) -> None:
        said = f'<text x="{_n(x)}" y="{_n(y)}">{escape(str(words))}</text>'
        self.words.setdefault((fill, anchor, more), []).append(said)

    def name(self, x: float, y: float, words: str, hue: str) -> None:
        """A row's letter beside a bar in its hue."""
        self.box("bar", hue, x, y, 4, 22)
        self.write(x + 10, y + 15, words, "start", more=BOLD)

    def legend(self, x: float, y: float, items: Iterable[tuple[str, str]]) -> None:
        """Samples with their words, side by side: (kind, words)."""
        for kind, words in items:
            hue = look.INK if kind == "frame" else look.FAINT
            self.box(kind, hue, x, y - 10, 18, 12)
            self.write(x + 24, y, words, "start")
            x += 42 + LETTER * len(words)

    def svg(self, width: float, height: float, title: str) -> str:
        hues = {hue for _, hue in self.boxes}
        return picture.sheet(width, height, title, self._parts(), hues)

    def _parts(self) -> Iterator[str]:
        for kind, style in KINDS.items():
            for (of_kind, hue), paths in self.boxes.items():
                if of_kind == kind:
                    look_of = style.format(hue=hue, name=hue[1:])
                    yield f'<path d="{"".join(paths)}" {look_of}/>'
        for (fill, anchor, more), said in self.words.items():
            head = f'<g fill="{fill}" text-anchor="{anchor}" {more}'.rstrip()
            yield f"{head}>{''.join(said)}</g>"


def legend_width(items: Iterable[tuple[str, str]]) -> float:
    return sum(42 + LETTER * len(words) for _, words in items)


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
