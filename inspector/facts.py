"""The facts of a trace as far as they can be used: whoever wrote them, a missing or odd field never stops a reader.

A fact is one JSON object of the facts stream (docs/trace-format.md). What has a type that is read here keeps only
fields of the right kind, and is left out as a whole when one is missing that it makes no sense without.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_LARGE = 1 << 53

# type -> (fields it needs, further fields that are numbers)
_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "request": (("request",), ("prompt_tokens", "max_tokens", "samples", "arrival_ns", "beams")),
    "sample": (("request", "seq_id"), ("sample",)),
    "output": (("seq_id", "tokens"), ("request", "sample")),
    "model": ((), ("max_model_len", "bytes_per_token", "num_layers", "num_kv_heads", "head_dim", "dtype_bytes")),
}


def usable(facts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The facts with odd fields left out, and without those that lack what they need; others as they are."""
    kept = []
    for fact in facts:
        rule = _FIELDS.get(fact["type"]) if isinstance(fact.get("type"), str) else None
        if rule is None:
            kept.append(fact)
            continue
        needed, numbers = rule
        if all(_whole(fact.get(field)) for field in needed):
            kept.append({field: value for field, value in fact.items() if _fits(field, value, needed + numbers)})
    return kept


def _fits(field: str, value: Any, numbers: tuple[str, ...]) -> bool:
    if field in numbers:
        return _whole(value)
    if field == "seq_ids":
        return isinstance(value, list) and all(_whole(item) for item in value)
    if field in ("name", "text", "prompt"):
        return isinstance(value, str)
    return True


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGE
