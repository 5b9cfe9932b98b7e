"""What the sanitizer says of known histories, whole and with rows dropped, moved or changed, stays the same."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def histories() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("histories", Path(__file__).with_name("histories.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["histories"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["histories"]


def test_findings_and_suspicions_are_those_that_were_kept(histories: ModuleType) -> None:
    expected = histories.expected()
    told = list(histories.lines(histories.key(line) for line in expected))
    different = [f"- {old}\n+ {new}" for old, new in zip(expected, told, strict=True) if old != new]
    assert not different, (
        f"{len(different)} of {len(told)} lines differ; if that is meant: python tests/golden/histories.py findings\n"
        + "\n".join(different[:3])
    )


def test_histories_as_they_were_recorded_are_clean(histories: ModuleType) -> None:
    whole = [line for line in histories.expected() if histories.key(line)[1] == 0]
    assert len(whole) == len(histories.kept())
    assert not [line for line in whole if "KV" in line]


def test_recording_the_histories_again_gives_the_same_events(histories: ModuleType, toy_engine: ModuleType) -> None:
    about, tables = histories.stored()
    again, rows = histories.recorded(toy_engine)
    assert again == about
    for name, table in tables.items():
        different = np.flatnonzero((rows[name] != table).any(axis=1)) if rows[name].shape == table.shape else [0]
        assert not len(different), (
            f"{name} differs from event {different[0]} on; if that is meant: python tests/golden/histories.py record"
        )
