"""Runs one step on the device: packs the rows, writes their KV through the tables, attends, returns logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from kvscope import kernels
from kvscope.engine.block_manager import BlockManager
from kvscope.engine.hooks import EngineHook
from kvscope.engine.kvcache import KVCache
from kvscope.engine.model.llama import Attend, Llama
from kvscope.engine.scheduler import StepPlan
from kvscope.kernels.host import HostStep


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One step's rows as tensors; decodes (one position each) first, then prefill chunks.

    tokens, positions, slots: [T] int64. tables: [rows, max_blocks] int32, unused entries 0. seq_lens: [rows]
    int32. query_start: [rows + 1] int32. last: [sampled rows] int64, the T-index of each row's last position.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start: torch.Tensor
    last: torch.Tensor
    decodes: int


class Runner:
    """Holds the model and its KV tensor; one call is one step."""

    def __init__(
        self, model: Llama, cache: KVCache, manager: BlockManager, *, head_dim: int, hooks: Sequence[EngineHook] = ()
    ) -> None:  # fmt: skip
        self.model = model
        self.cache = cache
        self.manager = manager
        self.scale = head_dim**-0.5
        self.window = model.config.window
        self.hooks = hooks
        self.device = str(cache.kv.device)

    def run(self, plan: StepPlan, sampled: list[int]) -> torch.Tensor:
        """Compute the rows of `plan` (decodes first); logits [len(sampled), vocab] of those rows' last positions."""
        inputs = self._pack(plan, sampled)
        for hook in self.hooks:
            hook.before_attention(plan, inputs)
        with torch.inference_mode():
            attend = self._on_host(inputs) if HostStep.fits(self.cache.kv) else self._on_device(inputs)
            logits = self.model.forward(inputs.tokens, inputs.positions, attend, inputs.last)
        for hook in self.hooks:
            hook.beside_attention(plan, inputs)
        return logits

    def _on_host(self, inputs: StepInputs) -> Attend:
        start = inputs.query_start
        return HostStep(
            self.cache.kv, inputs.slots, inputs.tables, inputs.seq_lens, start, self.scale, self.window
        ).attend  # fmt: skip

    def _on_device(self, inputs: StepInputs) -> Attend:
        """Kernels per layer, decodes and prefill apart; also the way of half precision on the CPU."""
        d, count = inputs.decodes, len(inputs.seq_lens)
        prefill_start = inputs.query_start[d:] - inputs.query_start[d]
        kv_heads, window = self.cache.kv.shape[4], self.window
        # One plan serves every layer.
        split = kernels.plan_decode(inputs.seq_lens[:d], kv_heads, window=window) if d else None

        def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            keys, values = self.cache.layer(layer)
            kernels.write_kv(k, v, keys, values, inputs.slots)
            parts = []
            if d:
                rows = (inputs.tables[:d], inputs.seq_lens[:d])
                parts.append(kernels.paged_decode(q[:d], keys, values, *rows, self.scale, plan=split, window=window))
            if d < count:
                rows = (inputs.tables[d:], inputs.seq_lens[d:])
                parts.append(
                    kernels.paged_prefill(q[d:], keys, values, *rows, prefill_start, self.scale, window=window)
                )
            return parts[0] if len(parts) == 1 else torch.cat(parts)

        return attend

    def _pack(self, plan: StepPlan, sampled: list[int]) -> StepInputs:
        rows, size = plan.rows, self.manager.block_size
        batch = None if rows.decodes is None else self.manager.inputs_of(rows.decodes)
        together = rows.decoding if batch is not None else 0  # of these rows all is known as arrays
        others, sequences = rows.others if together else list(rows), plan.sequences[together:]
        tables = [self.manager.table(row.seq_id) for row in others]
        ends = np.array(rows.ends())
        counts = np.ones(len(rows), dtype=np.int64)
        counts[together:] = [row.hi - row.lo for row in others]
        start = np.concatenate([[0], np.cumsum(counts)])
        positions = np.concatenate([ends[:together] - 1, *(np.arange(row.lo, row.hi) for row in others)])
        tokens = [np.asarray(s.tokens[r.lo : r.hi]) for s, r in zip(sequences, others, strict=True)]
        width = max([0 if batch is None else batch[1].shape[1], *map(len, tables)])
        padded = np.zeros((len(rows), width), dtype=np.int32)
        if batch is not None:
            tokens.insert(0, batch[0])
            padded[:together, : batch[1].shape[1]] = batch[1]
        for i, table in enumerate(tables, together):
            padded[i, : len(table)] = table
        np.maximum(padded, 0, out=padded)  # behind a window an entry is NULL: any block will do, none is read
        row_of = np.repeat(np.arange(len(rows)), counts)
        slots = padded[row_of, positions // size].astype(np.int64) * size + positions % size
        decodes = next(
            (i for i in range(together, len(rows)) if counts[i] > 1 or plan.sequences[i].prefilling), len(rows)
        )
        return StepInputs(
            tokens=self._tensor(np.concatenate(tokens), torch.int64),
            positions=self._tensor(positions, torch.int64),
            slots=self._tensor(slots, torch.int64),
            tables=self._tensor(padded, torch.int32),
            seq_lens=self._tensor(ends, torch.int32),
            query_start=self._tensor(start, torch.int32),
            last=self._tensor(start[1:][sampled] - 1, torch.int64),
            decodes=decodes,
        )

    def _tensor(self, array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype).to(self.device)
