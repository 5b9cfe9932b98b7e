"""Block managers that are wrong only when threads or streams meet: for the table of what the explorer finds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.tables import SequenceTable
from kvscope.inspector.races.control import current
from kvscope.traces.schema import Kind, Reason


class _HalfLock:
    """A lock that some operations go around."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._around: set[Any] = set()  # threads that are in such an operation

    @contextmanager
    def around(self) -> Iterator[None]:
        """Inside, this thread takes no lock."""
        me = _me()
        self._around.add(me)
        try:
            yield
        finally:
            self._around.discard(me)

    def __enter__(self) -> None:
        if _me() not in self._around:
            self.inner.__enter__()

    def __exit__(self, *exc: object) -> None:
        if _me() not in self._around:
            self.inner.__exit__(*exc)


def _me() -> object:
    control = current()
    return control.mine() if control is not None else None


class CountsOutsideLock(BlockManager):
    """Forks and frees change counts outside of the critical section; everything else is inside."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._half = _HalfLock(self._lock)
        self._lock = self._half

    def fork(self, parent: int, child: int) -> None:
        with self._half.around():
            super().fork(parent, child)

    def free(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP, aux: int = 0) -> None:
        with self._half.around():
            super().free(seq_id, kind, reason, aux)


class CountsNotAtomic(BlockManager):
    """`refcount += 1` of a fork as a machine does it: the counts are read, and some time later written, one higher.

    What is counted in between is lost: then a block has more holders than its count says. The last two of them both
    believe that it is theirs alone, and it is reclaimed while one still reads it.
    """

    atomic = False

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._half = _HalfLock(self._lock)
        self._lock = self._half

    def fork(self, parent: int, child: int) -> None:
        with self._lock:
            blocks = list(self._row(parent).blocks)
            counts = [int(self.pool.entries[block]) for block in blocks]
        with self._lock, self._half.around():
            super().fork(parent, child)
            if not self.atomic:
                for block, count in zip(blocks, counts, strict=True):
                    self.pool._entries[block] = count + 1


class CountsMended(CountsNotAtomic):
    """The same with its one mistake mended: what is counted is what is there when it is written. Its switch points are
    those of the broken one, so a schedule of that can be played on this."""

    atomic = True


class Preallocating(BlockManager):
    """A page is taken off the free list in one critical section, mapped, and given back in another."""

    def map_ahead(self) -> None:
        """Map one page before it is needed."""
        with self._lock:
            taken = [self.pool._free.pop()] if self.pool._free.count else []
        with self._lock:
            for block in taken:
                self.pool._free.push(block)


class WindowWithoutFence(BlockManager):
    """What a window gives back during an open step is handed out at once."""

    def slide(self, seq_id: int, first_position: int) -> int:
        users, self.pool.users = self.pool.users, []
        try:
            return super().slide(seq_id, first_position)
        finally:
            self.pool.users = users


class PreemptWithoutFence(BlockManager):
    """Only what finishes or is aborted waits for the open step; what is preempted does not."""

    def free(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP, aux: int = 0) -> None:
        users = self.pool.users
        if kind == Kind.PREEMPT:
            self.pool.users = []
        try:
            super().free(seq_id, kind, reason, aux)
        finally:
            if kind == Kind.PREEMPT:
                self.pool.users = users
                self.pool.forget_user(seq_id)


class ForkInTwoSections(BlockManager):
    """The parent's row is read in one critical section, its blocks are counted in another."""

    def fork(self, parent: int, child: int) -> None:
        with self._lock:
            source = self._row(parent)
            row = SequenceTable(
                child, list(source.tokens), source.extras, list(source.blocks), list(source.gens),
                list(source.hashes), source.issued, source.computed, source.published, source.first,
            )  # fmt: skip
        with self._lock:
            self._begin()
            self._emit(Kind.FORK, Reason.FORK, seq_id=child, aux=parent)
            for lblock, block in enumerate(row.blocks):
                self.pool.retain(block, Kind.SHARE, seq_id=child, lblock=lblock, reason=Reason.FORK)
            self._tables[child] = row


class CopyDecidedOutside(BlockManager):
    """Whether a write needs a copy is found out in one critical section, and acted upon in another."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._decided: dict[object, bool] = {}

    def append(self, seq_id: int, token: int) -> None:
        with self._lock:
            row = self._row(seq_id)
            lblock, slot = divmod(row.issued, self.block_size)
            shared = lblock < len(row.blocks) and super()._needs_copy(row.blocks[lblock], slot)
            self._decided[_me()] = shared
        try:
            super().append(seq_id, token)
        finally:
            del self._decided[_me()]

    def _needs_copy(self, block: int, slot: int) -> bool:
        decided = self._decided.get(_me())
        return super()._needs_copy(block, slot) if decided is None else decided
