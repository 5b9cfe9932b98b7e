"""Choosing the next token, so that a seed gives the same text in any company.

The random number for a token depends on (seed, sample, position) alone: a counter-based generator (Philox, Salmon
et al., SC 2011) is keyed with the first two and counts the third. Batch mates, preemption and replay change
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from kvscope.engine.sequence import Sequence

HEAD = 512  # tokens that are looked at before the whole vocabulary is sorted
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


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
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    drawn = [row for row, s in enumerate(sequences) if s.request.params.temperature != 0]
    if drawn:
        warmth = torch.tensor([sequences[row].request.params.temperature for row in drawn], device=logits.device)
        scaled = logits[drawn].float() / warmth[:, None]
        for row, token in zip(drawn, _draw(scaled, [sequences[row] for row in drawn]), strict=True):
            chosen[row] = token
    return chosen


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


def _draw(scaled: torch.Tensor, sequences: list[Sequence]) -> list[int]:
    """A token for each row [rows, vocab] of logits over their temperature.

    Nearly always it is among the likeliest, and of the others only their weight together is asked: to sort a whole
    vocabulary takes as long as a layer of a small model, and is done only where that does not decide it.
    """
    count = min(HEAD, scaled.shape[1])
    values, order = scaled.topk(count)
    weight = (scaled - values[:, :1]).exp_().sum(dim=-1, dtype=torch.float64)
    heads = zip(values.double().cpu().numpy(), order.cpu().numpy(), weight.tolist(), strict=True)
    out = []
    for row, (sequence, (likeliest, tokens, total)) in enumerate(zip(sequences, heads, strict=True)):
        by_token = np.lexsort((tokens, -likeliest))  # among equals the first
        token = _pick(likeliest[by_token], tokens[by_token], total, sequence, whole=count == scaled.shape[1])
        if token is None:
            all_values, all_tokens = torch.sort(scaled[row].cpu(), descending=True, stable=True)
            token = _pick(all_values.double().numpy(), all_tokens.numpy(), total, sequence, whole=True)
            assert token is not None, "the whole vocabulary leaves nothing undecided"
        out.append(token)
    return out


def _pick(values: Floats, tokens: Ints, total: float, sequence: Sequence, *, whole: bool) -> int | None:
    """The token of this place of the sequence; None where the likeliest do not decide it.

    Args:
        values: logits over temperature, largest first. tokens: theirs. total: sum over the vocabulary of the weights,
            of which the largest is 1. whole: these are all that there are.
    """
    params = sequence.request.params
    with np.errstate(invalid="ignore"):  # a row of NaN or of -inf has no likeliest token: any will do
        weights = np.exp(values - values[0])
    if params.top_k:
        if params.top_k > len(weights) and not whole:
            return None
        weights = weights[: params.top_k]
        total = float(weights.sum())
    up_to, decided = weights.cumsum(), whole or params.top_k > 0
    if params.top_p < 1.0:
        keep = max(1, int((up_to - weights < params.top_p * total).sum()))
        if keep == len(weights) and not decided:
            return None
        decided = True
        up_to, total = up_to[:keep], float(up_to[keep - 1])
    index = int(np.searchsorted(up_to, uniform(params.seed, sequence.sample, sequence.length) * total, side="right"))
    index = min(index, len(up_to) - 1) if decided else index
    # As likely as the last of them may be others, which are not here and come before it.
    undecided = not whole and (index >= len(up_to) or values[index] == values[-1])
    return None if undecided else int(tokens[index])
