"""Files of property runs and of measured overhead, read back: what they say, and that nothing in them is believed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.dashboard import figures_more, markup
from kvscope.inspector.prefixes import prefix_tree
from kvscope.inspector.results import read_results

FUZZ = {
    "schema": "kvscope-fuzz/1", "target": "a:b", "verdict": "finding", "examples": 8, "rules": 313, "calls": 338,
    "elapsed_s": 2.7, "threads": 1, "notes": [], "error": None,
    "finding": {"code": "KV006", "name": "write-while-shared", "why": "it is held", "program": "def test(): ...",
                "replay": None, "lanes": None},
}  # fmt: skip


def test_a_race_comes_back_with_its_lanes(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "kvscope", "races", "--example", "articles", "--json"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1
    (tmp_path / "races.json").write_text(done.stdout)
    (run,) = read_results([tmp_path]).runs
    said = json.loads(done.stdout)
    assert (run.tool, run.verdict, run.replay) == ("races", "finding", said["replay"])
    assert said["failure"]["message"] in run.headline
    assert [s.thread for s in run.lanes] == [s["thread"] for s in said["lanes"]]
    html = markup.lanes([(s.thread, s.steps, s.preempted) for s in run.lanes])
    assert "worker-1 is stopped here" in html
    assert html.count("worker-2</b>") == 1


def test_fuzz_overhead_and_junit(tmp_path: Path) -> None:
    (tmp_path / "fuzz.json").write_text(json.dumps(FUZZ))
    rows = [{"name": "batch 8, recording", "value": 11.4, "baseline": 11.2, "ratio": 1.018, "unit": "ms", "gate": 1.05},
            {"name": "batch 8, recording alone", "value": 0.1, "baseline": 11.2, "ratio": 0.01}]  # fmt: skip
    (tmp_path / "overhead.json").write_text(json.dumps({"rows": rows}))
    (tmp_path / "junit.xml").write_text(
        '<testsuites><testsuite name="s" time="1.5"><testcase classname="c" name="good" time="1"/>'
        '<testcase name="bad"><failure message="why">text</failure></testcase></testsuite></testsuites>'
    )
    found = read_results([tmp_path])
    assert not found.unread
    fuzz, tests = sorted(found.runs, key=lambda run: run.tool)
    assert (fuzz.verdict, fuzz.program) == ("finding", "def test(): ...")
    assert fuzz.headline == "KV006 write-while-shared: it is held"
    assert [(case.name, case.verdict) for case in tests.cases] == [("c.good", "passed"), ("bad", "failed")]
    (cost,) = found.overhead
    assert (cost.ratio, cost.gate) == (1.018, 1.05)
    assert figures_more.overhead([(cost.name, cost.ratio, None, None, cost.gate)]).data[0].x == (1.018,)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "{"), ("a.xml", "<a"), ("a.xml", '<!DOCTYPE x [<!ENTITY a "b">]><testsuite>&a;</testsuite>'),
        ("a.json", "[" * 100_000),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    found = read_results([tmp_path, tmp_path / "missing.json"])
    assert not found.runs
    assert len(found.unread) == 2


@pytest.mark.parametrize("data", [{}, {"rows": [1, {"name": None}]}, {"schema": "kvscope-races/1", "lanes": [1, {}]},
                                  {"schema": "kvscope-fuzz/1", "finding": 3, "verdict": 7}, [1],
                                  {"schema": "kvscope-fuzz/1", "examples": float("inf"), "rules": 10**400},
                                  {"rows": [{"name": "recording", "value": 1, "baseline": 1, "ratio": float("nan")}]},
                                  ])  # fmt: skip
def test_other_forms_are_passed_over(tmp_path: Path, data: object) -> None:
    (tmp_path / "a.json").write_text(json.dumps(data))
    found = read_results([tmp_path / "a.json"])
    assert not found.unread
    assert not found.overhead
    assert all(run.verdict == "clean" and not run.lanes and not run.numbers for run in found.runs)


def test_the_prefix_tree_counts_every_saved_block_once() -> None:
    tables = {1: [0, 1, 2, 5], 2: [0, 1, 2, 6], 3: [0, 1, 9], 4: [7], 5: []}
    found = prefix_tree(tables)
    assert [(b.blocks, b.sequences) for b in found[:2]] == [((0, 1), (1, 2, 3)), ((7,), (4,))]
    assert found[2].parent == 0
    entries = sum(map(len, tables.values()))
    distinct = len({block for row in tables.values() for block in row})
    assert sum(branch.saved for branch in found) == entries - distinct
    assert sum(len(branch.blocks) for branch in found) == distinct
    assert len(prefix_tree(tables, most=3)) == 3


def test_a_link_to_nowhere_is_no_error_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvscope.dashboard.opened import results

    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "torn.json").write_text("{")
    monkeypatch.setattr(sys, "argv", ["app", "--results", str(tmp_path)])
    assert [line.partition(":")[0] for line in results().unread] == ["gone.json", "torn.json"]
