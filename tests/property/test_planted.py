"""Every planted fault is found: by the machine from outside, by its name, and by `check` from a trace."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from kvscope.errors import FaultyCall
from kvscope.inspector.faults import FAULTS, Fault
from kvscope.inspector.findings import check
from kvscope.inspector.fuzz import Violation
from kvscope.inspector.fuzz.adapter import EngineAllocator
from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
from kvscope.inspector.fuzz.hunt import hunt
from kvscope.traces.memory import MemoryRecorder

# A fault that needs a longer story than this to show has its own limit.
SHORT = 6
LONGER = {"stale-index": 14}

FROM_OUTSIDE = [fault for fault in FAULTS.values() if fault.fuzz_codes]
RANDOM = (
    "missing-copy", "write-to-published", "short-copy", "double-free", "leak-on-preempt", "half-done-admission",
    "free-without-fence", "publish-before-commit", "hash-without-identity", "hash-without-prefix", "stale-index",
    "release-twice", "lost-update", "stale-table", "leak-on-rollback",
)  # fmt: skip
IN_TRACES = [FAULTS[name] for name in RANDOM]  # the others need what these operations do not do: see the kill matrix


def allocator(fault: Fault, num_blocks: int, block_size: int) -> EngineAllocator:
    return EngineAllocator(num_blocks, block_size, manager=fault.manager())


@pytest.mark.parametrize("fault", FROM_OUTSIDE, ids=lambda fault: fault.name)
def test_machine_finds_the_fault_and_tells_it_in_few_calls(fault: Fault) -> None:
    failure = hunt(lambda num_blocks, block_size: allocator(fault, num_blocks, block_size), examples=400)
    assert failure is not None, f"{fault.name}: not found"
    # A broken manager may also trip over its own state: that is told too.
    assert failure.code in (*fault.fuzz_codes, "crash"), str(failure)
    assert len(failure.program.calls) <= LONGER.get(fault.name, SHORT), str(failure)


def test_missing_copy_is_told_in_three_calls() -> None:
    fault = FAULTS["missing-copy"]
    failure = hunt(lambda num_blocks, block_size: allocator(fault, num_blocks, block_size))
    assert failure is not None
    assert [name for name, _ in failure.program.calls] == ["add", "fork", "append"]
    assert failure.program.run(EngineAllocator) is None, "the program fails on a right manager too"


def trace_of(fault: Fault, seed: int) -> MemoryRecorder:
    """The events of one random run of a broken manager, up to where it stops itself."""
    rng = random.Random(seed)
    num_blocks, block_size = rng.randint(2, 6), rng.randint(1, 4)
    sink = MemoryRecorder(num_blocks=num_blocks, block_size=block_size)
    operations = [(rng.choice(OPERATIONS), rng.randrange(6), rng.randrange(10)) for _ in range(60)]
    # A broken manager may trip over its own state; what counts is what it had recorded by then.
    with suppress(FaultyCall, KeyError, IndexError):
        DeviceRun(num_blocks, block_size, manager=fault.manager(), sink=sink, checked=False).play(operations)
    return sink


@pytest.mark.parametrize("fault", IN_TRACES, ids=lambda fault: fault.name)
def test_check_finds_the_fault_in_a_trace(fault: Fault) -> None:
    found: set[str] = set()
    for seed in range(100):
        found |= {finding.code for finding in check(trace_of(fault, seed)).findings}
        if fault.code in found:
            return
    pytest.fail(f"{fault.name} should be found as {fault.code}, found were {sorted(found) or 'no codes at all'}")


def test_early_publication_is_seen_with_a_device_behind_the_manager() -> None:
    """From outside a write counts as done when its call returns: there this fault cannot be seen."""
    fault = FAULTS["publish-before-commit"]
    operations = [("admit", 0, 3), ("begin", 0, 0), ("end", 0, 0)]
    with pytest.raises(Violation, match="KV016"):
        DeviceRun(4, 2, manager=fault.manager()).play(operations)
    DeviceRun(4, 2).play(operations)
