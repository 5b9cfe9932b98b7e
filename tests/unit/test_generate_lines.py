"""Lines for people stay whole beside text that comes token by token, and the text holds nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import pytest

from kvscope.engine.engine import Engine
from kvscope.errors import UsageError
from kvscope.inspector import cli

RUN = ["the cat", "--raw", "--max-tokens", "40", "--temperature", "1", "--block-size", "4"]


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, *names: str) -> Iterator[int]:
    """These streams are one terminal; yields the end at which it can be read."""
    ours, theirs = os.openpty()
    with open(theirs, "w") as screen, monkeypatch.context() as patched:
        for name in names:
            patched.setattr(sys, name, screen)
        patched.setenv("TERM", "xterm")
        yield ours
        screen.flush()
    os.close(ours)


def shown(ours: int) -> list[str]:
    os.set_blocking(ours, False)
    text = b""
    while True:
        try:
            text += os.read(ours, 1 << 16)
        except BlockingIOError:
            return text.decode().replace("\r\n", "\n").split("\n")


def into_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> TextIO:
    made = path.open("w")
    monkeypatch.setattr(sys, "stdout", made)
    return made


@pytest.mark.parametrize("watched", ["b1", "b2", "b3"])
def test_a_watch_line_begins_at_the_edge(watched: str, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch, "stdout", "stderr") as ours:
        assert cli.run(["generate", str(tiny_folder), *RUN, "--watch", watched]) == 0
        sys.stdout.flush()
        lines = shown(ours)
    told = [line for line in lines if "kvscope: watch:" in line]
    assert len(told) > 2
    assert all(line.startswith("kvscope: watch: sequence ") for line in told)


def test_the_text_in_a_file_is_the_same_with_a_watch(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = []
    for name, more in (("plain", []), ("watched", ["--watch", "b1"])):
        with terminal(monkeypatch, "stderr"), monkeypatch.context() as patched, into_file(tmp_path / name, patched):
            assert cli.run(["generate", str(tiny_folder), *RUN, *more]) == 0
        texts.append((tmp_path / name).read_text())
    assert texts[0] == texts[1]
    assert texts[0].endswith("\n")


def test_a_run_that_stops_ends_the_line_of_its_text(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Engine.step

    def stopping(engine: Engine) -> object:
        if len(steps) == 5:
            raise UsageError("enough")
        steps.append(1)
        return step(engine)

    steps: list[int] = []
    monkeypatch.setattr(Engine, "step", stopping)
    with terminal(monkeypatch, "stdout", "stderr") as ours:
        assert cli.run(["generate", str(tiny_folder), *RUN]) == 2
        sys.stdout.flush()
        lines = shown(ours)
    assert "kvscope: error: enough" in lines
