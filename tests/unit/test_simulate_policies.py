"""`kvscope simulate --policy`: who waits under which policy, what swapping saves, and what is said where it cannot."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvscope.errors import UsageError
from kvscope.inspector import cli
from kvscope.inspector.simulate import Cell, ServiceTime, Settings, simulate
from kvscope.inspector.workloads import open_workload
from kvscope.traces import open_trace

WORK = "gen:requests=60,rate=40,prompt=40-120,output=20-60,users=3,priorities=3,seed=5"
TIGHT = Settings(kv_memory=1200, bytes_per_token=1, max_model_len=256, max_seqs=16, watermark=0.0)


def means(policy: str) -> dict[str, float]:
    row = simulate(open_workload(WORK), Cell("paged", 8), replace(TIGHT, policy=policy))
    assert row.way == "driven"
    assert row.sequences_finished == 60
    return {name: group["mean_s"] for name, group in (row.first_token_by or {}).items()}


def test_lower_numbers_wait_less() -> None:
    waits = means("priority")
    assert list(waits) == ["priority 0", "priority 1", "priority 2"]
    assert waits["priority 0"] < waits["priority 1"] < waits["priority 2"]


def test_who_asks_little_waits_less_than_who_asks_much() -> None:
    waits = means("fair")
    assert max(waits["u1"], waits["u2"]) < waits["u0"]


def test_swapping_computes_nothing_twice() -> None:
    work, cell = open_workload(WORK), Cell("paged", 8)
    recomputed = simulate(work, cell, TIGHT, drive=True)
    swapped = simulate(work, cell, replace(TIGHT, preemption="swap", swap_space=100_000))
    assert recomputed.preemptions > 0
    assert recomputed.recomputed_tokens > 0
    assert swapped.preemptions > 0
    assert (swapped.recomputed_tokens, swapped.way) == (0, "driven")
    assert swapped.swapped_tokens > 0
    assert swapped.sequences_finished == recomputed.sequences_finished == 60
    slow = replace(TIGHT, preemption="swap", swap_space=100_000, service=ServiceTime(swap=10**12))
    assert simulate(work, cell, slow).makespan_s > swapped.makespan_s + swapped.swapped_tokens * 0.5


def test_users_and_priorities_change_no_length() -> None:
    plain = open_workload(WORK.replace(",users=3,priorities=3", ""))
    assert not plain.names_users
    assert not plain.names_priorities
    assert [(r.arrival_ns, r.prompt, r.output) for r in plain.requests] == [
        (r.arrival_ns, r.prompt, r.output) for r in open_workload(WORK).requests
    ]


def test_a_refused_request_does_not_shift_the_others(tmp_path: Path) -> None:
    work = open_workload("gen:requests=5,prompt=20,output=6,samples=2")
    work.requests[1].prompt = 5000
    simulate(work, Cell("paged", 8), TIGHT, trace=tmp_path / "run.kvtrace")
    facts = open_trace(tmp_path / "run.kvtrace").facts
    named = {kind: [f["request"] for f in facts if f["type"] == kind] for kind in ("request", "sample", "output")}
    assert sorted(named["request"]) == sorted(named["sample"]) == [0, 2, 3, 4]
    assert sorted(named["output"]) == [0, 0, 2, 2, 3, 3, 4, 4]


def test_swapping_needs_a_space() -> None:
    with pytest.raises(UsageError, match="swapping needs both preemption swap and a swap space"):
        replace(TIGHT, preemption="swap")


def test_the_command_says_what_a_policy_could_not_do(capsys: pytest.CaptureFixture[str]) -> None:
    common = ["simulate", "gen:requests=9,prompt=60,output=9", "--kv-memory", "64MiB", "--max-model-len", "256"]
    assert cli.run([*common, "--policy", "fair", "--preemption", "swap", "--swap-space", "16MiB"]) == 0
    out = capsys.readouterr().out
    assert "the real scheduler was stepped for every row" in out
    assert "the workload names no users" in out
    assert "only the paged pool has a host tier" in out
    assert cli.run([*common, "--policy", "priority", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["policy"] == "priority"
    assert {row["way"] for row in found["rows"]} == {"driven"}
    assert cli.run([*common, "--policy", "lottery"]) == 2
    assert "policy is 'lottery'" in capsys.readouterr().err
