"""The explorer itself: schedulers, replay, locks, deadlock, determinism, on targets of a few lines."""

from __future__ import annotations

import _thread
import itertools
import queue
import threading
import time
from typing import Any

import pytest

from kvscope.errors import UsageError
from kvscope.inspector.races import Outcome, Race, explore, explore_race
from kvscope.inspector.races.exhaustive import ExhaustiveScheduler
from kvscope.inspector.races.schedule import Replay


class Counter:
    """An increment that is not atomic, and one under a lock."""

    def __init__(self) -> None:
        self.value = 0
        self.lock = threading.Lock()

    def bump(self) -> None:
        self.value += 1

    def safe(self) -> None:
        with self.lock:
            self.value += 1

    def read(self) -> int:
        return self.value


class Pair:
    """Two locks taken in either order."""

    def __init__(self) -> None:
        self.a, self.b = threading.Lock(), threading.RLock()

    def ab(self) -> None:
        with self.a, self.b:
            pass

    def ba(self) -> None:
        with self.b, self.a:
            pass

    def both(self) -> None:
        with self.b, self.b, self.a:
            pass


class Mailbox:
    """A condition used right, and one that a notification can slip past."""

    def __init__(self) -> None:
        self.changed, self.plain = threading.Condition(), threading.Lock()
        self.ready = False

    def send(self) -> None:
        with self.changed:
            self.ready = True
            self.changed.notify()

    def wait(self) -> None:
        with self.changed:
            while not self.ready:
                self.changed.wait()

    def wait_wrongly(self) -> None:
        if not self.ready:
            with self.changed:
                self.changed.wait()

    def twice(self) -> None:
        with self.plain, self.plain:
            pass

    def wait_a_while(self) -> bool:
        with self.changed:
            return self.ready or self.changed.wait(3_000)


def bump(counter: Counter) -> None:
    counter.bump()


def wrong(counter: Counter) -> str | None:
    return None if counter.value == 2 else f"two increments made {counter.value}"


LOST: dict[str, Any] = {"make": Counter, "threads": [bump, bump], "check": wrong}


@pytest.mark.parametrize("scheduler", ["exhaustive", "pct", "random", "auto"])
def test_every_scheduler_finds_a_lost_update(scheduler: str) -> None:
    outcome = explore(**LOST, scheduler=scheduler, seconds=60)
    assert outcome.failure is not None
    assert "two increments made 1" in outcome.failure.message
    assert outcome.preemptions == 1
    assert outcome.switches <= 3
    assert outcome.deterministic


def test_the_replay_string_brings_the_failure_back_every_time() -> None:
    found = explore(**LOST, seconds=60)
    assert found.replay is not None
    again = [explore(**LOST, replay=found.replay) for _ in range(20)]
    assert all(o.failure == found.failure and o.replay == found.replay and not o.notes for o in again)


def test_an_increment_split_inside_one_line_needs_opcodes_and_no_gil() -> None:
    assert not explore(**LOST, level="line", scheduler="exhaustive", seconds=60).found
    found = explore(**LOST, level="opcode", seconds=60)
    assert not found.gil
    assert "opcode-only" in found.text()


@pytest.mark.parametrize("threads", [
    [lambda p: p.ab(), lambda p: p.ba()],  # two locks in two orders
    [lambda p: p.send(), lambda p: p.wait_wrongly()],  # a notification that comes before the wait
])  # fmt: skip
@pytest.mark.parametrize("level", ["line", "opcode"])
def test_a_switch_at_a_lock_is_one_that_any_build_makes(threads: list[Any], level: str) -> None:
    """Waiting for a lock gives the GIL up, and `with condition` calls a function, where it may go as well."""
    make = Pair if "ab" in threads[0].__code__.co_names else Mailbox
    outcome = explore(make, threads, level=level, seconds=60)
    assert outcome.failure is not None
    assert outcome.failure.kind == "deadlock"
    assert outcome.preemptions >= 1
    assert outcome.gil, outcome.text()
    assert "no GIL would do that" not in outcome.text()


def test_a_lock_mends_it_and_everything_was_explored() -> None:
    outcome = explore(
        Counter,
        [lambda c: c.safe(), lambda c: c.safe()],
        check=wrong,
        scheduler="exhaustive",
        preemptions=3,
        seconds=60,
    )
    assert not outcome.found, outcome.text()
    assert outcome.explored[0]["complete_to"] == 3
    assert "Every schedule with at most 3 preemptions was played" in outcome.statement()


def test_exhaustive_plays_each_schedule_once() -> None:
    seen: list[tuple[tuple[int, int], ...]] = []

    class Spying(ExhaustiveScheduler):
        def end(self, decisions: Any) -> None:
            seen.append(decisions.switches)
            super().end(decisions)

    outcome = explore(
        Counter, [lambda c: c.safe(), lambda c: c.safe()], scheduler=Spying(2), seconds=60, linear=False
    )  # fmt: skip
    assert len(seen) == len(set(seen)) == outcome.schedules
    counts = outcome.explored[0]["by_preemptions"]
    assert sum(counts.values()) == len(seen)
    assert counts[0] < counts[1] < counts[2]


@pytest.mark.parametrize("level", ["hook", "line", "opcode"])
def test_a_deadlock_is_told_with_who_waits_for_what(level: str) -> None:
    outcome = explore(Pair, [lambda p: p.ab(), lambda p: p.ba()], level=level, seconds=60)
    assert outcome.failure is not None
    assert outcome.failure.kind == "deadlock"
    assert "worker-1 waits for an RLock that worker-2 has" in outcome.failure.message
    assert outcome.deterministic


def test_an_rlock_can_be_taken_twice() -> None:
    outcome = explore(Pair, [lambda p: p.both(), lambda p: p.both()], level="hook", scheduler="exhaustive", seconds=60)
    assert not outcome.found, outcome.text()


def test_conditions_work_and_a_slipped_notification_is_a_deadlock() -> None:
    assert not explore(Mailbox, [lambda m: m.send(), lambda m: m.wait()], level="line", seconds=2).found
    outcome = explore(Mailbox, [lambda m: m.send(), lambda m: m.wait_wrongly()], level="line", seconds=60)
    assert outcome.failure is not None
    assert outcome.failure.kind == "deadlock"
    assert "waits to be notified" in outcome.failure.message
    assert "itself" not in outcome.failure.message
    assert "no race is needed" not in outcome.text()


def test_a_probability_that_is_a_bound_is_rounded_down() -> None:
    outcome = explore(Counter, [lambda c: c.safe()] * 2, scheduler="pct", level="hook", depth=2, schedules=400)
    assert ">= 1.000" not in outcome.statement()
    assert ">= 0.9" in outcome.statement()


def test_a_thread_that_takes_its_own_lock_again_is_told_so() -> None:
    outcome = explore(Mailbox, [lambda m: m.send(), lambda m: m.twice()], level="hook", seconds=60)
    assert outcome.failure is not None
    assert "worker-2 waits for a Lock that it has itself" in outcome.failure.message


def test_a_wait_with_a_time_limit_ends_both_ways_and_takes_no_time() -> None:
    answers = set()

    def waits(mailbox: Any) -> None:
        answers.add(mailbox.wait_a_while())

    outcome = explore(Mailbox, [lambda m: m.send(), waits], level="line", scheduler="exhaustive", preemptions=2,
                      linear=False, seconds=200)  # fmt: skip
    assert not outcome.found, outcome.text()
    assert answers == {True, False}  # and nobody has waited: that would take most of an hour


def test_a_queue_made_of_controlled_parts() -> None:
    outcome = explore(lambda: queue.Queue(1), [lambda q: (q.put(1), q.put(2)), lambda q: (q.get(), q.get())],
                      level="hook", scheduler="exhaustive", preemptions=1, seconds=60)  # fmt: skip
    assert not outcome.found, outcome.text()
    assert "calls wait for each other" in outcome.text()


class Cell:
    """Reads that go back in time: no order of calls explains them."""

    def __init__(self) -> None:
        self.low = self.high = 0

    def put(self, value: int) -> None:
        self.low = value
        self.high = value

    def get(self) -> tuple[int, int]:
        low = self.low
        return low, self.high


def test_results_that_no_order_of_calls_gives_are_not_linearizable() -> None:
    outcome = explore(Cell, [lambda c: c.put(1), lambda c: c.get()], level="line", seconds=60)
    assert outcome.failure is not None
    assert outcome.failure.kind == "not-linearizable"
    assert "get() = (1, 0)" in outcome.failure.message


class Ids:
    """Hands out numbers; which one a thread gets means nothing."""

    def __init__(self) -> None:
        self.free = [1, 2]
        self.lock = threading.Lock()

    def take(self) -> list[int]:
        with self.lock:
            block = self.free.pop()
        with self.lock:
            return [block]


@pytest.mark.parametrize("ids", [(), ("take",)])
def test_block_ids_count_up_to_renaming(ids: tuple[str, ...]) -> None:
    take = [lambda t: t.take()]
    outcome = explore(Ids, [take, take], level="line", scheduler="exhaustive", preemptions=2, ids=ids, seconds=60)
    assert not outcome.found, outcome.text()
    assert outcome.histories > 2
    assert outcome.sequential == 2


def test_a_target_that_differs_from_run_to_run_is_its_own_finding() -> None:
    runs = itertools.count()

    class Fickle:
        def work(self) -> None:
            for _ in range(next(runs) // 2 % 2):
                self.seen = True

    outcome = explore(Fickle, [lambda f: f.work(), lambda f: f.work()], linear=False, seconds=10)
    assert outcome.failure is not None
    assert outcome.failure.kind == "nondeterminism"
    assert "no race is needed" not in outcome.text()


def test_an_unexpected_exception_is_a_crash_with_its_thread() -> None:
    outcome = explore(dict, [lambda d: d.update(a=1), lambda d: d.pop("a")], level="hook", seconds=10)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.thread) == ("crash", 1)


class Flag:
    """A loop that ends when another thread says so, or never."""

    def __init__(self) -> None:
        self.up = False

    def spin(self) -> None:
        while not self.up:
            pass

    def forever(self) -> None:
        while True:
            self.up = False

    def raise_it(self) -> None:
        self.up = True


def test_a_spin_lets_others_go_on_and_an_endless_loop_is_a_hang() -> None:
    fine = explore(Flag, [lambda f: f.spin(), lambda f: f.raise_it()], level="line", schedules=20, seconds=60)
    assert not fine.found, fine.text()
    hangs = explore(Flag, [lambda f: f.forever(), lambda f: f.raise_it()], level="line", max_points=500, seconds=60)
    assert hangs.failure is not None
    assert hangs.failure.kind == "hang"


class Uncontrolled:
    """A lock that nobody can replace."""

    def __init__(self) -> None:
        self.lock = _thread.allocate_lock()

    def take(self) -> None:
        self.lock.acquire()

    def loop(self) -> None:
        while self.lock:
            pass


@pytest.mark.parametrize("name", ["take", "loop"])
def test_a_thread_beyond_control_is_told_where_it_is(name: str) -> None:
    call = lambda u: getattr(u, name)()  # noqa: E731
    outcome = explore(Uncontrolled, [call, call], level="hook", stall_s=1.0, seconds=60)
    assert outcome.failure is not None
    assert outcome.failure.kind == "stuck"
    assert f"in {name}" in outcome.failure.message
    assert outcome.to_json()["replay"] is not None


def test_a_target_with_threads_of_its_own_is_refused() -> None:
    def make() -> object:
        threading.Thread(target=print).start()
        return object()

    with pytest.raises(UsageError, match="starts a thread of its own"):
        explore(make, [print, print])


def test_nothing_stays_replaced() -> None:
    before = threading.Lock, threading.RLock, time.sleep, threading.Thread.start
    explore(**LOST, seconds=10)
    assert (threading.Lock, threading.RLock, time.sleep, threading.Thread.start) == before


def test_lanes_show_source_lines_and_where_threads_are_stopped() -> None:
    outcome = explore(**LOST, seconds=60)
    text = outcome.text()
    assert "self.value += 1" in text
    assert "worker-1 is stopped here" in text
    lanes = outcome.to_json()["lanes"]
    assert [stretch["thread"] for stretch in lanes] == [0, 1, 0]
    assert any(step["source"] == "self.value += 1" for step in lanes[0]["steps"])


@pytest.mark.parametrize("text", ["", "kvr1:line:2", "kvr2:line:2:none:00", "kvr1:line:2:1-2:00", "kvr1:line:x:none:0"])
def test_a_string_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no replay string"):
        Replay.parse(text)


def test_strings_go_there_and_back() -> None:
    for text in ("kvr1:hook:2:none:00aa", "kvr1:opcode:3:14.1-30.2:9f3a"):
        assert str(Replay.parse(text)) == text


def test_a_string_of_another_program_says_so() -> None:
    outcome = explore(Counter, [lambda c: c.read(), lambda c: c.read()], replay="kvr1:line:2:1.1:0000", linear=False)
    assert any("not the run that the string was taken from" in note for note in outcome.notes)
    with pytest.raises(UsageError, match="3 threads"):
        explore(**LOST, replay="kvr1:line:3:1.1:0000")


@pytest.mark.parametrize(
    "wrong_use",
    [{"level": "molecule"}, {"scheduler": "lucky"}, {"seconds": 0}, {"schedules": 0}, {"threads": [bump]}],
)
def test_arguments_without_a_meaning_are_refused(wrong_use: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        explore(**{**LOST, **wrong_use})


def test_a_race_is_an_object_too() -> None:
    outcome = explore_race(Race(**LOST, name="lost update"), seconds=60)
    assert isinstance(outcome, Outcome)
    assert outcome.text().startswith("lost update: "), outcome.text()


def test_a_target_that_cannot_be_made_is_no_finding() -> None:
    made = itertools.count()

    def make() -> Counter:
        if next(made) > 2:
            raise ValueError("no more of these")
        return Counter()

    with pytest.raises(UsageError, match="make\\(\\) raised ValueError: no more of these"):
        explore(make, [bump, bump], seconds=20)
