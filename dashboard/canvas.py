"""What the block map's canvas is sent: one byte string with a header, its JSON and a few bytes for each cell.

The layout is written down in `canvas.js`, which reads it. Up to 16,384 blocks go with everything that a tooltip
says (10 bytes each); larger pools with one byte for the colour, and everything for the part that is looked at closely;
beyond 2**17 blocks a cell is a tile of several. So no payload passes 200 KB, whatever the pool.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from kvscope.dashboard.palette import BY_LETTER, FINDING, SEQUENTIAL, SEVERAL, STATES, WRITING, sequence_colour
from kvscope.inspector.state import STATE_NAMES, URGENCY, BlockState, PoolState
from kvscope.inspector.units import counted

MODES = ("state", "refcount", "age", "owner")
MAX_CELLS = 1 << 17
MAX_DETAILED = 1 << 14
MAX_WINDOW = 1 << 13  # blocks that are looked at closely
ASPECT = 1.7  # width by height of the grid of a pool that is shown in tiles
MAP_HEIGHT = 430  # CSS pixels
NO_OWNER = 65535
_FREE = "#9AA5B138"
# What a cell that stands for several blocks shows: the most telling state among them.
_RANK = np.zeros(256, dtype=np.int8)
_RANK[[ord(letter) for letter in URGENCY]] = np.arange(len(URGENCY))
_REF_LABELS = ("ref 0", "1", "2", "3", "4", "5-8", "9-16", "17 and more")
_REF_EDGES = np.array([1, 2, 3, 4, 5, 9, 17])

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Window:
    """The part of a map that is looked at closely: columns [c0, c1), rows [r0, r1) of a grid of so many columns."""

    c0: int
    c1: int
    r0: int
    r1: int
    columns: int


def window_of(value: Any) -> Window | None:
    """What the map asked for, if it makes sense: it comes from a browser."""
    names = ("c0", "c1", "r0", "r1", "columns")
    try:
        found = Window(*(int(value[name]) for name in names))
    except (TypeError, ValueError, KeyError):
        return None
    inside = 0 <= found.c0 < found.c1 <= found.columns and 0 <= found.r0 < found.r1
    return found if inside else None


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
    said: list[str] = field(default_factory=list)  # what each colour means, where it stands for a state


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
    window: Window | None = None,
    height: int = MAP_HEIGHT,
) -> bytes:
    """The canvas payload for a pool state.

    Args:
        state: the pool at one event.
        mode: what the colour says, one of MODES.
        owners: block -> the sequences that hold it; names: sequence -> its name.
        selected: the block to outline, -1 for none. marked: blocks that have a finding.
        window: the part that is looked at closely, where more is wanted than colours.
        height: CSS pixels.
    """
    owners, names = owners or {}, names or {}
    letter = letters(state)
    paint = colouring(state, letter, mode, owners, names)
    blocks = state.num_blocks
    tiles = Tiles.of(blocks)
    picked = None if tiles is None else tiles.telling(letter)
    detail = blocks <= MAX_DETAILED
    near = None if detail or window is None else _inside(window, blocks, tiles)
    groups = {group: _owner_text(group, names) for group in {tuple(held) for held in owners.values()}} if detail else {}
    owner_names = list(dict.fromkeys(groups[tuple(held)] for held in owners.values())) if detail else []
    meta: dict[str, Any] = {
        "palette": paint.palette, "legend": [asdict(entry) for entry in paint.legend],
        "states": {key: found.label for key, found in BY_LETTER.items()}, "shown": paint.said,
        "hatched": [found.letter for found in STATES if found.hatched],
        "mark": FINDING, "marked": sorted({int(b) for b in marked if 0 <= b < blocks}),
        "blocks": blocks, "blockSize": state.block_size, "height": height, "seq": state.seq,
        "selected": selected if 0 <= selected < blocks else -1, "names": owner_names, "detail": detail,
        "tile": None if tiles is None else [tiles.across, tiles.down],
        "columns": None if tiles is None else tiles.columns,
        "window": None if near is None else asdict(near), "mostWindow": MAX_WINDOW, "alt": alt_text(state),
    }  # fmt: skip
    text = json.dumps(meta, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 4)
    colour = paint.index if picked is None else paint.index[picked]
    parts = [np.array([len(colour), len(text)], dtype="<u4").tobytes(), text, colour.tobytes()]
    if detail:
        number = {name: i for i, name in enumerate(owner_names)}
        owner = np.full(blocks, NO_OWNER, dtype="<u2")
        for block, held in owners.items():
            owner[block] = number[groups[tuple(held)]]
        parts += [
            letter.tobytes(),
            _byte(state.fill),
            _byte(state.ref),
            owner.tobytes(),
            state.gen.astype("<u4").tobytes(),
        ]
    if near is not None:
        rows, columns = np.arange(near.r0, near.r1), np.arange(near.c0, near.c1)
        at = (rows[:, None] * near.columns + columns).ravel()
        there = at < blocks
        at = np.minimum(at, blocks - 1)
        parts += [paint.index[at].tobytes(), np.where(there, letter[at], 0).astype(np.uint8).tobytes()]
        parts += [_byte(state.fill[at]), _byte(state.ref[at]), state.gen[at].astype("<u4").tobytes()]
    return b"".join(parts)


def block_of(state: PoolState, picked: int) -> int:
    """The block that a click picks: itself, or of a tile (-1 - block) the one whose state the tile shows."""
    if picked >= 0:
        return min(picked, state.num_blocks - 1)
    block, tiles = min(-1 - picked, state.num_blocks - 1), Tiles.of(state.num_blocks)
    return block if tiles is None else int(tiles.telling(letters(state))[tiles.cell(block)])


@dataclass(frozen=True)
class Tiles:
    """How a pool too large for a cell per block is cut into tiles: a grid of `columns` blocks a row."""

    blocks: int
    columns: int
    across: int
    down: int

    @classmethod
    def of(cls, blocks: int) -> Tiles | None:
        """The tiles of a pool; None where every block has a cell."""
        across = down = 1
        while -(-blocks // (across * down)) > MAX_CELLS:
            across, down = (across * 2, down) if across <= down else (across, down * 2)
        if across == 1:
            return None
        columns = round((blocks * ASPECT) ** 0.5 / across) * across
        while -(-blocks // columns // down) * (columns // across) > MAX_CELLS:
            columns += across  # whole rows of tiles: the last one may be a little too much
        return cls(blocks, columns, across, down)

    def cell(self, block: int) -> int:
        """The tile of a block."""
        row, column = divmod(block, self.columns)
        return row // self.down * (self.columns // self.across) + column // self.across

    def telling(self, letter: Bytes) -> npt.NDArray[np.int64]:
        """For each tile the block that it shows: the first of the most telling state."""
        rows = -(-self.blocks // self.columns)
        rows += -rows % self.down
        ranks = np.full(rows * self.columns, -1, dtype=np.int8)
        ranks[: len(letter)] = _RANK[letter]
        high, wide = rows // self.down, self.columns // self.across
        tiles = ranks.reshape(high, self.down, wide, self.across).transpose(0, 2, 1, 3).reshape(high * wide, -1)
        inside = tiles.argmax(axis=1)
        row = np.repeat(np.arange(high), wide) * self.down + inside // self.across
        column = np.tile(np.arange(wide), high) * self.across + inside % self.across
        found: npt.NDArray[np.int64] = np.minimum(row * self.columns + column, self.blocks - 1)
        return found


def _inside(window: Window, blocks: int, tiles: Tiles | None) -> Window | None:
    """The window cut to the pool; None where it asks for too much or for another grid."""
    if tiles is not None and window.columns != tiles.columns:
        return None
    rows = -(-blocks // window.columns)
    cut = replace(window, r1=min(window.r1, rows))
    count = (cut.c1 - cut.c0) * (cut.r1 - cut.r0)
    return cut if 0 < count <= MAX_WINDOW else None


def _byte(values: npt.NDArray[Any]) -> bytes:
    return np.clip(values, 0, 255).astype(np.uint8).tobytes()


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
    return f"Map of {counted(state.num_blocks, 'block')} at event {state.seq}: {parts}"


def _by_state(letter: Bytes) -> Colouring:
    order = (WRITING, *STATES)
    table = np.zeros(256, dtype=np.uint8)
    for i, found in enumerate(order):
        table[ord(found.letter)] = i
    index = table[letter]
    counts = np.bincount(index, minlength=len(order))
    palette = [_FREE if found.letter == "F" else found.colour for found in order]
    entries = [LegendEntry(s.label, s.letter, palette[i], int(counts[i])) for i, s in enumerate(order)]
    return Colouring(index, palette, [entries[1], entries[0], *entries[2:]], [found.label for found in order])


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


def _owner_text(held: Sequence[int], names: Mapping[int, str]) -> str:
    found = [names.get(s, f"s{s}") for s in sorted(set(held))]
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _letter(name: str) -> str:
    return next(s.letter for s in STATES if s.name == name)
