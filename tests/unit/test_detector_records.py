"""What the replay keeps of a block, a sequence and an entry of which nothing is known yet; details piece by piece."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from kvscope.inspector.detectors import passing
from kvscope.inspector.detectors.moves import Copies, HostSlots
from kvscope.inspector.detectors.passing import REPLAYED, PassingDetails, details_by_kind
from kvscope.inspector.detectors.records import FREE, UNPLACED, WORD, Block, Blocks, Row, Sequence, mixed
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.source import frozen
from kvscope.traces.schema import EVENT_DTYPE, Kind, table_digest, to_signed

FRESH = {
    "id": 3, "gen": 0, "known": True, "place": FREE, "published": False, "ref": 0, "ref_other": -1, "entries": {},
    "left": {}, "leases": {},
    "written": 0, "last_use": -1, "unbound_write": -1, "released": {}, "story": {}, "published_as": None,
    "published_at": -1, "extra": {},
}  # fmt: skip


def row(**columns: int) -> Row:
    return Row(**(dict.fromkeys(Row._fields, -1) | {"aux": 0} | columns))  # type: ignore[arg-type]


def test_a_row_is_an_event() -> None:
    assert Row._fields == EVENT_DTYPE.names


def test_nothing_has_happened_to_a_block_yet() -> None:
    assert asdict(Block(3)) == FRESH
    assert not Block(3).held
    assert Block(3).holders == ()


@pytest.mark.parametrize(("gen", "told", "after"), [(4, 6, 6), (4, 4, 4), (4, 2, 4), (4, -1, 4)])
def test_what_was_known_of_a_block_is_forgotten(gen: int, told: int, after: int) -> None:
    block = Block(
        3,
        gen,
        True,
        FREE,
        True,
        2,
        1,
        {(1, 0): 5},
        {(1, 0): [(4, 2)]},
        {7: (0, 1, 2)},
        9,
        8,
        7,
        {(2, 0): 4},
        {"freed": 1},
        (1,),
        6,
        {(1, 0): [8]},
    )
    assert block.held
    assert block.holders == (1,)
    block.forget(told)
    assert asdict(block) == FRESH | {"gen": after, "place": UNPLACED, "written": 9}


def test_each_holder_is_named_once() -> None:
    block = Block(0, entries={(4, 0): 1, (2, 0): 2, (4, 1): 3})
    assert block.holders == (4, 2)
    assert Block(0, leases={1: (0, 1, 2)}).held


def test_blocks_are_made_when_they_are_asked_for() -> None:
    blocks = Blocks()
    assert blocks[5].known
    blocks[5].published = True
    assert blocks[5].published
    blocks.lose()
    assert [blocks[number].known for number in (5, 6)] == [False, False]
    assert [block.id for block in blocks.values()] == [5, 6]


def test_nothing_has_happened_to_a_sequence_yet() -> None:
    assert asdict(Sequence(9)) == {
        "id": 9, "known": True, "table": {}, "digest": 0, "began": -1, "ended": -1, "ended_kind": -1, "sched_seq": -1,
        "sched_step": -1, "checked_to": 0, "parent": -1, "replaced": (-1, -1, -1), "issued_to": 0, "slid": 0,
        "suspect": False,
    }  # fmt: skip
    assert [Sequence(9, began=began, ended=ended).over for began, ended in ((-1, -1), (-1, 0), (3, 2), (3, 4))] == [
        False, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize("table", [[], [(0, 1)], [(7, 3), (0, 1), (2**31 - 1, 2**31 - 1), (5, 9)]])
def test_words_of_entries_add_up_to_the_digest_of_a_table(table: list[tuple[int, int]]) -> None:
    total = sum(mixed(block, gen, lblock) for lblock, (block, gen) in enumerate(table))
    assert to_signed(total & WORD) == table_digest([b for b, _ in table], [g for _, g in table])
    assert all(0 <= mixed(block, gen, 0) < 2**64 for block, gen in table)


def ledger(trace: HandTrace) -> Ledger:
    return Ledger(frozen(trace))


def test_a_ledger_begins_with_nothing_but_its_blocks() -> None:
    made = ledger(HandTrace(num_blocks=5, block_size=3))
    assert (made.num_blocks, made.id_end, made.full, made.seq, made.begun, made.completed) == (5, 5, 7, -1, -1, -1)
    assert (made.last_begin_seq, made.last_step_seq, made.entries, made.digest, made.unjudged) == (-1, -1, 0, 0, 0)
    assert (made.unknown_blocks, made.unknown_tables, made.lost, made.steps_known) == (0, False, False, True)
    assert (made.nobody.id, made.nobody.known, made.not_kept) == (-1, False, 0)
    made.sequence(1).began = 4
    made.begun = 6
    made.lose()
    assert (made.unknown_blocks, made.unknown_tables, made.lost, made.steps_known) == (5, True, True, False)
    assert (made.completed, made.sequence(1).began, made.sequence(1).known, made.sequence(2).known) == (
        6,
        -1,
        False,
        False,
    )
    assert made.id_end >= 2**31


@pytest.mark.parametrize("events", [0, 1])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2), (3, 4), (4, 0)])
def test_a_pool_has_the_size_from_which_it_changes_first(before: int, after: int, events: int) -> None:
    trace = HandTrace()
    for _ in range(events):
        trace.event(Kind.NOTE)
    made = ledger(trace.resize(before, after))
    assert (made.num_blocks, made.id_end) == (before, before)


@pytest.mark.parametrize(("known", "size", "unknown"), [
    (0, 8, 8), (0, 5, 5), (0, 2, 2), (0, 0, 0), (2, 7, 5), (2, 4, 2), (2, 2, 0), (2, 1, 0), (5, 7, 2), (5, 3, 0),
])  # fmt: skip
def test_blocks_that_come_after_lost_events_are_not_known_either(known: int, size: int, unknown: int) -> None:
    """Of five blocks the first ones are known again when the pool changes its size; then it grows by one more."""
    made = ledger(HandTrace(num_blocks=5))
    made.lose()
    change, hand_out = (made.handlers()[kind] for kind in (Kind.GROW, Kind.ALLOC))
    for block in range(known):
        hand_out(row(block=block, gen=1, seq_id=0, lblock=block, ref_after=1), made.blocks[block])
    assert made.unknown_blocks == 5 - known
    change(row(aux=size), made.nobody)
    assert (made.unknown_blocks, made.num_blocks, made.id_end) == (unknown, size, size)
    change(row(aux=size + 1), made.nobody)
    # A block that there was before stays known while it is not of the pool.
    assert (made.unknown_blocks, made.num_blocks) == (unknown + (size >= known), size + 1)
    hand_out(row(block=size + 1, gen=1, seq_id=1, lblock=0, ref_after=1), made.blocks[size + 1])
    assert made.unknown_blocks == unknown + (size >= known)  # it is not of the pool


@pytest.mark.parametrize(("details", "aux", "fill", "copy"), [
    ((7, 2, 1, 3), 0, 4, (7, 2, 1, 3)), ((7, 2, 1, 3, 9), 0, 4, (7, 2, 1, 3)), ((7, 2, 1), 0, 4, (0, 8, 0, 4)),
    (None, 0, 4, (0, 8, 0, 4)), (None, 1, 1, (1, 0, 0, 1)), (None, 3, 0, (3, 0, 0, 0)), (None, 4, 1, (4, -1, 0, 1)),
    (None, -1, -1, (-1, -1, 0, 0)),
])  # fmt: skip
def test_what_a_copy_says(details: tuple[int, ...] | None, aux: int, fill: int, copy: tuple[int, ...]) -> None:
    made = ledger(HandTrace().event(Kind.COW, details=details))
    made.seq, made.blocks[0].gen = 0, 8
    copies = Copies(made)
    assert copies.of(row(aux=aux, fill=fill)) == copy
    copies.decided(row(aux=aux, fill=fill, gen=1), made.blocks[2])
    assert copies == {(2, 0): copy}
    copies.done(row(gen=1), made.blocks[2])
    assert len(copies) == 1, "another life"
    copies.done(row(gen=0), made.blocks[2])
    assert not copies
    lo, hi = copy[2:]
    bits = sum(1 << slot for slot in range(lo, hi))
    assert (made.blocks[2].written, made.ever_written[2]) == (bits, bits)


@pytest.mark.parametrize(("fill", "bits"), [(-1, 0), (0, 0), (1, 1), (4, 15), (5, 0)])
def test_slots_of_the_host_tier_are_held_by_sequences_and_transfers(fill: int, bits: int) -> None:
    trace = HandTrace().event(Kind.SWAP_OUT, details=(1, 6)).event(Kind.SWAP_OUT, details=(1, -1))
    made = ledger(trace.event(Kind.SWAP_IN, details=(1, 0)))
    host, block = HostSlots(made), made.blocks[1]
    assert (host.known, host.used) == (True, 0)
    used = []
    for made.seq, (kind, slot) in enumerate(((Kind.SWAP_OUT, 10), (Kind.SWAP_OUT, 11), (Kind.SWAP_IN, 12))):
        act = host.swap_in if kind == Kind.SWAP_IN else host.swap_out
        act(row(kind=kind, aux=slot, seq_id=4, lblock=slot, fill=fill, gen=2), block)
        used.append(host.used)
    assert used == [1, 2, 3]
    assert (block.written, made.ever_written[1]) == (bits, bits)
    assert [tuple(arrival) for arrival in host.arriving] == [(1, 2, 4, 0, 2)]
    assert block.story == {"swapped_out": 1, "swapped_in": 2}
    host.unleased(6)
    host.unleased(99)
    assert (host.used, len(host.arriving)) == (3, 1)
    host.left(4)
    assert host.used == 1
    host.unleased(0)
    assert (host.used, host.arriving) == (0, [])
    host.swap_out(row(kind=Kind.SWAP_OUT, aux=1, seq_id=4), block)
    host.lose()
    assert (host.used, host.known) == (0, False)


class Reader:
    """A trace on disk, whose details are read a piece at a time."""

    on_demand = True

    def __init__(self) -> None:
        self.read: list[tuple[int, int]] = []

    def details_between(self, lo: int, hi: int) -> tuple[Any, ...]:
        self.read.append((lo, hi))
        seqs = [seq for seq in range(lo, hi) if seq % 3]
        values = [[seq] * (seq % 3) for seq in seqs]
        return np.array(seqs), np.cumsum([0, *map(len, values)]), np.array([v for value in values for v in value])


def test_details_are_read_as_the_replay_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "_PIECE", 4)
    reader = Reader()
    details = PassingDetails(reader)
    assert [details.get(seq) for seq in range(1, 6)] == [(1,), (2, 2), None, (4,), (5, 5)]
    assert reader.read == [(1, 5), (5, 9)]
    assert details.get(6, (0,)) == (0,)
    assert details.get(8) == (8, 8)
    assert details.get(20) == (20, 20)
    assert reader.read == [(1, 5), (5, 9), (20, 24)]


def test_each_kind_that_is_replayed_has_its_details() -> None:
    trace = HandTrace().event(Kind.LEASE, details=(1, 2)).event(Kind.SUBMIT, details=(3,))
    found = details_by_kind(frozen(trace))
    assert set(found) == set(REPLAYED)
    assert (found[Kind.LEASE].get(0), found[Kind.LEASE].get(1), found[Kind.HIT].get(0)) == ((1, 2), None, None)
