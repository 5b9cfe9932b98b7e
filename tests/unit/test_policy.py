"""The scheduler's decisions one by one, the order of admission they lead to, and what a standstill says."""

from __future__ import annotations

import pytest

from kvscope.engine import policy
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.policy import Door, Preemption, Runner
from kvscope.engine.prefix import PrefixIndex
from kvscope.engine.scheduler import Scheduler, SchedulerConfig
from kvscope.engine.sequence import Request, SamplingParams, Sequence
from kvscope.errors import Stalled, UsageError
from kvscope.traces.memory import MemoryRecorder
from kvscope.traces.schema import Kind, Reason


def test_the_door_says_what_is_missing_first() -> None:
    assert policy.seat(Door(tokens=0, seats=0), 1) is Reason.TOKEN_BUDGET
    assert policy.seat(Door(tokens=4, seats=1), 2) is Reason.SEQUENCE_LIMIT
    assert policy.seat(Door(tokens=4, seats=2), 2) is Reason.NONE
    door = Door(tokens=4, seats=2, available=5, reserve=2)
    assert policy.blocks(door, 3, pending=False) is Reason.NONE
    assert policy.blocks(door, 4, pending=False) is Reason.NO_BLOCKS
    assert policy.blocks(door, 1, pending=True) is Reason.PREFIX_PENDING


def test_the_watermark_does_not_bind_one_alone() -> None:
    assert policy.reserve(0.1, 50, alone=True) == 0
    assert policy.reserve(0.1, 59, alone=False) == 5


def test_the_last_unit_gives_way_but_not_to_itself_in_mid_step() -> None:
    assert policy.victim([Runner(1, True), Runner(2), Runner(3)], needy=1) == 3
    assert policy.victim([Runner(1, True), Runner(2), Runner(2)], needy=2) == 2
    assert policy.victim([Runner(1, True), Runner(2, True), Runner(2)], needy=2) is None


def test_a_victim_is_swapped_only_where_its_bytes_exist_and_fit() -> None:
    assert policy.relief(Preemption.SWAP, 3, 3) is Preemption.SWAP
    assert policy.relief(Preemption.SWAP, 3, 2) is Preemption.RECOMPUTE
    assert policy.relief(Preemption.SWAP, None, 9) is Preemption.RECOMPUTE
    assert policy.relief(Preemption.RECOMPUTE, 3, 9) is Preemption.RECOMPUTE


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"policy": "lottery"}, "policy is 'lottery': must be one of fcfs, priority, fair"),
        ({"patience": 0}, "patience is 0: must be 1..1048576 arrivals"),
    ],
)
def test_impossible_settings_are_refused_in_one_line(bad: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError) as error:
        SchedulerConfig(**bad)  # type: ignore[arg-type]
    assert str(error.value) == says


def test_a_priority_beyond_all_use_is_refused() -> None:
    with pytest.raises(UsageError, match="priority is 1048577: must be -1048576"):
        Request(0, [1], SamplingParams(), priority=(1 << 20) + 1)


def admitted(config: SchedulerConfig, *requests: Request) -> list[int]:
    """The order in which a scheduler that runs one at a time admits them, all being there."""
    manager = BlockManager(16, 4, share_prefixes=False)
    scheduler = Scheduler(manager, config)
    for number, request in enumerate(requests):
        scheduler.submit(Sequence(number, request))
    order = []
    while scheduler.has_work:
        plan = scheduler.schedule()
        manager.begin_step(plan.rows)
        manager.end_step()
        (sequence,) = plan.sequences
        order.append(sequence.request.request_id)
        scheduler.retire(sequence)
        manager.free(sequence.seq_id)
    return order


def request(number: int, tokens: int = 2, **more: object) -> Request:
    return Request(number, [number] * tokens, SamplingParams(max_tokens=1), **more)  # type: ignore[arg-type]


def test_lower_numbers_first_and_ties_as_they_came() -> None:
    made = [request(i, priority=p) for i, p in enumerate([1, 0, 1, -1, 0])]
    assert admitted(SchedulerConfig(max_seqs=1, policy="priority"), *made) == [3, 1, 4, 0, 2]
    assert admitted(SchedulerConfig(max_seqs=1), *made) == [0, 1, 2, 3, 4]


def test_patience_bounds_how_many_pass() -> None:
    made = [request(0, priority=1), *[request(i) for i in range(1, 7)]]
    assert admitted(SchedulerConfig(max_seqs=1, policy="priority", patience=3), *made) == [1, 2, 0, 3, 4, 5, 6]


def test_turns_go_by_user_not_by_request() -> None:
    made = [request(i, user="many") for i in range(4)] + [request(i, user="few") for i in (4, 5)]
    assert admitted(SchedulerConfig(max_seqs=1, policy="fair"), *made) == [0, 4, 1, 5, 2, 3]


def test_a_standstill_names_who_waits_for_whom() -> None:
    sink = MemoryRecorder(num_blocks=8, block_size=2)
    manager = BlockManager(8, 2, sink=sink)
    manager.admit(70, list(range(12)))  # someone else, who never gives its six blocks back
    scheduler = Scheduler(manager, SchedulerConfig(watermark=0.0), sink=sink)
    scheduler.submit(Sequence(3, Request(0, list(range(50, 57)), SamplingParams(), "letter")))
    for _ in range(2):
        assert scheduler.schedule().rows == []
    with pytest.raises(Stalled) as stalled:
        scheduler.schedule()
    assert str(stalled.value) == (
        "nothing can go on: letter (sequence 3) waits for 4 blocks: 2 free and 0 evictable of 8 blocks, held by "
        "sequence 70 (6); end one of the holders or raise num_blocks"
    )
    (wait,) = [i for i, e in enumerate(sink.events) if e["kind"] == Kind.WAIT]
    assert sink.events[wait]["reason"] == Reason.NO_BLOCKS
    assert sink.detail(wait) == (4, 2, 0, 70, 6)
    manager.free(70)
    assert len(scheduler.schedule().rows) == 1


def test_while_a_step_is_open_an_empty_plan_is_no_standstill() -> None:
    manager = BlockManager(4, 2, share_prefixes=False)
    scheduler = Scheduler(manager, SchedulerConfig(watermark=0.0))
    sequences = [Sequence(i, Request(i, [1] * 8, SamplingParams(max_tokens=1))) for i in range(2)]
    for sequence in sequences:
        scheduler.submit(sequence)
    manager.begin_step(scheduler.schedule().rows)
    scheduler.retire(sequences[0])
    manager.free(0)  # its blocks wait for the open step
    for _ in range(10):
        assert scheduler.schedule().rows == []
    manager.end_step()
    assert [row.seq_id for row in scheduler.schedule().rows] == [1]


def test_a_waiting_prompt_is_hashed_once_and_its_tokens_follow_the_output() -> None:
    index = PrefixIndex(2, key=b"test")
    sequence = Sequence(0, Request(0, [1, 2, 3], SamplingParams()))
    hashes = index.chain(sequence.tokens, ())
    assert index.chain(sequence.tokens, ()) is hashes
    sequence.output += [4, 5]
    assert sequence.tokens == [1, 2, 3, 4, 5]
    assert index.chain(sequence.tokens, ()) == PrefixIndex(2, key=b"test").chain([1, 2, 3, 4, 5], ())
    assert index.chain(sequence.tokens, ("tenant",)) == PrefixIndex(2, key=b"test").chain([1, 2, 3, 4], ("tenant",))
    assert PrefixIndex(2, key=b"other").chain(sequence.tokens, ()) != hashes
