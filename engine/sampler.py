"""Choosing the next token, so that a seed gives the same text in any company.

The random number for a token depends on (seed, sample, position) alone: a counter-based generator (Philox, Salmon
et al., SC 2011) is keyed with the first two and counts the third. Batch mates, preemption and replay change
nothing.
"""

from __future__ import annotations

import numpy as np
import torch

from kvscope.engine.sequence import SamplingParams, Sequence


def uniform(seed: int, sample: int, position: int) -> float:
    """The number in [0, 1) that decides this token."""
    bits = np.random.Philox(key=np.array([seed, sample], dtype=np.uint64), counter=position)
    return float(np.random.Generator(bits).random())


def sample(logits: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    """One token per row.

    Args:
        logits: [rows, vocab], any float dtype.
        sequences: the sequence of each row; its parameters and length decide.
    """
    greedy = logits.argmax(dim=-1).tolist()
    return [
        best if s.request.params.temperature == 0 else _draw(row, s)
        for best, row, s in zip(greedy, logits, sequences, strict=True)
    ]


def _draw(row: torch.Tensor, sequence: Sequence) -> int:
    params = sequence.request.params
    probabilities, order = _distribution(row.float().cpu(), params)
    number = uniform(params.seed, sequence.sample, sequence.length)
    index = int(torch.searchsorted(probabilities.cumsum(0), number * float(probabilities.sum()), right=True))
    return int(order[min(index, len(order) - 1)])


def _distribution(row: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities that survive top-k and top-p, largest first, and their token ids."""
    values, order = torch.sort(row / params.temperature, descending=True, stable=True)
    if params.top_k:
        values, order = values[: params.top_k], order[: params.top_k]
    probabilities = torch.softmax(values, dim=0)
    if params.top_p < 1.0:
        before = probabilities.cumsum(0) - probabilities
        keep = max(1, int((before < params.top_p).sum()))
        probabilities, order = probabilities[:keep], order[:keep]
    return probabilities, order
