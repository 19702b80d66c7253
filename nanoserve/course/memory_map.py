"""A picture of an engine's KV memory as it stands: slots or blocks, to one scale.

Lesson 11 holds the two beside each other. A line of the picture is ``max_model_len``
tokens: one slot, or as many blocks as fit into one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .. import look, picture
from ..engine import Engine
from ..paging import PagedCache

WORDS = {
    "slots": "{engine}: {count} slots of {size} tokens",
    "blocks": "{engine}: {count} blocks of {size} tokens",
    "line": "token {first}",
    "live": "live",
    "finished": look.WORDS["finished"],
    "room": "held and empty",
    "free": "free",
    "slot": "slot {places}",
    "block": "block {places}",
    "holds": "{request} holds {tokens} tokens: {places}",
    "steps": "the memory as text",
}
LEFT, TOP, LINE, WIDTH = 96, 40, 34, 768


@dataclass(frozen=True)
class Piece:
    """A slot or a block that somebody holds: ``used`` of its tokens are written."""

    place: int
    used: int
    request: int
    name: str
    finished: bool


class MemoryMap:
    """What every slot or block of ``engine`` holds now. Displays itself."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine.name
        self.line = engine.max_model_len
        self.paged = isinstance(engine.cache, PagedCache)
        if isinstance(engine.cache, PagedCache):
            self.size, self.count = engine.cache.block_size, engine.cache.blocks
        else:
            self.size, self.count = engine.max_model_len, engine.max_num_seqs
        self.pieces = list(pieces(engine))

    def sums(self) -> dict[str, int]:
        """Tokens that are live, kept for the finished, held and empty, or free."""
        tokens = Counter(live=0, finished=0)
        for piece in self.pieces:
            tokens["finished" if piece.finished else "live"] += piece.used
        held = len(self.pieces) * self.size
        tokens["room"] = held - tokens["live"] - tokens["finished"]
        tokens["free"] = self.count * self.size - held
        return dict(tokens)

    @property
    def title(self) -> str:
        words = WORDS["blocks" if self.paged else "slots"]
        return words.format(engine=self.engine, count=self.count, size=self.size)

    def text(self) -> str:
        """Who holds what, then the sums."""
        held: dict[str, list[Piece]] = {}
        for piece in self.pieces:
            held.setdefault(piece.name, []).append(piece)
        kind = WORDS["block" if self.paged else "slot"]
        lines = []
        for name, owned in held.items():
            where = kind.format(places=", ".join(str(each.place) for each in owned))
            tokens = sum(each.used for each in owned)
            said = WORDS["holds"].format(request=name, tokens=tokens, places=where)
            lines.append(said)
        sums = "; ".join(f"{WORDS[key]} {n:,}" for key, n in self.sums().items())
        return "\n".join([self.title, *lines, sums])

    def svg(self) -> str:
        lines = -(-self.count * self.size // self.line)
        height = TOP + LINE * lines + 40
        body = [
            picture.write(LEFT, 22, self.title, look.INK, "start"),
            *self._outlines(lines),
            *(mark for piece in self.pieces for mark in self._piece(piece)),
            legend(height - 16),
        ]
        label = f"{self.title}; " + self.text().splitlines()[-1]
        hues = [look.hue(piece.request) for piece in self.pieces]
        return picture.sheet(LEFT + WIDTH + 12, height, label, body, hues)

    def _outlines(self, lines: int) -> Iterator[str]:
        for line in range(lines):
            words = WORDS["line"].format(first=line * self.line)
            y = TOP + LINE * line
            yield picture.write(LEFT - 8, y + 18, words, look.FAINT, "end")
        edge = f'stroke="{look.FAINT}" stroke-width=".7" stroke-dasharray="3 3"'
        for place in range(self.count):
            yield picture.rect(*self._at(place), "none", edge)

    def _at(self, place: int) -> tuple[float, float, float, float]:
        line, token = divmod(place * self.size, self.line)
        scale = WIDTH / self.line
        return LEFT + scale * token, TOP + LINE * line, scale * self.size, LINE - 8

    def _piece(self, piece: Piece) -> Iterator[str]:
        hue = look.hue(piece.request)
        x, y, width, height = self._at(piece.place)
        edge = f'stroke="{hue}" stroke-width=".8"'
        yield picture.rect(x, y, width, height, look.PAPER)
        yield picture.rect(x, y, width, height, hue, f'fill-opacity=".14" {edge}')
        full = width * piece.used / self.size
        fill = f"url(#held-{hue[1:]})" if piece.finished else hue
        seam = f'stroke="{look.PAPER}" stroke-width=".8"'  # or full blocks are one
        yield picture.rect(x, y, full, height, fill, edge if piece.finished else seam)
        if width >= 7 * len(piece.name) + 8:
            place = (x + 5, y + 17, piece.name, look.INK, "start", picture.HALO)
            yield picture.write(*place)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return picture.still(self.svg(), self.title, self.text(), WORDS["steps"])


def pieces(engine: Engine) -> Iterator[Piece]:
    """Every slot or block that is held, in the order of its tenants' seats."""
    for row in engine.running:
        if isinstance(engine.cache, PagedCache):
            size, table = engine.cache.block_size, engine.cache.tables[row.slot]
        else:
            size, table = engine.max_model_len, [row.slot]
        for number, place in enumerate(table):
            used = min(max(row.kv_length - number * size, 0), size)
            yield Piece(place, used, row.index, row.request_id, row.finished)


def legend(y: float) -> str:
    x, parts, faint = float(LEFT), [], look.FAINT[1:]
    samples = [
        ("live", look.FAINT, ""),
        ("finished", f"url(#held-{faint})", ""),
        ("room", look.FAINT, 'fill-opacity=".14"'),
        ("free", "none", 'stroke-dasharray="3 3"'),
    ]
    for key, fill, more in samples:
        edge = f'stroke="{look.FAINT}" stroke-width=".8" {more}'
        parts.append(picture.rect(x, y - 10, 18, 12, fill, edge))
        parts.append(picture.write(x + 24, y, WORDS[key], look.INK, "start"))
        x += 40 + 6.7 * len(WORDS[key])
    return "".join(parts)
