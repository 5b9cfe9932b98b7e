"""Tokens to text: piece by piece, never inside a character, cut at the first stop string."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvscope.engine.model.tokenizer import Tokenizer


class Answer:
    """The text of one sample while it grows; the pieces joined are its whole text.

    Text that may be the beginning of a stop string is held back until it is known not to be.
    """

    def __init__(self, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> None:
        self._stream = tokenizer.stream()
        self._stop = stop
        self._held = ""
        self._ended = False
        self.tokens = 0
        self.finish: str | None = None

    def push(self, token: int) -> str:
        """Add a token; the text that is certain now."""
        self.tokens += 1
        return "" if self._ended else self._release(self._stream.push(token))

    def end(self, reason: str) -> str:
        """No more tokens come; the rest of the text."""
        self.finish = reason
        if self._ended:
            return ""
        piece = self._release(self._stream.finish())
        rest, self._held = self._held, ""
        return piece if self._ended else piece + rest

    def _release(self, piece: str) -> str:
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self._ended, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Characters at the end of `text` that begin `stop`."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])), 0)
