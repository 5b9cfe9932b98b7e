"""Simulation by hand: small workloads whose concurrency, waste and times are computed on paper."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.inspector.cli import run as kvscope
from kvscope.inspector.findings import check
from kvscope.inspector.measures import summary
from kvscope.inspector.simulate import Cell, Outcome, ServiceTime, Settings, simulate
from kvscope.inspector.workloads import Workload, WorkRequest, open_workload
from kvscope.traces import open_trace

SECOND = ServiceTime(10**12, 0, 0, 0)  # every step takes one second


def settings(tokens: int, limit: int, **more: Any) -> Settings:
    """A pool of so many tokens, one byte each; nothing is kept free at admission."""
    values = {"watermark": 0.0, "service": SECOND, **more}
    return Settings(kv_memory=tokens, bytes_per_token=1, max_model_len=limit, **values)


def workload(*lengths: tuple[int, int], **more: Any) -> Workload:
    return Workload("by hand", "gen", [WorkRequest(0, prompt, output, **more) for prompt, output in lengths])


def row(work: Workload, allocator: str, block_size: int, config: Settings, **more: Any) -> Outcome:
    return simulate(work, Cell(allocator, block_size), config, **more)


# -- the articles' numbers ------------------------------------------------------------------------------------------


def test_production_example_reserving_uses_27_8_percent_at_the_end() -> None:
    """Prompts of 450, outputs of 120, limit 2048 (the newest token is never written: 569 of 2048 slots)."""
    config = settings(32768, 2048, max_batched_tokens=8192)
    work = open_workload("gen:requests=64,prompt=450,output=120")
    reserved, paged = row(work, "reserved", 16, config), row(work, "paged", 16, config)
    assert reserved.utilization_at_finish == 569 / 2048
    assert round(100 * reserved.utilization_at_finish, 1) == 27.8
    # On average over the 120 steps of a sequence: 450 ... 569 slots, 509.5 of 2048.
    assert reserved.utilization == pytest.approx(509.5 / 2048)
    assert reserved.reservation_waste == pytest.approx(1 - 509.5 / 2048)
    assert (reserved.tail_waste, paged.reservation_waste) == (None, None)
    assert reserved.concurrency_peak == 16
    assert paged.utilization is not None
    assert paged.utilization > 0.97
    assert paged.concurrency_mean is not None
    assert reserved.concurrency_mean is not None
    assert paged.concurrency_mean >= 2 * reserved.concurrency_mean


@pytest.mark.parametrize(("length", "waste"), [(2, 94), (6, 81), (16, 50), (30, 6)])
def test_reservation_waste_by_length_in_a_limit_of_32k(length: int, waste: int) -> None:
    work = workload((length * 1024 - 1, 2))  # its last position but one is its last written: exactly length * 1024
    config = settings(1 << 16, 1 << 15, max_batched_tokens=1 << 16)
    found = row(work, "reserved", 16, config)
    assert found.utilization_at_finish is not None
    assert round(100 * (1 - found.utilization_at_finish)) == waste


def test_paged_tail_waste_is_half_a_block_per_sequence() -> None:
    """Lengths that end anywhere in a block: 16 sequences of 1..16 tokens in their last block waste 7.5 slots each."""
    work = workload(*[(160 + i, 1) for i in range(1, 17)])
    found = row(work, "paged", 16, settings(1 << 14, 512, max_batched_tokens=1 << 14))
    held, filled = 16 * 11 * 16, sum(160 + i for i in range(1, 17))
    assert found.tail_waste == pytest.approx((held - filled) / held)
    assert (held - filled) / 16 == 7.5
    assert found.external_fragmentation == 0.0


def test_fifty_tokens_at_block_16_leave_14_slots() -> None:
    found = row(workload((50, 1)), "paged", 16, settings(4096, 4096))
    assert found.tail_waste == 14 / 64
    assert row(workload((50, 1)), "reserved", 16, settings(4096, 4096)).reservation_waste == pytest.approx(
        1 - 50 / 4096
    )


def test_concurrency_of_reserving_is_memory_over_limit() -> None:
    """58 GiB of KV at 4 GiB per 32k reservation: 14 at once; paged at 6k: 77."""
    config = Settings(58 * 2**30, 131072, 32768, watermark=0.0, max_seqs=256, max_batched_tokens=1 << 20)
    work = open_workload("gen:requests=100,prompt=6k,output=1")
    assert row(work, "reserved", 16, config).concurrency_peak == 14
    assert row(work, "paged", 16, config).concurrency_peak == 77
    assert row(work, "contiguous", 16, config).concurrency_peak == 77
    assert row(work, "buddy", 16, config).concurrency_peak == 58  # 8k pieces: 32 GiB + 16 + 8 + 2 hold 32 + 16 + 8 + 2


# -- time, queue, preemption ----------------------------------------------------------------------------------------


def test_time_is_the_stated_line() -> None:
    """Prompt 10, output 3: one prefill step, two decode steps reading 11 and 12 tokens."""
    service = ServiceTime(base=1000, prefill=100, live=10, copy=0)
    found = row(workload((10, 3)), "paged", 16, settings(64, 64, service=service))
    assert found.steps == 3
    assert found.makespan_s == pytest.approx((3 * 1000 + 10 * 100 + (10 + 11 + 12) * 10) * 1e-12)
    assert found.first_token_mean_s == pytest.approx((1000 + 1000 + 100) * 1e-12)


def test_queue_waits_for_memory_and_says_so() -> None:
    """Room for one of two requests: the second starts when the first is done, two steps later."""
    found = row(workload((5, 2), (5, 2)), "paged", 4, settings(8, 8))
    assert (found.steps, found.concurrency_peak, found.blocked) == (4, 1, 0.5)
    assert found.first_token_mean_s == (1 + 3) / 2


def test_newest_gives_way_and_is_computed_again() -> None:
    """Two sequences of 4 fill a pool of 3 blocks of 4 (one block spare); both want a block: the newer one goes."""
    found = row(workload((4, 4), (4, 4)), "paged", 4, settings(12, 12))
    assert found.preemptions == 1
    assert found.recomputed_tokens == 4
    assert found.sequences_finished == 2


def test_chunks_of_a_long_prompt() -> None:
    found = row(workload((100, 1)), "paged", 16, settings(128, 128, max_batched_tokens=30, max_seqs=4))
    assert found.steps == 4  # 30 + 30 + 30 + 10


def test_requests_that_can_never_run_are_counted() -> None:
    work = workload((64, 1), (40, 1), (10, 60), (10, 1))
    found = row(work, "paged", 4, settings(32, 64))
    assert (found.rejected_too_long, found.rejected_too_big) == (1, 2)
    assert (found.sequences_finished, found.cut_at_max_model_len) == (1, 0)
    assert row(workload((10, 60)), "paged", 4, settings(80, 64)).cut_at_max_model_len == 1


def test_arrivals_are_waited_for() -> None:
    work = Workload("by hand", "gen", [WorkRequest(0, 4, 1), WorkRequest(10 * 10**9, 4, 1)])
    found = row(work, "paged", 4, settings(8, 8))
    assert (found.makespan_s, found.concurrency_mean, found.first_token_mean_s) == (11.0, 1.0, 1.0)
    assert row(work, "paged", 4, settings(8, 8, at_once=True)).makespan_s == 1.0


def test_external_fragmentation_blocks_though_enough_is_free() -> None:
    """Five sequences of two blocks fill ten; the second and fourth end first and leave two holes of two for three."""
    work, config = workload((5, 3), (5, 1), (5, 3), (5, 1), (5, 3), (12, 1)), settings(40, 40)
    found = row(work, "contiguous", 4, config)
    assert (found.steps, found.blocked, found.blocked_by_holes) == (4, 3 / 4, 2 / 4)
    paged = row(work, "paged", 4, config)
    assert (paged.steps, paged.blocked, paged.blocked_by_holes) == (3, 1 / 3, 0.0)


# -- sharing --------------------------------------------------------------------------------------------------------


def test_a_system_prompt_is_kept_once() -> None:
    """100 requests behind 2,000 tokens: 125 blocks of 16 kept once, and all but one find them."""
    work = open_workload("gen:requests=100,system=2000,prompt=48,output=2")
    config = settings(1 << 17, 4096, max_batched_tokens=1 << 13)
    shared, alone = row(work, "paged", 16, config), row(work, "paged", 16, replace(config, sharing=False))
    assert shared.prefix_hit_tokens == 99 * 2000
    assert shared.prefix_hit_rate == pytest.approx(99 * 2000 / (100 * 2048))
    assert alone.prefix_hit_rate is None
    assert shared.sharing_factor is not None
    assert shared.sharing_factor > 5
    assert alone.sharing_factor == 1.0


def test_samples_copy_only_their_partial_block() -> None:
    """8 samples of one prompt of 40: two full blocks are shared, seven copies are made of the third's 8 slots."""
    found = row(workload((40, 4), samples=8), "paged", 16, settings(1024, 64))
    assert (found.cow_copies, found.copied_bytes, found.concurrency_peak) == (7, 7 * 8, 8)
    alone = row(workload((40, 4), samples=8), "reserved", 16, settings(1024, 64))
    assert (alone.cow_copies, alone.sequences_finished, alone.concurrency_peak) == (0, 8, 8)


def test_samples_that_exceed_the_sequence_limit_are_refused() -> None:
    found = row(workload((4, 2), samples=9), "paged", 4, settings(1024, 64, max_seqs=8))
    assert (found.rejected_too_big, found.sequences_finished) == (1, 0)


# -- counted and driven ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allocator", ["paged", "reserved", "contiguous", "buddy"])
def test_counting_gives_the_row_that_the_scheduler_gives(allocator: str) -> None:
    work = open_workload("gen:requests=40,prompt=1-90,output=1-70,rate=400,seed=3")
    config = settings(500, 170, watermark=0.02, max_seqs=12, max_batched_tokens=64, service=ServiceTime())
    counted, driven = row(work, allocator, 4, config), row(work, allocator, 4, config, drive=True)
    assert (counted.way, driven.way) == ("counted", "driven")
    assert counted.without_wall() == driven.without_wall()
    assert allocator == "reserved" or counted.preemptions > 0


@pytest.mark.parametrize("allocator", ["paged", "reserved", "contiguous", "buddy"])
def test_a_trace_of_a_simulation_is_a_legal_run_with_the_same_measures(allocator: str, tmp_path: Path) -> None:
    work = open_workload("gen:requests=12,prompt=5-60,output=2-40,seed=5")
    config = settings(400, 110, max_seqs=6, max_batched_tokens=64)
    found = row(work, allocator, 8, config, trace=tmp_path / "run.kvtrace")
    trace = open_trace(tmp_path / "run.kvtrace")
    assert trace.clean
    assert check(trace).findings == ()
    measured = summary(trace)
    assert measured["requests"]["finished"] == found.sequences_finished == 12
    assert measured["preemptions"] == found.preemptions
    assert measured["duration_s"] == pytest.approx(found.makespan_s, abs=1.01)  # the last step ends after its last row
    assert measured["held_blocks"]["peak"] / found.num_blocks >= found.held_peak
    again = open_workload(str(tmp_path / "run.kvtrace"))
    assert [(r.prompt, r.output) for r in again.requests] == [(r.prompt, r.output) for r in work.requests]


# -- the command ----------------------------------------------------------------------------------------------------


def test_command_prints_a_row_per_cell(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "gen:requests=20,prompt=100,output=20", "--block-size", "8,16", "--max-model-len", "1k",
                 "--kv-memory", "1GiB", "--allocator", "paged,reserved"]  # fmt: skip
    assert kvscope(arguments) == 0
    text = capsys.readouterr().out
    assert [line.split()[:2] for line in text.splitlines() if line.startswith(("paged  ", "reserved  "))] == [
        ["paged", "8"], ["paged", "16"], ["reserved", "-"]
    ]  # fmt: skip
    assert kvscope([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "kvscope-simulate/1"
    assert [(r["allocator"], r["block_size"]) for r in found["rows"]] == [
        ("paged", 8),
        ("paged", 16),
        ("reserved", None),
    ]
    assert found["settings"]["bytes_per_token"] == 131072
    assert found["settings"]["benefit_ratio"] == 1024 / 120
    assert found["rows"][0]["num_blocks"] == 2**30 // (8 * 131072)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["gen:requests=2", "--allocator", "slab"], "no allocator 'slab'"),
        (["gen:requests=2", "--block-size", "0"], "must be 1..1024 slots"),
        (["gen:requests=2", "--block-size", "x"], "wanted whole numbers"),
        (["gen:requests=2", "--kv-memory", "1KiB"], "hold no block"),
        (["gen:requests=2", "--kv-memory", "much"], "is not a size"),
        (["gen:requests=2", "--max-model-len", "1"], "max_model_len is 1"),
        (["gen:requests=2", "--max-model-len", "-3"], "wanted tokens"),
        (["gen:requests=2", "--model", "gpt-7"], "no model 'gpt-7'"),
        (["gen:requests=2", "--layers", "-1"], "num_layers is -1"),
        (["gen:requests=2", "--step-time", "5"], "wanted base,prefill,live,copy"),
        (["gen:requests=2", "--watermark", "2"], "watermark is 2"),
        (["gen:requests=2", "--limit", "0"], "must be at least 1"),
        (["nowhere.csv"], "nowhere.csv: No such file"),
    ],
)
def test_bad_usage_is_one_line(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert kvscope(["simulate", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert says in error


def test_interruption_stops_between_steps() -> None:
    with pytest.raises(KeyboardInterrupt):
        row(workload((4, 2)), "paged", 4, settings(8, 8), stop=lambda: True)


def test_service_time_reads_what_it_writes() -> None:
    assert ServiceTime.parse("5ms,35us,30ns,60ns") == ServiceTime()
    assert ServiceTime.parse("1s") == SECOND
    with pytest.raises(UsageError, match="must be above 0"):
        ServiceTime.parse("0ms")


def test_cells_side_by_side_give_the_same_rows(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "gen:requests=20,prompt=100,output=20", "--kv-memory", "1GiB", "--json"]
    rows = []
    for jobs in ("1", "2"):
        assert kvscope([*arguments, "--jobs", jobs]) == 0
        rows.append(json.loads(capsys.readouterr().out)["rows"])
    for row in (*rows[0], *rows[1]):
        for name in ("wall_s", "cpu_s", "requests_per_cpu_s"):
            del row[name]
    assert rows[0] == rows[1]
    assert len(rows[0]) == 4
    assert kvscope([*arguments, "--jobs", "0"]) == 2
    assert "jobs is 0: must be 1..256" in capsys.readouterr().err
