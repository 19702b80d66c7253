"""The learner's own copies of the lessons, in `my/`.

`make lab` opens these, so that the notebooks of the course, whose outputs are
compared, stay as they were, and `git pull` never meets a learner's work. A copy
is made once and never overwritten.

    python -m nanoserve.course.workspace            make the copies that are missing
    python -m nanoserve.course.workspace reset 07   lesson 07 afresh; the old is kept
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from ..errors import NanoserveError, invalid

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS, MINE = ROOT / "notebooks", ROOT / "my"


def make_copies(source: Path = NOTEBOOKS, target: Path = MINE) -> list[Path]:
    """Copy each lesson that `target` lacks, and return the new copies."""
    lessons = lessons_in(source)
    target.mkdir(parents=True, exist_ok=True)
    missing = [each for each in lessons if not (target / each.name).exists()]
    return [copy(each, target / each.name) for each in missing]


def reset(
    lesson: str, source: Path = NOTEBOOKS, target: Path = MINE
) -> tuple[Path, Path | None]:
    """Start a lesson afresh: the new copy, and where the old one went (or None).

    ``lesson`` is its number ("07") or the beginning of its file's name.
    """
    lessons = lessons_in(source)
    found = [each for each in lessons if lesson and each.name.startswith(lesson)]
    if len(found) != 1:
        names = ", ".join(each.stem for each in lessons)
        raise invalid("lesson", lesson, f"must name one of {names}")
    mine, old = target / found[0].name, None
    target.mkdir(parents=True, exist_ok=True)
    if mine.exists():
        old = free_name(mine)
        mine.rename(old)
    return copy(found[0], mine), old


def lessons_in(source: Path) -> list[Path]:
    lessons = sorted(source.glob("*.ipynb"))
    if not lessons:
        raise NanoserveError(f"no notebooks in {source}: the course needs a checkout")
    return lessons


def copy(lesson: Path, target: Path) -> Path:
    """Copy under another name and rename, so that no half of a lesson is kept."""
    part = target.with_name(f".{target.name}.part")
    shutil.copyfile(lesson, part)  # not its mode: a copy is to be written to
    return part.replace(target)


def free_name(path: Path) -> Path:
    """07_x.ipynb becomes 07_x.old-1.ipynb, or the next number that is free."""
    number = 1
    while (old := path.with_name(f"{path.stem}.old-{number}{path.suffix}")).exists():
        number += 1
    return old


def main(arguments: list[str]) -> int:
    try:
        if arguments[:1] == ["reset"] and len(arguments) == 2:
            new, old = reset(arguments[1])
            print(f"{new} is new" + (f"; your old copy is {old}" if old else ""))
        elif not arguments:
            made = make_copies()
            print(
                f"{len(made)} new lessons in {MINE}; your own copies are as they were"
            )
        else:
            print("usage: python -m nanoserve.course.workspace [reset LESSON]")
            return 2
    except (NanoserveError, OSError) as error:
        print(f"nanoserve: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
