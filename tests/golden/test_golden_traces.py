"""Traces of every format version that was ever written still read as they did."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from kvscope.traces import FORMAT_VERSION, open_trace

SAMPLES = Path(__file__).parents[2] / "traces" / "samples"
TRACES = sorted(SAMPLES.glob("*.kvtrace"))


@pytest.fixture(scope="module")
def make() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_samples", SAMPLES / "make.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_this_version_has_its_samples() -> None:
    version = ".".join(str(part) for part in FORMAT_VERSION)
    assert {f"v{version}-closed.kvtrace", f"v{version}-killed.kvtrace"} <= {path.name for path in TRACES}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.name)
def test_a_golden_trace_reads_as_it_did(path: Path, make: ModuleType) -> None:
    expected = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    assert make.contents(open_trace(path)) == expected


def test_making_the_samples_again_gives_the_same_story(tmp_path: Path, make: ModuleType) -> None:
    shutil.copy(SAMPLES / "make.py", tmp_path)
    make.HERE = tmp_path
    make.main()
    for path in sorted(tmp_path.glob("*.json")):
        assert json.loads(path.read_text(encoding="utf-8")) == json.loads(
            (SAMPLES / path.name).read_text(encoding="utf-8")
        )


def test_samples_stay_small_and_name_no_place() -> None:
    for path in SAMPLES.rglob("*"):
        if path.is_file():
            assert path.stat().st_size < (160_000 if path.suffix == ".kvpack" else 32_000)  # the gallery is packed
            data = path.read_bytes()
            assert b"/home/" not in data
            assert b"/root/" not in data
