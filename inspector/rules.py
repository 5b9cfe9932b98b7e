"""The rule behind each code, in words: the paragraph "Why this is ..." of a report."""

from __future__ import annotations

from typing import NamedTuple


class Rule(NamedTuple):
    """What kind of mistake a code is, and which rule it breaks."""

    kind: str  # completes "Why this is ..."
    text: str


RULES: dict[str, Rule] = {
    "KV001": Rule(
        "a write after free",
        "a life is over once its last holder is gone; only a write that was issued before may still land, and only "
        "while the block waits in quarantine. The next owner of the block finds foreign bytes in its slots.",
    ),
    "KV002": Rule(
        "a read after free",
        "a table row that leads to an ended life reads whatever the block's next owner writes there.",
    ),
    "KV003": Rule(
        "a double free",
        "a block stands on the free list once; twice means that two sequences will be handed the same block.",
    ),
    "KV004": Rule(
        "an underflow",
        "every release gives back one table entry or lease that is there. One too many takes another holder's share "
        "away, and the block is freed under it.",
    ),
    "KV005": Rule(
        "a leak",
        "what a sequence held must be released when it ends. Nobody will ever give this block back.",
    ),
    "KV006": Rule(
        "a missing copy",
        "a write needs exactly one table holder and no lease over its slots; a holder that appends to a shared, "
        "partly filled block first copies the filled slots into a block of its own. Without the copy the writer's "
        "bytes appear in the other holders' context, and theirs in its own.",
    ),
    "KV007": Rule(
        "a lost update",
        "each operation starts from the count that the one before left behind. Two that read the same count and both "
        "write it lose one: the block will be freed too early, or never.",
    ),
    "KV009": Rule(
        "an uninitialised read",
        "a slot holds nothing until it is written in the block's current life; before that it holds what the "
        "previous owner left.",
    ),
    "KV010": Rule(
        "a foreign block",
        "a sequence touches only blocks that its own table holds, at the logical position where it holds them.",
    ),
    "KV011": Rule(
        "a wrong hit",
        "an index entry leads to a live block with exactly those tokens and that identity, and is removed before the "
        "block is handed out again. Otherwise a prefix hit reads somebody else's context.",
    ),
    "KV012": Rule(
        "broken conservation",
        "private, shared, in transit, cached, quarantined and free blocks add up to the pool, each block counted "
        "once, and each of its holders once, and the pool's own counters agree with its events. No counter says what "
        "cannot be.",
    ),
    "KV013": Rule(
        "an early reuse",
        "a block that an open step uses is handed out only after that step has completed; until then it waits in "
        "quarantine.",
    ),
    "KV014": Rule(
        "a double allocation",
        "a block is handed out only when nobody holds it. Now two tables lead to the same slots, each writing its own "
        "tokens there.",
    ),
    "KV015": Rule(
        "a write to a published block",
        "a block in the prefix index is immutable: whoever hits it later would read these bytes as the prefix.",
    ),
    "KV016": Rule(
        "an early publication",
        "a block may be found in the prefix index only when all its slots are written, by a step that runs before "
        "the one that reads it.",
    ),
    "KV017": Rule(
        "a broken lease",
        "a lease keeps a block where it is until the copy or transfer that took it has run; freeing the block under "
        "it lets the copy read the next owner's bytes.",
    ),
    "KV018": Rule(
        "a bad table",
        "the row that the worker used and the row that the events make must hold the same blocks and lives, in the "
        "same order.",
    ),
    "KV019": Rule(
        "a bad slot",
        "a position p lies in slot p % block_size of block table[p // block_size]; both exist, and the block is none "
        "of those that are reserved for padding.",
    ),
    "KV020": Rule(
        "an eviction of a held block",
        "only a block that nobody holds may be evicted; its holders now read what the next owner writes.",
    ),
    "KV021": Rule(
        "a needless wait",
        "whoever waits for blocks goes on as soon as free and evictable ones are enough; blocks that nobody holds are "
        "evicted for it.",
    ),
    "KV022": Rule(
        "a window that was cut too short",
        "what a sliding window gives back lies wholly in front of everything that the next position attends to.",
    ),
    "KV023": Rule(
        "a foreign prefix",
        "the KV of a position depends on all tokens up to it: what a sequence reads there must have been computed for "
        "exactly its own prefix. Where it was not, its table, a copy or a slot leads to the wrong place.",
    ),
    "KV024": Rule(
        "a changed content",
        "the bytes of a block change only by writes and copies that have it as their target. Another kernel, or one "
        "that computes a wrong address, has written here.",
    ),
    "KV026": Rule(
        "a promise that is not kept",
        "the scheduler plans, and memory is sized, for so many sequences and tokens a step and for so long a context. "
        "What is larger writes past what was made for it, or starves the others.",
    ),
    "KV029": Rule(
        "a capacity that is not there",
        "the pool has as many blocks as the memory set aside for it holds, each as large as its tokens need, and "
        "equally many on every rank: an id that one rank does not have is a write outside its memory.",
    ),
}
