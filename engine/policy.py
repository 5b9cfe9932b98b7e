"""What the scheduler decides, as pure functions over small frozen views: no pool, no queue, no clock.

    queue_key     where a request stands in the queue (first come, or priority with bounded bypass)
    seat, blocks  whether the sequence at the door may join this step, and if not, why
    victim        whose blocks are given up when a running sequence finds none
    relief        whether a victim is computed again later, or its blocks wait in host memory
    charge, lift  the counters of fair queueing

The Scheduler carries out what is decided here; `waiting` keeps the queues in these orders.

Fairness is that of VTC (Sheng et al., Fairness in Serving Large Language Models, OSDI 2024): per user a counter of
service, 1 per prompt token and 2 per output token, the user with the least counter next, and a counter lifted to
those of the others when its user comes back to the queue, so that no one saves service up. Where we differ: what a
preempted sequence computes a second time is not charged, and preempted sequences come before all new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from kvscope.traces.schema import Reason

INPUT_WEIGHT, OUTPUT_WEIGHT = 1, 2

Key = tuple[int, int, int]


class Policy(StrEnum):
    """In which order the queue is admitted."""

    FCFS = "fcfs"  # as it came
    PRIORITY = "priority"  # lower number first, ties as they came
    FAIR = "fair"  # the user who was served least so far


class Preemption(StrEnum):
    """What becomes of a sequence that gives its blocks up."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


@dataclass(frozen=True, slots=True)
class Door:
    """What is left for one more sequence in this step.

    tokens: positions that the step may still compute. seats: sequences that may still join. available: blocks free
    or evictable, for this very prompt. reserve: blocks that stay free while others run.
    """

    tokens: int
    seats: int
    available: int = 0
    reserve: int = 0


@dataclass(frozen=True, slots=True)
class Runner:
    """A running sequence as preemption sees it: which unit it belongs to, and whether this step computes it."""

    unit: int
    planned: bool = False


def queue_key(policy: Policy, *, priority: int, number: int, seq_id: int, patience: int) -> Key:
    """The place of a new request among the queued ones, smallest first.

    Args:
        priority: lower is sooner. number: how many came before it.
        patience: what one level of priority is worth in arrivals. A request is passed by no more than
            `patience * (its priority - the other's)` later ones of any better priority, so none starves.
    """
    return (number + priority * patience if policy is Policy.PRIORITY else number, number, seq_id)


def reserve(watermark: float, num_blocks: int, *, alone: bool) -> int:
    """Blocks kept free at admission, so that decodes do not preempt what was just admitted; none for one alone."""
    return 0 if alone else int(watermark * num_blocks)


def seat(door: Door, width: int) -> Reason:
    """Whether a sequence of this width may join, blocks aside; NONE if so."""
    if door.tokens <= 0:
        return Reason.TOKEN_BUDGET
    return Reason.SEQUENCE_LIMIT if width > door.seats else Reason.NONE


def blocks(door: Door, needed: int, *, pending: bool) -> Reason:
    """Whether the blocks of the whole sequence can be had, by evicting if need be; NONE if so.

    pending: another sequence is computing the next block of the same prefix right now; it may be shared next step.
    """
    if pending:
        return Reason.PREFIX_PENDING
    return Reason.NO_BLOCKS if needed + door.reserve > door.available else Reason.NONE


def victim(running: Sequence[Runner], needy: int) -> int | None:
    """Which unit gives its blocks up for unit `needy`: the last in the order of running.

    Units run in the order in which they joined, or by priority, and the first of them is never preempted for
    another: it ends, then the next is the first. None: it is the needy unit itself and this step computes part of
    it, so it must wait for the next.
    """
    last = running[-1].unit
    if last == needy and any(runner.unit == last and runner.planned for runner in running):
        return None
    return last


def relief(wanted: Preemption, host_slots: int | None, host_free: int) -> Preemption:
    """How a unit is preempted.

    Args:
        host_slots: slots of host memory that its blocks take; None where they cannot be moved now, or hold nothing.
        host_free: slots that are free.
    """
    fits = host_slots is not None and host_slots <= host_free
    return Preemption.SWAP if wanted is Preemption.SWAP and fits else Preemption.RECOMPUTE


def charge(counter: int, *, prompt: int = 0, output: int = 0) -> int:
    """A user's counter after this service, in tokens."""
    return counter + INPUT_WEIGHT * prompt + OUTPUT_WEIGHT * output


def lift(counter: int, queued: Iterable[int], last_left: int) -> int:
    """The counter of a user who comes to the queue with nothing queued.

    Args:
        queued: counters of the users who have something queued. last_left: of the user who left the queue last.
    """
    return max(counter, min(queued, default=last_left))


def least_served(counters: Mapping[str, int], oldest: Mapping[str, int]) -> str:
    """The user whose head is next: least counter, ties by whose head came first."""
    return min(oldest, key=lambda user: (counters.get(user, 0), oldest[user]))
