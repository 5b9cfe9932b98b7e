"""Numbers of things in words."""

from __future__ import annotations


def counted(count: int, noun: str, many: str = "") -> str:
    """`1 token`, `2 tokens`; `many` where it is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else many or f'{noun}s'}"
