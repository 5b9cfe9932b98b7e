"""How numbers are written on the screen: as in every row of numbers of the inspector."""

from __future__ import annotations

from kvscope.inspector.numerals import ABSENT, bytes_text, count_text, duration_text, factor_text, ratio_text

__all__ = ["ABSENT", "bytes_text", "count_text", "duration_text", "factor_text", "ratio_text"]
