"""Reads traces: state, measures, biographies, detectors, reports, faults, fuzzing, and the command line.

The offline half imports no torch; public names are loaded on first use, so that importing the room costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvscope.inspector.findings import CheckResult, Finding, check
    from kvscope.inspector.measures import series, summary
    from kvscope.inspector.state import holders, sequence_blocks, state_at, tables_at

_HOME = {
    "CheckResult": "findings",
    "Finding": "findings",
    "check": "findings",
    "holders": "state",
    "sequence_blocks": "state",
    "series": "measures",
    "state_at": "state",
    "summary": "measures",
    "tables_at": "state",
}

__all__ = [
    "CheckResult",
    "Finding",
    "check",
    "holders",
    "sequence_blocks",
    "series",
    "state_at",
    "summary",
    "tables_at",
]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(f"kvscope.inspector.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
