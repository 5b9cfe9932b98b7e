"""Faults between scheduler and worker: stale rows, shared staging memory, slots that are computed wrongly."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kvscope.engine.block_manager import BlockManager
from kvscope.engine.pool import BlockPool
from kvscope.engine.prefix import Extras
from kvscope.engine.steps import Scheduled
from kvscope.engine.tables import SequenceTable
from kvscope.inspector.faults.aliasing import OtherPool
from kvscope.inspector.faults.device import OtherDevice
from kvscope.traces.schema import Kind, Reason, pack_range

Row = tuple[list[int], list[int]]  # blocks, lives


class OtherTables(BlockManager):
    """A worker that keeps rows of its own; what it really uses is what the trace has the digest of."""

    def worker_row(self, row: SequenceTable) -> Row:
        """Blocks and lives that the worker uses for this row."""
        return list(row.blocks), list(row.gens)

    def table(self, seq_id: int) -> list[int]:
        return self.worker_row(self._known(seq_id))[0]

    def begin_step(self, scheduled: Iterable[Scheduled]) -> int:
        scheduled = list(scheduled)
        rows = [self._known(item.seq_id) for item in scheduled]
        right = [(row.blocks, row.gens) for row in rows]
        for row in rows:
            row.blocks, row.gens = self.worker_row(row)
            row.changed()
        try:
            return super().begin_step(scheduled)
        finally:
            for row, (blocks, gens) in zip(rows, right, strict=True):
                row.blocks, row.gens = blocks, gens
                row.changed()


class StaleTable(OtherTables):
    """After a preemption the worker keeps the last entry of its old row: that block is somebody else's by now."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._kept: dict[int, tuple[int, int, int]] = {}  # sequence -> logical block, block, life

    def free(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP, aux: int = 0) -> None:
        row = self._known(seq_id)
        if kind == Kind.PREEMPT:
            last = len(row.blocks) - 1
            self._kept[seq_id] = (last, row.blocks[last], row.gens[last])
        else:
            self._kept.pop(seq_id, None)
        super().free(seq_id, kind, reason, aux)

    def worker_row(self, row: SequenceTable) -> Row:
        lblock, block, gen = self._kept.get(row.seq_id, (-1, -1, -1))
        blocks, gens = list(row.blocks), list(row.gens)
        if 0 <= lblock < len(blocks):
            blocks[lblock], gens[lblock] = block, gen
        return blocks, gens


class StaleRow(OtherTables):
    """After a preemption the worker keeps the whole of its old row, and appends to it what is new."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._kept: dict[int, Row] = {}

    def free(self, seq_id: int, kind: Kind = Kind.FINISH, reason: Reason = Reason.STOP, aux: int = 0) -> None:
        row = self._known(seq_id)
        self._kept.pop(seq_id, None)
        if kind == Kind.PREEMPT:
            self._kept[seq_id] = list(row.blocks), list(row.gens)
        super().free(seq_id, kind, reason, aux)

    def worker_row(self, row: SequenceTable) -> Row:
        blocks, gens = self._kept.get(row.seq_id, ([], []))
        keep = min(len(blocks), len(row.blocks))
        return blocks[:keep] + row.blocks[keep:], gens[:keep] + row.gens[keep:]


class CapturedTable(OtherTables):
    """A captured graph replays the rows of its capture: entries that were replaced since are not seen."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._captured: dict[int, Row] = {}

    def admit(self, seq_id: int, tokens: Sequence[int], extras: Extras = (), *, resumed: bool = False) -> int:
        self._captured.pop(seq_id, None)
        return super().admit(seq_id, tokens, extras, resumed=resumed)

    def fork(self, parent: int, child: int) -> None:
        super().fork(parent, child)
        row = self._known(child)
        self._captured[child] = (list(row.blocks), list(row.gens))

    def worker_row(self, row: SequenceTable) -> Row:
        blocks, gens = self._captured.get(row.seq_id, ([], []))
        return blocks + row.blocks[len(blocks) :], gens + row.gens[len(gens) :]


class StaleTail(OtherTables):
    """A shorter row in a place where a longer one was keeps the longer one's end."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._longest: Row = ([], [])

    def worker_row(self, row: SequenceTable) -> Row:
        blocks, gens = self._longest
        if len(row.blocks) >= len(blocks):
            self._longest = (list(row.blocks), list(row.gens))
            return list(row.blocks), list(row.gens)
        return row.blocks + blocks[len(row.blocks) :], row.gens + gens[len(row.gens) :]


class StagingOverwritten(BlockManager):
    """Rows go to the device through one buffer, which is filled again before they have been read."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self._staging: list[int] = []

    def table(self, seq_id: int) -> list[int]:
        row = super().table(seq_id)
        if row and len(row) <= len(self._staging):
            self._staging[: len(row)] = row
            return self._staging[: len(row)]
        stale = self._staging[:1] if len(self._staging) > 1 and row else []
        self._staging = row
        return stale + row[len(stale) :]


class _ShiftedSlots(BlockPool):
    def write(self, block: int, slot_lo: int, slot_hi: int, *, seq_id: int, lblock: int, reason: Reason) -> None:
        """The prompt is counted one token longer than it is."""
        shift = 1 if reason == Reason.DECODE else 0
        landed, size = self.__dict__.setdefault("landed", {}), self.block_size
        for slot in range(slot_lo, slot_hi):
            landed[seq_id, lblock * size + slot] = block * size + slot + shift
        super().write(block, slot_lo + shift, slot_hi + shift, seq_id=seq_id, lblock=lblock, reason=reason)


class SlotOffByOne(OtherPool, OtherDevice):
    """Decoded tokens are written one slot behind their own: behind the end of the block, now and then."""

    pool_class = _ShiftedSlots

    def device_writes(self, seq_id: int, writes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        landed: dict[tuple[int, int], int] = self.pool.__dict__.get("landed", {})
        return [(position, landed.get((seq_id, position), slot)) for position, slot in writes]


class ReadsPastWritten(OtherDevice):
    """A step attends to one position more than there is."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._plain = False  # every row of a step is recorded by itself

    def device_end(self, seq_id: int, end: int) -> int:
        return min(end + 1, len(self._known(seq_id).blocks) * self.block_size)

    def _record_schedule(self, rows: Sequence[Scheduled], tables: list[SequenceTable]) -> None:
        assert self._sink is not None
        for item, row in zip(rows, tables, strict=True):
            attended = pack_range(row.first * self.block_size, self.device_end(item.seq_id, item.hi))
            seq = self._emit(
                Kind.SCHED, seq_id=item.seq_id, lblock=item.lo, fill=item.hi - item.lo, aux=attended
            )  # fmt: skip
            self._sink.detail(seq, (row.table_digest(), len(row.blocks)))


class NoLookahead(BlockManager):
    """A token is appended without looking whether there is a slot for it: it wraps into the row's first block."""

    def _extend(self, row: SequenceTable, count: int, reason: Reason) -> None:
        if reason == Reason.DECODE and count and row.blocks:
            for _ in range(count):
                row.add(row.blocks[0], row.gens[0])
            return
        super()._extend(row, count, reason)


class ForeignWrite(OtherDevice):
    """The first write of a step goes through the table of the sequence that was scheduled before."""

    def _write(self, row: SequenceTable, lo: int, hi: int, reason: Reason) -> None:
        before = self.__dict__.get("_before")
        super()._write(row, lo, hi, reason)
        other = self._tables.get(before) if before is not None and before != row.seq_id else None
        self.__dict__["_before"] = row.seq_id
        if other is not None and reason == Reason.DECODE and other.blocks:
            block = other.blocks[-1]
            self.pool.write(block, 0, 1, seq_id=row.seq_id, lblock=len(row.blocks) - 1, reason=reason)
            at = (len(row.blocks) - 1) * self.block_size, block * self.block_size
            self.__dict__.setdefault("_strayed", {}).setdefault(row.seq_id, []).append(at)

    def device_writes(self, seq_id: int, writes: list[tuple[int, int]]) -> list[tuple[int, int]]:
        return [*self.__dict__.get("_strayed", {}).pop(seq_id, []), *writes]
