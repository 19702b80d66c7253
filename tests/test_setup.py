"""The set-up files agree with one another, and the README with what there is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = ("course", "cli", "gguf", "serve", "test", "browser")
# The one place that says where a conda-forge name differs from PyPI's.
PYPI_NAME = {"pytorch": "torch"}
# Hard requirements of transformers (test below) that nanoserve imports as well.
COMES_ALONG = {"tokenizers", "safetensors", "huggingface_hub", "tqdm"}


def same(name: str) -> str:
    return re.sub(r"[-_.]+", "_", name).lower()


def declared() -> dict[str, SpecifierSet]:
    """Every direct dependency of pyproject.toml, core and extras: name, range."""
    extras = PROJECT["project"]["optional-dependencies"]
    words = list(PROJECT["project"]["dependencies"])
    for extra in EXTRAS:
        words += extras[extra]
    found = [Requirement(word) for word in words]
    assert len({same(each.name) for each in found}) == len(found), "one named twice"
    return {same(each.name): each.specifier for each in found}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    found = {}
    for line in lines:
        if line.strip() and not line.startswith("#"):
            name, version = line.split("==")  # anything but one exact pin fails here
            found[same(name)] = version
    return found


def conda() -> tuple[dict[str, SpecifierSet], list[str]]:
    """environment.yml by PyPI's names, and what it leaves to pip."""
    listed = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))
    assert listed["channels"] == ["conda-forge"]
    packages, by_pip = {}, []
    for each in listed["dependencies"]:
        if isinstance(each, dict):
            by_pip += each["pip"]
            continue
        name, _, specifier = each.partition(" ")
        packages[same(PYPI_NAME.get(name, name))] = SpecifierSet(specifier)
    return packages, by_pip


def test_every_direct_dependency_is_pinned_inside_its_range():
    ranges, exact = declared(), pins()
    assert set(exact) == set(ranges) | COMES_ALONG
    for name, range_ in ranges.items():
        assert exact[name] in range_, f"{name}=={exact[name]} is outside {range_}"


def test_environment_yml_says_what_pyproject_says():
    packages, by_pip = conda()
    python = packages.pop("python")
    packages.pop("pip")
    only_pip = {"playwright", "axe_playwright_python"}  # the extra `browser`
    assert packages == {k: v for k, v in declared().items() if k not in only_pip}
    assert python == SpecifierSet(PROJECT["project"]["requires-python"])
    assert by_pip == ["-e ."]


def test_all_is_every_extra():
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras) == {*EXTRAS, "all"}
    assert extras["all"] == [f"nanoserve[{','.join(EXTRAS)}]"]


def test_the_core_needs_three_packages_and_transformers_brings_the_rest():
    core = [Requirement(each).name for each in PROJECT["project"]["dependencies"]]
    assert core == ["torch", "transformers", "numpy"]
    hard = [Requirement(each) for each in requires("transformers") or []]
    brought = {same(each.name) for each in hard if each.marker is None}
    assert brought >= COMES_ALONG


def test_each_dependency_says_why_it_is_there():
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    for line in re.findall(r'^  "[A-Za-z][\w.-]*[<>=].*$', text, re.MULTILINE):
        assert "# " in line, line


def test_the_wheel_carries_the_canaries_and_the_traffic():
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    for source, target in wheel["force-include"].items():
        assert target == f"nanoserve/{source}"
    data = {"data/canary", "data/canary-rope", "data/traffic"}
    assert set(wheel["force-include"]) == data


def test_the_script_starts_main():
    from nanoserve import cli

    assert PROJECT["project"]["scripts"] == {"nanoserve": "nanoserve.cli:main"}
    assert callable(cli.main)


def test_versions_agree():
    import nanoserve

    assert nanoserve.__version__ == PROJECT["project"]["version"]


# -- Makefile --------------------------------------------------------------------


TARGETS = (
    "setup",
    "lab",
    "test",
    "lint",
    "notebooks",
    "check-notebooks",
    "site",
    "clean",
)
needs_make = pytest.mark.skipif(not shutil.which("make"), reason="no make here")


def make(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    outer = {"MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "TORCH"}
    environment = {k: v for k, v in os.environ.items() if k not in outer}
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True
    )


@needs_make
def test_make_alone_prints_help_that_names_every_target():
    ran = make()
    assert ran.returncode == 0
    for target in TARGETS:
        assert f"make {target}" in ran.stdout


@needs_make
@pytest.mark.parametrize("target", TARGETS)
def test_make_knows_the_target(target):
    assert make("--dry-run", target).returncode == 0


@pytest.fixture
def checkout(tmp_path):
    """A folder with a space in its name, and only the files that `setup` reads."""
    place = tmp_path / "my checkout"
    place.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, place)
    return place


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@needs_make
@pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")
@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("exit 1", "is no Python of 3.11 to 3.13"),  # too old, a dead shim, no Python
        ('case "$2" in *ensurepip*) exit 1;; esac', "apt install python3-venv"),
    ],
)
def test_a_python_that_will_not_do_is_one_line(checkout, tmp_path, body, says):
    python = script(tmp_path / "python", body)
    ran = make("setup", f"PYTHON={python}", cwd=checkout)
    assert ran.returncode != 0
    lines = [each for each in ran.stderr.splitlines() if "***" not in each]
    assert len(lines) == 1
    assert says in lines[0]
    assert not (checkout / ".venv").exists()


@needs_make
@pytest.mark.skipif(sys.platform == "win32", reason="shell scripts")
def test_an_install_that_breaks_off_is_done_again(checkout):
    """Good stamp: nothing to do. Stale, then failing: no stamp is left."""
    (checkout / ".venv/bin").mkdir(parents=True)
    log = checkout / "log"
    real = f'"{sys.executable}" "$@"'
    fake = f'case "$*" in *"pip install"*) echo "$@" >> "{log}"; test ! -e fail;; '
    fake += f"*) {real};; esac"
    script(checkout / ".venv/bin/python", fake)
    stamp = checkout / ".venv/.nanoserve"
    python = f"PYTHON={sys.executable}"

    assert make("setup", python, cwd=checkout).returncode == 0
    assert stamp.read_text().strip() == str(checkout.resolve())
    assert "-c constraints.txt -e .[all]" in log.read_text()
    log.unlink()
    assert make("setup", python, cwd=checkout).returncode == 0
    assert not log.exists(), "installed again though nothing had changed"

    later = stamp.stat().st_mtime + 10
    os.utime(checkout / "constraints.txt", (later, later))
    (checkout / "fail").touch()
    assert make("setup", python, cwd=checkout).returncode != 0
    assert not stamp.exists()
    (checkout / "fail").unlink()
    assert make("setup", python, cwd=checkout).returncode == 0
    assert stamp.exists()


@needs_make
def test_torch_without_cuda_is_asked_for_once(checkout):
    """From a CUDA environment: made anew. From then on: kept, also unasked."""
    index = "download.pytorch.org/whl/cpu -c constraints.txt torch"
    (checkout / ".venv").mkdir()
    stamp = checkout / ".venv/.nanoserve"
    stamp.write_text(f"{checkout.resolve()}\n")
    asked = make("--dry-run", "setup", "TORCH=cpu", cwd=checkout).stdout
    assert index in asked
    assert "|| true; then" in asked  # venv --clear

    (checkout / ".venv/.torch-cpu").touch()
    assert "pip" not in make("--dry-run", "setup", "TORCH=cpu", cwd=checkout).stdout
    stamp.unlink()
    again = make("--dry-run", "setup", cwd=checkout).stdout
    assert index in again
    assert "|| false; then" in again


@needs_make
def test_a_moved_checkout_is_set_up_anew(checkout):
    (checkout / ".venv").mkdir()
    stamp = checkout / ".venv/.nanoserve"
    stamp.write_text("/where/it/was/before\n")
    assert "pip install" in make("--dry-run", "setup", cwd=checkout).stdout
    stamp.write_text(f"{checkout.resolve()}\n")
    assert "pip install" not in make("--dry-run", "setup", cwd=checkout).stdout


# -- CI and README -----------------------------------------------------------------


@pytest.mark.parametrize(
    "closing",
    [
        "=========== 3 passed, 1 skipped in 0.12s ===========",
        "==== 1 failed, 900 passed, 2 errors in 425.01s (0:07:05) ====",
        "3 passed in 34.40s",
    ],
)
def test_ci_run_closes_with_pytests_lines(tmp_path, closing):
    """Its order and its exit code, with a `make` that only tells what it was asked."""
    place, log = tmp_path / "clone", tmp_path / "log"
    (place / ".ci").mkdir(parents=True)
    shutil.copy(ROOT / ".ci/run", place / ".ci")
    body = f'echo "$1 $OMP_NUM_THREADS $ATEN_CPU_CAPABILITY" >> "{log}"\n'
    body += f'case "$1" in test) echo "268 passed in 13.50s"; echo "{closing}"; '
    body += "exit $TESTS;; check*) exit $BOOKS;;"
    script(tmp_path / "make", body + " esac")

    def run(tests: int, books: int) -> subprocess.CompletedProcess[str]:
        hidden = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY")
        env = {k: v for k, v in os.environ.items() if k not in hidden}
        env |= {"PATH": f"{tmp_path}:{env['PATH']}"}
        env |= {"TESTS": str(tests), "BOOKS": str(books)}
        return subprocess.run(
            ["bash", ".ci/run"], cwd=place, env=env, capture_output=True, text=True
        )

    good = run(0, 0)
    assert good.returncode == 0
    assert good.stdout.splitlines()[-2:] == ["268 passed in 13.50s", closing]
    asked = [each.split() for each in log.read_text().splitlines()]
    again = [["check-notebooks", "1"], ["check-notebooks", "avx2"]]
    assert asked == [["setup"], ["test"], *again]
    assert run(1, 0).returncode != 0
    assert run(0, 1).returncode != 0


def blocks(language: str = "") -> list[str]:
    text = (ROOT / "README.md").read_text("utf-8")
    return [
        body
        for name, body in re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)
        if name == language
    ]


def test_readme_commands_exist():
    import typer.main

    from nanoserve import cli

    text = "\n".join(blocks())
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"\bmake ([a-z][a-z-]*)", text))
    assert {"lab", "test", "setup"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    commands = typer.main.get_command(cli.build_app()).commands
    used = set(re.findall(r"^nanoserve (\w+)", text, re.MULTILINE))
    assert used == set(commands)


def test_readme_names_only_files_that_exist():
    text = (ROOT / "README.md").read_text("utf-8")
    for each in re.findall(r"`([\w./-]+\.(?:py|toml|txt|yml)|[a-z]+/)`", text):
        place = each if (ROOT / each).exists() else f"nanoserve/{each}"
        assert (ROOT / place).exists() or each == "my/", each


def test_readme_example_runs(capsys):
    (example,) = blocks("python")
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out
