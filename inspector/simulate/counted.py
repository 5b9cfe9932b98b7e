"""The scheduler's policy over counts: from one event to the next, without a token or a block id.

The policy is that of `kvscope.engine.scheduler`, rule by rule: running sequences first, oldest first; the newest gives
way when there is no room; then prefill chunks in order; then the queue, head first, above the watermark. Every
decoding sequence gains one token per step, so the step at which it fills its room, or ends, is known when it starts
to decode. In between only the clock and the filled slots move, and those are closed sums.

Nothing is shared here: samples are sequences of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvscope.engine.baselines import Growth, Region, Space
from kvscope.errors import UsageError
from kvscope.inspector.simulate.paged import admissible
from kvscope.inspector.simulate.settings import Settings
from kvscope.inspector.simulate.tally import Tally
from kvscope.inspector.simulate.waiting import NEVER, Waiting
from kvscope.inspector.workloads import WorkRequest

_LATE = 1 << 100
OnFinish = Callable[[int], None]


class CountedRun:
    """One workload on one space.

    Args:
        requests: in order of arrival.
        space: the allocator, empty.
        settings: limits, policy and times.
        on_finish: called now and then with the number of sequences that are done.
    """

    def __init__(
        self, requests: list[WorkRequest], space: Space, settings: Settings, on_finish: OnFinish | None = None
    ) -> None:
        if settings.max_batched_tokens < settings.max_seqs:
            raise UsageError("counting needs max_batched_tokens of at least max_seqs, so that every sequence decodes")
        self.space = space
        self.settings = settings
        self.tally = Tally()
        self.clock = 0
        self._requests = requests
        self._next = 0
        self._next_arrival = self._arrival(0)
        self._on_finish = on_finish
        self._step = 0
        self._waiting: deque[Waiting] = deque()
        self._running: dict[Waiting, None] = {}  # oldest first
        self._prefilling: list[Waiting] = []
        self._grow_at: dict[int, list[Waiting]] = {}
        self._finish_at: dict[int, list[Waiting]] = {}
        self._decoders = 0
        self._written = 0  # positions of the decoding sequences
        self._started = 0  # positions of the prefilling ones
        self._order = 0
        self._stuck = False  # the head of the queue cannot be admitted before something changes
        self._for_memory = False  # ... because there is no room
        self._wanted = 0  # blocks it would need, the watermark included
        self._holes: float | None = None
        self._extra = 0  # time that the copies of the step take
        self._saved = 0  # table entries that sharing saves
        self._reserve = 0 if space.name == "reserved" else int(settings.watermark * space.num_blocks)

    def run(self, stop: Callable[[], bool]) -> Tally:
        """Run to the end; returns what was added up.

        Raises:
            KeyboardInterrupt: `stop` said so, between two steps.
        """
        idle = 0
        while True:
            if self.clock >= self._next_arrival:
                self._arrive()
            if stop():
                raise KeyboardInterrupt
            if not self._running and not self._waiting:
                if self._next == len(self._requests):
                    return self.tally
                self.clock = self._next_arrival
                continue
            preempted = self._grow_due() if self._step in self._grow_at else False
            quiet = self._decoders and not self._prefilling and (self._stuck or not self._waiting)
            if quiet and not preempted and self._step not in self._finish_at:
                self._glide()
                idle = 0
                continue
            idle = 0 if self._do_step(preempted) else idle + 1
            if idle > 2:
                raise UsageError("the simulation stands still: a queued request can never be admitted")

    # -- arrivals -------------------------------------------------------------------------------------------------

    def _arrival(self, number: int) -> int:
        if number == len(self._requests):
            return _LATE
        return 0 if self.settings.at_once else self._requests[number].arrival_ns * 1000

    def _arrive(self) -> None:
        while self._next_arrival <= self.clock:
            number, arrival = self._next, self._next_arrival
            self._next += 1
            self._next_arrival = self._arrival(self._next)
            request = self._requests[number]
            output = admissible(request, self.settings, self.space.could_hold, self.tally)
            for _ in range(request.samples if output else 0):
                self._waiting.append(Waiting(number, arrival, request.prompt, output))

    # -- steps ----------------------------------------------------------------------------------------------------

    def _glide(self) -> None:
        """Steps in which nothing happens but that every sequence gains a token: up to the next event or arrival."""
        last, grow_at, finish_at = self._step + 1, self._grow_at, self._finish_at
        while last not in grow_at and last not in finish_at:
            last += 1
        steps, extra = last - self._step, self._extra
        time, filled = self._sums(steps)
        gap = self._next_arrival - self.clock - extra
        if time > gap:
            steps = self._steps_until(gap, steps)
            time, filled = self._sums(steps)
        if extra:  # copies lengthen the first step
            time, filled = time + extra, filled + extra * (self._written + self._decoders)
            self._extra = 0
        self._account(time, steps, filled, self.settings.max_batched_tokens > self._decoders, False)
        self._written += steps * self._decoders
        self._step += steps
        self.clock += time

    def _sums(self, steps: int) -> tuple[int, int]:
        """Time of the next `steps` steps, and slots * time: sums over f(i) = written + i * decoders, i = 1..steps."""
        base, live = self.settings.service.base, self.settings.service.live
        w, d, k = self._written, self._decoders, steps
        linear = k * w + d * (k * (k + 1) // 2)
        square = k * w * w + w * d * (k * (k + 1)) + d * d * (k * (k + 1) * (2 * k + 1) // 6)
        return k * base + live * linear, base * linear + live * square

    def _steps_until(self, gap: int, most: int) -> int:
        """The fewest steps that take at least `gap`."""
        low, high = 1, most
        while low < high:
            middle = (low + high) // 2
            if self._sums(middle)[0] >= gap:
                high = middle
            else:
                low = middle + 1
        return low

    def _do_step(self, preempted: bool) -> bool:
        """One step with all its rules, after growth; False when there was nothing to compute."""
        service = self.settings.service
        self._written += self._decoders
        budget, live = self._chunks(self.settings.max_batched_tokens - self._decoders)
        if self._waiting and not preempted and not self._stuck:
            budget, live = self._admit(budget, live)
        prefill = self.settings.max_batched_tokens - self._decoders - budget
        if not self._decoders and not prefill:
            return False
        time = service.base + service.prefill * prefill + service.live * (live + self._written) + self._extra
        self._extra = 0
        self._account(time, 1, time * (self._written + self._started), preempted or budget > 0, preempted)
        self.clock += time
        self._complete()
        self._step += 1
        return True

    def _account(self, time: int, steps: int, filled: int, looked: bool, preempted: bool) -> None:
        """Add steps up, between which nothing but filled slots changes; `looked`: the queue was looked at."""
        waits = preempted or (self._stuck and self._for_memory and looked)
        space, holes = self.space, self._holes
        if holes is None:
            holes = self._holes = space.external_fragmentation()
        held, saved = space.num_blocks - space.free, self._saved
        if saved:
            filled -= time * saved * space.block_size  # a shared block is full, and filled once
        self.tally.add(time, steps, len(self._running), held, filled, held + saved, holes, waits,
                       waits and not preempted and space.free >= self._wanted)  # fmt: skip

    # -- decoding -------------------------------------------------------------------------------------------------

    def _grow_due(self) -> bool:
        """Make room for the sequences whose room is full; True when one had to give way."""
        due = self._grow_at.pop(self._step)
        preempted, step = False, self._step
        for sequence in sorted(due, key=lambda s: s.order) if len(due) > 1 else due:
            while sequence.grow_step == step:
                assert sequence.region is not None
                growth = self.space.grow(sequence.region, step + sequence.offset)
                if growth is Growth.REFUSED:
                    preempted = True
                    self._preempt(next(reversed(self._running)))
                    continue
                if growth is Growth.MOVED:
                    self.tally.copies += 1
                    self.tally.copied += step - 1 + sequence.offset
                    self._extra += self.settings.service.copy * (step - 1 + sequence.offset)
                    self._stuck = False
                self._plan_growth(sequence)
        self._holes = None
        return preempted

    def _plan_growth(self, sequence: Waiting) -> None:
        assert sequence.region is not None
        step = self.space.capacity(sequence.region) + 1 - sequence.offset
        sequence.grow_step = NEVER
        if step <= sequence.finish_step:
            sequence.grow_step = step
            self._grow_at.setdefault(step, []).append(sequence)

    def _preempt(self, sequence: Waiting) -> None:
        """The sequence gives its room up and goes to the head of the queue."""
        if sequence.decoding:
            issued = self._step - 1 + sequence.offset
            self._written -= issued
            self._decoders -= 1
            sequence.length, sequence.left = issued + 1, sequence.finish_step - self._step + 1
            self._finish_at[sequence.finish_step].remove(sequence)
            if not self._finish_at[sequence.finish_step]:
                del self._finish_at[sequence.finish_step]
        else:
            issued = sequence.computed
            self._started -= issued
            self._prefilling.remove(sequence)
        self._leave(sequence, issued)
        sequence.decoding, sequence.computed, sequence.grow_step = False, 0, NEVER
        self._waiting.appendleft(sequence)
        self.tally.preemptions += 1
        self.tally.recomputed += issued

    # -- prefilling -----------------------------------------------------------------------------------------------

    def _chunks(self, budget: int) -> tuple[int, int]:
        """Prompt chunks of the running sequences; returns what is left of the budget, and the tokens attended to."""
        live = 0
        for sequence in self._prefilling:
            if budget <= 0:
                break
            budget = self._chunk(sequence, budget)
            live += sequence.computed
        return budget, live

    def _chunk(self, sequence: Waiting, budget: int) -> int:
        count = min(sequence.length - sequence.computed, budget)
        sequence.computed += count
        self._started += count
        return budget - count

    def _admit(self, budget: int, live: int) -> tuple[int, int]:
        """Admit the queue in order, as far as the budget, the sequence limit and the memory go."""
        space = self.space
        while self._waiting and budget > 0:
            sequence = self._waiting[0]
            if len(self._running) >= self.settings.max_seqs:
                self._stuck, self._for_memory = True, False
                break
            self._wanted = space.size_for(sequence.length) + (self._reserve if self._running else 0)
            region = space.open(sequence.length) if self._wanted <= space.free else None
            if region is None:
                self._stuck = self._for_memory = True
                break
            self._waiting.popleft()
            self._start(sequence, region)
            budget = self._chunk(sequence, budget)
            live += sequence.computed
        return budget, live

    def _start(self, sequence: Waiting, region: Region) -> None:
        self._running[sequence] = None
        self._prefilling.append(sequence)
        if sequence.order == NEVER:  # its first admission
            self.tally.prompt_tokens += sequence.length
            self.tally.prompt_blocks += -(-sequence.length // self.space.block_size)
        sequence.region, sequence.order, self._order = region, self._order, self._order + 1
        self._holes = None

    # -- ends -----------------------------------------------------------------------------------------------------

    def _complete(self) -> None:
        """After a step: who has all its tokens ends, who has its prompt computed starts to decode."""
        for sequence in self._finish_at.pop(self._step, ()):
            issued = self._step + sequence.offset
            self._written -= issued
            self._decoders -= 1
            self._finish(sequence, issued)
        if not self._prefilling:
            return
        for sequence in [s for s in self._prefilling if s.computed == s.length]:
            self._prefilling.remove(sequence)
            self._started -= sequence.computed
            if sequence.first:
                sequence.first = False
                self.tally.waits.append(self.clock - sequence.arrival)
            sequence.left -= 1
            if not sequence.left:
                self._finish(sequence, sequence.computed)
                continue
            sequence.decoding = True
            sequence.offset = sequence.length - self._step
            sequence.finish_step = self._step + sequence.left
            self._decoders += 1
            self._written += sequence.computed
            self._finish_at.setdefault(sequence.finish_step, []).append(sequence)
            self._plan_growth(sequence)

    def _finish(self, sequence: Waiting, issued: int) -> None:
        assert sequence.region is not None
        self.tally.finish(issued, sequence.region.blocks, sequence.output)
        self._leave(sequence, issued)
        sequence.keys = None
        if self._on_finish is not None and self.tally.finished % 64 == 0:
            self._on_finish(self.tally.finished)

    def _leave(self, sequence: Waiting, issued: int) -> None:
        assert sequence.region is not None
        self.space.close(sequence.region)
        self._gone(sequence)

    def _gone(self, sequence: Waiting) -> None:
        sequence.region = None
        del self._running[sequence]
        self._stuck, self._holes = False, None
