"""Models of the Llama family: config, weights, tokenizer, forward pass. Importing this room loads no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvscope.engine.model.config import ModelConfig

if TYPE_CHECKING:
    from kvscope.engine.model.llama import Attend, Llama
    from kvscope.engine.model.load import LoadedModel, load_model
    from kvscope.engine.model.tokenizer import TextStream, Tokenizer

__all__ = ["Attend", "Llama", "LoadedModel", "ModelConfig", "TextStream", "Tokenizer", "load_model"]

_HOMES = {
    "Attend": "llama",
    "Llama": "llama",
    "LoadedModel": "load",
    "TextStream": "tokenizer",
    "Tokenizer": "tokenizer",
    "load_model": "load",
}


def __getattr__(name: str) -> Any:
    """Import the public names that need torch or tokenizers when they are first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        from kvscope.errors import MissingDependency

        if error.name is None or error.name.startswith("kvscope"):
            raise
        raise MissingDependency(f"models need the package {error.name}: pip install 'kvscope[engine]'") from None
