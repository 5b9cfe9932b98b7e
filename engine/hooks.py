"""What the rooms above may watch in a running engine: the places where the device is given work, and where it is done.

A step passes them in this order; a hook that is absent costs one look at an empty list.

    on_swap            transfers to and from the host tier are queued
    on_begin           the step's rows and tables are fixed; nothing of it is on the device yet
    on_copy            block copies are queued, all layers
    before_attention   slots, tables and lengths as the device gets them: the step's KV is written, then it attends
    beside_attention   all of that is queued: the host is free while the device computes
    on_step            the step has completed; its tokens are not chosen yet
    on_resize          between steps: the pool has another size, `moved` blocks were copied to where they are now
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from kvscope.engine.host_tier import Swap
    from kvscope.engine.runner import StepInputs
    from kvscope.engine.scheduler import StepPlan
    from kvscope.engine.tables import Copy


class EngineHook:
    """Does nothing at each of these places; a hook overrides what it wants. What it raises ends the step."""

    def on_swap(self, swaps: Sequence[Swap]) -> None:
        """These transfers come before everything that is queued from now on."""

    def on_begin(self, plan: StepPlan) -> None:
        """The step has begun: its blocks are reserved, its copies decided."""

    def on_copy(self, copies: Sequence[Copy]) -> None:
        """These copies come before the writes of the step, in this order."""

    def before_attention(self, plan: StepPlan, inputs: StepInputs) -> None:
        """The step is about to write the slots of `inputs`, then to attend through its tables."""

    def beside_attention(self, plan: StepPlan, inputs: StepInputs) -> None:
        """The work of the step is queued and nobody waits for it yet: a GPU computes meanwhile."""

    def on_step(self, plan: StepPlan, logits: torch.Tensor) -> None:
        """The step has completed: `logits` are those of its sampled rows, in order."""

    def on_resize(self, num_blocks: int, moved: Sequence[Copy]) -> None:
        """The pool has `num_blocks` blocks from now on; its memory may be another tensor."""
