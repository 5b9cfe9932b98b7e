"""Paged allocators under threads: the reference model torn apart without a lock, and left whole with one; ours."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from kvscope.errors import OutOfBlocks, UsageError
from kvscope.inspector.fuzz.adapter import EngineAllocator
from kvscope.inspector.fuzz.protocol import Copy, Factory
from kvscope.inspector.fuzz.simulator import Simulator
from kvscope.inspector.fuzz.target import load_target
from kvscope.inspector.races import explore_allocator, explore_race
from kvscope.inspector.races.allocators import allocator_race
from kvscope.inspector.races.program import ThreadProgram
from kvscope.inspector.races.shared import Shared


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


def prefix_pool(name: str) -> Factory:
    """A class of the file beside this one."""
    return load_target(f"{Path(__file__).parent}/prefix_pool.py:{name}")


# One of two equal prompts is stopped when its blocks are published, and before its call returns.
EQUAL_PROMPTS = ThreadProgram(6, 1, 1, ((("add", 0, 3),), (("add", 0, 3), ("append", 1, 0))))
# The second thread has the whole prompt from the cache of the first one's call, rolls back, and writes into a copy.
LATE_COPY = ThreadProgram(6, 2, 1, ((("add", 0, 3),), (("add", 0, 3), ("fork", 1, 0), ("append", 1, 0))))


@pytest.mark.parametrize("name", ["PrefixPool", "WithoutDrain"])
@pytest.mark.parametrize("program", [EQUAL_PROMPTS, LATE_COPY])
def test_a_hit_on_what_a_call_under_way_has_just_published_is_no_finding(name: str, program: ThreadProgram) -> None:
    race = allocator_race(prefix_pool(name), program)
    outcome = explore_race(race, scheduler="exhaustive", level="hook", preemptions=3, seconds=120)
    assert not outcome.found, outcome.text()
    assert outcome.explored[0]["complete_to"] == 3


def test_a_prefix_cache_behind_a_lock_is_left_whole() -> None:
    result = explore_allocator(prefix_pool("PrefixPool"), programs=25, seed=3, seconds=120)
    assert not result.found, result.text()


@pytest.mark.parametrize(("name", "codes"), [
    ("PublishedTooEarly", {"KV009"}), ("HandedOutTwice", {"KV004", "KV006", "KV014", "KV023"})
])  # fmt: skip
def test_what_is_never_written_and_what_two_are_given_is_still_found(name: str, codes: set[str]) -> None:
    found = explore_race(
        allocator_race(prefix_pool(name), EQUAL_PROMPTS), scheduler="exhaustive", level="hook", seconds=120
    )
    assert found.failure is not None
    assert found.failure.code in codes, found.text()


def test_a_refused_call_leaves_its_sequence_under_judgement() -> None:
    class Refuses(Simulator):
        def append(self, seq: int, token: int) -> None:
            raise OutOfBlocks(1, 0, "never")

    shared = Shared(Refuses, ThreadProgram(4, 1, 1, ((), ())))
    with pytest.raises(OutOfBlocks):
        shared.append(0, 1)
    assert not shared.busy


def test_our_own_manager_is_left_whole() -> None:
    result = explore_allocator(EngineAllocator, programs=2, level="line", seconds=120)
    assert not result.found, result.text()


def test_programs_go_to_strings_and_back() -> None:
    program = ThreadProgram(4, 2, 3, ((("append", 0, 1), ("free", 1, 2)), ()))
    assert ThreadProgram.parse(f"{program}@schedule") == (program, "schedule")
    with pytest.raises(UsageError, match="no replay string of an allocator"):
        ThreadProgram.parse("kvra1/4.2.3/explode.0.1@kvr1:line:2:none:00")


class Noted(Simulator):
    """Writes down what it is asked, from the third call on: the prompt and its fork come first."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.asked: list[str] = []

    def add(self, seq: int, tokens: Sequence[int]) -> None:
        super().add(seq, tokens)
        self.asked.append(f"add({seq}, {tokens})")

    def append(self, seq: int, token: int) -> None:
        super().append(seq, token)
        self.asked.append(f"append({seq}, {token})")

    def fork(self, parent: int, child: int) -> None:
        super().fork(parent, child)
        self.asked.append(f"fork({parent}, {child})")

    def truncate(self, seq: int, length: int) -> None:
        super().truncate(seq, length)
        self.asked.append(f"truncate({seq}, {length})")

    def free(self, seq: int) -> None:
        super().free(seq)
        self.asked.append(f"free({seq})")


@pytest.mark.parametrize("lacks", [(), ("truncate",), ("fork", "truncate")])
def test_a_program_is_told_as_the_calls_that_are_made(lacks: tuple[str, ...]) -> None:
    kind = type("Kind", (Noted,), dict.fromkeys(lacks))
    offered = {"fork", "truncate"} - {*lacks}
    for number in range(60):
        drawn = ThreadProgram.draw(random.Random(number), 2, 6)
        program = ThreadProgram(100, drawn.block_size, drawn.prompt, drawn.threads)  # nothing is refused
        shared = Shared(kind, program)
        for thread, operations in enumerate(program.threads):
            shared.target.asked.clear()  # type: ignore[attr-defined]
            for operation in operations:
                shared.step(thread, *operation, shared)
            asked = "; ".join(shared.target.asked) or "nothing"  # type: ignore[attr-defined]
            assert program.lines(offered)[1 + thread] == f"worker-{thread + 1}: {asked}"


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
