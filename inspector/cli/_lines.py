"""Text as it comes on standard output, and lines for people on standard error: whole, where both are one terminal."""

from __future__ import annotations

import sys

from rich.console import Console

errors = Console(stderr=True)


class _Text:
    """What was streamed so far."""

    open = False  # it has begun a line that it has not ended


def stream(text: str) -> None:
    """A piece of the text, which need not end a line."""
    sys.stdout.write(text)
    sys.stdout.flush()
    if text:
        _Text.open = not text.endswith("\n")


def say(text: str) -> None:
    """A line for people, on standard error, exactly as it is: paths may hold what Rich takes for markup.

    It begins at the edge of the terminal, and what is streamed goes on below it; a file that the text goes into holds
    the text alone.
    """
    if _Text.open and errors.is_terminal and sys.stdout.isatty():
        errors.file.write("\n")
        _Text.open = False
    errors.print(text, markup=False, highlight=False, soft_wrap=True)
