"""What a checker beside the tensors found, as CHECK and MISMATCH rows of the trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from kvscope.traces.schema import Kind, Reason

if TYPE_CHECKING:
    from kvscope.engine.block_manager import BlockManager
    from kvscope.inspector.shadow_words import Expected, Wrong


def tell_checked(manager: BlockManager, slots: int, sequences: int, wrong: Iterable[Wrong], expected: Expected) -> None:
    """Record that the slots of these sequences were compared, and what was wrong with them."""
    wrong = list(wrong)
    size, gen = manager.block_size, manager.pool.gen
    manager.report(Kind.CHECK, Reason.PROVENANCE, fill=len(wrong), lblock=sequences, aux=slots)
    for found in wrong:
        block = found.slot // size
        owner, tokens = expected.owner(found.found)
        manager.report(
            Kind.MISMATCH, Reason.PROVENANCE, block=block, gen=int(gen[block]), fill=found.slot % size,
            seq_id=found.seq_id, lblock=found.position // size, aux=found.position,
            details=(found.expected, found.found, found.writer, found.step, owner, tokens),
        )  # fmt: skip
