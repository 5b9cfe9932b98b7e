"""Every planted fault is found by its own code, every kind is planted, and right managers raise no alarm."""

from __future__ import annotations

import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector.faults import FAULTS, KINDS, NOT_EXPRESSED, Fault
from kvscope.inspector.faults.improvised import improvise
from kvscope.inspector.faults.matrix import detected, kill, markdown
from kvscope.inspector.faults.plays import PLAYS, Play
from kvscope.inspector.faults.stage import Stage
from kvscope.inspector.findings import check


def test_every_kind_is_planted_or_said_why_not() -> None:
    planted = {fault.kind for fault in FAULTS.values()}
    assert planted | set(NOT_EXPRESSED) == set(KINDS)
    assert not planted & set(NOT_EXPRESSED)
    assert len(FAULTS) >= 30


@pytest.mark.parametrize("play", PLAYS.values(), ids=lambda play: play.name)
def test_a_right_manager_goes_through_clean(play: Play) -> None:
    stage = Stage(BlockManager, **play.options)
    play.act(stage)
    stage.close()
    assert stage.wrong == 0
    for replay in (False, True):
        assert check(stage.sink, replay=replay).findings == ()
    stage.manager.check_integrity()
    assert stage.manager.num_free() == stage.manager.num_blocks


@pytest.mark.parametrize("fault", FAULTS.values(), ids=lambda fault: fault.name)
def test_fault_is_found_by_its_name(fault: Fault) -> None:
    for play in PLAYS.values():
        if any(fault.code in codes for codes in detected(play.run(fault.manager())).values()):
            return
    pytest.fail(f"{fault.name} is not found as {fault.code}")


def test_lockstep_writers_of_identical_bytes_are_reported() -> None:
    """What both write is the same, so no reader sees a wrong prefix; the missing copy is one all the same."""
    found = detected(PLAYS["lockstep"].run(FAULTS["missing-copy"].manager()))
    assert found["COW"] == ["KV006"]
    assert "SHADOW" not in found


def test_random_clean_runs_raise_no_alarm() -> None:
    """A sample of `python -m kvscope.benchmarks.false_alarms`."""
    for seed in range(40):
        stage = improvise(seed)
        assert stage.wrong == 0, seed
        assert check(stage.sink, replay=seed % 4 == 0).findings == (), seed


def test_page_names_all_faults() -> None:
    kills = [kill(FAULTS["missing-copy"]), kill(FAULTS["leak-on-abort"])]
    page = markdown(kills)
    assert [made.hurt for made in kills] == [3, 0]
    assert kills[0].to_json()["hurt"] == 3
    assert ("| `missing-copy` | C1 missing copy |" in page, ", sizes | 3 |" in page) == (True, True)
    assert "| `missing-copy` | C1 | KV006 |" in page
    assert "**06**" in page
