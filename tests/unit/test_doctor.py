"""The doctor's verdicts against runs and prompts whose trouble is known."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.inspector import cli
from kvscope.inspector.doctor import Evidence, diagnose, of_trace, of_workload, splits
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.shapes import model_shape
from kvscope.inspector.simulate import Settings
from kvscope.inspector.workloads import open_workload
from kvscope.traces import open_trace, pack

WELL = Evidence(
    source="trace", lengths=(600, 800, 1000), max_model_len=8192, num_blocks=1000, block_size=16,
    external_fragmentation=0.0, reservation_waste=None, tail_waste=0.02, waits_for_memory=0.0, preemptions=0,
    refusals=0, peak_running=40, prefix_hit_rate=0.4, sharing_factor=1.4, prompts=50, splits=(), throughput_gain=1.9,
    batch_gain=2.0,
)  # fmt: skip


def names(evidence: Evidence) -> list[str]:
    return [verdict.name for verdict in diagnose(evidence).complaints]


def test_a_run_that_is_well_has_no_complaint() -> None:
    assert names(WELL) == []
    found = diagnose(WELL)
    assert (found.pays, found.p50) == (True, 800)
    assert found.benefit_ratio == 8192 / 800


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"throughput_gain": 1.1, "batch_gain": 2.0}, "flat-throughput"),
        ({"lengths": (8000, 8100, 8192)}, "long-gain-little"),
        ({"lengths": (20, 25, 900), "tail_waste": 0.4}, "short-got-worse"),
        ({"refusals": 3}, "still-out-of-memory"),
        ({"waits_for_memory": 0.5}, "still-out-of-memory"),
        ({"lengths": (8000, 8100, 8192)}, "lengths-near-limit"),
        ({"lengths": (5, 6, 7)}, "below-a-block"),
        ({"peak_running": 1}, "one-at-a-time"),
        ({"num_blocks": 100}, "no-memory-for-kv"),
    ],
)
def test_every_complaint_is_found_by_name(change: dict[str, object], complaint: str) -> None:
    assert complaint in names(replace(WELL, **change))  # type: ignore[arg-type]


def test_what_was_not_measured_is_not_judged() -> None:
    nothing = replace(
        WELL, lengths=(), max_model_len=None, waits_for_memory=None, prefix_hit_rate=None, splits=None,
        throughput_gain=None, batch_gain=None, external_fragmentation=None, tail_waste=None,
    )  # fmt: skip
    found = diagnose(nothing)
    assert (found.benefit_ratio, found.pays, found.complaints) == (None, None, [])
    unknown = [verdict.name for verdict in (*found.symptoms, *found.does_not_pay) if verdict.found is None]
    assert {"flat-throughput", "long-gain-little", "sharing-does-not-engage", "lengths-near-limit"} <= set(unknown)
    json.dumps(found.to_json(), allow_nan=False)


def test_lost_events_are_said() -> None:
    found = diagnose(replace(WELL, notes=("60 events are missing",)))
    assert found.to_json()["notes"] == ("60 events are missing",)


def test_a_short_request_does_not_pay_however_large_the_limit_is() -> None:
    assert diagnose(replace(WELL, lengths=(4, 5, 6))).pays is False


# -- prompts that part early ------------------------------------------------------------------------------------------

RULES = "You are a careful assistant of the harbour office. Answer in whole sentences and name the sources. " * 12


@pytest.mark.parametrize(
    ("first", "second", "looks"),
    [
        ("Now: 2026-05-01 10:15:00. ", "Now: 2026-05-01 10:15:07. ", "a timestamp"),
        ("Session 8f3a11bc-0001. ", "Session 77e04d21-0002. ", "an id"),
        ("Visitor 7. ", "Visitor 9. ", "a number"),
        ("Tools: search, weather. ", "Tools: weather, search. ", "another order"),
        ("Dear Anna. ", "Dear Berta. ", "another word"),
        ("Hello  there. ", "Hello there. ", "white space"),
    ],
)
def test_the_difference_is_found_and_named(first: str, second: str, looks: str) -> None:
    (split,) = splits([first + RULES, second + RULES], 16)
    assert split.looks_like == looks
    assert split.position < len(first)
    assert split.lost_blocks == pytest.approx(len(RULES) / 4 / 16, abs=2)


def test_prompts_that_share_as_they_should_lose_nothing() -> None:
    assert splits([RULES + "What is a tide?", RULES + "What is a keel?", "Hello"], 16) == []
    assert splits([], 16) == splits([RULES], 16) == splits([RULES, RULES], 16) == []


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_prompts(prompts: list[str]) -> None:
    for split in splits(prompts, 1):
        a, b = prompts[split.first], prompts[split.second]
        assert a[: split.position] == b[: split.position]
        assert a[split.position] != b[split.position]
        assert split.lost_blocks > 0


def test_a_timestamp_in_a_recorded_run_is_shown_with_its_price() -> None:
    texts = [f"It is 10:1{i}:00. {RULES}" for i in range(3)]
    trace = HandTrace(
        facts=[{"type": "request", "request": i, "seq_ids": [i], "prompt": t} for i, t in enumerate(texts)]
    )
    found = {verdict.name: verdict for verdict in diagnose(of_trace(trace)).symptoms}["sharing-does-not-engage"]
    assert found.found is True
    assert "3 prompts differ in a timestamp" in found.evidence
    assert "character 10 (about token 2)" in found.evidence
    assert f"about {2 * (len(RULES) // 4 // 4):,} blocks" in found.evidence
    assert "10:1" in found.evidence


# -- whole ------------------------------------------------------------------------------------------------------------


def test_an_exhausted_pool_is_told_from_its_trace(toy_traces: dict[str, Path]) -> None:
    evidence = of_trace(open_trace(toy_traces["clean"]))
    assert evidence.waits_for_memory is not None
    assert 0 < evidence.waits_for_memory <= 1
    assert evidence.peak_running > 1
    assert len(evidence.lengths) > 5


def test_a_reserving_run_keeps_the_layers_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "reserved.kvtrace"
    words = ["simulate", "gen:requests=30,prompt=450,output=120", "--allocator", "reserved", "--max-model-len", "2048"]
    assert cli.run([*words, "--trace", str(path)]) == 0
    evidence = of_trace(open_trace(path))
    assert evidence.tail_waste is None
    assert evidence.reservation_waste == pytest.approx(0.75, abs=0.02)
    assert "short-got-worse" not in names(evidence)
    capsys.readouterr()


def test_a_workload_is_simulated() -> None:
    work = open_workload("gen:requests=40,prompt=450,output=120")
    found = diagnose(of_workload(work, Settings(1 << 30, model_shape("llama-3-8b").bytes_per_token, 2048)))
    layers = {layer.name: layer for layer in found.layers}
    assert layers["reservation waste"].value == pytest.approx(0.75, abs=0.03)
    assert found.benefit_ratio == pytest.approx(2048 / 570)


def test_a_packed_trace_is_a_trace(
    capsys: pytest.CaptureFixture[str], toy_traces: dict[str, Path], tmp_path: Path
) -> None:
    packed = tmp_path / "any name"
    pack(toy_traces["clean"], packed)
    answers = []
    for source in (toy_traces["clean"], packed):
        for command in ("doctor", "simulate"):
            cli.run([command, str(source), "--json"])
            answers.append(json.loads(capsys.readouterr().out))
    assert answers[0] == answers[2]
    assert answers[1]["workload"]["requests"] == answers[3]["workload"]["requests"] > 0


def test_the_command(capsys: pytest.CaptureFixture[str], toy_traces: dict[str, Path]) -> None:
    status = cli.run(["doctor", str(toy_traces["clean"]), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "kvscope-doctor/1"
    assert status == (1 if any(v["found"] for v in answer["symptoms"] + answer["does_not_pay"]) else 0)
    assert cli.run(["doctor", "gen:requests=20,prompt=500,output=100,rate=2", "--kv-memory", "8GiB"]) == 0
    assert "Three layers" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["doctor", "simulate"])
def test_a_link_to_itself_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    assert cli.run([command, str(tmp_path / "loop")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("source", ["nowhere.csv", "gen:color=1", "/dev/null"])
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], source: str) -> None:
    assert cli.run(["doctor", source]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1


def test_a_leak_is_not_called_too_small_a_pool() -> None:
    """The sample's pool is half held by nobody: more memory would be lost as well."""
    found = diagnose(of_trace(open_trace(Path(__file__).parents[2] / "traces/samples/leak.kvpack")))
    (verdict,) = [told for told in found.symptoms if told.name == "still-out-of-memory"]
    assert "24 of 48 blocks are held by nobody, and not free: a leak" in verdict.evidence
    assert "kvscope check" in verdict.next_step
