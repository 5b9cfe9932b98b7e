"""What pool and engine were promised to keep to, from the facts; and counters that cannot be: shared by both checks.

Facts that are read here (docs/trace-format.md):

    model      bytes_per_token, max_model_len
    scheduler  max_seqs, max_batched_tokens
    pool       reserved (ids that are never handed out: where padding goes), max_blocks (that the memory set aside
               holds), ranks (blocks of the pool on each rank)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kvscope.inspector.units import counted
from kvscope.traces.schema import Kind

_MOST = 1 << 53


@dataclass(frozen=True)
class Limits:
    """What the facts promise; 0 where they do not say."""

    bytes_per_token: int = 0
    max_model_len: int = 0
    max_seqs: int = 0
    max_batched_tokens: int = 0
    max_blocks: int = 0
    ranks: tuple[int, ...] = ()
    reserved: frozenset[int] = field(default=frozenset())

    @property
    def any(self) -> bool:
        """Whether anything but reserved blocks is promised."""
        return replace(self, reserved=frozenset()) != Limits()

    def never_free(self, num_blocks: int) -> int:
        """How many of the pool's ids are reserved, so that its own counters leave them out."""
        return sum(block < num_blocks for block in self.reserved)

    def disagreement(self, num_blocks: int, block_size: int, block_bytes: int) -> str:
        """In what budget and pool disagree from the start; empty where they do not, or nothing tells."""
        needed = self.bytes_per_token * block_size
        if 0 < block_bytes < needed:
            return f"a block has {block_bytes:,} bytes, and {block_size} tokens of this model need {needed:,}"
        if len(set(self.ranks)) > 1:
            least, most = min(self.ranks), max(self.ranks)
            return f"the ranks do not have the same pool: one has {counted(least, 'block')}, another {most}"
        return self.too_many(num_blocks)

    def too_many(self, num_blocks: int) -> str:
        """Why a pool of this size is too large; empty where it is not."""
        if 0 < self.max_blocks < num_blocks:
            return (
                f"the pool has {counted(num_blocks, 'block')}, and the memory set aside for it holds {self.max_blocks}"
            )
        return ""


_FIELDS = {
    "model": ("bytes_per_token", "max_model_len"),
    "scheduler": ("max_seqs", "max_batched_tokens"),
    "pool": ("max_blocks", "ranks", "reserved"),
}
LIMITING = frozenset(_FIELDS)  # types of facts


def limits_of(facts: Iterable[Mapping[str, Any]], before: Limits | None = None) -> Limits:
    """What these facts promise, on top of `before`; the last one counts, odd values count for nothing."""
    found: dict[str, Any] = {f.name: getattr(before, f.name) for f in fields(Limits)} if before else {}
    for fact in facts:
        for name in _FIELDS.get(str(fact.get("type")), ()):
            value = fact.get(name)
            if name in ("ranks", "reserved"):
                if isinstance(value, list | tuple) and all(_whole(item) for item in value):
                    found[name] = tuple(value) if name == "ranks" else frozenset(value)
            elif _whole(value):
                found[name] = value
    return Limits(**found)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST


def impossible(kind: int, details: Sequence[int] | None, num_blocks: int) -> str:
    """What cannot be in the counters of a WAIT or REFUSED row; empty if they can be."""
    if details is None or len(details) < 3:
        return ""
    needed, free, evictable = details[:3]
    if min(needed, free, evictable) < 0:
        return f"counts below nothing: needed {needed}, free {free}, evictable {evictable}"
    if free + evictable > num_blocks:
        return f"{free} free and {evictable} evictable blocks are more than the {num_blocks} of the pool"
    if kind == Kind.REFUSED and len(details) > 3 and details[3] > free + evictable:
        return f"{details[3]} free blocks side by side, and {free} free and {evictable} evictable in all"
    return ""


__all__ = ["LIMITING", "Limits", "impossible", "limits_of"]
