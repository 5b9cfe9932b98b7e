"""How long an engine step takes: a line through what it computes and what it reads.

    step time = base + prefill * prompt tokens computed + live * tokens attended to + copy * tokens copied
                + swap * tokens moved to or from host memory

The default is an 8B model in bf16 on one card with 4.3 TB/s: 16 GB of weights are read in about 4 ms and a step has a
millisecond of host work; a prompt token costs 2 * 8e9 operations at about 450 TFLOP/s; reading 128 KiB of KV takes
30 ns, copying it twice that, moving it over PCIe 5 at 55 GB/s 2.4 us. Whole picoseconds, so that sums are exact and
the same in any order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kvscope.errors import UsageError

PS = 10**12
_UNITS = {"s": PS, "ms": 10**9, "us": 10**6, "ns": 10**3, "ps": 1}
_TIME = re.compile(r"(\d+(?:\.\d+)?)\s*(s|ms|us|ns|ps)")


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """The coefficients, in picoseconds."""

    base: int = 5 * 10**9
    prefill: int = 35 * 10**6
    live: int = 30 * 10**3
    copy: int = 60 * 10**3
    swap: int = 2400 * 10**3

    @classmethod
    def parse(cls, text: str) -> ServiceTime:
        """From `5ms,35us,30ns,60ns`; what is left out at the end is 0; a fifth is for swaps, 2.4 us if left out.

        Raises:
            UsageError: not one to five times with a unit, or the first is 0.
        """
        items = [item.strip() for item in text.split(",")]
        matches = [_TIME.fullmatch(item) for item in items]
        if not 1 <= len(items) <= 5 or None in matches:
            raise UsageError(
                f"step time is {text!r}: wanted base,prefill,live,copy with units, such as 5ms,35us,30ns,60ns"
            )
        values = [round(float(m[1]) * _UNITS[m[2]]) for m in matches if m is not None]
        if values[0] < 1:
            raise UsageError(f"step time is {text!r}: a step takes some time, the first value must be above 0")
        return cls(*values) if len(values) > 4 else cls(*values, *[0] * (4 - len(values)))

    def __str__(self) -> str:
        return (
            f"{_words(self.base)} + {_words(self.prefill)} per prompt token + {_words(self.live)} per live token + "
            f"{_words(self.copy)} per copied token"
        )


def _words(ps: int) -> str:
    for unit, scale in _UNITS.items():
        if ps >= scale:
            return f"{ps / scale:g} {unit}"
    return "0"
