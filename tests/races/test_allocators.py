"""Paged allocators under threads: the reference model torn apart without a lock, and left whole with one; ours."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from kvscope.errors import UsageError
from kvscope.inspector.fuzz.adapter import EngineAllocator
from kvscope.inspector.fuzz.protocol import Copy
from kvscope.inspector.fuzz.simulator import Simulator
from kvscope.inspector.races import explore_allocator
from kvscope.inspector.races.program import ThreadProgram


class Locked:
    """The reference model behind a lock."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks, self.block_size = num_blocks, block_size
        self.inner, self.lock = Simulator(num_blocks, block_size), threading.RLock()

    def add(self, seq: int, tokens: Sequence[int]) -> None:
        with self.lock:
            self.inner.add(seq, tokens)

    def append(self, seq: int, token: int) -> None:
        with self.lock:
            self.inner.append(seq, token)

    def fork(self, parent: int, child: int) -> None:
        with self.lock:
            self.inner.fork(parent, child)

    def truncate(self, seq: int, length: int) -> None:
        with self.lock:
            self.inner.truncate(seq, length)

    def free(self, seq: int) -> None:
        with self.lock:
            self.inner.free(seq)

    def table(self, seq: int) -> list[int]:
        with self.lock:
            return self.inner.table(seq)

    def num_free(self) -> int:
        with self.lock:
            return self.inner.num_free()

    def refcount(self, block: int) -> int:
        with self.lock:
            return self.inner.refcount(block)

    def drain(self) -> list[Copy]:
        with self.lock:
            return self.inner.drain()


@pytest.mark.parametrize("threads", [2, 3])
def test_the_model_without_a_lock_is_torn_and_its_string_plays_it_again(threads: int) -> None:
    found = explore_allocator(Simulator, threads=threads, seconds=120)
    assert found.found
    assert found.outcome is not None
    assert found.outcome.switches <= 3
    again = [explore_allocator(Simulator, threads=threads, replay=found.replay) for _ in range(10)]
    assert all(o.outcome is not None and o.outcome.failure == found.outcome.failure for o in again)
    assert "worker-1" in found.text()
    assert found.to_json()["replay"] == found.replay


def test_the_model_with_a_lock_is_left_whole() -> None:
    result = explore_allocator(Locked, programs=4, seconds=120)
    assert not result.found, result.text()
    assert result.programs == 4


def test_our_own_manager_is_left_whole() -> None:
    result = explore_allocator(EngineAllocator, programs=2, level="line", seconds=120)
    assert not result.found, result.text()


def test_programs_go_to_strings_and_back() -> None:
    program = ThreadProgram(4, 2, 3, ((("append", 0, 1), ("free", 1, 2)), ()))
    assert ThreadProgram.parse(f"{program}@schedule") == (program, "schedule")
    with pytest.raises(UsageError, match="no replay string of an allocator"):
        ThreadProgram.parse("kvra1/4.2.3/explode.0.1@kvr1:line:2:none:00")


def broken(_: int, __: int) -> Simulator:
    raise ValueError("no memory today")


class Leaky(Simulator):
    """Its very first calls fail."""

    def table(self, seq: int) -> list[int]:
        return []


@pytest.mark.parametrize("factory", [broken, Leaky, lambda blocks, size: object()])
def test_an_allocator_that_cannot_be_used_says_so(factory: object) -> None:
    with pytest.raises(UsageError, match=r"no memory today|first calls on a new allocator|cannot be fuzzed"):
        explore_allocator(factory, seconds=20)  # type: ignore[arg-type]
