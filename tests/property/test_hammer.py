"""Eight threads on one pool for a second; `make soak` does it for a minute."""

from __future__ import annotations

import json

import pytest

from kvscope.benchmarks.hammer import main


def test_hammered_pool_leaves_a_clean_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--threads", "8", "--seconds", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["findings"] == 0
    assert result["actors"] >= 8
    assert result["events"] > 1000
