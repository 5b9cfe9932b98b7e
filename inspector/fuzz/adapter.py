"""Our own block manager as a `PagedAllocator`, so that it is fuzzed like any other."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.prefix import Extras
from kvscope.engine.steps import Scheduled
from kvscope.inspector.fuzz.protocol import Copy, Swap
from kvscope.traces.schema import Kind, Reason
from kvscope.traces.sink import EventSink

HOST_BLOCKS = 8  # few: a swap is refused now and then, too


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
        self.manager = manager(num_blocks, block_size, sink=sink, hash_key=b"kvscope.fuzz", host_blocks=HOST_BLOCKS)
        self._extras: dict[int, Extras] = {}
        self._preempted: set[int] = set()
        self._open: deque[bool] = deque()  # steps begun, oldest first; True: the caller's
        self._moves: list[Copy | Swap] = []
        self._parked: set[int] = set()
        self._looked: dict[int, int] = {}  # sequence -> the lease of its lookup
        self._leases: dict[int, int] = {}  # number of the caller -> our lease

    def identity(self, seq: int, extras: tuple[object, ...]) -> None:
        """Adapter, salt, ... of a sequence, before `add`."""
        self._extras[seq] = extras

    def add(self, seq: int, tokens: Sequence[int]) -> int:
        """Admit and compute the prompt; returns how many leading tokens were cached. Raises: OutOfBlocks."""
        cached = self.manager.admit(seq, tokens, self._extras.get(seq, ()), resumed=seq in self._preempted)
        self._preempted.discard(seq)
        self._looked.pop(seq, None)
        self.manager.write(seq, cached, len(tokens))
        self._compute(Scheduled(seq, cached, len(tokens)))
        return cached

    def abandon(self, seq: int, tokens: Sequence[int]) -> None:
        """Admit, and abort in front of the step that would have computed the prompt. Raises: OutOfBlocks."""
        cached = self.manager.admit(seq, tokens, self._extras.get(seq, ()))
        self._looked.pop(seq, None)
        self.manager.write(seq, cached, len(tokens))
        self.manager.free(seq, Kind.ABORT, Reason.ABORTED)

    def lookup(self, seq: int, tokens: Sequence[int]) -> None:
        """Keep what is cached of a prompt until it is admitted, or forgotten."""
        _, lease = self.manager.lookup(seq, tokens, self._extras.get(seq, ()))
        if lease is None:
            self._looked.pop(seq, None)
        else:
            self._looked[seq] = lease.lease_id

    def forget(self, seq: int) -> None:
        """The prompt is not admitted."""
        if seq in self._looked:
            self.manager.unlease(self._looked.pop(seq))

    def lease(self, seq: int, lease: int) -> None:
        """A transfer reads the blocks of a sequence."""
        self._leases[lease] = self.manager.lease(self.manager.table(seq), holder="send", seq_id=seq).lease_id

    def unlease(self, lease: int) -> None:
        """The transfer is done."""
        self.manager.unlease(self._leases.pop(lease))

    def swap_out(self, seq: int) -> None:
        """Preempt by swap. Raises: OutOfBlocks."""
        self.manager.swap_out(seq)
        self._parked.add(seq)
        self._run_swaps()

    def swap_in(self, seq: int) -> None:
        """Back from the host. Raises: OutOfBlocks."""
        self.manager.swap_in(seq)
        self._parked.discard(seq)
        self._run_swaps()

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
        if seq in self._parked:
            self._parked.discard(seq)
            self.manager.forget_swapped(seq, Kind.FINISH, Reason.STOP)
        else:
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

    def drain(self) -> list[Copy | Swap]:
        """Copies and swaps that were run since the last call."""
        moves, self._moves = self._moves, []
        return moves

    def _compute(self, row: Scheduled) -> None:
        self.manager.begin_step([row])
        copies = self.manager.drain_copies()
        self._moves += [Copy(copy.source, copy.target, copy.slots) for copy in copies]
        self.manager.copies_done(copies)
        self._open.append(False)
        self._end_own()

    def _run_swaps(self) -> None:
        swaps = self.manager.drain_swaps()
        for swap in swaps:
            self._moves += [Swap(block, slot, swap.out) for block, slot in zip(swap.blocks, swap.slots, strict=True)]
        self.manager.swaps_done(swaps)

    def _end_own(self) -> None:
        while self._open and not self._open[0]:
            self._end()

    def _end(self) -> None:
        self._open.popleft()
        self.manager.end_step()
