"""A refused or faulty call leaves the state of the manager as it was, byte for byte: every public operation."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.host_tier import Swap
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import Copy
from kvscope.errors import FaultyCall, KVScopeError, OutOfBlocks, UsageError
from kvscope.traces import Kind, MemoryRecorder, Reason


def serialised(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Everything that hangs on an object: arrays to the byte, containers in order, attributes by name.

    Left out: what only looks at the rest (memory views, functions, locks), the sink, which records refusals, and which
    step it was told last.
    """
    seen = {} if seen is None else seen
    if value is None or isinstance(value, bool | int | float | str | bytes | np.generic):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return [(serialised(k, seen), serialised(v, seen)) for k, v in value.items()]
    if isinstance(value, list | tuple | deque):
        return [serialised(item, seen) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if not type(value).__module__.startswith("kvscope.engine"):
        return type(value).__name__
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    names = sorted({*slots, *getattr(value, "__dict__", ())} - {"sink", "_sink", "_stamped"})
    return [(name, serialised(getattr(value, name, None), seen)) for name in names]


def calls(manager: BlockManager) -> dict[str, Callable[[int, int], object]]:
    """Every public operation, with two small numbers to call it with, sensible or not."""
    drained: list[Swap] = []
    offered: dict[str, Callable[[int, int], object]] = {
        "admit": lambda a, b: manager.admit(a, [b & 1, b & 2, b & 4][: b % 4], resumed=bool(b & 1)),
        "append": lambda a, b: manager.append(a, b & 1),
        "append_many": lambda a, b: manager.append_many([a, b], [0, 1][: 1 + (a + b) % 2]),
        "write": lambda a, b: manager.write(a, b // 2, b),
        "fork": lambda a, b: manager.fork(a, b),
        "truncate": lambda a, b: manager.truncate(a, b),
        "free": lambda a, b: manager.free(a, Kind.PREEMPT if b & 1 else Kind.FINISH),
        "begin_step": lambda a, b: manager.begin_step([Scheduled(a, 0, 1), Scheduled(b, 0, 1)][: 1 + b % 2]),
        "end_step": lambda a, b: manager.end_step(),
        "copies_done": lambda a, b: manager.copies_done(manager.drain_copies() if b & 1 else [Copy(a, b, 1, 1, b)]),
        "lease": lambda a, b: manager.lease([a, b - 1][: 1 + b % 2], slots=(a, b), ttl=b - 1),
        "unlease": lambda a, b: manager.unlease(b),
        "lookup": lambda a, b: manager.lookup(a, [b & 1, b & 2, b & 4], ttl=a - 1),
        "expire": lambda a, b: manager.expire(b),
        "slide": lambda a, b: manager.slide(a, b - 1),
        "grow": lambda a, b: manager.grow(b - 5),
        "shrink": lambda a, b: manager.shrink(b),
        "holders": lambda a, b: manager.holders(b),
        "swap_out": lambda a, b: manager.swap_out(a),
        "swap_in": lambda a, b: manager.swap_in(a),
        "forget_swapped": lambda a, b: manager.forget_swapped(a, Kind.ABORT, Reason.ABORTED),
        "drain_swaps": lambda a, b: drained.extend(manager.drain_swaps()),
        "swaps_done": lambda a, b: manager.swaps_done((drained * 2)[: b % 4]),
    }  # fmt: skip
    return offered


def compute(manager: BlockManager, seq_id: int, number: int) -> None:
    """A sequence admitted and computed, so that there is something to operate on."""
    tokens = [number & 1, number & 2, number & 4][: 1 + number % 3]
    cached = manager.admit(seq_id, tokens)
    manager.write(seq_id, cached, len(tokens))
    manager.begin_step([Scheduled(seq_id, cached, len(tokens))])
    manager.end_step()


NAMES = sorted(calls(BlockManager(1, 1)))
PROGRAMS = st.lists(
    st.tuples(st.sampled_from([*NAMES, *["compute", "append", "begin_step", "end_step", "swap_out"] * 2]),
              st.integers(0, 3), st.integers(0, 7)), max_size=50,
)  # fmt: skip


@settings(max_examples=300)
@given(st.integers(1, 5), st.integers(1, 3), st.booleans(), st.booleans(), PROGRAMS)
def test_refused_call_changes_nothing(
    num_blocks: int, block_size: int, recorded: bool, shared: bool, program: list[tuple[str, int, int]]
) -> None:
    """Whatever is called, also on sequences that do not exist and with numbers that make no sense."""
    sink = MemoryRecorder(num_blocks=64, block_size=block_size) if recorded else None
    manager = BlockManager(num_blocks, block_size, sink=sink, share_prefixes=shared, hash_key=b"test", host_blocks=2)
    offered = calls(manager)
    for name, a, b in program:
        if name == "compute":
            with contextlib.suppress(KVScopeError):
                compute(manager, a, b)
            continue
        before = serialised(manager)
        try:
            offered[name](a, b)
        except (OutOfBlocks, FaultyCall, UsageError):
            assert serialised(manager) == before, name
        manager.check_integrity()


def test_every_operation_is_both_done_and_refused_here() -> None:
    """The property above is not vacuous: one legal and one refused call of each."""
    manager = BlockManager(4, 2, hash_key=b"test")
    manager.admit(0, [1, 2, 3])
    legal: dict[str, tuple[int, int]] = {"append": (0, 1), "fork": (0, 1), "grow": (0, 7), "lease": (0, 2)}
    offered = calls(manager)
    manager.write(0, 0, 3)
    for name, (a, b) in legal.items():
        before = serialised(manager)
        offered[name](a, b)
        assert serialised(manager) != before, name
    for name, (a, b) in {"append": (9, 1), "append_many": (0, 0), "write": (0, 7), "fork": (0, 0), "truncate": (0, 7),
                         "free": (9, 0), "begin_step": (9, 0), "end_step": (0, 0), "copies_done": (0, 6),
                         "lease": (3, 2), "unlease": (0, 7), "slide": (0, 7), "grow": (0, 0), "shrink": (0, 7),
                         "admit": (0, 1), "lookup": (0, 1)}.items():  # fmt: skip
        with pytest.raises(KVScopeError):
            offered[name](a, b)


def test_move_that_fails_leaves_every_table_where_it_was() -> None:
    manager = BlockManager(6, 2, hash_key=b"test")
    manager.admit(0, [1, 2, 3, 4])
    manager.admit(1, [5, 6, 7, 8])
    manager.write(1, 0, 4)
    manager.begin_step([Scheduled(1, 0, 4)])
    manager.end_step()
    manager.free(0)
    manager.admit(2, [1] * 8)
    manager.free(1)  # its blocks are cached, the last two of the pool are held
    tables = manager.table(2)

    def fail(copies: object) -> None:
        raise RuntimeError("device lost")

    with pytest.raises(RuntimeError, match="device lost"):
        manager.shrink(2, move=fail)
    assert manager.table(2) == tables
    assert manager.num_blocks == 6
    manager.check_integrity()


def test_swap_that_is_done_twice_changes_nothing() -> None:
    manager = BlockManager(4, 2, hash_key=b"test", host_blocks=4)
    compute(manager, 0, 2)
    manager.swap_out(0)
    swaps = manager.drain_swaps()
    for wrong in (swaps * 2, [*swaps, replace(swaps[0], seq_id=9)]):
        before = serialised(manager)
        with pytest.raises(FaultyCall, match="is not under way"):
            manager.swaps_done(wrong)
        assert serialised(manager) == before
    manager.swaps_done(swaps)
    assert manager.num_free() == 4
