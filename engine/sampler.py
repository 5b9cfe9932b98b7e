"""Choosing the next token, so that a seed gives the same text in any company.

The random number for a token depends on (seed, sample, position) alone: a counter-based generator (Philox, Salmon
et al., SC 2011) is keyed with the first two and counts the third. Batch mates, preemption and replay change
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        best if s.request.params.temperature == 0 else _draw(logits[row], s)
        for row, (best, s) in enumerate(zip(greedy, sequences, strict=True))
    ]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """How likely the model held a token, before temperature and cuts; and which were most likely in its place."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token, log probability), most likely first


def logprobs(
    logits: torch.Tensor, picked: list[int], sequences: list[Sequence], chosen: list[int]
) -> list[TokenLogprobs | None]:
    """Log probabilities of the chosen tokens, for the sequences whose request asked for them.

    Args:
        logits: [rows, vocab]. picked: the row of each sequence. chosen: its token.
    """
    out: list[TokenLogprobs | None] = [None] * len(sequences)
    for i, (row, sequence, token) in enumerate(zip(picked, sequences, chosen, strict=True)):
        count = sequence.request.params.logprobs
        if count is None:
            continue
        all_of_row = torch.log_softmax(logits[row].float(), dim=-1)
        best = all_of_row.topk(count) if count else None
        top = tuple(zip(best.indices.tolist(), best.values.tolist(), strict=True)) if best is not None else ()
        out[i] = TokenLogprobs(float(all_of_row[token]), top)
    return out


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
