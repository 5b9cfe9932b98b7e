"""The page of the kernels' figures is what its command makes of the committed result, and hides no missed goal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.benchmarks.kernel_page import page

ROOT = Path(__file__).parents[2]
RESULT = "benchmarks/results/kernels-h200.json"


def test_the_committed_page_is_that_of_the_committed_result() -> None:
    result = json.loads((ROOT / RESULT).read_text(encoding="utf-8"))
    assert (ROOT / "docs/kernels.md").read_text(encoding="utf-8") == page(result, RESULT)


def test_a_missed_goal_is_named_at_the_top_and_in_its_row() -> None:
    common = {"unit": "us", "baseline": "copy bandwidth", "gate": 0.9}
    rows = [
        {"name": "copy bandwidth", "value": 4000.0, "unit": "GB/s", "baseline": None, "ratio": None, "gate": None},
        {"name": "copy 64 blocks", "value": 71.0, "ratio": 0.885, "ok": False, **common},
        {"name": "copy 512 blocks", "value": 540.0, "ratio": 0.93, "ok": True, **common},
    ]
    text = page({"device": "a card", "torch": "2", "rows": rows}, "r.json")
    assert "1 of 2 goals are met. Missed: copy 64 blocks: 0.885 x copy bandwidth, goal 0.9." in text
    assert "| copy 64 blocks | 71.0 us | 0.885 x copy bandwidth | 0.9 | **missed** |" in text
    assert "| copy 512 blocks | 540.0 us | 0.930 x copy bandwidth | 0.9 | met |" in text


@pytest.mark.parametrize("content", ["", "[]", '{"rows": []}', '{"rows": [1], "device": "a", "torch": "b"}'])
def test_what_is_no_result_is_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "r.json").write_text(content)
    command = [sys.executable, "-m", "kvscope.benchmarks.kernel_page", str(tmp_path / "r.json"), str(tmp_path / "p.md")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n"), (tmp_path / "p.md").exists()) == (2, 1, False)
