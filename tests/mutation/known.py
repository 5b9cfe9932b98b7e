"""Survivors that no test can tell apart from the original, or that change nothing but speed, and why."""

from __future__ import annotations

from mutation.known_engine import ENGINE
from mutation.known_replay import REPLAY
from mutation.known_screen import SCREEN

KNOWN = ENGINE | REPLAY | SCREEN

# Lines of which every mutant that ends, and gives room for what there is, does the same at another speed.
LINES: dict[str, str] = {
    (
        "engine/free_list.py: "
        "return _FIRST_NUMBERS[lo:end] if end <= len(_FIRST_NUMBERS) else np.arange(lo, end, dtype=np.int32)"
    ): "numbers made in advance or now",
    "inspector/detectors/passing.py: _PIECE = 1 << 16": "how many are read at once",
    "engine/free_list.py: _FIRST_NUMBERS = np.arange(1 << 13, dtype=np.int32)": (
        "numbers made in advance: a larger pool makes its own"
    ),
    "engine/pool.py: low, high = _span(words) if len(blocks) >= _BULK else (0, 0)": (
        "as arrays or one by one: test_arrays_or_one_by_one shows that both are the same"
    ),
    "engine/pool.py: low, high = _span(words) if count >= _BULK else (0, 0)": (
        "as arrays or one by one: test_arrays_or_one_by_one shows that both are the same"
    ),
    "engine/tables.py: if keep == self.first or gone >= _MANY:": "the same digest, computed anew or by subtraction",
    (
        "engine/prefix_store.py: blocks = max(blocks, self._expected, 0 if self._expected else 2 * len(self._place))"
    ): "how much room is added at once",
    "engine/block_life.py: if len(entered) < _BULK:": "the same rows, one by one or as arrays",
    "engine/block_life.py: _BULK = 7  # rows from here on are cheaper as arrays": (
        "the same rows, one by one or as arrays"
    ),
    "engine/pool.py: _BULK = 7  # rows from here on are cheaper as arrays": "the same rows, one by one or as arrays",
    "engine/tables.py: _MANY = 8  # entries from here on are digested faster as arrays": (
        "the same digest, computed anew or by subtraction"
    ),
    "engine/pool.py: word: int = words.item(0)": "all of them are equal",
    "engine/pool.py: if len(behind) == AHEAD:": "when ids are filed in the ring, not in which order",
    "engine/free_list.py: if len(self.behind) >= AHEAD:": "when ids are filed in the ring, not in which order",
    "engine/prefix_store.py: self._width = 1 + 4 * block_size  # of packed tokens": "the first entry widens it",
    "engine/free_list.py: AHEAD = 128  # ids that lie in lists, at most so many in each": "how many lie in lists",
    "engine/free_list.py: self._capacity = 2 * num_blocks + 16": "how large the ring is",
    "engine/tables.py: if end - start < _MANY:": "the sum of the words, one by one or as arrays",
    "inspector/screen/sequences.py: more = SequenceStates(max(count, 2 * have) - have)": (
        "how much room is added at once"
    ),
    "inspector/screen/details.py: if np.array_equal(known[lo : lo + len(seqs)], seqs):": (
        "where these are not the same numbers, each is looked up, and found in the same places"
    ),
    "inspector/screen/screen.py: self.blocks, self.sequences = BlockStates(0), SequenceStates(64)": (
        "room at the start: it grows"
    ),
    "inspector/screen/details.py: lo = int(np.searchsorted(known, seqs[0]))": (
        "where these are not the same numbers, each is looked up, and found in the same places"
    ),
    (
        "inspector/screen/plain.py: FEW = 512  # rows, often of a single step, among which to look for plain ones "
        "costs more than to judge all"
    ): "by short cut or in full, the same findings",
    "inspector/screen/screen.py: CHUNK = 1 << 17": "how many rows are looked at together",
    "inspector/screen/screen.py: _MOST_UNASKED = 256  # chunks": "how much is kept until somebody asks",
    "inspector/screen/runs.py: narrow = bits + most.bit_length() < 32": (
        "half the width or the whole, the same order where it fits; test_screen_neighbours shows where it does not"
    ),
    "inspector/screen/sequences.py: if count <= have or count > MOST_SEQUENCES:": "how much room is added at once",
    "inspector/online.py: self._every = min(2 * self._every, _MOST)": "how often it looks, not what it sees",
    "inspector/online.py: self._every = max(self._every // 2, _LEAST)": "how often it looks, not what it sees",
    "inspector/online.py: since, self._looked_at = now - self._looked_at, now": "how often it looks, not what it sees",
}


def known(module: str, shown: tuple[str, str]) -> str | None:
    """Why a survivor is none, if that is known."""
    return KNOWN.get(f"{module}: {shown[0]} -> {shown[1]}") or LINES.get(f"{module}: {shown[0]}")
