"""Our own block manager as a `PagedAllocator`, so that it is fuzzed like any other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras
from kvscope.engine.steps import Scheduled
from kvscope.inspector.fuzz.protocol import Copy
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink


class EngineAllocator:
    """`BlockManager` with every write followed by the step that computes it.

    A step of the caller stays open from `begin_step` to `end_step`, and steps end in the order they began: the own
    steps of an `add` or `append` that come behind an open one stay open with it.

    Args:
        num_blocks, block_size: pool geometry, in blocks and slots.
        manager: builds the block manager; a planted fault is a subclass given here.
        sink: where events go; None records nothing.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        manager: Callable[..., BlockManager] = BlockManager,
        sink: EventSink | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.manager = manager(num_blocks, block_size, sink=sink, hash_key=b"kvscope.fuzz")
        self._extras: dict[int, Extras] = {}
        self._preempted: set[int] = set()
        self._open: deque[bool] = deque()  # steps begun, oldest first; True: the caller's
        self._moves: list[Copy] = []

    def identity(self, seq: int, extras: tuple[object, ...]) -> None:
        """Adapter, salt, ... of a sequence, before `add`."""
        self._extras[seq] = extras

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        """Admit and compute the prompt; returns how many leading tokens were cached. Raises: OutOfBlocks."""
        cached = self.manager.admit(seq, tokens, self._extras.get(seq, ()), resumed=seq in self._preempted)
        self._preempted.discard(seq)
        self.manager.write(seq, cached, len(tokens))
        self._compute(Scheduled(seq, cached, len(tokens)))
        return cached

    def append(self, seq: int, token: int) -> None:
        """One decoded token. Raises: OutOfBlocks."""
        self.manager.append(seq, token)
        length = self.manager.length(seq)
        self._compute(Scheduled(seq, length - 1, length))

    def fork(self, parent: int, child: int) -> None:
        """The child shares all blocks of the parent."""
        self.manager.fork(parent, child)

    def truncate(self, seq: int, length: int) -> None:
        """Drop the positions from `length` on."""
        self.manager.truncate(seq, length)

    def preempt(self, seq: int) -> None:
        """Give up the blocks, as the scheduler does when they run out."""
        self.manager.free(seq, Kind.PREEMPT, Reason.CAPACITY)
        self._preempted.add(seq)

    def free(self, seq: int) -> None:
        """The sequence is finished."""
        self.manager.free(seq)

    def begin_step(self, seqs: Sequence[int]) -> None:
        """Open a step that reads everything these sequences have."""
        lengths = [(seq, self.manager.length(seq)) for seq in seqs]
        self.manager.begin_step([Scheduled(seq, length, length) for seq, length in lengths])
        self._open.append(True)

    def end_step(self) -> None:
        """The caller's oldest open step has completed, and with it our own in front of and right behind it."""
        while not self._open[0]:
            self._end()
        self._end()
        self._end_own()

    def table(self, seq: int) -> list[int]:
        """Physical block ids, logical order."""
        return self.manager.table(seq)

    def num_free(self) -> int:
        """Blocks that an allocation could take now."""
        return self.manager.num_free()

    def refcount(self, block: int) -> int:
        """Table entries that hold the block."""
        return self.manager.refcount(block)

    def drain(self) -> list[Copy]:
        """Copies that were run since the last call."""
        moves, self._moves = self._moves, []
        return moves

    def _compute(self, row: Scheduled) -> None:
        self.manager.begin_step([row])
        copies = self.manager.drain_copies()
        self._moves += [Copy(copy.source, copy.target, copy.slots) for copy in copies]
        self.manager.copies_done(copies)
        self._open.append(False)
        self._end_own()

    def _end_own(self) -> None:
        while self._open and not self._open[0]:
            self._end()

    def _end(self) -> None:
        self._open.popleft()
        self.manager.end_step()
