"""A learner's copies of the lessons are made once and never lost."""

from __future__ import annotations

import pytest

from nanoserve.course import workspace
from nanoserve.errors import NanoserveError


@pytest.fixture
def places(tmp_path):
    source, mine = tmp_path / "notebooks", tmp_path / "my"
    source.mkdir()
    for name in ("06_batch.ipynb", "07_static.ipynb"):
        (source / name).write_text(f"course {name}")
    return source, mine


def test_copies_are_made_once_and_never_overwritten(places):
    source, mine = places
    assert len(workspace.make_copies(source, mine)) == 2
    (mine / "07_static.ipynb").write_text("my work")
    (mine / "06_batch.ipynb").unlink()
    made = workspace.make_copies(source, mine)
    assert [each.name for each in made] == ["06_batch.ipynb"]
    assert (mine / "07_static.ipynb").read_text() == "my work"


def test_reset_keeps_every_old_copy(places):
    source, mine = places
    for work in ("first try", "second try"):
        workspace.reset("07", source, mine)
        (mine / "07_static.ipynb").write_text(work)
    new, old = workspace.reset("07", source, mine)
    assert new.read_text() == "course 07_static.ipynb"
    assert old is not None
    assert old.read_text() == "second try"
    kept = {each.read_text() for each in mine.glob("07_static.old-*.ipynb")}
    assert kept == {"first try", "second try"}


def test_reset_of_a_lesson_without_a_copy(places):
    source, mine = places
    new, old = workspace.reset("06", source, mine)
    assert new.exists()
    assert old is None


@pytest.mark.parametrize("lesson", ["", "99", "0", "../07"])
def test_reset_refuses_what_names_no_single_lesson(places, lesson):
    source, mine = places
    with pytest.raises(ValueError, match="must name one of 06_batch, 07_static"):
        workspace.reset(lesson, source, mine)


def test_no_notebooks_is_one_line(tmp_path):
    with pytest.raises(NanoserveError, match="needs a checkout"):
        workspace.make_copies(tmp_path, tmp_path / "my")
