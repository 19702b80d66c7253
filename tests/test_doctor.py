"""Each ailment is found and has its cure in one line; the doctor never dies."""

from __future__ import annotations

import os
import sys
import types

import pytest
import torch

import nanoserve
from nanoserve import doctor


def healthy(check: doctor.Check) -> None:
    assert (check.status, check.cure) == ("ok", ""), check


def ails(check: doctor.Check, status: str, cure: str) -> None:
    assert check.status == status, check
    assert cure in check.cure
    assert "\n" not in check.cure + check.value


# -- the whole ---------------------------------------------------------------------


def test_a_check_that_raises_is_reported():
    def check_the_moon():
        raise RuntimeError("no\nmoon")

    (found,) = doctor.examine((check_the_moon,))
    ails(found, "bad", "make setup")
    assert found.name == "the moon"
    assert found.value == "RuntimeError: no moon"


def test_every_check_reports_here_in_one_screen():
    found = doctor.examine()
    assert len({each.name for each in found}) == len(doctor.CHECKS)
    assert not [each for each in found if "Error: " in each.value]
    report = [line for line, _ in doctor.lines(found)]
    assert len(report) <= 2 * len(doctor.CHECKS) + 1 < 40
    for each in found:
        assert bool(each.cure) == (each.status != "ok"), each


@pytest.mark.parametrize(
    ("statuses", "code", "last"),
    [
        (["ok", "ok"], 0, "All is well."),
        (["ok", "warn"], 0, "All is well, 1 to know about."),
        (["bad", "warn"], 1, "1 to cure, 1 to know about."),
    ],
)
def test_exit_code_and_last_line(statuses, code, last):
    found = [doctor.Check("x", each, "v", "c" * (each != "ok")) for each in statuses]
    assert doctor.exit_code(found) == code
    assert [line for line, _ in doctor.lines(found)][-1] == last


# -- software ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [(3, 10, 14), (3, 14, 0)])
def test_python_out_of_range(monkeypatch, version):
    healthy(doctor.check_python())
    monkeypatch.setattr(sys, "version_info", version)
    ails(doctor.check_python(), "bad", "PYTHON=")


def test_a_folder_with_another_checkout(monkeypatch, tmp_path):
    healthy(doctor.check_nanoserve())
    (tmp_path / "nanoserve").mkdir()
    (tmp_path / "nanoserve/doctor.py").touch()
    monkeypatch.chdir(tmp_path)
    ails(doctor.check_nanoserve(), "warn", "not the one that runs")


def test_old_torch(monkeypatch):
    healthy(doctor.check_torch())
    monkeypatch.setattr(torch, "__version__", "2.2.2")
    ails(doctor.check_torch(), "bad", "make setup")


def test_intel_mac_is_sent_to_conda_forge(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.2.2")
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(doctor.platform, "machine", lambda: "x86_64")
    ails(doctor.check_torch(), "bad", "conda-forge")


def test_no_torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    ails(doctor.check_torch(), "bad", "make setup")


def test_a_cuda_build_without_a_gpu_is_fine(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    healthy(doctor.check_torch())
    assert "CUDA build without a GPU: fine" in doctor.check_torch().value


def test_a_missing_library(monkeypatch):
    healthy(doctor.check_libraries())
    monkeypatch.setattr(doctor, "installed", lambda name: None)
    ails(doctor.check_libraries(), "bad", "make setup")


def test_versions_that_differ_from_the_pins(monkeypatch, tmp_path):
    (tmp_path / "constraints.txt").write_text(
        f"# a comment\ntorch=={torch.__version__.split('+')[0]}\nnumpy==1.0\n"
    )
    monkeypatch.setattr(doctor, "ROOT", tmp_path)
    ails(doctor.check_pins(), "warn", "make setup")
    assert "(pinned 1.0)" in doctor.check_pins().value
    assert "torch" not in doctor.check_pins().value
    (tmp_path / "constraints.txt").unlink()
    healthy(doctor.check_pins())


def test_a_missing_extra(monkeypatch):
    monkeypatch.setitem(doctor.EXTRAS, "moon", ("no_such_module_here",))
    ails(doctor.check_extras(), "warn", "moon]")


def test_extras_are_those_of_pyproject():
    import tomllib

    project = tomllib.loads((doctor.ROOT / "pyproject.toml").read_text("utf-8"))
    extras = set(project["project"]["optional-dependencies"]) - {"all"}
    assert set(doctor.EXTRAS) == extras


@pytest.mark.parametrize(
    ("python", "status"),
    [("python", "ok"), (sys.executable, "ok"), ("/opt/other/bin/python", "warn")],
)
def test_kernels_of_another_environment(monkeypatch, python, status):
    class Manager:
        def get_kernel_spec(self, name):
            return types.SimpleNamespace(argv=[python])

    module = pytest.importorskip("jupyter_client.kernelspec")
    monkeypatch.setattr(module, "KernelSpecManager", Manager)
    found = doctor.check_kernel()
    assert found.status == status
    if status == "warn":
        ails(found, "warn", "ipykernel install --sys-prefix")


# -- machine -----------------------------------------------------------------------


def test_too_many_and_too_few_threads(monkeypatch):
    monkeypatch.setattr(doctor, "usable_cores", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    healthy(doctor.check_threads())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    ails(doctor.check_threads(), "warn", "OMP_NUM_THREADS=8")
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    healthy(doctor.check_threads())
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ails(doctor.check_threads(), "warn", "unset OMP_NUM_THREADS")


@pytest.mark.skipif(not hasattr(os, "getloadavg"), reason="no load average here")
def test_a_busy_machine(monkeypatch):
    monkeypatch.setattr(os, "getloadavg", lambda: (0.3, 9.0, 9.0))
    healthy(doctor.check_load())
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0.0, 0.0))
    ails(doctor.check_load(), "warn", "measure when it is quiet")


@pytest.mark.parametrize(("free", "status"), [(0.5, "bad"), (2, "warn"), (9, "ok")])
def test_memory(monkeypatch, free, status):
    size = free * doctor.GIBIBYTE
    monkeypatch.setattr(doctor, "memory", lambda: (size, 16 * doctor.GIBIBYTE))
    assert doctor.check_memory().status == status


def test_memory_without_psutil(monkeypatch):
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    free, total = doctor.memory()
    if free is not None:
        assert total is not None
        assert 0 < free <= total
    assert doctor.check_memory().status in ("ok", "warn", "bad")


# -- models ------------------------------------------------------------------------


def test_cache_that_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path / "not" / "made" / "yet"))
    assert doctor.check_cache().status in ("ok", "warn")
    file = tmp_path / "file"
    file.touch(mode=0o755)
    monkeypatch.setenv("NANOSERVE_CACHE", str(file / "below"))
    ails(doctor.check_cache(), "bad", "NANOSERVE_CACHE")
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    ails(doctor.check_cache(), "bad", "NANOSERVE_CACHE")


def test_disk_nearly_full(monkeypatch):
    little = types.SimpleNamespace(free=2**20)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: little)
    ails(doctor.check_cache(), "warn", "free some")


@pytest.mark.parametrize(
    ("text", "status"), [(doctor.ANSWER, "ok"), (doctor.ANSWER + " 13", "bad")]
)
def test_canary_that_miscounts(monkeypatch, text, status):
    lm = types.SimpleNamespace(device="cpu")
    answer = types.SimpleNamespace(text=text)
    monkeypatch.setattr(nanoserve, "load", lambda name: lm)
    monkeypatch.setattr(nanoserve, "generate_one", lambda lm, prompt: answer)
    found = doctor.check_canary()
    assert found.status == status
    if status == "bad":
        ails(found, "bad", "git status")
        assert text in found.value


def test_smollm2_there_missing_and_half(monkeypatch, tmp_path):
    monkeypatch.setenv("NANOSERVE_CACHE", str(tmp_path))
    healthy(doctor.check_smollm2())
    assert "nanoserve fetch smollm2" in doctor.check_smollm2().value
    model = tmp_path / "smollm2"
    model.mkdir()
    (model / "config.json").touch()
    ails(doctor.check_smollm2(), "bad", "--force")
    for name in ("tokenizer.json", "model.safetensors"):
        (model / name).touch()
    healthy(doctor.check_smollm2())


def test_offline(monkeypatch):
    for each in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(each, raising=False)
    healthy(doctor.check_hub())
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    ails(doctor.check_hub(), "warn", "unset HF_HUB_OFFLINE")


def test_browser_or_none(monkeypatch):
    def none():
        raise doctor.webbrowser.Error("none")

    monkeypatch.setattr(doctor.webbrowser, "get", none)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    healthy(doctor.check_browser())
    assert "prints an address" in doctor.check_browser().value
