"""The offline edition: whole pages, nothing loaded from anywhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("nbconvert")

from nanoserve.course import lab, notebooks, panels, site
from nanoserve.course.lessons import all_lessons
from nanoserve.course.words import WORDS
from nanoserve.widgets import instrument
from nanoserve.widgets.slot_player import TRACE_TYPE

INSTRUMENT = re.compile(r"vnd\.nanoserve\.(?:" + "|".join(instrument.NAMES) + ")")
LOADED = re.compile(r"""(?:src|href)=["'](?!data:|#)([^"']+)|url\(["']?(?!#|data:)""")


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, str]:
    written = site.build(tmp_path_factory.mktemp("site"))
    return {path.name: path.read_text("utf-8") for path in written}


def test_there_is_an_index_and_a_page_for_each_lesson(pages):
    names = [path.with_suffix(".html").name for path in notebooks.lessons()]
    assert list(pages) == ["index.html", *names, "glossary.html"]
    for name in names:
        assert f'href="{name}"' in pages["index.html"]


def test_a_page_links_to_pages_and_loads_nothing(pages):
    for name, page in pages.items():
        without_code = re.sub(r"<script.*?</script>", "", page, flags=re.S)
        for target in LOADED.findall(without_code):
            there, _, anchor = target.partition("#")
            assert there in pages or target.startswith("https://"), (name, target)
            assert not anchor or f'id="{anchor}"' in pages[there], (name, target)
        assert not re.search(r"<(script|link|iframe)[^>]+(src|href)=", page), name
        assert "@import" not in page


def test_each_stored_trace_becomes_a_player_with_its_picture_beside_it(pages):
    for path in notebooks.lessons():
        page = pages[path.with_suffix(".html").name]
        stored = path.read_text("utf-8").count(TRACE_TYPE)
        assert page.count('<div class="player"') == stored
        instruments = len(INSTRUMENT.findall(path.read_text("utf-8")))
        assert page.count("<div data-instrument=") == instruments
        # of two traces on one clock each picture says first whose it is
        stills = re.findall(r"<noscript>(?:<p><b>[^<]+</b></p>)?<img", page)
        assert len(stills) == stored + instruments
        inside = re.compile(r"<script[^>]+application/json[^>]*>(.*?)</script>", re.S)
        data = [json.loads(each) for each in inside.findall(page)]
        assert len(data) == stored + instruments
        assert sum("traces" in each for each in data) == stored


def test_a_question_is_followed_by_its_answer_and_no_check(pages):
    for number, lesson in all_lessons().items():
        found = [page for name, page in pages.items() if name.startswith(number)]
        for guess in lesson.guesses if found else ():
            why = panels.marked_up(guess.words["why"])
            assert found[0].count(f">{why}<") == 1, guess.name
    for name, page in pages.items():
        assert "course.check_guess" not in re.sub("<[^>]+>", "", page), name
        assert WORDS["untouched"] not in page.replace("yours is not attempted", "")


def test_the_index_shows_the_first_player_and_how_long_each_lesson_takes(pages):
    assert pages["index.html"].count('<div class="player"') == 1
    assert "<span>10 minutes</span>" in pages["index.html"]


def test_lab_opens_on_the_first_lesson_and_asks_nothing(monkeypatch):
    started = lab.command(["--no-browser"])
    assert f"--LabApp.default_url=/lab/tree/{lab.FIRST}" in started
    assert started[-1] == "--no-browser"
    assert (notebooks.FOLDER / lab.FIRST).is_file()
    settings = json.loads((lab.SETTINGS / "overrides.json").read_text("utf-8"))
    assert settings["@jupyterlab/apputils-extension:notification"] == {
        "fetchNews": "false",
        "checkForUpdates": False,
    }


def test_root_may_start_lab_and_others_need_no_leave(monkeypatch):
    for user, leave in ((0, True), (1000, False)):
        monkeypatch.setattr(lab.os, "getuid", lambda user=user: user, raising=False)
        assert ("--allow-root" in lab.command([])) is leave


def test_a_lesson_without_traces_needs_no_script(tmp_path: Path, monkeypatch):
    bare = '{"cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": '
    bare += '"# 99 Bare"}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
    path = tmp_path / "99_bare.ipynb"
    path.write_text(bare, "utf-8")
    page = site.lesson_page(path, None, None)
    assert "<title>99 Bare</title>" in page
    assert "<script" not in page
