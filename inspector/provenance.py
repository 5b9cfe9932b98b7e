"""Layer 2 of the sanitizer beside a running engine: what a step reads must be its own prefix.

    engine = Engine(loaded, config, sink=sink)
    provenance = Provenance(engine)         # sees every step from here on
    ...
    provenance.close()                      # an error if it was never asked, or compared nothing

Words (inspector/shadow_words) are written through the slots of the step, moved by its copies and swaps, and compared
just before attention: on the CPU in numpy; on a GPU by the kernel of `kernels.check_provenance`, beside the model, and
the answer is fetched when the step has completed, before anything of it leaves. What is wrong is written to the trace
as MISMATCH rows (KV023).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvscope.engine.hooks import EngineHook
from kvscope.engine.windows import first_needed
from kvscope.errors import CheckNotRun
from kvscope.inspector.provenance_rows import tell_checked
from kvscope.inspector.shadow_device import DeviceWords
from kvscope.inspector.shadow_words import Expected, IntArray, Reading, SlotWords, Wrong
from kvscope.inspector.units import counted

if TYPE_CHECKING:
    import torch

    from kvscope.engine.engine import Engine
    from kvscope.engine.host_tier import Swap
    from kvscope.engine.runner import StepInputs
    from kvscope.engine.scheduler import StepPlan
    from kvscope.engine.sequence import Sequence as EngineSequence
    from kvscope.engine.tables import Copy


class Provenance(EngineHook):
    """Shadow words of one engine; `wrong` holds the first wrong read of every sequence that had one.

    Args:
        engine: is watched from now on; attach it before the first step.
        on_wrong: called with each new wrong read, after it was recorded.
        backend: of `kernels.check_provenance`, on the engine's device; None takes numpy on the CPU.

    Attributes:
        steps, reads, slots: steps checked, sequences' reads in them, and slots that were compared.
    """

    def __init__(
        self, engine: Engine, *, on_wrong: Callable[[Wrong], None] | None = None, backend: str | None = None
    ) -> None:  # fmt: skip
        self.manager = engine.manager
        self.window = engine.loaded.config.window or 0
        device = str(engine.cache.kv.device)
        blocks, size = engine.manager.num_blocks, engine.manager.block_size
        plain = backend is None and device == "cpu"
        self.words: SlotWords | DeviceWords = (
            SlotWords(blocks, size) if plain else DeviceWords(blocks, size, device=device, backend=backend)
        )
        self.expected = Expected()
        self.wrong: dict[int, Wrong] = {}
        self.steps = self.reads = self.slots = self.begun = 0
        self._on_wrong = on_wrong
        self._asked = False
        engine.watch(self)

    # -- the places of the engine ---------------------------------------------------------------------------------

    def on_swap(self, swaps: Sequence[Swap]) -> None:
        for swap in swaps:
            self.words.swap(swap.blocks, swap.slots, out=swap.out)

    def on_begin(self, plan: StepPlan) -> None:
        self.begun += 1
        self._asked = False

    def on_copy(self, copies: Sequence[Copy]) -> None:
        for copy in copies:
            self.words.copy(copy.source, copy.target, copy.slots)

    def on_resize(self, num_blocks: int, moved: Sequence[Copy]) -> None:
        self.on_copy(moved)
        self.words.resize(num_blocks)

    def before_attention(self, plan: StepPlan, inputs: StepInputs) -> None:
        """The words of the step are written, then all that it reads is compared; on a GPU beside the attention."""
        if isinstance(self.words, DeviceWords):
            self.words.packed()
            return
        self._asked = True
        expected, step = self._expected_of(plan), self.manager.step_number()
        written = np.concatenate([words[row.lo :] for words, row in zip(expected, plan.rows, strict=True)])
        writers = np.repeat([row.seq_id for row in plan.rows], [row.hi - row.lo for row in plan.rows])
        self.words.write(inputs.slots.numpy(), written, writers, step)
        tables = inputs.tables.numpy()
        readings = [
            Reading(row.seq_id, tables[i], first_needed(row.lo, self.window or None), row.hi)
            for i, row in enumerate(plan.rows)
        ]
        slots, wrong = self.words.check(readings, expected)
        self._told(slots, len(readings), wrong)

    def beside_attention(self, plan: StepPlan, inputs: StepInputs) -> None:
        """On a GPU: the same, by the host while the device computes; the answer is there before a token is chosen."""
        if isinstance(self.words, DeviceWords):
            self._asked = True
            self.words.step(plan, inputs, self._expected_of(plan), self.manager.step_number(), self.window)

    def on_step(self, plan: StepPlan, logits: torch.Tensor) -> None:
        """Raises CheckNotRun if the step attended without having been checked."""
        if not self._asked:
            raise CheckNotRun(
                f"provenance was to be checked before step {self.manager.step_number()} attended, and was not asked: "
                "the runner must call before_attention and beside_attention"
            )
        if isinstance(self.words, DeviceWords):
            slots, wrong = self.words.fetch()
            self._told(slots, len(plan.rows), wrong)
        if len(self.expected) > 2 * len(plan.rows) + 512:
            self.expected.forget({*self.manager.sequences(), *self.manager.swapped()})

    def close(self) -> str:
        """What was compared, in one line.

        Raises:
            CheckNotRun: there were steps, and nothing of them was compared.
        """
        if self.begun and not self.slots:
            raise CheckNotRun(f"provenance compared no slot in {counted(self.begun, 'step')}: this is not a clean run")
        return (
            f"provenance: {counted(len(self.wrong), 'sequence')} with wrong reads; {counted(self.slots, 'slot')} of "
            f"{counted(self.reads, 'read')} compared in {counted(self.steps, 'step')}"
        )

    # -- inside ---------------------------------------------------------------------------------------------------

    def _expected_of(self, plan: StepPlan) -> list[IntArray]:
        """The words of all positions that each row of this step has."""
        self._extend(plan)
        return [self.expected.words(row.seq_id, row.hi) for row in plan.rows]

    def _extend(self, plan: StepPlan) -> None:
        seq_ids, tokens = [], []
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            known = self.expected.known(row.seq_id)
            if known and known == row.hi - 1:
                seq_ids.append(row.seq_id)
                tokens.append(_token(sequence, known))
            elif known < row.hi:
                self.expected.of(row.seq_id, sequence.tokens, row.hi, sequence.request.extras)
        if seq_ids:
            self.expected.continue_many(seq_ids, tokens)

    def _told(self, slots: int, reads: int, wrong: list[Wrong]) -> None:
        self.steps += 1
        self.reads += reads
        self.slots += slots
        new = [found for found in wrong if self._is_new(found)]
        tell_checked(self.manager, slots, reads, new, self.expected, wrong=len(wrong))
        for found in new:
            self.wrong.setdefault(found.seq_id, found)
            if self._on_wrong is not None:
                self._on_wrong(found)

    def _is_new(self, found: Wrong) -> bool:
        known = self.wrong.get(found.seq_id)
        return known is None or (known.position, known.slot) != (found.position, found.slot)


def _token(sequence: EngineSequence, position: int) -> int:
    prompt = sequence.request.prompt
    return prompt[position] if position < len(prompt) else sequence.output[position - len(prompt)]


def owner_of(expected: Expected, found: Wrong) -> tuple[int, int]:
    """Whose prefix a wrong slot holds, and how long that prefix is; (-1, -1) if nobody known has it."""
    return expected.owner(found.found)


__all__ = ["IntArray", "Provenance", "owner_of"]
