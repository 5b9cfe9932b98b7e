"""Who is queued and who runs, in the order of the policy; the scheduler decides who goes from one to the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator

from kvscope.engine import policy
from kvscope.engine.policy import Policy
from kvscope.engine.sequence import Sequence, Status
from kvscope.engine.waiting import make_queue


class Lineup:
    """The queue, and the running sequences in order: the last one gives way first.

    The beams of a request stand side by side among the running. At most one such unit is ever admitted in part;
    what is missing of it comes before all else that is queued.
    """

    def __init__(self, kind: Policy, patience: int) -> None:
        self.policy = kind
        self.waiting = make_queue(kind, patience)
        self.running: list[Sequence] = []
        self.changes = 0  # how often a sequence has joined the running ones, or left them
        self._patience = patience
        self._submitted = 0
        self._queued_beams: dict[int, list[Sequence]] = {}  # by request

    @property
    def has_work(self) -> bool:
        """Whether any sequence is queued or running."""
        return bool(self.running) or len(self.waiting) > 0

    def submit(self, sequence: Sequence) -> None:
        """Queue a new sequence."""
        sequence.number = self._submitted
        self._submitted += 1
        self._enqueue(sequence, new=True)

    def adopt(self, sequence: Sequence) -> None:
        """A forked sequence joins the running ones, behind its siblings."""
        sequence.number = next(
            (s.number for s in reversed(self.running) if s.request is sequence.request), self._submitted
        )
        self._join(sequence)

    def retire(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is."""
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        elif sequence.status is Status.WAITING:
            self._dequeue(sequence)
        sequence.status = Status.FINISHED

    def _candidates(self) -> Generator[Sequence]:
        """The waiting ones in order of admission: first what is missing of a unit that runs in part."""
        if self._queued_beams:
            for request in {id(s.request): s.request for s in self.running if s.request.params.beams}:
                yield from sorted(self._queued_beams.get(request, ()), key=lambda s: s.place)
        yield from self.waiting.walk()

    def _enqueue(self, sequence: Sequence, *, new: bool = False) -> None:
        sequence.status = Status.WAITING
        if new:
            self.waiting.push(sequence)
        else:
            self.waiting.put_back(sequence)
        if sequence.request.params.beams:
            self._queued_beams.setdefault(id(sequence.request), []).append(sequence)

    def _dequeue(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        if sequence.request.params.beams:
            queued = self._queued_beams[id(sequence.request)]
            queued.remove(sequence)
            if not queued:
                del self._queued_beams[id(sequence.request)]

    def _join(self, sequence: Sequence) -> None:
        """Run it: behind all others, or at its place by priority; a beam right behind the others of its request."""
        running, at = self.running, len(self.running)
        if self.policy is Policy.PRIORITY:
            key = self._rank(sequence)
            at = bisect_right(running, key, key=self._rank)
        elif sequence.request.params.beams:
            siblings = [i for i, s in enumerate(running) if s.unit is sequence.unit]
            at = siblings[-1] + 1 if siblings else at
        sequence.status = Status.RUNNING
        running.insert(at, sequence)
        self.changes += 1

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.changes += 1

    def _rank(self, sequence: Sequence) -> tuple[int, int]:
        """The place among the running by priority; equal for the samples or beams of one request."""
        return policy.queue_key(
            self.policy, priority=sequence.request.priority, number=sequence.number, seq_id=0,
            patience=self._patience,
        )[:2]  # fmt: skip
