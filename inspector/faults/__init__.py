"""The catalogue of planted faults: block managers that are broken on purpose, each in one way, each with a name.

They show what the sanitizer and the fuzzer find. A fault is a subclass of `BlockManager`, handed to an engine as its
`manager_factory`; the engine itself knows nothing of them. Importing this package loads none.

    plays.py      small scripts, each around one way in which blocks are used
    stage.py      what they are played on: the manager, a device that is late, shadow words in place of KV
    matrix.py     every fault in every play, and which detector finds it
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from kvscope.engine.block_manager import BlockManager

__all__ = ["FAULTS", "KINDS", "NOT_EXPRESSED", "Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """One planted fault.

    code: what `check` reports from a trace. kind: the kind of mistake, as in `KINDS`. fuzz_codes: what the fuzzer may
    report, which sees the allocator from outside only; empty where nothing can be seen from there. manager(): the
    broken class, imported on first use.
    """

    name: str
    title: str
    code: str
    manager: Callable[[], type[BlockManager]]
    kind: str
    fuzz_codes: tuple[str, ...] = ()


# The kinds of mistakes that paged KV caches have been seen to make.
KINDS = {
    "A1": "double free", "A2": "leak", "A3": "underflow", "A4": "live block handed out or freed",
    "A5": "free list corrupted", "A6": "accounting drift", "A7": "referenced block evicted", "A8": "unsynchronised",
    "B1": "reuse under a step", "B2": "reuse under a transfer", "B3": "staging overwritten",
    "B4": "hold never released",
    "B5": "window", "C1": "missing copy", "C2": "fork and copy bookkeeping", "C3": "copy touches wrong bytes",
    "D1": "identity left out of the key", "D2": "weak hash", "D3": "stale index", "D4": "published too early",
    "D5": "dirty hash at hand-out", "D6": "stale weights", "D7": "wrong resume on a hit", "E1": "stale table",
    "E2": "bounds", "E3": "padding and reserved slots", "E4": "uninitialised content", "E5": "capture and replay",
    "F1": "admission", "F2": "needless exhaustion",
    "F3": "capacity mis-sized",
}  # fmt: skip

# Kinds that a broken block manager cannot show in this engine, and why.
NOT_EXPRESSED: dict[str, str] = {}


def _fault(name: str, kind: str, code: str, home: str, title: str, *fuzz_codes: str) -> Fault:
    module, class_name = home.split(":")

    def manager() -> type[BlockManager]:
        return cast("type[BlockManager]", getattr(import_module(f"kvscope.inspector.faults.{module}"), class_name))

    return Fault(name, title, code, manager, kind, fuzz_codes)


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        _fault("double-free", "A1", "KV003", "counting:DoubleFree",
               "a finished sequence puts its first block on the free list a second time", "KV012"),
        _fault("window-frees-twice", "A1", "KV003", "counting:WindowFreesTwice",
               "what a sliding window gave back is given back again when the sequence ends"),
        _fault("leak-on-preempt", "A2", "KV005", "counting:LeakOnPreempt",
               "preemption forgets to give the first block back", "KV005"),
        _fault("leak-on-abort", "A2", "KV005", "counting:LeakOnAbort",
               "an abort forgets the table and gives nothing back"),
        _fault("leak-on-rollback", "A2", "KV005", "counting:LeakOnRollback",
               "a rollback shortens the table without giving back the blocks that it drops"),
        _fault("release-twice", "A3", "KV004", "counting:ReleaseTwice",
               "a sample that ends gives its first block back for a sibling too"),
        _fault("copy-ends-twice", "A3", "KV004", "counting:CopyEndsTwice",
               "a copy's lease is ended by the copy and by the step"),
        _fault("free-ignores-count", "A4", "KV012", "aliasing:FreeIgnoresCount",
               "the first sample to end frees all of its blocks, whoever else holds them"),
        _fault("early-free", "A4", "KV007", "aliasing:EarlyFree",
               "a fork does not count one shared block: who leaves first frees it for everybody"),
        _fault("silent-duplicate", "A5", "KV014", "counting:SilentDuplicate",
               "a freed block stands on the free list twice, written down once"),
        _fault("counter-drift", "A6", "KV012", "counting:CounterDrift",
               "the number of shared blocks is raised by a fork and never lowered"),
        _fault("hits-counted-twice", "A6", "KV012", "admission:HitsCountedTwice",
               "cached tokens are counted by the match and again by the admission"),
        _fault("hit-taken-twice", "A6", "KV012", "counting:HitTakenTwice",
               "the blocks of a prefix hit are taken by the lookup and again by the admission", "KV005"),
        _fault("evict-held", "A7", "KV020", "aliasing:EvictHeld",
               "eviction looks at age alone and takes a block that a sequence reads"),
        _fault("lost-update", "A8", "KV007", "counting:LostUpdate",
               "two forks read the same count, and both write it raised by one"),
        _fault("double-allocation", "A8", "KV014", "aliasing:DoubleAllocation",
               "two threads read the head of the free list, and both are given the same block"),
        _fault("free-without-fence", "B1", "KV013", "fences:FreeWithoutFence",
               "blocks freed during an open step are handed out before it has ended", "KV013"),
        _fault("free-under-lease", "B2", "KV017", "aliasing:FreeUnderLease",
               "a sequence that ends frees its blocks while a transfer reads them", "KV017", "KV012"),
        _fault("transfer-ends-all", "B2", "KV004", "counting:TransferEndsAll",
               "the first of two transfers that is done ends the leases of both", "KV017", "KV012"),
        _fault("swap-without-lease", "B2", "KV023", "fences:SwapWithoutLease",
               "blocks on their way to the host are free at once"),
        _fault("reads-before-arrival", "B2", "KV017", "fences:ReadsBeforeArrival",
               "a step reads blocks that are still on their way back from the host"),
        _fault("staging-overwritten", "B3", "KV023", "tables:StagingOverwritten",
               "rows go to the device through a buffer that is filled again before they are read"),
        _fault("copy-lease-kept", "B4", "KV005", "fences:CopyLeaseKept",
               "the word that a copy has run is lost, so its source is held for ever"),
        _fault("lookup-lease-kept", "B4", "KV005", "fences:LookupLeaseKept",
               "what was looked up for a prompt stays held after the prompt was admitted", "KV012"),
        _fault("window-without-fence", "B5", "KV013", "fences:WindowWithoutFence",
               "blocks behind a window are free while a step still reads them"),
        _fault("window-too-short", "B5", "KV022", "fences:WindowTooShort",
               "the window is rounded up to whole blocks: one that is read is given back"),
        _fault("stale-window-entry", "B5", "KV018", "fences:StaleWindowEntry",
               "a window gives blocks back and leaves them in the table"),
        _fault("missing-copy", "C1", "KV006", "sharing:MissingCopy",
               "a sample appends into a block that its siblings hold too, without copying it first", "KV006", "KV017"),
        _fault("write-to-published", "C1", "KV015", "sharing:WriteToPublished",
               "after a rollback, tokens are written into a block that the prefix cache serves", "KV023", "KV017"),
        _fault("shared-tail-hit", "C1", "KV006", "sharing:SharedTailHit",
               "a prompt is given the half-filled block of a live sequence, to write into"),
        _fault("uncounted-share", "C2", "KV010", "counting:UncountedShare",
               "a fork copies the table and counts nothing"),
        _fault("copy-keeps-source", "C2", "KV005", "sharing:CopyKeepsSource",
               "the writer is given its copy and stays counted as a holder of the source"),
        _fault("short-copy", "C3", "KV009", "sharing:ShortCopy",
               "copy-on-write copies one slot too few", "KV009", "KV023"),
        _fault("copy-into-neighbour", "C3", "KV023", "sharing:CopyIntoNeighbour",
               "the copy that the device runs goes one block too far"),
        _fault("copy-never-runs", "E4", "KV023", "sharing:CopyNeverRuns",
               "the list of copies is cleared before the device has seen it"),
        _fault("hash-without-identity", "D1", "KV011", "prefixes:HashWithoutIdentity",
               "the prefix hash leaves out who may share (adapter, salt)", "KV023"),
        _fault("one-namespace", "D1", "KV011", "prefixes:OneNamespace",
               "an adapter and a salt of the same name are the same key", "KV023"),
        _fault("weak-hash", "D2", "KV011", "prefixes:WeakHash",
               "a hash that collides, and no comparison of tokens on a hit"),
        _fault("hash-without-prefix", "D2", "KV011", "prefixes:HashWithoutPrefix",
               "a block is found by its own tokens alone, whatever stands in front of them", "KV023"),
        _fault("stale-index", "D3", "KV011", "prefixes:StaleIndex",
               "an evicted block stays in the prefix index while others write into it", "KV023", "KV014", "KV006"),
        _fault("publish-before-commit", "D4", "KV016", "fences:PublishBeforeCommit",
               "blocks enter the prefix index when scheduled, not when computed"),
        _fault("publish-at-admission", "D4", "KV016", "fences:PublishAtAdmission",
               "a prompt's blocks enter the prefix index when they are handed out; an abort leaves them there"),
        _fault("reuse-without-evict", "D5", "KV011", "aliasing:ReuseWithoutEvict",
               "a cached block is handed out with its hash still on it"),
        _fault("stale-weights", "D6", "KV011", "prefixes:StaleWeights",
               "the key does not say which weights a block was computed with", "KV023"),
        _fault("hit-one-too-far", "D7", "KV009", "prefixes:HitOneTooFar",
               "a hit is taken for one token more than the cache holds"),
        _fault("swap-slots-mixed-up", "D7", "KV010", "prefixes:SwapSlotsMixedUp",
               "a sequence that comes back is filled from another one's host slots", "KV023"),
        _fault("stale-table", "E1", "KV018", "tables:StaleTable",
               "after a preemption the worker goes on with the row that it had"),
        _fault("stale-row", "E1", "KV018", "tables:StaleRow",
               "after a preemption the worker goes on with the whole of the row that it had"),
        _fault("stale-tail", "E1", "KV018", "tables:StaleTail",
               "a shorter row in the place of a longer one keeps the longer one's end"),
        _fault("slot-off-by-one", "E2", "KV019", "tables:SlotOffByOne",
               "decoded tokens are written one slot behind their own"),
        _fault("no-lookahead", "E2", "KV010", "tables:NoLookahead",
               "a token is appended without a slot for it: it wraps into the row's first block"),
        _fault("foreign-write", "E2", "KV010", "tables:ForeignWrite",
               "a write goes through the table of another sequence"),
        _fault("null-handed-out", "E3", "KV019", "aliasing:NullHandedOut",
               "block 0 is kept for padding, and stands on the free list all the same"),
        _fault("reads-past-written", "E4", "KV009", "tables:ReadsPastWritten",
               "a step attends to one position more than there is"),
        _fault("captured-table", "E5", "KV018", "tables:CapturedTable",
               "a replayed capture does not see that entries of the row were replaced"),
        _fault("half-done-admission", "F1", "KV005", "counting:HalfDoneAdmission",
               "a refused admission keeps its hold on the cached blocks it found", "KV025"),
        _fault("evictable-counted-twice", "F1", "KV005", "admission:EvictableCountedTwice",
               "cached blocks that a prompt hits count as reused and as evictable"),
        _fault("never-evicts", "F2", "KV021", "aliasing:NeverEvicts",
               "allocation refuses while blocks that nobody holds could be evicted"),
        _fault("grows-twice", "F3", "KV029", "admission:GrowsTwice",
               "a pool that grows takes twice the blocks that there is memory for"),
    )
}  # fmt: skip
