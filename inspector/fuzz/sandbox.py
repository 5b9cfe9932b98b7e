"""Runs a fuzz job in a process of its own and watches it: whatever the target does, the answer comes in time."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any

from kvscope.inspector.fuzz.answers import printable
from kvscope.inspector.fuzz.report import BEAT_S, Finding, Job, Report

LOAD_S = 60.0  # an import, and the first allocators, may take this long even when a run is short
SILENCE_S = 15.0
GRACE_S = 10.0  # what a run may take beyond its time before it is ended from outside
Message = dict[str, Any]
Progress = Callable[[int, int, float], None]


def run(job: Job, progress: Progress | None = None) -> Report:
    """Do a job; the report is there at the latest when the time for it, and for making a finding short, is over.

    Args:
        progress: called with examples, calls and seconds while it goes on.
    """
    report, started = Report(job), time.monotonic()
    with tempfile.TemporaryFile("a+b") as output, tempfile.TemporaryFile("a+b") as errors:
        ears, mouth = os.pipe()
        command = [sys.executable, "-m", "kvscope.inspector.fuzz.worker", json.dumps(asdict(job)), str(mouth)]
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, pass_fds=[mouth], start_new_session=True
        )
        os.close(mouth)
        try:
            _listen(child, ears, job, report, progress)
        finally:
            with suppress(ProcessLookupError):  # with all that the target may have started
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            os.close(ears)
        if not report.unusable:
            _check_output(report, output)
        if report.unusable and report.unusable.startswith("its process"):
            report.notes += _last_lines(errors)
    report.elapsed_s = time.monotonic() - started
    return report


def _listen(child: subprocess.Popen[bytes], ears: int, job: Job, report: Report, progress: Progress | None) -> None:
    """Take in what the worker says until its result, its end, a hang, or the end of the time."""
    started = heard = time.monotonic()
    loaded, still, last = False, 0, Message()  # beats for which nothing has moved
    for message in _messages(ears):
        now = time.monotonic()
        if message is not None and message["kind"] == "end":
            report.unusable = _died(child, last)
            return
        if message is not None and message["kind"] == "result":
            _take(message, report)
            return
        if message is not None and message["kind"] == "loaded":
            loaded, started = True, now
        elif message is not None:
            same = message["call"] and message["answered"] == last.get("answered")
            still, last, heard = still + 1 if same else 0, message, now
            report.examples, report.calls = message["examples"], message["calls"]
            if progress is not None:
                progress(report.examples, report.calls, now - started)
        limit = job.seconds + job.shrink_seconds + GRACE_S if loaded else max(LOAD_S, job.seconds)
        # Beats are counted, not seconds: a process that gets no time does not beat either.
        if still * BEAT_S > job.hang_seconds:
            report.unusable = _hangs(last, f"did not return within {job.hang_seconds:g} s")
            return
        if last and now - heard > job.hang_seconds + SILENCE_S:  # a call into C that keeps all threads waiting
            report.unusable = _hangs(last, f"has let no other thread run for {now - heard:.0f} s")
            return
        if now - started > limit:
            what = "the target is not done" if loaded else "importing the target is not done"
            report.unusable = f"{what} after {limit:g} s: raise --seconds, or see what it waits for"
            return


def _messages(ears: int) -> Iterator[Message | None]:
    """What the worker says, None when it has said nothing for a while; `end` when it never will again."""
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(ears, selectors.EVENT_READ)
        while True:
            if not selector.select(0.25):
                yield None
                continue
            data = os.read(ears, 1 << 16)
            if not data:
                yield {"kind": "end"}
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                try:
                    yield json.loads(line)
                except ValueError:  # the target wrote into a descriptor that is not its own
                    continue


def _take(message: Message, report: Report) -> None:
    report.unusable = message.get("unusable")
    report.examples, report.calls, report.rules = message["examples"], message["calls"], message["rules"]
    report.missing = message.get("missing", [])
    if message.get("finding"):
        report.finding = Finding(**message["finding"])
    report.notes += message.get("notes", [])


def _died(child: subprocess.Popen[bytes], last: Message) -> str:
    code = child.wait()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    call = last.get("call")
    return f"its process {how}{f' in {call}' if call else ''}: an allocator must return or raise"


def _hangs(last: Message, how: str) -> str:
    before = [call for call in last.get("before", []) if call != last.get("call")]
    after = f", after {'; '.join(before)}" if before else ""
    where = f" (it is at {last['where']})" if last.get("where") else ""
    return f"{last.get('call') or 'the target'} {how}{where}{after}"


def _check_output(report: Report, output: IO[bytes]) -> None:
    """A target that prints: told, and refused unless that is allowed; a finding is worth more than that."""
    output.seek(0)
    printed = output.read(4096).decode(errors="replace").strip()
    if printed:
        words = f"the target prints to standard output ({printed.splitlines()[0]!r:.60})"
        if report.finding is None and not report.job.allow_output:
            report.unusable = f"{words}: silence it, or give --allow-output"
        else:
            report.notes.append(words)


def _last_lines(errors: IO[bytes], most: int = 3) -> list[str]:
    errors.seek(0)
    return [printable(line) for line in errors.read()[-4096:].decode(errors="replace").strip().splitlines()[-most:]]
