"""A compact paged engine; the accounting half (pool, tables, prefix index, scheduler) needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvscope.engine.block_manager import BlockManager
    from kvscope.engine.engine import Engine, EngineConfig, Token
    from kvscope.engine.model import load_model
    from kvscope.engine.scheduler import SchedulerConfig
    from kvscope.engine.sequence import SamplingParams

_HOME = {
    "BlockManager": "kvscope.engine.block_manager",
    "Engine": "kvscope.engine.engine",
    "EngineConfig": "kvscope.engine.engine",
    "SamplingParams": "kvscope.engine.sequence",
    "SchedulerConfig": "kvscope.engine.scheduler",
    "Token": "kvscope.engine.engine",
    "load_model": "kvscope.engine.model",
}

__all__ = ["BlockManager", "Engine", "EngineConfig", "SamplingParams", "SchedulerConfig", "Token", "load_model"]


def __getattr__(name: str) -> Any:
    # Public names are loaded on first use, so that importing the room costs no torch.
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
