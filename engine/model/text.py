"""Small helpers around text: JSON files of a model, and foreign text inside one-line messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvscope.errors import ModelError


def short(value: object, limit: int = 60) -> str:
    """A value as Python writes it, cut to `limit` characters: always one line."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_line(text: object, limit: int = 200) -> str:
    """Foreign text with its whitespace folded and control characters dropped, cut to `limit` characters."""
    folded = "".join(c for c in " ".join(str(text).split()) if c.isprintable())
    return folded if len(folded) <= limit else folded[: limit - 3] + "..."


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object from a model's folder.

    Raises:
        ModelError: the file is absent, unreadable, or no JSON object.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path} is missing; a model folder needs it") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:  # JSON and UTF-8 errors alike
        raise ModelError(f"{path} is not valid JSON ({error}); fetch the file again") from None
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply to be a model's file; fetch the file again") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path} holds {short(values)}; expected a JSON object")
    return values
