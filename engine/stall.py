"""A scheduler that stands still, in one line: who waits for what, and who holds it."""

from __future__ import annotations

from collections.abc import Mapping

from kvscope.engine.memory import SequenceMemory
from kvscope.engine.sequence import Sequence

NAMED = 4  # holders that are named at most


def holders(held: Mapping[int, int]) -> list[tuple[int, int]]:
    """(sequence, blocks in its table), most first; those that hold none are left out."""
    return sorted(((s, count) for s, count in held.items() if count), key=lambda item: (-item[1], item[0]))


def who_waits(memory: SequenceMemory, head: Sequence | None, running: int) -> str:
    """What the head of the queue (None: nothing is queued) needs, what there is, and who holds the rest."""
    free, evictable = memory.supply()
    known = holders(memory.held())
    named = [f"sequence {seq_id} ({count})" for seq_id, count in known[:NAMED]]
    if len(known) > NAMED:
        named.append(f"{len(known) - NAMED} more sequences")
    held = f"held by {', '.join(named)}" if named else "no sequence holds the others"
    rest = f"{free} free and {evictable} evictable of {memory.num_blocks} blocks, {held}"
    if head is None:
        return f"nothing can go on: {running} sequences run and have nothing to compute; {rest}; abort one of them"
    match = memory.probe(head.tokens, head.request.extras)
    wants = f"{match.needed} blocks" if match.pending is None else f"sequence {match.pending}, which has its prefix"
    name = head.request.name or f"request {head.request.request_id}"
    return (
        f"nothing can go on: {name} (sequence {head.seq_id}) waits for {wants}: {rest}; "
        "end one of the holders or raise num_blocks"
    )
