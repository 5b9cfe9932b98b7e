"""The process in which a target runs: it may hang, print, exit or break what is around it without hurting anyone.

Started by `sandbox.run` with a job; speaks JSON lines on a pipe of its own: `loaded`, `beat` while it works, and one
`result`. A beat says which call has not returned and where the target stands, so that a hang can be told.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from types import FrameType
from typing import Any

from kvscope.errors import KVScopeError
from kvscope.inspector.fuzz.answers import message_of
from kvscope.inspector.fuzz.database import Database
from kvscope.inspector.fuzz.harness import WATCH, words
from kvscope.inspector.fuzz.hunt import Failure, hunt, replay
from kvscope.inspector.fuzz.machine import Tally
from kvscope.inspector.fuzz.protocol import OPTIONAL, Factory, Sizes, Violation, build, offers
from kvscope.inspector.fuzz.report import BEAT_S, Finding, Job
from kvscope.inspector.fuzz.surroundings import check_apart, check_unchanged, surroundings
from kvscope.inspector.fuzz.target import load_target

ALONE = 0.25  # of the time goes to one thread, when there are more
EXAMPLES = 10**9  # the time ends a run, not this


class Worker:
    """One job from start to end.

    Args:
        job: what to do. pipe: file descriptor to speak on.
    """

    def __init__(self, job: Job, pipe: int) -> None:
        self.job, self.tally = job, Tally()
        self.notes: list[str] = []
        self._pipe, self._lock = pipe, threading.Lock()
        self._main = threading.get_ident()

    def run(self) -> None:
        """Do the job and tell its result; an unusable target is a result, too."""
        threading.Thread(target=self._beats, daemon=True).start()
        try:
            result = self._work()
        except KVScopeError as error:
            result = {"unusable": message_of(error)}
        except Violation as violation:  # outside a program: in the very first calls
            result = {"unusable": f"the first calls on a new allocator fail: {violation}"}
        self._say("result", **result, examples=self.tally.examples, calls=self.tally.calls, rules=self.tally.rules)

    def _work(self) -> dict[str, Any]:
        factory = load_target(self.job.target)
        sys.stdout.flush()
        os.truncate(1, 0)  # what an import prints is not the allocator's doing
        check_apart(factory)
        sizes = Sizes.of(factory)
        target = build(factory, min(sizes.pools), min(sizes.blocks))
        missing = [name for name in OPTIONAL if not offers(target, name)]
        self._say("loaded", missing=missing)
        before = surroundings()
        finding = None if self.job.replay else self._hunt(factory)
        if finding is None and (self.job.threads > 1 or self.job.replay):
            finding = self._race(factory)
        if finding is None:
            check_unchanged(before, "the target")
        sys.stdout.flush()
        return {"finding": finding and asdict(finding), "missing": missing, "notes": self.notes}

    def _hunt(self, factory: Factory) -> Finding | None:
        database = Database(self.job.database, self.job.target)
        if (failure := replay(factory, database.programs())) is not None:
            database.keep(failure.program)
            return self._finding(failure, True)
        database.clear()  # what is in it passes now
        failure = hunt(
            factory, examples=EXAMPLES, seed_value=self.job.seed, shrink_seconds=self.job.shrink_seconds,
            seconds=self.job.seconds * (ALONE if self.job.threads > 1 else 1), tally=self.tally,
        )  # fmt: skip
        if failure is None:
            return None
        database.keep(failure.program)
        return self._finding(failure, False)

    def _race(self, factory: Factory) -> Finding | None:
        """The same with threads: for the rest of the time, or one interleaving again."""
        from kvscope.inspector.races import explore_allocator

        def count(programs: int, schedules: int, _seconds: float) -> None:
            self.tally.examples, self.tally.calls = first[0] + programs, first[1] + schedules

        first = self.tally.examples, self.tally.calls
        outcome = explore_allocator(
            factory, threads=self.job.threads, seconds=self.job.seconds * (1 - ALONE), seed=self.job.seed,
            replay=self.job.replay, on_progress=count,
        )  # fmt: skip
        self.tally.examples, self.tally.calls = first
        if outcome.outcome is None or outcome.outcome.failure is None:
            self.notes.append(outcome.text())
            return None
        failure = outcome.outcome.failure
        source = "\n".join([
            "def test_race() -> None:",
            "    from kvscope.inspector.fuzz import load_target",
            "    from kvscope.inspector.races import explore_allocator",
            f"    factory = load_target({self.job.target!r})",
            f"    outcome = explore_allocator(factory, replay={outcome.replay!r})",
            "    assert not outcome.found, outcome.text()",
        ])  # fmt: skip
        code = failure.code or "race"
        why = failure.message if failure.kind == "violation" else f"{failure.kind}: {failure.message}"
        return Finding(code, why, source, outcome.outcome.switches, False,
                       outcome.replay, outcome.text(100))  # fmt: skip

    def _finding(self, failure: Failure, known: bool) -> Finding:
        program = failure.program.source(self.job.target, failure.violation)
        return Finding(failure.code, failure.violation.why, program, len(failure.program.calls), known)

    def _beats(self) -> None:
        while True:
            time.sleep(BEAT_S)
            call = WATCH.call
            self._say(
                "beat", answered=WATCH.answered, call=call and words(*call), where=self._where() if call else "",
                before=[words(*c) for c in list(WATCH.calls)[-8:]], examples=self.tally.examples,
                calls=self.tally.calls,
            )  # fmt: skip

    def _where(self) -> str:
        frame: FrameType | None = sys._current_frames().get(self._main)
        return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""

    def _say(self, kind: str, **members: Any) -> None:
        with self._lock:
            os.write(self._pipe, (json.dumps({"kind": kind, **members}, default=str) + "\n").encode())


def main() -> None:
    """Entry point of the process: the job as JSON, the descriptor of the pipe."""
    job, pipe = Job(**json.loads(sys.argv[1])), int(sys.argv[2])
    Worker(job, pipe).run()
    os._exit(0)  # threads that the target left behind do not hold the process


if __name__ == "__main__":
    main()
