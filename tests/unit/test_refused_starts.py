"""What is refused is refused before a model is loaded, and leaves nothing in the way of the corrected command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvscope.errors import MissingDependency, UsageError
from kvscope.inspector import cli
from kvscope.inspector.cli import generate, serve
from kvscope.inspector.cli._engine import recorder
from kvscope.inspector.cli._newest import kept_newest, parse_duration
from kvscope.traces import Kind, PoolFacts, Recorder, open_trace

TRACE = ["--trace", "x.kvtrace"]
BOTH = [
    ([*TRACE, "--content"], "--record sanitize"),
    ([*TRACE, "--record", "banana"], "off, trace or sanitize"),
    ([*TRACE, "--record", "sanitize", "--watch", "banana"], "name a block"),
    ([*TRACE, "--watch", "b999999"], "the pool has 256 blocks"),
    ([*TRACE, "--record", "off", "--watch", "b1"], "record is off"),
    ([*TRACE, "--record", "off"], "would stay empty"),
    ([*TRACE, "--on-finding", "raise"], "--record sanitize"),
    ([*TRACE, "--on-finding", "stop"], "log or raise"),
    ([*TRACE, "--trace-size", "63KiB"], "at least 64KiB"),
    ([*TRACE, "--trace-size", "much"], "is not a size"),
    ([*TRACE, "--trace-age", "soon"], "is not a duration"),
    ([*TRACE, "--trace-age", "0h"], "above zero"),
    (["--trace-size", "1MiB"], "give --trace"),
    (["--trace-age", "1h"], "give --trace"),
    (["--trace", "taken.kvtrace"], "--overwrite"),
    (["--trace", "file"], "a file is in the way"),
    (["--trace", "file/x.kvtrace"], "file"),
    (["--trace", "full"], "holds no trace"),
    (["--trace", "taken.kvtrace", "--overwrite"], "being written right now"),
]
SERVED = [
    ([*TRACE, "--rotate", "--record", "off"], "would stay empty"),
    ([*TRACE, "--name", ""], "name is empty"),
    ([*TRACE, "--grace", "nan"], "grace is nan"),
    ([*TRACE, "--max-tokens", "0"], "max_tokens is 0"),
    ([*TRACE, "--max-requests", "0"], "max-requests is 0"),
    ([*TRACE, "--metrics-aliases", "x"], "none or vllm"),
    (["--record", "sanitize"], "give --trace"),
    (["--trace", "taken.kvtrace", "--rotate"], "another process"),
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)

    def too_soon(*_: Any, **__: Any) -> None:
        raise AssertionError("the model is loaded for a command that is refused")

    monkeypatch.setattr(serve, "load", too_soon)
    monkeypatch.setattr(generate, "load", too_soon)
    Path("file").write_text("x")
    Path("full").mkdir()
    Path("full/mine").write_text("x")
    return tmp_path


def refused(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Recorder("taken.kvtrace", pool=PoolFacts(4, 4)):
        assert cli.run(arguments) == 2
    said = capsys.readouterr().err
    assert (said.count("\n"), says in said) == (1, True), said
    assert not Path("x.kvtrace").exists()


@pytest.mark.parametrize(("options", "says"), BOTH)
@pytest.mark.parametrize("command", ["serve", "generate"])
def test_a_wrong_option_costs_no_model_and_leaves_no_trace(
    command: str, options: list[str], says: str, here: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused([command, str(tiny_folder), *(["hello"] if command == "generate" else []), *options], says, capsys)


@pytest.mark.parametrize(("options", "says"), SERVED)
def test_a_wrong_option_of_the_server(
    options: list[str], says: str, here: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(["serve", str(tiny_folder), *options], says, capsys)


def test_a_prompt_that_never_fits_leaves_no_trace(
    tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second of two: the first had been queued by then."""
    trace = tmp_path / "x.kvtrace"
    command = ["generate", str(tiny_folder), "the cat", "--trace", str(trace), "--json", "--max-tokens", "2", "--raw",
               "--device", "cpu", "--threads", "1"]  # fmt: skip
    assert cli.run([*command[:3], "the cat sat " * 400, *command[3:]]) == 2
    assert "context" in capsys.readouterr().err
    assert not trace.exists()
    assert cli.run(command) == 0
    assert json.loads(capsys.readouterr().out)["trace"] == str(trace)


def test_what_goes_wrong_before_the_first_event_leaves_no_trace(tmp_path: Path) -> None:
    config: Any = type("Config", (), {"num_blocks": 4, "block_size": 4, "dtype": type("T", (), {"itemsize": 4})})
    loaded: Any = type("L", (), {"config": type("C", (), {"bytes_per_token": staticmethod(lambda size: size)})})
    for events in (0, 1):
        folder = tmp_path / f"{events}.kvtrace"
        with pytest.raises(MissingDependency):
            begin(folder, config, loaded, events)
        assert folder.exists() == bool(events)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5 min", 90), ("2m", 120), ("500ms", 0.5), ("24h", 86_400), ("7D", 604_800)],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1e3", "nan", "0", "0.0h", "9999d", "1w", "1 h 2 m", "9" * 400])
def test_what_is_no_duration_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="duration") as caught:
        parse_duration(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 160


def test_the_limits_reach_the_recorder(tmp_path: Path) -> None:
    config: Any = type("Config", (), {"num_blocks": 64, "block_size": 4, "dtype": type("T", (), {"itemsize": 4})})
    loaded: Any = type("L", (), {"config": type("C", (), {"bytes_per_token": staticmethod(lambda size: size)})})
    limits, folder = kept_newest(tmp_path / "a.kvtrace", "64KiB", "7d"), tmp_path / "a.kvtrace"
    assert limits == (1 << 16, 7 * 86_400)
    noise = np.random.default_rng(0).integers(0, 1 << 62, 40_000)
    with recorder(folder, "trace", config, loaded, kept=limits) as sink:
        assert isinstance(sink, Recorder)
        for part in np.split(noise, 20):
            sink.emit_many(Kind.NOTE, aux=part)
            sink.seal()
    trace = open_trace(folder)
    assert 0 < trace.rows < len(noise)
    assert trace.let_go == len(noise) - trace.rows
    assert np.array_equal(trace.columns(("aux",))["aux"], noise[-trace.rows :])


def begin(folder: Path, config: Any, loaded: Any, events: int) -> None:
    with recorder(folder, "trace", config, loaded) as sink:
        assert sink is not None
        for _ in range(events):
            sink.emit(Kind.NOTE)
        raise MissingDependency("something is not installed")
