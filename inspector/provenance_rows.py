"""What a checker beside the tensors found, as CHECK and MISMATCH rows of the trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvscope.traces.schema import Kind, Reason

if TYPE_CHECKING:
    from kvscope.engine.block_manager import BlockManager
    from kvscope.inspector.shadow_words import Expected, Wrong


def tell_checked(
    manager: BlockManager,
    slots: int,
    sequences: int,
    found: Iterable[Wrong],
    expected: Expected,
    *,
    wrong: int | None = None,
    step: int | None = None,
) -> None:
    """Record that the slots of these sequences were compared, and what was found that is to be told.

    Args:
        wrong: how many sequences read wrong, those told before included; all that are found if None.
        step: the open step that was looked at; the last one begun if None.
    """
    told = list(found)
    size, gen = manager.block_size, manager.pool.gen
    count = len(told) if wrong is None else wrong
    manager.report(Kind.CHECK, Reason.PROVENANCE, fill=count, lblock=sequences, aux=slots, step=step)
    for one in told:
        block = one.slot // size
        owner, tokens = expected.owner(one.found)
        life = int(gen[block]) if block >= 0 else -1
        manager.report(
            Kind.MISMATCH, Reason.PROVENANCE, block=block, gen=life, fill=one.slot % size,
            seq_id=one.seq_id, lblock=one.position // size, aux=one.position,
            details=(one.expected, one.found, one.writer, one.step, owner, tokens), step=step,
        )  # fmt: skip
