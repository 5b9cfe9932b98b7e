"""The long mixed run, short: the manager beside the reference, its trace clean, and planted faults found by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvscope.benchmarks.soak import GEOMETRIES, main
from kvscope.engine.block_manager import BlockManager
from kvscope.errors import KVScopeError
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.findings import check
from kvscope.inspector.fuzz.protocol import Violation
from kvscope.inspector.fuzz.soak import MIX, Soak
from kvscope.traces import MemoryRecorder


@pytest.mark.parametrize(("num_blocks", "block_size"), GEOMETRIES)
def test_five_thousand_operations_are_those_of_the_reference(num_blocks: int, block_size: int) -> None:
    run = Soak(7, num_blocks=num_blocks, block_size=block_size)
    run.run(5000)
    run.finish()
    assert set(run.done) == set(MIX)
    assert run.refused > 0


@pytest.mark.parametrize("seed", [3, 0, 5])  # 0 and 5: windows slide, and the sequence is swapped out and back
def test_trace_of_a_mixed_run_is_clean(seed: int) -> None:
    recorder = MemoryRecorder(num_blocks=24, block_size=4)
    run = Soak(seed, sink=recorder)
    run.run(1500)
    run.finish()
    assert check(recorder).findings == ()
    assert recorder.clipped == 0


class LosesABlock(BlockManager):
    """A window lets go of a block and tells nobody."""

    def slide(self, seq_id: int, first_position: int) -> int:
        gone = super().slide(seq_id, first_position)
        if gone:
            self.pool._free.pop()
        return gone


PLANTED = {
    name: FAULTS[name].manager for name in ("missing-copy", "double-free", "leak-on-preempt", "free-without-fence")
}


@pytest.mark.parametrize("manager", [lambda: LosesABlock, *PLANTED.values()], ids=["loses-a-block", *PLANTED])
def test_planted_fault_is_found(manager: Callable[[], type[BlockManager]]) -> None:
    run = Soak(1, manager=manager())
    with pytest.raises((Violation, KVScopeError)):
        run.run(2000)


def test_command_says_what_it_did(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--operations", "300", "--seed", "5"]) == 0
    assert "300 operations" in capsys.readouterr().out
