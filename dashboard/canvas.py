"""What the block map's canvas is sent: one byte string with a header, its JSON and a few bytes for each cell.

The layout is written down in `canvas.js`, which reads it. Up to 16,384 blocks go with everything that a tooltip
says (10 bytes each); larger pools with colour and letter alone; beyond 2**17 blocks one cell stands for several.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.dashboard.palette import BY_LETTER, FINDING, SEQUENTIAL, SEVERAL, STATES, WRITING, sequence_colour
from kvscope.inspector.state import STATE_NAMES, BlockState, PoolState

MODES = ("state", "refcount", "age", "owner")
MAX_CELLS = 1 << 17
MAX_DETAILED = 1 << 14
MAP_HEIGHT = 430  # CSS pixels
NO_OWNER = 65535
_FREE = "#9AA5B138"
# What a cell that stands for several blocks shows: the most telling state among them.
_URGENCY = "FCPSTWQ"
_REF_LABELS = ("ref 0", "1", "2", "3", "4", "5-8", "9-16", "17 and more")
_REF_EDGES = np.array([1, 2, 3, 4, 5, 9, 17])

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class LegendEntry:
    """One line of the legend; `letter` is empty where colours do not stand for states."""

    label: str
    letter: str
    colour: str
    count: int


@dataclass(frozen=True)
class Colouring:
    """A colour for each block: index per block, the palette, and the legend."""

    index: Bytes
    palette: list[str]
    legend: list[LegendEntry]


def letters(state: PoolState) -> Bytes:
    """The state letter of every block, as ASCII codes."""
    code = np.array([ord(_letter(name)) for name in STATE_NAMES], dtype=np.uint8)
    out = code[state.state]
    out[state.writing & (state.state == BlockState.PRIVATE)] = ord(WRITING.letter)
    return out


def encode(
    state: PoolState,
    mode: str = "state",
    *,
    owners: Mapping[int, Sequence[int]] | None = None,
    names: Mapping[int, str] | None = None,
    selected: int = -1,
    marked: Sequence[int] = (),
) -> bytes:
    """The canvas payload for a pool state.

    Args:
        state: the pool at one event.
        mode: what the colour says, one of MODES.
        owners: block -> the sequences that hold it; names: sequence -> its name.
        selected: the block to outline, -1 for none. marked: blocks that have a finding.
    """
    owners, names = owners or {}, names or {}
    letter = letters(state)
    paint = colouring(state, letter, mode, owners, names)
    blocks = state.num_blocks
    span = _span(blocks)
    picked = _telling(letter, span)
    detail = blocks <= MAX_DETAILED
    groups = {group: _owner_text(group, names) for group in {tuple(held) for held in owners.values()}}
    owner_names = list(dict.fromkeys(groups[tuple(held)] for held in owners.values()))
    meta: dict[str, Any] = {
        "palette": paint.palette,
        "legend": [asdict(entry) for entry in paint.legend],
        "states": {key: found.label for key, found in BY_LETTER.items()},
        "mark": FINDING, "marked": sorted({int(b) // span for b in marked if 0 <= b < blocks}),
        "blocks": blocks, "span": span, "blockSize": state.block_size, "height": MAP_HEIGHT, "seq": state.seq,
        "selected": selected // span if 0 <= selected < blocks else -1,
        "names": owner_names if detail else [], "detail": detail, "alt": alt_text(state),
    }  # fmt: skip
    text = json.dumps(meta, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    parts = [np.array([len(picked), len(text)], dtype="<u4").tobytes(), text]
    parts += [paint.index[picked].tobytes(), letter[picked].tobytes()]
    if detail:
        number = {name: i for i, name in enumerate(owner_names)}
        owner = np.full(blocks, NO_OWNER, dtype="<u2")
        for block, held in owners.items():
            owner[block] = number[groups[tuple(held)]]
        parts += [np.clip(state.fill, 0, 255).astype(np.uint8).tobytes()]
        parts += [np.clip(state.ref, 0, 255).astype(np.uint8).tobytes()]
        parts += [owner.tobytes(), state.gen.astype("<u4").tobytes()]
    return b"".join(parts)


def block_of(state: PoolState, cell: int) -> int:
    """The block that a click on a cell picks: the one whose state the cell shows."""
    picked = _telling(letters(state), _span(state.num_blocks))
    return int(picked[min(max(cell, 0), len(picked) - 1)])


def colouring(
    state: PoolState, letter: Bytes, mode: str, owners: Mapping[int, Sequence[int]], names: Mapping[int, str]
) -> Colouring:
    """The colours of one mode; free blocks are the same pale grey in every mode."""
    if mode == "refcount":
        return _by_refcount(state)
    if mode == "age":
        return _by_age(state)
    if mode == "owner":
        return _by_owner(state, owners, names)
    return _by_state(letter)


def alt_text(state: PoolState) -> str:
    """The map in a sentence, for those who cannot see it."""
    parts = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in state.counts.items() if count)
    return f"Map of {state.num_blocks} blocks at event {state.seq}: {parts}"


def _by_state(letter: Bytes) -> Colouring:
    order = (WRITING, *STATES)
    table = np.zeros(256, dtype=np.uint8)
    for i, found in enumerate(order):
        table[ord(found.letter)] = i
    index = table[letter]
    counts = np.bincount(index, minlength=len(order))
    palette = [_FREE if found.letter == "F" else found.colour for found in order]
    entries = [LegendEntry(s.label, s.letter, palette[i], int(counts[i])) for i, s in enumerate(order)]
    return Colouring(index, palette, [entries[1], entries[0], *entries[2:]])


def _by_refcount(state: PoolState) -> Colouring:
    index = np.digitize(state.ref, _REF_EDGES).astype(np.uint8)
    palette = [_FREE, SEQUENTIAL[1], *SEQUENTIAL[3:9]]
    counts = np.bincount(index, minlength=len(palette))
    legend = [
        LegendEntry(label, "", palette[i], int(counts[i])) for i, label in enumerate(_REF_LABELS) if counts[i] or i < 4
    ]
    return Colouring(index, palette, legend)


def _by_age(state: PoolState) -> Colouring:
    """Events since the block was last touched, in powers of four: bright is recent."""
    age = np.maximum(state.seq - state.last_seq, 0)
    bins = np.minimum(np.log2(age + 1) // 2, 7).astype(np.uint8)
    index = np.where(state.last_seq < 0, 0, 8 - bins).astype(np.uint8)
    palette = [_FREE, *SEQUENTIAL[1:]]
    counts = np.bincount(index, minlength=len(palette))
    legend: list[LegendEntry] = []
    for i in range(8, 0, -1):
        low, high = 4 ** (8 - i) - 1, 4 ** (9 - i) - 2
        label = f"{low:,} events or more" if i == 1 else f"{low:,}-{high:,} events ago"
        if counts[i]:
            legend.append(LegendEntry(label, "", palette[i], int(counts[i])))
    return Colouring(index, palette, [*legend, LegendEntry("never touched", "", _FREE, int(counts[0]))])


def _by_owner(state: PoolState, owners: Mapping[int, Sequence[int]], names: Mapping[int, str]) -> Colouring:
    index = np.zeros(state.num_blocks, dtype=np.uint8)
    palette = [_FREE, SEVERAL]
    slot: dict[str, int] = {}
    label: dict[int, list[str]] = {}
    for block, held in owners.items():
        distinct = sorted(set(held))
        if len(distinct) > 1:
            index[block] = 1
            continue
        colour = sequence_colour(distinct[0])
        if colour not in slot:
            slot[colour] = len(palette)
            palette.append(colour)
        index[block] = slot[colour]
        label.setdefault(slot[colour], []).append(names.get(distinct[0], f"s{distinct[0]}"))
    counts = Counter(index.tolist())
    legend: list[LegendEntry] = []
    for i in range(2, len(palette)):
        owned = list(dict.fromkeys(label[i]))
        said = ", ".join(owned[:2]) + (" ..." if len(owned) > 2 else "")
        legend.append(LegendEntry(said, "", palette[i], counts[i]))
    legend += [LegendEntry("several owners", "", SEVERAL, counts[1]), LegendEntry("no owner", "", _FREE, counts[0])]
    return Colouring(index, palette, legend)


def _span(blocks: int) -> int:
    return max(1, -(-blocks // MAX_CELLS))


def _telling(letter: Bytes, span: int) -> npt.NDArray[np.int64]:
    """For each cell the block that it shows: of `span` blocks the first of the most telling state."""
    if span <= 1:
        return np.arange(len(letter))
    rank = np.zeros(256, dtype=np.int8)
    for i, letter_name in enumerate(_URGENCY):
        rank[ord(letter_name)] = i
    cells = -(-len(letter) // span)
    ranks = np.full(cells * span, -1, dtype=np.int8)
    ranks[: len(letter)] = rank[letter]
    found: npt.NDArray[np.int64] = ranks.reshape(cells, span).argmax(axis=1) + np.arange(cells) * span
    return found


def _owner_text(held: Sequence[int], names: Mapping[int, str]) -> str:
    found = [names.get(s, f"s{s}") for s in sorted(set(held))]
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _letter(name: str) -> str:
    return next(s.letter for s in STATES if s.name == name)
