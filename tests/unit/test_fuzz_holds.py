"""Optional operations of the fuzzer's protocol: what it holds against an allocator that gets them wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvscope.inspector.faults import FAULTS
from kvscope.inspector.fuzz import Harness, Violation
from kvscope.inspector.fuzz.adapter import EngineAllocator
from kvscope.inspector.fuzz.program import Program

TENANT, ADAPTER = (("tenant", "a"),), (("adapter", "a"),)
PROGRAMS = {
    "transfer-ends-all": ("KV017", [("add", (0, [0])), ("lease", (0, 0)), ("lease", (0, 1)), ("unlease", (0,)),
                                    ("free", (0,))]),
    "lookup-lease-kept": ("KV012", [("add", (0, [0, 0])), ("lookup", (1, [0, 0, 1])), ("add", (1, [0, 0, 1])),
                                    ("free", (0,)), ("free", (1,))]),
    "one-namespace": ("KV023", [("add", (0, [0, 0], TENANT)), ("add", (1, [0, 0, 0], ADAPTER))]),
    "publish-at-admission": ("KV009", [("abandon", (0, [0, 0])), ("add", (1, [0, 0, 0]))]),
    "swap-slots-mixed-up": ("KV023", [("add", (0, [0])), ("add", (1, [1])), ("swap_out", (0,)), ("swap_out", (1,)),
                                      ("swap_in", (0,))]),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_shows_the_fault_and_survives_json(name: str) -> None:
    code, calls = PROGRAMS[name]
    program = Program(6, 2, tuple(calls))
    assert Program.from_json(program.to_json()) == program
    assert program.run(EngineAllocator) is None
    violation = program.run(lambda blocks, slots: EngineAllocator(blocks, slots, manager=FAULTS[name].manager()))
    assert violation is not None
    assert violation.code == code
    assert [call for call, _ in program.renumbered().calls] == [call for call, _ in calls]


class Overwrites(EngineAllocator):
    """Forgets what a transfer reads."""

    def lease(self, seq: int, lease: int) -> None:
        """Nothing is held."""

    def unlease(self, lease: int) -> None:
        """Nothing was."""


def test_what_a_transfer_reads_is_neither_written_nor_counted_as_free() -> None:
    harness = Harness(Overwrites, 2, 4)
    harness.add(0, [0, 0])
    harness.lease(0, 0)
    harness.truncate(0, 1)
    with pytest.raises(Violation, match="overwritten while transfer 0 reads it"):
        harness.append(0, 1)
    harness = Harness(Overwrites, 2, 2)
    harness.add(0, [0])
    harness.lease(0, 0)
    with pytest.raises(Violation, match="KV017"):
        harness.free(0)


class Frugal(EngineAllocator):
    """Cannot bring back what it took, and has no lookup that works."""

    def swap_in(self, seq: int) -> None:
        self.manager.admit(99, [0] * self.num_blocks * self.block_size * 2)

    def lookup(self, seq: int, tokens: Sequence[int]) -> None:
        raise RuntimeError("no cache")


def test_a_broken_promise_and_a_crash_are_told() -> None:
    harness = Harness(Frugal, 2, 2)
    harness.add(0, [0])
    harness.swap_out(0)
    with pytest.raises(Violation, match="KV026"):
        harness.swap_in(0)
    with pytest.raises(Violation, match="no cache"):
        Harness(Frugal, 2, 2).lookup(0, [0])


def test_a_caller_may_not_do_everything() -> None:
    harness = Harness(EngineAllocator, 6, 2)
    harness.add(0, [0, 1, 0])
    harness.lookup(1, [0, 1, 1])
    harness.lease(0, 0)
    assert not harness.allows("lease", 0, 0)
    assert not harness.allows("fork", 0, 1)
    assert harness.allows("forget", 1)
    assert not harness.allows("swap_in", 0)
    harness.begin_step([0])
    assert not harness.allows("swap_out", 0)
    harness.end_step()
    harness.swap_out(0)
    assert harness.allows("free", 0)
    assert not harness.allows("append", 0, 1)
    harness.finish()
    assert harness.num_free() == 6
