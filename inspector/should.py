"""What should have happened at the event that a finding stands at, by the finding's code."""

from __future__ import annotations

from kvscope.traces.schema import Kind

# The same where the finding stands at an event of this kind.
SHOULD_AT = {
    ("KV010", Kind.SHARE): "the fork should have taken the blocks of its parent, each at its place",
    ("KV010", Kind.COW): "the copy should have been of the block that it takes the place of, into another one",
    ("KV010", Kind.SWAP_IN): "the block should have been filled from the host slot that its content was put into",
    ("KV011", Kind.FREE): "the block should have been withdrawn from the prefix index before it was freed",
    ("KV011", Kind.QUARANTINE): "the block should have been withdrawn from the prefix index before it was freed",
    **dict.fromkeys(
        [("KV012", Kind.HIT), ("KV012", Kind.SHARE), ("KV012", Kind.LEASE)],
        "the block should not have been taken again: this holder had it already",
    ),
    ("KV013", Kind.RELEASE): "the move should have waited until the last step that used the block had ended",
    ("KV013", Kind.SHRINK): "the pool should have kept the block until the last step that used it had ended",
    (
        "KV019",
        Kind.WRITE,
    ): "the slot should have been the one behind what the sequence has, in its own block",
}

# Used where the finding itself names no missing operation.
SHOULD = {
    "KV001": "the write should have been dropped: its block was given back before",
    "KV002": "the step should have used the sequence's new table: this life of the block was over",
    "KV003": "there should have been no second free: the block was free already",
    "KV004": "there should have been no such release: nobody held this entry",
    "KV007": "the count should have started from what the event before left",
    "KV009": "the slots should have been written, or copied, before they were read",
    "KV010": "the write should have gone to a block that the sequence's own table holds",
    "KV011": "the prefix cache should have answered with a miss",
    "KV012": "the block should have been in one place at a time: who holds it keeps it from the free list",
    "KV013": "the hand-out should have waited for the fence: the last step that used the block was still open",
    "KV014": "another block should have been handed out: this one was held",
    "KV016": "the publication should have waited for the commit of the step that writes the block",
    "KV017": "the block should have stayed where it was until the lease had ended",
    "KV018": "the worker should have used the table that the scheduler made",
    "KV019": "the slot should have come from the sequence's own table, and lain in a block of the pool",
    "KV020": "another block should have been evicted: this one was held",
    "KV021": "the request should have been given the blocks that were there",
    "KV022": "the block should have stayed in the table until no position attends to it",
    "KV023": "the slot should have held the sequence's own prefix: its writes, copies and table say why",
    "KV024": "nobody should have written there: no write or copy has this block as its target",
    "KV026": "the step should have been planned within what was promised",
    "KV029": "the pool should have been sized by the memory that there is, alike on every rank",
}
