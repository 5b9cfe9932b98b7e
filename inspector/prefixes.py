"""Who shares which beginning: the block tables at one event as a tree of runs of blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MAX_NODES = 600
_DEEPEST = 200


@dataclass(frozen=True)
class Branch:
    """A run of blocks that the same sequences hold at the same place of their tables.

    number and parent are positions in the list of branches; -1 for a branch that begins the tables.
    """

    number: int
    parent: int
    blocks: tuple[int, ...]
    sequences: tuple[int, ...]

    @property
    def saved(self) -> int:
        """Blocks that would be needed on top, were nothing shared."""
        return (len(self.sequences) - 1) * len(self.blocks)


def prefix_tree(tables: Mapping[int, Sequence[int]], most: int = MAX_NODES) -> list[Branch]:
    """The tables as a tree, parents before their children, what is held by most sequences first.

    Args:
        tables: sequence -> its blocks, in the order of its table.
        most: branches at most; those held by the fewest are left out.
    """
    found: list[Branch] = []
    level: list[tuple[int, int, tuple[int, ...]]] = [(-1, 0, tuple(s for s, row in tables.items() if row))]
    depth = 0
    while level and len(found) < most and depth < _DEEPEST:
        following: list[tuple[int, int, tuple[int, ...]]] = []
        for parent, at, sequences in level:
            for members in _by_block(tables, at, sequences):
                end = _common_end(tables, at, members)
                if len(found) == most:
                    break
                branch = Branch(len(found), parent, tuple(tables[members[0]][at:end]), members)
                found.append(branch)
                rest = tuple(s for s in members if len(tables[s]) > end)
                if rest:
                    following.append((branch.number, end, rest))
        level, depth = sorted(following, key=lambda item: -len(item[2])), depth + 1
    return found


def _by_block(tables: Mapping[int, Sequence[int]], at: int, sequences: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The sequences by the block that they have at this place, the largest group first."""
    groups: dict[int, list[int]] = {}
    for sequence in sequences:
        groups.setdefault(tables[sequence][at], []).append(sequence)
    return [tuple(members) for members in sorted(groups.values(), key=len, reverse=True)]


def _common_end(tables: Mapping[int, Sequence[int]], at: int, members: tuple[int, ...]) -> int:
    """How far all of them have the same blocks; all of them have the same one at `at`."""
    first = tables[members[0]]
    end = at + 1
    shortest = min(len(tables[s]) for s in members)
    while end < shortest and all(tables[s][end] == first[end] for s in members):
        end += 1
    return end
