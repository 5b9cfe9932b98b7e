"""Columns as a DataFrame of a library that the user has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from kvscope.errors import MissingDependency, UsageError

LIBRARIES = ("polars", "pandas")


def frame_of(columns: Mapping[str, Any], library: str) -> Any:
    """A polars or pandas DataFrame of the columns.

    Raises:
        MissingDependency: the library is not installed. UsageError: it is neither of the two.
    """
    if library not in LIBRARIES:
        raise UsageError(f"a frame is of polars or of pandas, got {library!r}")
    try:
        frames = importlib.import_module(library)
    except ImportError:
        raise MissingDependency(f"{library} is not installed: pip install {library}") from None
    return frames.DataFrame(columns)
