"""Beam search: which continuations of a request live on, and which become its answers.

The rules are those of transformers 5.24 with early_stopping=False, so the tokens are the same:

    candidates    the best beams * max(2, 1 + end tokens) continuations of all beams, by summed log-probability
    finished      of the best `beams` candidates those that end here; kept by score = sum / length ** length_penalty
    running       the best `beams` candidates that do not end here
    over          when nothing runs on, or `beams` answers are kept and the best running beam, scored at its present
                  length, is no better than the worst of them

A difference: a candidate that ends outside the best `beams` is dropped for good; transformers would run it on with a
score of -1e9 where too few others are left, which stop strings alone can bring about.

This module chooses; the engine turns the choice into block tables. Beams that continue the same parent are forks of
it (blocks shared, a partial tail copied on the next write), a parent's last child takes its table over, and a parent
without children gives its blocks back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kvscope.engine.sequence import Request, Sequence
from kvscope.traces.schema import Reason


@dataclass(frozen=True, slots=True)
class Candidate:
    """One continuation: `token` behind the beam of rank `parent`; `score` sums all log-probabilities."""

    parent: int
    token: int
    score: float


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An answer: its tokens, the beam that found it, its score under the length penalty, and why it ends."""

    tokens: list[int]
    seq_id: int
    score: float
    finish: Reason


def best_candidates(logits: torch.Tensor, scores: list[float], count: int) -> list[Candidate]:
    """The `count` best continuations of all beams, best first; fewer where there are not so many.

    Args:
        logits: [beams, vocab], any float dtype.
        scores: summed log-probability of each beam.
    """
    vocab = logits.shape[-1]
    total = torch.log_softmax(logits.float(), dim=-1)
    total = (total + torch.tensor(scores, dtype=torch.float32, device=total.device)[:, None]).flatten()
    values, places = torch.topk(total, min(count, len(total)))
    return [
        Candidate(place // vocab, place % vocab, value)
        for value, place in zip(values.tolist(), places.tolist(), strict=True)
    ]


def heirs(chosen: list[Candidate], beams: int) -> list[list[int]]:
    """Per parent rank: the ranks of its children among the chosen."""
    children: list[list[int]] = [[] for _ in range(beams)]
    for rank, candidate in enumerate(chosen):
        children[candidate.parent].append(rank)
    return children


class BeamGroup:
    """The running beams of one request, best first, and the answers found so far.

    A beam whose logits are there waits (`Sequence.waits`, nothing is scheduled for it) until those of all others are,
    and their KV: candidates are compared over all beams at once. A preempted beam is computed again first.
    """

    def __init__(self, lead: Sequence) -> None:
        self.request: Request = lead.request
        self.beams: list[Sequence] = [lead]
        self.scores: list[float] = [0.0]
        self.answers: list[Hypothesis] = []  # best first
        self.born = 1  # sequences so far; numbers the next one
        self._logits: dict[int, torch.Tensor] = {}  # by seq_id, [vocab]

    @property
    def ready(self) -> bool:
        """Whether all beams wait, so that candidates can be chosen."""
        return all(beam.waits for beam in self.beams)

    def take(self, beam: Sequence, logits: torch.Tensor) -> None:
        """The logits [vocab] behind a beam's last token; it waits from now on."""
        self._logits[beam.seq_id] = logits
        beam.waits = True

    def choose(self, end_tokens: int, ends: Callable[[list[int]], Reason]) -> list[Candidate]:
        """The continuations that run on, best first; none when the search is over. Answers are kept on the way.

        Args:
            end_tokens: how many end-of-sequence tokens there are.
            ends: why an output ends with its last token, `NONE` where it does not.
        """
        params = self.request.params
        width, length = params.beams, len(self.beams[0].output) + 1
        logits = torch.stack([self._logits[beam.seq_id] for beam in self.beams])
        norm = float(length) ** params.length_penalty
        running: list[Candidate] = []
        found = best_candidates(logits, self.scores, width * max(2, 1 + end_tokens))
        for rank, candidate in enumerate(found):
            parent = self.beams[candidate.parent]
            output = [*parent.output, candidate.token]
            finish = ends(output)
            if finish is Reason.NONE:
                running.append(candidate)
            elif rank < width:
                self.answers.append(Hypothesis(output, parent.seq_id, candidate.score / norm, finish))
        self.answers = sorted(self.answers, key=lambda answer: -answer.score)[:width]
        if not running or (len(self.answers) == width and running[0].score / norm <= self.answers[-1].score):
            return []
        return running[:width]

    def advance(self, beams: list[Sequence], chosen: list[Candidate]) -> None:
        """These beams, which have taken their new tokens, are the group now."""
        self.beams, self.scores = beams, [candidate.score for candidate in chosen]
        self._logits.clear()
        for beam in beams:
            beam.waits = False
