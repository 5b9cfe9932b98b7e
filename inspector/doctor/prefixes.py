"""Prompts that begin alike, part early and go on alike: the difference that keeps them from sharing, and its price.

Sharing needs the common *prefix* in whole blocks. Equal text behind the first difference is computed and stored again
by every request, so one timestamp at the top of a system prompt costs all of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

CHARS_PER_TOKEN = 4.0  # of English text, roughly; used where only text is known
_WINDOW = 400  # characters of a prompt that are compared with another's behind the first difference
_MOST_PROMPTS = 200
_ANCHOR = 24  # characters that must be equal again for two prompts to "go on alike"

_LOOKS = (
    ("a timestamp", re.compile(r"\d{4}-\d{2}-\d{2}|\d{1,2}:\d{2}(?::\d{2})?|\d{10,13}\b")),
    ("an id", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){0,3}-?[0-9a-fA-F]{0,12}\b|\b[A-Za-z]*[-_]?\d{3,}\b")),
    ("a number", re.compile(r"\d+")),
)


@dataclass(frozen=True, slots=True)
class Split:
    """Two prompts (by index) that could share and do not."""

    first: int
    second: int
    position: int  # characters in common before the first difference
    looks_like: str  # "a timestamp", "an id", "a number", "another order", "another word", "white space"
    ours: str  # the differing pieces, shortened
    theirs: str
    lost_chars: int  # equal text behind the difference
    lost_blocks: int  # whole blocks of it, estimated from characters
    prompts: int = 2  # that part from their neighbour in this way
    all_blocks: int = 0  # what all of them lose

    @property
    def token(self) -> int:
        """Where the first differing token is, about: only text is known."""
        return int(self.position / CHARS_PER_TOKEN)


def splits(prompts: Sequence[str], block_size: int, *, most: int = 3) -> list[Split]:
    """The differences that cost most, one of each look, worst first.

    Each prompt is compared with the one before it in sorted order.

    Args:
        prompts: texts; more than 200 are sampled evenly.
        block_size: slots.
        most: how many to return.
    """
    chosen = range(len(prompts)) if len(prompts) <= _MOST_PROMPTS else range(0, len(prompts), len(prompts) // 200)
    order = sorted(chosen, key=lambda i: prompts[i])
    found: dict[str, list[Split]] = {}
    for before, after in pairwise(order):
        split = _split(prompts, before, after, block_size)
        if split is not None and split.lost_blocks:
            found.setdefault(split.looks_like, []).append(split)
    told = [
        replace(
            max(alike, key=lambda split: split.lost_blocks),
            prompts=len(alike) + 1, all_blocks=sum(split.lost_blocks for split in alike),
        )
        for alike in found.values()
    ]  # fmt: skip
    return sorted(told, key=lambda split: -split.all_blocks)[:most]


def _split(prompts: Sequence[str], i: int, j: int, block_size: int) -> Split | None:
    a, b = prompts[i], prompts[j]
    at = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if at in (len(a), len(b)):
        return None  # one continues the other: nothing is lost
    again = _rejoin(a, b, at)
    if again is None:
        return None
    behind_a, behind_b = again
    same = 0
    while behind_a + same < len(a) and behind_b + same < len(b) and a[behind_a + same] == b[behind_b + same]:
        same += 1
    start = _word_start(a, at)
    ours, theirs = a[start:behind_a], b[start:behind_b]
    blocks = int(same / CHARS_PER_TOKEN) // block_size
    return Split(i, j, at, _looks(ours, theirs), _short(ours), _short(theirs), same, blocks)


def _rejoin(a: str, b: str, at: int) -> tuple[int, int] | None:
    """Where the two go on alike behind their first difference; None if they never do within the window."""
    for skip in range(1, _WINDOW):
        start = at + skip
        if start + _ANCHOR > len(a):
            return None
        where = b.find(a[start : start + _ANCHOR], at, at + 2 * _WINDOW)
        if where >= 0:
            return start, where
    return None


def _word_start(text: str, at: int) -> int:
    while at > 0 and not text[at - 1].isspace():
        at -= 1
    return at


def _looks(ours: str, theirs: str) -> str:
    if not ours.strip() or not theirs.strip() or ours.split() == theirs.split():
        return "white space"
    if sorted(re.findall(r"\w+", ours)) == sorted(re.findall(r"\w+", theirs)):
        return "another order"
    for name, pattern in _LOOKS:
        if pattern.search(ours) and pattern.search(theirs):
            return name
    return "another word"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 40 else text[:37] + "..."
