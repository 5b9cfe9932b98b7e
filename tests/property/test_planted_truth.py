"""What `explain` tells of every planted fault, held against what the injector's own device was ordered to do.

`DeviceTruth` keeps the prefix in every slot, who wrote it in which step, and who read what is wrong; it knows nothing
of events. Every fault goes through every play, once with the shadow words beside it and once with the ledger alone.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from kvscope.engine.block_manager import BlockManager
from kvscope.inspector.explain import explain
from kvscope.inspector.explain_report import explanation_text
from kvscope.inspector.explanation import Explanation
from kvscope.inspector.faults import FAULTS
from kvscope.inspector.faults.improvised import improvise
from kvscope.inspector.faults.plays import PLAYS
from kvscope.inspector.faults.stage import Stage, perform
from kvscope.inspector.faults.truth import DeviceTruth, FirstWrong, Harm, Row
from kvscope.inspector.findings import CheckResult, check
from kvscope.inspector.handmade import HandTrace
from kvscope.inspector.reads import reads_of
from kvscope.traces import Kind, MemoryRecorder
from kvscope.traces.schema import unpack_range

# Faults by which no sequence reads a wrong prefix in any play: by the truth, which the test below asks for each.
HARMLESS = {
    "double-free": "what is freed twice was handed out twice to nobody who lived at once",
    "leak-on-preempt": "a leak takes memory, not content",
    "leak-on-abort": "a leak takes memory, not content",
    "leak-on-rollback": "a leak takes memory, not content",
    "copy-lease-kept": "a leak takes memory, not content",
    "lookup-lease-kept": "a leak takes memory, not content",
    "copy-keeps-source": "a leak takes memory, not content",
    "hit-taken-twice": "a leak takes memory, not content",
    "half-done-admission": "a leak takes memory, not content",
    "evictable-counted-twice": "a leak takes memory, not content",
    "copy-ends-twice": "the count is put back to zero before anybody is handed the block",
    "counter-drift": "a counter that drifts is read by nobody who decides on it",
    "hits-counted-twice": "a counter that drifts is read by nobody who decides on it",
    "lost-update": "the manager stops at the release that the count lacks",
    "free-without-fence": "steps of one stream end in order: the next owner writes behind the last reader",
    "window-without-fence": "steps of one stream end in order: the next owner writes behind the last reader",
    "transfer-ends-all": "the transfers here read for stores, not for a sequence",
    "reads-before-arrival": "the device here has always arrived in time",
    "stale-window-entry": "nobody attends through the entry any more",
    "stale-tail": "the entries stand behind the last position that is read",
    "stale-index": "whoever hits the stale entry is refused before its step",
    "reuse-without-evict": "the index entry goes, so nobody hits what is written anew",
    "null-handed-out": "this device pads no rows, so nobody writes block 0 but its holder",
    "never-evicts": "it only refuses",
    "grows-twice": "it only takes too much",
}

# Faults whose first wrong event can be one of several, beside the code that the fault is found as.
CAUSES = {
    "shared-tail-hit": {"KV015"},  # no copy at all: nor after a rollback into a published block
    "publish-at-admission": {"KV015"},
    "foreign-write": {"KV015"},  # the same write, where its target had been published
    "no-lookahead": {"KV015", "KV019"},  # the row's first block is published by then; a window has given it back
    "silent-duplicate": {"KV012"},  # the free that puts the block on the list twice, of one that is held
    "free-under-lease": {"KV014", "KV017"},
}
WRITES = {"KV001", "KV006", "KV010", "KV015"}  # codes of findings that stand at a write


class Acted(NamedTuple):
    """One fault in one play."""

    play: str
    truth: DeviceTruth
    trace: MemoryRecorder
    result: CheckResult
    told: dict[int, Explanation]


@functools.cache
def acted(name: str, *, tells: bool) -> tuple[Acted, ...]:
    return tuple(_act(name, tells=tells))


def _act(name: str, *, tells: bool) -> Iterator[Acted]:
    for play in PLAYS.values():
        stage = Stage(FAULTS[name].manager(), **play.options)
        stage.tells = tells
        trace = perform(play.act, stage)
        result = check(trace)
        known = sorted({int(seq_id) for seq_id in trace.events["seq_id"] if seq_id >= 0})
        told = {seq_id: explain(trace, f"s{seq_id}", result=result) for seq_id in known}
        yield Acted(play.name, stage.truth, trace, result, told)


def test_the_truth_of_right_managers_is_that_nothing_is_wrong() -> None:
    for play in PLAYS.values():
        stage = Stage(BlockManager, **play.options)
        play.act(stage)
        stage.close()
        assert stage.truth.first == {}, play.name
        assert stage.truth.harm == {}, play.name


@pytest.mark.parametrize("name", FAULTS)
def test_who_is_hurt_by_the_truth(name: str) -> None:
    hurt = sum(len(one.truth.harm) for one in acted(name, tells=True))
    assert (hurt == 0) == (name in HARMLESS), f"{hurt} sequences read wrong KV"


@pytest.mark.parametrize("name", FAULTS)
def test_explain_tells_what_the_device_did(name: str) -> None:
    for one in acted(name, tells=True):
        damage = reads_of(one.trace, one.result).damage
        for seq_id, told in one.told.items():
            harm, where = one.truth.harm.get(seq_id), (name, one.play, seq_id)
            assert explanation_text(told, one.trace), where
            if harm is None:
                assert told.verdict == "clean" or told.same_prefix, where
                continue
            assert told.verdict == "damaged", where
            assert not told.same_prefix, where
            steps = one.trace.events[damage[seq_id].steps]
            assert [*zip(steps["step"].tolist(), steps["lblock"].tolist(), strict=True)] == [
                (step, lo) for step, lo, _ in harm.steps
            ], where
            assert told.first_token == min(harm.tokens, default=None), where
            victims = {victim.seq_id: victim for victim in told.victims}
            assert victims.keys() == one.truth.harm.keys(), where
            assert {s: v.tokens for s, v in victims.items()} == {s: len(h.tokens) for s, h in one.truth.harm.items()}
            assert told.through == (_name(one, harm.through) if harm.through >= 0 else ""), where
            if harm.through < 0:
                check_read(name, one, told, one.truth.first[seq_id])


def check_read(name: str, one: Acted, told: Explanation, wrong: FirstWrong) -> None:
    """Step, position, block, slot, what is there, the token, and the event that should have been another."""
    read, cause, where = told.read, told.cause, (name, one.play, wrong.seq_id)
    assert read is not None, where
    assert (read.step, read.position, read.block, read.slot) == (wrong.step, wrong.position, wrong.block, wrong.slot)
    assert read.token == wrong.token, where
    found = None if read.found.seq_id is None else (read.found.seq_id, read.found.step)
    assert found == (None if wrong.found is None else (wrong.found.seq_id, wrong.found.step)), where
    assert cause is not None, where
    assert cause.code in {FAULTS[name].code} | CAUSES.get(name, set()), (*where, cause.why)
    if read.found.seq is not None and wrong.found is not None and name != "slot-off-by-one":  # whose writes say others
        write = one.trace.events[int(np.flatnonzero(one.trace.seqs == read.found.seq)[0])]
        lo, hi = (int(write["lblock"]) * one.trace.block_size + end for end in unpack_range(int(write["aux"])))
        assert lo <= len(wrong.found.prefix) - 2 < hi, (*where, "another write of that step is named")
    written = {wrong.block, -1}  # or where its write went, from where a copy, or the write's own length, carried it
    if read.found.seq is not None:
        written.add(int(one.trace.events["block"][int(np.flatnonzero(one.trace.seqs == read.found.seq)[0])]))
    assert cause.block in written or name == "stale-row", where  # the first entry that differs need not be the one
    assert cause.step <= wrong.step, where
    kind = one.trace.events["kind"][int(np.flatnonzero(one.trace.seqs == cause.seq)[0])]
    if cause.code in WRITES and kind == Kind.WRITE and wrong.found is not None and cause.gen == read.gen:
        assert (cause.seq_id, cause.step) == (wrong.found.seq_id, wrong.found.step), where
    assert told.should, where


def _name(one: Acted, seq_id: int) -> str:
    return one.told[seq_id].request


@pytest.mark.parametrize("name", FAULTS)
def test_the_ledger_alone_tells_the_same_where_it_can(name: str) -> None:
    """Without shadow words: another's write counts as foreign though it be the same prefix; KV023 cannot be seen."""
    for one, beside in zip(acted(name, tells=False), acted(name, tells=True), strict=True):
        damage = reads_of(one.trace, one.result).damage
        for seq_id, told in one.told.items():
            harm, where = one.truth.harm.get(seq_id), (name, one.play, seq_id)
            if told.verdict == "unknown":
                assert told.other_tables, where
            elif told.verdict == "clean":
                assert harm is None or FAULTS[name].code == "KV023", where
            elif harm is None:
                assert beside.told[seq_id].same_prefix, where
            elif harm.through < 0 and (first := damage[seq_id].first) is not None:
                wrong = one.truth.first[seq_id]
                assert (int(one.trace.events["step"][first.row]), first.position) <= (wrong.step, wrong.position), where
                assert told.cause is not None or FAULTS[name].code == "KV023", where


def test_what_nobody_wrote_at_all_is_told_as_that() -> None:
    """A window gives back what is still read: the position lies in no block."""
    one = next(one for one in acted("window-too-short", tells=True) if one.truth.harm)
    told = one.told[0]
    assert told.read is not None
    assert (told.read.block, told.read.found.seq) == (-1, None)
    assert "lies in no block any more" in explanation_text(told, one.trace)


def row(seq_id: int, lo: int, hi: int, slots: list[int], tokens: str) -> Row:
    prefixes = [tuple(tokens[: p + 1]) for p in range(hi)]
    return Row(seq_id, lo, hi, 0, [(p, slots[p]) for p in range(lo, hi)], slots[:hi], prefixes, 2)


def test_the_truth_follows_copies_transfers_and_taint() -> None:
    truth = DeviceTruth(2)
    truth.step(0, [row(1, 0, 2, [0, 1], "ab")])
    truth.copy(0, 1, 1)  # one slot too few
    truth.step(1, [row(2, 2, 3, [2, 3, 4], "abc")])
    assert truth.first == {2: FirstWrong(2, 1, 1, 1, 1, None, 1)}
    truth.swap([2], [7], out=True)
    truth.step(2, [row(3, 0, 2, [4, 5], "xy")])
    truth.swap([3], [7], out=False)
    truth.step(3, [row(4, 3, 4, [0, 1, 6, 7], "abcd")])  # reads what 2 wrote in its bad step, by way of the host
    assert truth.harm[4] == Harm(4, [(3, 3, 4)], {2: 3}, 2)
    assert set(truth.harm) == {2, 4}


def test_the_truth_of_one_step_goes_round_its_rows() -> None:
    """Layer by layer the rows of a step read each other's: the row in front reads what the one behind has spoilt."""
    truth = DeviceTruth(2)
    truth.step(0, [row(1, 0, 2, [0, 1], "ab"), row(2, 0, 2, [2, 9], "ab")])
    truth.slots.pop(9)
    truth.step(1, [row(3, 3, 4, [0, 1, 4, 6], "abcd"), row(2, 2, 3, [2, 9, 4], "abc")])
    assert {seq_id: harm.through for seq_id, harm in truth.harm.items()} == {3: 2, 2: -1}


def test_tokens_that_are_rolled_back_are_not_counted() -> None:
    truth = DeviceTruth(2)
    truth.step(0, [row(1, 0, 2, [0, 1], "ab")])
    truth.slots.pop(1)
    for step, hi in enumerate((3, 4, 5), 1):
        truth.step(step, [row(1, hi - 1, hi, [0, 1, 2, 3, 4], "abcde"[:hi])])
    assert truth.harm[1].tokens == {1: 1, 2: 2, 3: 3}
    truth.fork(1, 2)
    truth.cut(1, 3)
    assert truth.harm[1].tokens == {1: 1}
    truth.step(4, [row(2, 5, 6, [0, 1, 2, 3, 4, 5], "abcdef")])
    assert truth.harm[2].tokens == {1: 1, 2: 2, 3: 3, 4: 4}


def test_a_fork_has_the_tokens_that_its_parent_was_damaged_by() -> None:
    """Token 0 came out of a step that read a stranger's write; what is forked off behind it has it, with no step of
    its own as well, and until it is rolled back."""
    trace = HandTrace(num_blocks=8, block_size=2).request(0, "story", [1, 2], prompt_tokens=2)
    trace.event(Kind.ADMIT, seq_id=1).alloc(0, seq_id=1).write(0, 0, 2, seq_id=1).write(0, 1, 2, seq_id=9)
    trace.begin((1, 0, 2, [(0, 1)])).end().event(Kind.FORK, seq_id=2, aux=1).share(0, seq_id=2)
    told = explain(trace, "story/1")
    assert (told.verdict, told.first_token, told.through) == ("damaged", 0, "story")
    assert told.cause is not None
    assert {victim.name: victim.tokens for victim in told.victims} == {"story": 1, "story/1": 1}
    assert explain(trace.event(Kind.TRUNCATE, seq_id=2, aux=1), "story/1").verdict == "clean"


def test_steps_that_are_never_run_write_nothing() -> None:
    """A prompt that is aborted before its step leaves its block as it was, whoever has published it."""
    one = next(one for one in acted("publish-before-commit", tells=False) if one.truth.harm)
    assert [*one.truth.harm] == [4]
    read = one.told[4].read
    assert read is not None
    assert read.found.seq is None
    writes = one.trace.events[one.trace.events["kind"] == Kind.WRITE]
    assert ((writes["block"] == read.block) & (writes["seq_id"] == 3)).any()


def test_improvised_runs_are_told_as_the_device_ran_them() -> None:
    """Any operations in any order, with every fault: who was hurt in which steps, and the first wrong position."""
    hurt = 0
    for name, seed in itertools.product(FAULTS, range(8, 16)):
        stage = improvise(seed, manager=FAULTS[name].manager(), broken=True)
        trace, truth, where = stage.sink, stage.truth, (name, seed)
        events, damage = trace.events, reads_of(trace, check(trace)).damage
        told = {
            seq_id: [(step, lo) for step, lo in zip(events["step"][each.steps].tolist(),
                                                    events["lblock"][each.steps].tolist(), strict=True)
                     if step in truth.ran]
            for seq_id, each in damage.items()
        }  # fmt: skip
        assert {seq_id: steps for seq_id, steps in told.items() if steps} == {
            seq_id: [(step, lo) for step, lo, _ in harm.steps] for seq_id, harm in truth.harm.items() if harm.steps
        }, where
        for seq_id, wrong in truth.first.items():
            first = damage[seq_id].first
            if truth.harm[seq_id].through < 0 and first is not None:
                assert (int(events["step"][first.row]), first.position) == (wrong.step, wrong.position), where
        hurt += len(truth.harm)
    assert hurt > 50
