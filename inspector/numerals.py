"""How numbers are written in a row of them, on a page and in a terminal; what is absent is a dash, never 0."""

from __future__ import annotations

ABSENT = "–"


def count_text(value: int | None) -> str:
    """12,345"""
    return ABSENT if value is None else f"{value:,}"


def ratio_text(value: float | None) -> str:
    """84.3 %"""
    return ABSENT if value is None else f"{100 * value:.1f} %"


def factor_text(value: float | None) -> str:
    """1.52 x"""
    return ABSENT if value is None else f"{value:.2f} ×"


def bytes_text(value: int | None) -> str:
    """4.50 MiB"""
    if value is None:
        return ABSENT
    amount, unit = float(value), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:,.0f} B" if unit == "B" else f"{amount:,.2f} {unit}"


def duration_text(seconds: float | None) -> str:
    """12.3 ms"""
    if seconds is None:
        return ABSENT
    for limit, scale, unit in ((1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds / 60:.1f} min"


_UNITS = ("blocks", "slots", "tokens", "events", "sequences", "steps", "requests")


def unit_text(value: str, unit: str) -> str:
    """`block` for a unit of `blocks` behind a 1; what is no unit as it is."""
    first, rest = unit.split(" ", 1)[0], unit.partition(" ")[2]
    if value != "1" or first not in _UNITS:
        return unit
    return " ".join([first.removesuffix("s"), *([rest] if rest else [])])
