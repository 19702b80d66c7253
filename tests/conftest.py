"""What all tests share: how long hypothesis searches, and what is printed last."""

from __future__ import annotations

import os

import pytest
import torch

pytest.register_assert_rewrite("laws", "traces")

import laws  # noqa: E402
import tiny  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402
from transformers.utils import logging as transformers_logging  # noqa: E402

# HYPOTHESIS_PROFILE=long searches for an hour; CI always tries the same examples.
common = {
    "deadline": None,  # a busy machine is no bug
    "suppress_health_check": [HealthCheck.too_slow],
    "print_blob": True,
}
settings.register_profile("short", max_examples=20, **common)
settings.register_profile("ci", max_examples=30, derandomize=True, **common)
settings.register_profile("long", max_examples=2000, **common)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "short")
)

transformers_logging.disable_progress_bar()
# A worker has a core: more threads would wait for each other. (The kernels that run
# the notebooks are processes of their own, and have theirs.)
torch.set_num_threads(1)


@pytest.fixture(scope="session", params=tiny.FAMILIES)
def lm(request):
    """A tiny random model; a test that takes it runs once for each family."""
    return tiny.tiny_lm(request.param)


@pytest.fixture(scope="session")
def llama():
    return tiny.tiny_lm("llama")


@pytest.fixture(scope="session")
def gpt2():
    return tiny.tiny_lm("gpt2")


@pytest.fixture
def fresh_kernel(monkeypatch, tmp_path):
    """For a lesson's cells: in its folder, nothing answered yet, no panel shown."""
    from nanoserve.course import binding, notebooks, panels

    monkeypatch.setenv("NANOSERVE_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr(panels, "show", lambda _: None)
    monkeypatch.setattr(binding, "_attempts", {})
    monkeypatch.chdir(notebooks.FOLDER)


@pytest.fixture(scope="session", autouse=True)
def near_ties_are_rare():
    """At most one compared row in a thousand, over all tests of this session."""
    yield
    assert not laws.REPORT.tally.too_many(), str(laws.REPORT.tally)


def pytest_sessionfinish(session):
    output = getattr(session.config, "workeroutput", None)  # a worker's, of xdist
    if output is not None:
        tally = laws.REPORT.tally
        output["laws"] = [tally.rows, tally.near_ties, laws.REPORT.lines]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    """Add up what the workers have compared."""
    rows, near_ties, lines = getattr(node, "workeroutput", {}).get("laws", (0, 0, []))
    laws.REPORT.tally.rows += rows
    laws.REPORT.tally.near_ties += near_ties
    laws.REPORT.lines += lines


def pytest_terminal_summary(terminalreporter):
    if laws.REPORT.tally.rows or laws.REPORT.lines:
        terminalreporter.section("laws")
        for line in [*laws.REPORT.lines, str(laws.REPORT.tally)]:
            terminalreporter.write_line(line)
