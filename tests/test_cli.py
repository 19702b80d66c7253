"""The commands: answers on stdout, every mistake one line on stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import nanoserve
from nanoserve import cli, doctor, fetch

ROOT = Path(__file__).resolve().parents[1]
COUNT, COPY = "count from 3 to 7", "copy c a d"


def run(*arguments: str, stdin: str | None = None):
    return CliRunner().invoke(cli.build_app(), list(arguments), input=stdin)


@pytest.fixture(scope="module")
def lm():
    return nanoserve.load("canary")


def one_line(result, code: int = 2) -> str:
    assert result.exit_code == code, result.output
    assert result.stdout == ""
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("nanoserve: ")
    return line


def test_version():
    assert run("--version").stdout == f"nanoserve {nanoserve.__version__}\n"


@pytest.mark.parametrize("command", ["doctor", "demo", "generate", "replay", "fetch"])
def test_every_command_explains_itself(command):
    assert command in run("--help").stdout
    result = run(command, "--help")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) > 5


# -- generate ----------------------------------------------------------------------


def test_one_prompt_streams_the_answer_alone(lm):
    result = run("generate", "--prompt", COUNT)
    assert result.exit_code == 0
    expected = nanoserve.generate_one(lm, COUNT)
    assert result.stdout == f"{expected.text}\n"
    assert f"{expected.generated_tokens} out, {expected.finish_reason}" in result.stderr


@pytest.mark.parametrize("side", ["left", "right"])
def test_several_prompts_are_one_batch(lm, side):
    result = run("generate", "-p", COUNT, "-p", COPY, "--padding-side", side)
    assert result.exit_code == 0
    for number, prompt in enumerate((COUNT, COPY), 1):
        answer = nanoserve.generate_one(lm, prompt).text
        assert f"[{number}] {prompt}\n    {answer}\n" in result.stdout


def test_json_carries_the_whole_result(lm):
    arguments = ("-p", COUNT, "-p", COPY, "--json", "--max-new-tokens", "2")
    rows = json.loads(run("generate", *arguments).stdout)
    assert [row["prompt"] for row in rows] == [COUNT, COPY]
    for row in rows:
        alone = nanoserve.generate_one(lm, row["prompt"], max_new_tokens=2)
        assert row["token_ids"] == alone.token_ids
        assert row["finish_reason"] == "length"
        assert row["elapsed_seconds"] > 0


def test_sampling_options_arrive(lm):
    options = ("--temperature", "6", "--top-k", "50", "--top-p", "0.9", "--seed", "4")
    rows = json.loads(run("generate", "-p", COUNT, "--json", *options).stdout)
    sampling = {"temperature": 6.0, "top_k": 50, "top_p": 0.9, "seed": 4}
    alone = nanoserve.generate_one(lm, COUNT, **sampling)
    assert rows[0]["token_ids"] == alone.token_ids
    assert alone.token_ids != nanoserve.generate_one(lm, COUNT).token_ids


def test_chat_puts_the_prompt_into_the_template(lm):
    (row,) = json.loads(run("generate", "-p", COUNT, "--json", "--chat").stdout)
    (plain,) = json.loads(run("generate", "-p", COUNT, "--json").stdout)
    text = lm.tokenizer.apply_chat_template(
        [{"role": "user", "content": COUNT}], add_generation_prompt=True, tokenize=False
    )
    ids = lm.tokenizer(text, add_special_tokens=False).input_ids
    assert row["prompt"] == COUNT
    assert row["prompt_tokens"] == len(ids)
    assert plain["prompt_tokens"] == len(lm.encode(COUNT))


def test_prompts_from_stdin_and_from_a_file(tmp_path):
    lines = f"{COUNT}\n  \n  {COPY}  \n"
    file = tmp_path / "prompts.txt"
    file.write_text(lines)
    piped = json.loads(run("generate", "--json", stdin=lines).stdout)
    named = json.loads(run("generate", "--json", "--file", str(file)).stdout)
    dashed = json.loads(run("generate", "--json", "-f", "-", stdin=lines).stdout)
    for rows in (piped, named, dashed):
        assert [row["prompt"] for row in rows] == [COUNT, COPY]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no prompt"),
        (("-p", ""), "prompt=''"),
        (("-p", COUNT, "--max-new-tokens", "0"), "max_new_tokens=0"),
        (("-p", COUNT, "--max-new-tokens", "100000"), "100000"),
        (("-p", COUNT, "--temperature", "-1"), "temperature=-1.0"),
        (("-p", COUNT, "--temperature", "nan"), "temperature=nan"),
        (("-p", COUNT, "--top-p", "0"), "top_p=0.0"),
        (("-p", COUNT, "--top-k", "-1"), "top_k=-1"),
        (("-p", COUNT, "--seed", "-1"), "seed=-1"),
        (("-p", COUNT, "--padding-side", "up"), "padding_side='up'"),
        (("-p", COUNT, "--device", "abacus"), "device='abacus'"),
        (("-p", COUNT, "--model", "./no/such/model"), "no/such/model"),
        (("--file", "no-such-file"), "no-such-file"),
    ],
)
def test_bad_input_is_one_line(arguments, says):
    assert says in one_line(run("generate", *arguments, stdin=""))


def test_a_file_that_is_no_text_is_one_line(tmp_path):
    file = tmp_path / "weights.bin"
    file.write_bytes(b"\xff\xfe\x00\x81")
    assert "must be text in UTF-8" in one_line(run("generate", "-f", str(file)))


# -- the others --------------------------------------------------------------------


def test_fetch_passes_on_what_it_is_asked(monkeypatch):
    asked = []
    monkeypatch.setattr(fetch, "fetch", lambda name, **rest: asked.append((name, rest)))
    assert run("fetch", "smollm2", "--force").exit_code == 0
    assert asked == [("smollm2", {"force": True, "say": cli.typer.echo})]


def test_fetch_of_an_unknown_model_is_one_line():
    assert "can be fetched: smollm2" in one_line(run("fetch", "gpt5"))


def test_a_system_error_is_one_line(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", "/root/cache")

    monkeypatch.setattr(fetch, "fetch", refuse)
    assert "Permission denied" in one_line(run("fetch"))


def test_ctrl_c_is_one_line(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "fetch", interrupt)
    assert one_line(run("fetch"), code=130) == "nanoserve: interrupted"


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("bad", 1)])
def test_doctor_exits_by_its_findings(monkeypatch, status, code):
    found = [doctor.Check("thing", status, "is so", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda: found)
    result = run("doctor")
    assert result.exit_code == code
    assert "is so" in result.stdout
    assert "cure: do this" in result.stdout


# -- in a process of its own ---------------------------------------------------------


# The package without its __init__, which may import what it likes.
BARE = f"""
import sys, types
bare = types.ModuleType("nanoserve")
bare.__path__ = [{str(ROOT / "nanoserve")!r}]
sys.modules["nanoserve"] = bare
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )


def test_help_does_not_wait_for_torch():
    code = (
        BARE
        + "from nanoserve import cli\ncli.build_app()\nassert 'typer' in sys.modules\n"
    )
    ran = python(code + "print('torch' in sys.modules, 'numpy' in sys.modules)")
    assert ran.stdout.split() == ["False", "False"], ran.stderr


def test_without_typer_it_says_what_to_install():
    code = BARE + "sys.modules['typer'] = None\nfrom nanoserve import cli\ncli.main()"
    ran = python(code)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == f"{cli.NO_TYPER}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_real_ctrl_c_while_it_works():
    code = """
import os, signal, sys, time
from nanoserve import cli, fetch

def work(*_, **__):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)

fetch.fetch = work
sys.argv = ["nanoserve", "fetch"]
cli.main()
"""
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        # a parent may ignore Ctrl-C, and children inherit that
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert ran.returncode == 130
    assert ran.stderr.strip() == "nanoserve: interrupted"
