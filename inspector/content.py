"""Layer 3 of the sanitizer beside a running engine: the bytes of blocks are those that were written, and no others.

    poison     a block that was freed, or begins a new life, is filled with NaN: whoever reads it computes NaN
    digests    of every live block, kept up to date by what steps write and copy; some are compared after each step
    canaries   the neighbours of a copy's target are compared right after it

An order-independent digest (`kernels.digest_slots`) sums over slots, so writing a slot adds its share and needs no
second look at the block. What it sees, and the other layers do not: a kernel that writes outside its slots or into the
wrong block, another program's writes, memory that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from kvscope import kernels
from kvscope.engine.block_arrays import BlockState
from kvscope.engine.hooks import EngineHook
from kvscope.errors import CheckNotRun
from kvscope.inspector.shadow_words import IntArray
from kvscope.inspector.units import counted
from kvscope.traces.schema import Kind, Reason

if TYPE_CHECKING:
    from kvscope.engine.engine import Engine
    from kvscope.engine.host_tier import Swap
    from kvscope.engine.runner import StepInputs
    from kvscope.engine.scheduler import StepPlan
    from kvscope.engine.tables import Copy


class Changed(NamedTuple):
    """A block whose bytes are not those that were written (`CONTENT`), or a read of poison (`POISON`)."""

    reason: Reason
    block: int
    gen: int
    slot: int
    seq_id: int  # who wrote the block last, or who read the poison
    position: int  # that was read, -1 for a digest
    expected: int
    found: int
    step: int  # of the last write


class _Digests:
    """What is known of every block of a pool: its life, written slots, digest of those, and its last write."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.gen = np.full(num_blocks, -1, dtype=np.int64)
        self.written = np.zeros((num_blocks, block_size), dtype=np.bool_)
        self.digest = np.zeros(num_blocks, dtype=np.int64)
        self.writer = np.full(num_blocks, -1, dtype=np.int64)
        self.step = np.full(num_blocks, -1, dtype=np.int64)
        self.poisoned = np.zeros(num_blocks, dtype=np.bool_)

    def begin(self, blocks: npt.NDArray[np.integer], gens: npt.NDArray[np.integer]) -> None:
        """New lives: nothing is written in them."""
        self.gen[blocks], self.digest[blocks] = gens, 0
        self.written[blocks] = False
        self.writer[blocks] = self.step[blocks] = -1

    def resized(self, num_blocks: int) -> _Digests:
        """The same for a pool of another size."""
        made = _Digests(num_blocks, self.written.shape[1])
        for name, array in vars(made).items():
            kept = min(num_blocks, len(self.gen))
            array[:kept] = getattr(self, name)[:kept]
        return made


class ContentCheck(EngineHook):
    """Poison and digests of one engine's cache; `changed` holds what was found, each block's life once.

    Args:
        engine: is watched from now on; attach it before the first step.
        sample: blocks whose digest is compared after each step, in turn.
        poison: fill freed blocks with NaN.
        on_changed: called with each finding, after it was recorded.
        backend: of the digest kernels; None = the device's own.
    """

    def __init__(
        self, engine: Engine, *, sample: int = 8, poison: bool = True,
        on_changed: Callable[[Changed], None] | None = None, backend: str | None = None,
    ) -> None:  # fmt: skip
        self.engine, self.manager, self.cache = engine, engine.manager, engine.cache
        self.block_size = engine.manager.block_size
        self.sample = sample
        self.poison = poison and engine.cache.kv.dtype.is_floating_point
        self.changed: list[Changed] = []
        self.blocks = self.slots = self.steps = self.poisoned = 0
        self._known = _Digests(engine.manager.num_blocks, self.block_size)
        self._host: dict[int, tuple[npt.NDArray[np.bool_], int]] = {}
        self._backend, self._on_changed = backend, on_changed
        self._told: set[tuple[int, int]] = set()
        self._next = 0
        self._before: IntArray = np.zeros(0, dtype=np.int64)
        self._writes: IntArray = np.zeros(0, dtype=np.int64)
        self._writers: IntArray = np.zeros(0, dtype=np.int64)
        engine.watch(self)

    # -- the places of the engine -----------------------------------------------------------------------------------

    def on_swap(self, swaps: Sequence[Swap]) -> None:
        """What comes back is what went: digests travel with the host slots."""
        known = self._known
        for swap in swaps:
            for block, gen, slot in zip(swap.blocks, swap.gens, swap.slots, strict=True):
                if swap.out:
                    self._host[slot] = (known.written[block].copy(), int(known.digest[block]))
                elif slot in self._host:
                    known.begin(np.array([block]), np.array([gen]))
                    known.written[block], known.digest[block] = self._host[slot]
                    known.writer[block], known.poisoned[block] = swap.seq_id, False

    def on_begin(self, plan: StepPlan) -> None:
        """Blocks that are free, or in a life that has just begun, are poisoned before anything is written to them."""
        pool, known = self.manager.pool, self._known
        count = len(known.gen)
        gens, states = pool.gen[:count], pool.state[:count]
        fresh = gens != known.gen
        free = (states == BlockState.FREE) & ~known.poisoned
        blocks = np.flatnonzero(fresh | free)
        dirty = blocks[~known.poisoned[blocks]]
        if self.poison and len(dirty):
            self.cache.kv[:, :, torch.as_tensor(dirty, device=self.cache.kv.device)] = float("nan")
            self.poisoned += len(dirty)
        known.poisoned[dirty] = self.poison
        known.begin(blocks, gens[blocks])

    def on_copy(self, copies: Sequence[Copy]) -> None:
        """The target holds what the source held, and its neighbours what they held before."""
        known = self._known
        near: set[int] = set()
        for copy in copies:
            known.written[copy.target] = False
            known.written[copy.target, : copy.slots] = known.written[copy.source, : copy.slots]
            places = np.flatnonzero(known.written[copy.target])
            known.digest[copy.target] = self._digest(copy.source * self.block_size + places).sum()
            known.writer[copy.target], known.step[copy.target] = known.writer[copy.source], known.step[copy.source]
            known.poisoned[copy.target] = False
            near |= {copy.target, copy.target - 1, copy.target + 1}
        self._compare(np.array(sorted(b for b in near if 0 <= b < len(known.gen)), dtype=np.int64))

    def on_resize(self, num_blocks: int, moved: Sequence[Copy]) -> None:
        known = self._known
        for copy in moved:
            known.begin(np.array([copy.target]), np.array([copy.target_gen]))
            known.written[copy.target], known.digest[copy.target] = (
                known.written[copy.source],
                known.digest[copy.source],
            )
            known.writer[copy.target], known.poisoned[copy.target] = known.writer[copy.source], False
        self._known = known.resized(num_blocks)

    def before_attention(self, plan: StepPlan, inputs: StepInputs) -> None:
        """What the step writes over loses its share of the digests."""
        slots = inputs.slots.cpu().numpy()
        writers = np.repeat([row.seq_id for row in plan.rows], [row.hi - row.lo for row in plan.rows])
        self._writes, last = np.unique(slots[::-1], return_index=True)
        self._writers = writers[::-1][last]
        again = self._writes[self._known.written.reshape(-1)[self._writes]]
        if len(again):
            np.subtract.at(self._known.digest, again // self.block_size, self._digest(again))

    def on_step(self, plan: StepPlan, logits: torch.Tensor) -> None:
        """What the step wrote gains its share; then some blocks are compared, and NaN is looked for."""
        known, size = self._known, self.block_size
        blocks = self._writes // size
        np.add.at(known.digest, blocks, self._digest(self._writes))
        known.written.reshape(-1)[self._writes] = True
        known.poisoned[blocks] = False
        known.writer[blocks], known.step[blocks] = self._writers, self.manager.step_number()
        self.steps += 1
        self._compare(self._choose())
        self._look_for_poison(plan, logits)

    def verify(self) -> int:
        """Compare every live block now; returns how many."""
        blocks = np.flatnonzero(self._live())
        self._compare(blocks)
        return len(blocks)

    def close(self) -> str:
        """Compare everything once more; what was compared in all, in one line.

        Raises:
            CheckNotRun: there were steps, and no block was ever compared.
        """
        self.verify()
        if self.steps and not self.blocks:
            raise CheckNotRun(
                f"no block's content was compared in {counted(self.steps, 'step')}: this is not a clean run"
            )
        return (
            f"content: {counted(len(self.changed), 'finding')}; {counted(self.blocks, 'block')} "
            f"({counted(self.slots, 'slot')}) compared, {self.poisoned:,} poisoned in {counted(self.steps, 'step')}"
        )

    # -- inside -----------------------------------------------------------------------------------------------------

    def _digest(self, slots: IntArray) -> IntArray:
        kv = self.cache.kv
        out = kernels.digest_slots(kv, torch.as_tensor(slots, device=kv.device), backend=self._backend)
        return np.asarray(out.cpu().numpy(), dtype=np.int64)

    def _live(self) -> npt.NDArray[np.bool_]:
        """Blocks in the life that is known here, with something written."""
        pool, known = self.manager.pool, self._known
        count = len(known.gen)
        states = pool.state[:count]
        held = (states != BlockState.FREE) & (states != BlockState.QUARANTINED)
        return np.asarray(held & (pool.gen[:count] == known.gen) & known.written.any(axis=1), dtype=np.bool_)

    def _choose(self) -> IntArray:
        live = np.flatnonzero(self._live())
        if not len(live):
            return live
        at = int(np.searchsorted(live, self._next))
        chosen = np.take(live, np.arange(at, at + min(self.sample, len(live))), mode="wrap")
        self._next = int(chosen[-1]) + 1 if chosen[-1] + 1 < len(self._known.gen) else 0
        return np.asarray(chosen, dtype=np.int64)

    def _compare(self, blocks: IntArray) -> None:
        """Compare the digests of these blocks' written slots with what their writes make."""
        known, size = self._known, self.block_size
        rows, offsets = np.nonzero(known.written[blocks])
        if not len(rows):
            return
        found = np.zeros(len(blocks), dtype=np.int64)
        np.add.at(found, rows, self._digest(blocks[rows] * size + offsets))
        wrong = np.flatnonzero(found != known.digest[blocks])
        self.blocks += len(blocks)
        self.slots += len(rows)
        self.manager.report(Kind.CHECK, Reason.CONTENT, fill=len(wrong), lblock=len(blocks), aux=len(rows))
        for i in wrong.tolist():
            block = int(blocks[i])
            gen, filled = int(known.gen[block]), int(known.written[block].sum())
            self._tell(
                Changed(Reason.CONTENT, block, gen, filled, int(known.writer[block]), -1, int(known.digest[block]),
                        int(found[i]), int(known.step[block]))
            )  # fmt: skip

    def _look_for_poison(self, plan: StepPlan, logits: torch.Tensor) -> None:
        bad = torch.isnan(logits).any(dim=1).tolist()
        sampled = [
            (s, row) for s, row in zip(plan.sequences, plan.rows, strict=True) if row.hi == s.length
        ]  # fmt: skip
        self.manager.report(Kind.CHECK, Reason.POISON, fill=sum(bad), lblock=len(bad), aux=len(bad))
        for (_, row), nan in zip(sampled, bad, strict=True):
            if not nan:
                continue
            table = self.manager.table(row.seq_id)
            block, gen, slot, position = -1, -1, -1, -1
            for lblock, held in enumerate(table[: -(-row.hi // self.block_size)]):
                if held < 0:
                    continue
                empty = torch.isnan(self.cache.kv[0, 0, held]).flatten(1).any(dim=1).nonzero()
                if len(empty) and lblock * self.block_size + int(empty[0]) < row.hi:
                    slot = int(empty[0])
                    block, gen, position = held, int(self.manager.pool.gen[held]), lblock * self.block_size + slot
                    break
            self._tell(Changed(Reason.POISON, block, gen, slot, row.seq_id, position, 0, 0, -1))

    def _tell(self, found: Changed) -> None:
        key = (found.block, found.gen) if found.reason == Reason.CONTENT else (-2 - found.seq_id, found.block)
        if key in self._told:
            return
        self._told.add(key)
        self.changed.append(found)
        self.manager.report(
            Kind.MISMATCH, found.reason, block=found.block, gen=found.gen, fill=found.slot, seq_id=found.seq_id,
            aux=max(found.position, 0), details=(found.expected, found.found, found.seq_id, found.step, -1, -1),
        )  # fmt: skip
        if self._on_changed is not None:
            self._on_changed(found)
