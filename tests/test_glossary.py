"""One glossary, linked where each word first comes up."""

from __future__ import annotations

import re

import nbformat
import pytest

from nanoserve.course import glossary, lab, notebooks, workspace

LINK = re.compile(r"\[([^\]]+)\]\(glossary\.md(?:#([\w-]+))?\)")


def prose(number: str) -> str:
    """The text of a lesson, or nothing as long as there is none."""
    return "\n".join(
        cell.source
        for path in notebooks.lessons([number])
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "markdown"
    )


def links(number: str) -> set[str]:
    return {anchor for _, anchor in LINK.findall(prose(number)) if anchor}


ANCHORS = {term.anchor for term in glossary.TERMS}
LESSONS = sorted(path.name[:2] for path in notebooks.lessons())


def test_the_page_is_what_the_terms_say():
    """If not: ``python -m nanoserve.course.glossary``."""
    stored = (notebooks.FOLDER / glossary.NAME).read_text("utf-8")
    assert stored == glossary.markdown()


def test_each_term_has_its_place_and_its_heading():
    page = glossary.markdown()
    assert len(ANCHORS) == len(glossary.TERMS)
    for term in glossary.TERMS:
        assert page.count(f'<a id="{term.anchor}"></a>\n\n## {term.name}\n') == 1
        assert term.meaning in page


@pytest.mark.parametrize("number", LESSONS)
def test_every_link_of_a_lesson_leads_to_a_term(number):
    assert links(number) <= ANCHORS


@pytest.mark.parametrize(
    "term",
    [term for term in glossary.TERMS if term.lesson in LESSONS],
    ids=lambda term: term.name,
)
def test_a_term_is_linked_where_its_lesson_first_uses_it(term):
    """Its first link is the first time that the word stands in bold."""
    text = prose(term.lesson)
    assert term.anchor in links(term.lesson)
    linked = text.index(f"(glossary.md#{term.anchor})")
    assert f"**{term.name}**" not in text[:linked]


def test_a_learner_finds_it_beside_the_copies(tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "MINE", tmp_path)
    monkeypatch.setattr(workspace, "main", lambda _: 0)
    monkeypatch.setattr(lab.subprocess, "run", lambda *_, **__: lab)
    monkeypatch.setattr(lab, "returncode", 0, raising=False)
    assert lab.main([]) == 0
    assert (tmp_path / glossary.NAME).read_text("utf-8") == glossary.markdown()
