"""Numbers as people read them, in one style for every command: `12.3 %`, `1.5 MiB`, `3 blocks`."""

from __future__ import annotations

from kvscope.traces.counted import counted

ABSENT = "-"


def percent(value: float | None, digits: int = 1) -> str:
    """A ratio in percent; a dash for none."""
    return ABSENT if value is None else f"{100 * value:.{digits}f} %"


def number(value: float | int | None, digits: int = 0) -> str:
    """A number with thousands separators; a dash for none."""
    return ABSENT if value is None else f"{value:,.{digits}f}"


def span(seconds: float | None) -> str:
    """A duration in the unit that suits it."""
    if seconds is None:
        return ABSENT
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.1f} {unit}"
    return f"{seconds / 1e-9:.0f} ns"


def size(count: float | int | None) -> str:
    """Bytes in a binary unit; a dash where memory is only accounted for."""
    if not count:
        return ABSENT if count is None else "0 B"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def agrees(count: int, one: str, many: str) -> str:
    """The verb that goes with so many: `is` or `are`."""
    return one if count == 1 else many


__all__ = ["ABSENT", "agrees", "counted", "number", "percent", "size", "span"]
