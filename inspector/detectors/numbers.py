"""What numbers say: NULL (reserved blocks), META (counters that cannot be), CAP (promises and budgets)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from kvscope.inspector.detectors.base import Detector
from kvscope.inspector.detectors.records import Block, Row
from kvscope.inspector.detectors.replay import Ledger
from kvscope.inspector.limits import Limits, impossible, limits_of
from kvscope.inspector.source import Names, TraceLike, life
from kvscope.inspector.units import counted
from kvscope.traces.schema import DETAIL_FIELDS, Kind, unpack_range


class Null(Detector):
    """A reserved block is never owned, and never holds what anybody reads."""

    name, codes = "NULL", ("KV019",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)
        self._reserved = limits_of(ledger.trace.facts).reserved
        self._said: set[tuple[int, int]] = set()

    @classmethod
    def idle(cls, trace: TraceLike) -> str:
        return "" if limits_of(trace.facts).reserved else "the facts name no reserved block"

    def on_alloc(self, row: Row, block: Block) -> None:
        if row.block in self._reserved:
            self._find(row, block, f"is handed out to {self._names(row.seq_id)}")

    def on_share(self, row: Row, block: Block) -> None:
        if row.block in self._reserved:
            self._find(row, block, f"stands in the table of {self._names(row.seq_id)} as one of its own")

    on_hit = on_share

    def on_write(self, row: Row, block: Block) -> None:
        if row.block in self._reserved and row.seq_id >= 0:  # padding is nobody's
            self._find(row, block, f"is written by {self._names(row.seq_id)}: tokens that somebody will read")

    def on_publish(self, row: Row, block: Block) -> None:
        if row.block in self._reserved:
            self._find(row, block, "is published: whoever hits it reads padding")

    def on_free(self, row: Row, block: Block) -> None:
        if row.block in self._reserved:
            self._find(row, block, "is put on the free list")

    def _find(self, row: Row, block: Block, what: str) -> None:
        if (row.block, row.kind) not in self._said:
            self._said.add((row.block, row.kind))
            self.ledger.find("KV019", row, f"{life(block.id, -1)} is reserved for padding, and {what}", block)


@dataclass(slots=True)
class _Step:
    row: Row
    sequences: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Admitted:
    seq: int
    row: Row
    hits: int = 0


class Meta(Detector):
    """Counters say what can be: no share of more than all, no hit that was not found, nothing that runs backwards."""

    name, codes = "META", ("KV012",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)
        self._steps: deque[_Step] = deque()
        self._last: _Step | None = None
        self._admitted: dict[int, _Admitted] = {}

    def on_admit(self, row: Row, block: Block) -> None:
        self._settle()
        if row.aux > 0:
            self._admitted[row.seq_id] = _Admitted(self.ledger.seq, row)

    def on_hit(self, row: Row, block: Block) -> None:
        if row.seq_id in self._admitted:
            self._admitted[row.seq_id].hits += 1

    def on_step_begin(self, row: Row, block: Block) -> None:
        self._settle()
        if self._last is not None and row.step < self._last.row.step:
            self.ledger.find("KV012", row, f"the count of steps runs backwards: {row.step} after {self._last.row.step}")
        self._last = _Step(row)
        self._steps.append(self._last)

    def on_sched(self, row: Row, block: Block) -> None:
        if self._last is not None:
            self._last.sequences += 1
            self._last.tokens += max(row.fill, 0)

    def on_step_end(self, row: Row, block: Block) -> None:
        if not self.ledger.steps_known:
            self._steps.clear()
        if not self._steps:
            return
        step = self._steps.popleft()
        if not step.sequences:
            return
        begun = step.row
        if 0 < begun.aux != step.sequences:
            self.ledger.find(
                "KV012", row, f"a step of {counted(begun.aux, 'sequence')} has {counted(step.sequences, 'row')}"
            )
        if 0 < row.aux != step.tokens:
            self.ledger.find(
                "KV012", row, f"a step that computed {counted(row.aux, 'token')} was planned with {step.tokens}"
            )

    def on_witness(self, row: Row, block: Block) -> None:
        self._settle()
        told = self.ledger.details[Kind.WITNESS].get(self.ledger.seq)
        counters = dict(zip(DETAIL_FIELDS[Kind.WITNESS][:7], told or (), strict=False))
        below = [f"{name} {value}" for name, value in counters.items() if value < 0]
        if below:
            self.ledger.find("KV012", row, f"the pool counts below nothing: {', '.join(below)}")

    def on_refused(self, row: Row, block: Block) -> None:
        why = impossible(row.kind, self.ledger.trace.detail(self.ledger.seq), self.ledger.num_blocks)
        if why:
            self.ledger.find("KV012", row, f"what {self._names(row.seq_id)} was told cannot be: {why}")

    on_wait = on_refused

    def on_check(self, row: Row, block: Block) -> None:
        if row.fill > row.aux >= 0:
            self.ledger.find("KV012", row, f"a checker found {row.fill} wrong of {row.aux} that it compared")

    def finish(self) -> None:
        self._settle()

    def _settle(self) -> None:
        """The hits of the last admissions are all there."""
        for seq_id, admitted in self._admitted.items():
            most = admitted.hits * self.ledger.block_size
            if admitted.row.aux > most and not self.ledger.lost:
                self.ledger.find(
                    "KV012", admitted.row, f"{self._names(seq_id)} is counted with {admitted.row.aux} cached tokens; "
                    f"its hits brought {most} at most", seq=admitted.seq,
                )  # fmt: skip
        self._admitted.clear()


class Cap(Detector):
    """Budget and pool agree, and no step and no sequence is larger than what was promised."""

    name, codes = "CAP", ("KV026", "KV029")

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._names = Names(ledger.trace.facts)
        self._limits: Limits = limits_of(ledger.trace.facts)
        self._looked = False
        self._said: set[tuple[str, int]] = set()

    @classmethod
    def idle(cls, trace: TraceLike) -> str:
        return "" if limits_of(trace.facts).any else "the facts promise nothing"

    def on_alloc(self, row: Row, block: Block) -> None:
        if self._looked:
            return
        self._looked = True
        trace = self.ledger.trace
        why = self._limits.disagreement(self.ledger.num_blocks, trace.block_size, trace.block_bytes)
        if why:
            self.ledger.find("KV029", row, why, seq_id=-1)

    on_submit = on_admit = on_alloc

    def on_grow(self, row: Row, block: Block) -> None:
        why = self._limits.too_many(row.aux)
        if why:
            self.ledger.find("KV029", row, why)

    def on_step_begin(self, row: Row, block: Block) -> None:
        self.on_alloc(row, block)
        most = self._limits.max_seqs
        if 0 < most < row.aux:
            self._exceeded(row, "sequences", -1, f"a step has {row.aux} sequences, and {most} may run at once")

    def on_step_end(self, row: Row, block: Block) -> None:
        most = self._limits.max_batched_tokens
        if 0 < most < row.aux:
            self._exceeded(row, "tokens", -1, f"a step computes {row.aux} tokens, and may compute {most}")

    def on_sched(self, row: Row, block: Block) -> None:
        most, (_, hi) = self._limits.max_model_len, unpack_range(row.aux)
        if 0 < most < hi:
            self._exceeded(row, "length", row.seq_id, f"{self._names(row.seq_id)} reads up to position {hi - 1}, and "
                           f"the model has {most}")  # fmt: skip

    def _exceeded(self, row: Row, what: str, seq_id: int, why: str) -> None:
        if (what, seq_id) not in self._said:  # what is too large once is so step after step
            self._said.add((what, seq_id))
            self.ledger.find("KV026", row, why)
