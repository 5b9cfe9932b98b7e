"""Counting with shared prefixes: the prefix cache by keys, one per block that could be found.

A key stands for a block and everything in front of it, as the chained hashes of `kvscope.engine.prefix` do. What the
pool does with a block, this does with its key: it is held by so many tables, or cached and waits to be evicted, oldest
first; blocks that nobody can look up are only counted. Samples, and answers that a later prompt repeats, are not
known here: such workloads are driven.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kvscope.engine.baselines import Region, Space
from kvscope.inspector.simulate.counted import CountedRun
from kvscope.inspector.simulate.settings import Settings
from kvscope.inspector.simulate.waiting import Waiting
from kvscope.inspector.workloads import WorkRequest


class SharedRun(CountedRun):
    """One workload on a paged pool whose full blocks can be found by their prefix.

    `space.free` counts cached blocks too: an allocation could take them.
    """

    def __init__(
        self, requests: list[WorkRequest], space: Space, settings: Settings,
        on_finish: Callable[[int], None] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(requests, space, settings, on_finish)
        self._size = space.block_size
        self._holders: dict[int, int] = {}  # key of a published block -> table entries; 0: cached
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently released first
        self._computing: dict[int, Waiting] = {}  # key of a prompt block -> who computes it

    # -- keys -----------------------------------------------------------------------------------------------------

    def _keys(self, sequence: Waiting) -> list[int]:
        """Keys of the full blocks of all tokens the sequence had when it was queued."""
        if sequence.keys is None:
            sequence.keys = prompt_keys(self._requests[sequence.number], sequence.number, self._size)
        self._extend(sequence, sequence.keys, sequence.length // self._size)
        return sequence.keys

    @staticmethod
    def _extend(sequence: Waiting, keys: list[int], count: int) -> None:
        """Blocks that hold output belong to this sequence alone; so do those behind them."""
        while len(keys) < count:
            keys.append(hash((sequence.number, -1, len(keys))))

    def _match(self, sequence: Waiting) -> tuple[int, bool]:
        """Leading blocks that are published, and whether the next one is being computed right now."""
        keys, holders = self._keys(sequence), self._holders
        usable = (sequence.length - 1) // self._size  # the last token is always computed
        hits = 0
        while hits < usable and keys[hits] in holders:
            hits += 1
        return hits, hits < usable and keys[hits] in self._computing

    # -- what differs from counting alone -------------------------------------------------------------------------

    def _admit(self, budget: int, live: int) -> tuple[int, int]:
        space, holders = self.space, self._holders
        passed = []  # they wait for a prefix that is being computed; those behind them need not
        while self._waiting and budget > 0:
            sequence = self._waiting[0]
            if len(self._running) >= self.settings.max_seqs:
                self._stuck, self._for_memory = True, False
                break
            hits, pending = self._match(sequence)
            if pending:
                passed.append(self._waiting.popleft())
                continue
            keys = self._keys(sequence)
            idle = [key for key in keys[:hits] if not holders[key]]
            needed = space.size_for(sequence.length) - hits
            self._wanted = needed + len(idle) + (self._reserve if self._running else 0)
            if self._wanted > space.free:
                self._stuck = self._for_memory = True
                break
            for key in keys[:hits]:
                holders[key] += 1
            for key in idle:
                del self._cached[key]
            space.free -= len(idle) + needed
            self._evict()
            for key in keys[hits : sequence.length // self._size]:
                self._computing.setdefault(key, sequence)
            self._waiting.popleft()
            sequence.computed, sequence.published, sequence.doubles = hits * self._size, hits, set()
            self._started += sequence.computed
            if sequence.order < 0:
                self.tally.hit_tokens += sequence.computed
            self._start(sequence, Region(0, hits + needed))
            self._saved += hits - len(idle)
            budget = self._chunk(sequence, budget)
            live += sequence.computed
        self._waiting.extendleft(reversed(passed))
        return budget, live

    def _plan_growth(self, sequence: Waiting) -> None:
        self._evict()  # what it grew by
        super()._plan_growth(sequence)

    def _complete(self) -> None:
        for sequence in self._prefilling:
            if self._publish(sequence, sequence.computed // self._size):
                self._stuck = False  # a queued prompt may find more now
        super()._complete()

    def _publish(self, sequence: Waiting, full: int) -> bool:
        """The sequence's blocks up to `full` can be found from now on, unless others serve the same prefix."""
        first = sequence.published
        if full <= first:
            return False
        keys, holders, computing = self._keys(sequence), self._holders, self._computing
        self._extend(sequence, keys, full)
        fresh = keys[first:full]
        if holders.keys().isdisjoint(fresh):
            holders.update(dict.fromkeys(fresh, 1))
        else:
            for lblock, key in enumerate(fresh, first):
                if key in holders:
                    sequence.doubles.add(lblock)
                else:
                    holders[key] = 1
        for key in fresh if not sequence.decoding else ():
            if computing.get(key) is sequence:
                del computing[key]
        sequence.published = full
        return True

    def _leave(self, sequence: Waiting, issued: int) -> None:
        """Blocks go back last first: to the cache if they can be found, else to the free ones."""
        assert sequence.region is not None
        self._publish(sequence, issued // self._size)
        keys, holders, cached = self._keys(sequence), self._holders, self._cached
        blocks, published, doubles = sequence.region.blocks, sequence.published, sequence.doubles
        freed = blocks - published + len(doubles)
        for lblock in range(published - 1, -1, -1):
            if doubles and lblock in doubles:
                continue
            key = keys[lblock]
            count = holders[key] - 1
            holders[key] = count
            if not count:
                cached[key] = None
                freed += 1
        if not sequence.decoding:  # what it had announced will not come
            for key in keys[published : sequence.length // self._size]:
                if self._computing.get(key) is sequence:
                    del self._computing[key]
        self.space.free += freed
        self._saved -= blocks - freed
        self._gone(sequence)

    def _evict(self) -> None:
        """Give up cached blocks, oldest first, until the free ones are enough for what was taken."""
        while len(self._cached) > self.space.free:
            key, _ = self._cached.popitem(last=False)
            del self._holders[key]
            self.tally.evictions += 1


def prompt_keys(request: WorkRequest, number: int, size: int) -> list[int]:
    """A key for each full block of a prompt: equal for equal text with equal text in front of it, else different."""
    keys: list[int] = []
    key, pieces, room, left = 0, [0], size, request.prompt  # room: slots of the open block that are still empty
    for identity, count in (*request.parts, (-2 - number, request.prompt)):  # the rest is its own
        count, offset = min(count, left), 0
        left -= count
        while offset < count:
            whole = (count - offset) // size if room == size else 0
            if whole:  # blocks inside one part: a run of keys
                first = hash((key, identity, offset))
                keys.extend(range(first, first + whole))
                key = first + whole - 1
                offset += whole * size
                continue
            taken = min(room, count - offset)
            pieces += (identity, offset, taken)
            room, offset = room - taken, offset + taken
            if not room:
                key = hash((key, *pieces))
                keys.append(key)
                pieces, room = [0], size
    return keys
