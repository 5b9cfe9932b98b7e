"""The engine's thread: it alone touches the engine; everybody else sends it commands and awaits what comes back.

    clients --submit, abort--> inbox --> [ engine thread: commands, then one step ] --tokens--> each client's Stream

A step never waits for a client: tokens are handed to the client's event loop, which queues them there. What one step
produced for a request arrives together. When a step fails, its requests fail with that error and the loop goes on
refusing: an engine whose step broke half-way has tables that nobody should trust.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial

from kvscope.engine.engine import Engine, Token
from kvscope.engine.sequence import SamplingParams, Sequence
from kvscope.engine.server.asked import Observer
from kvscope.engine.server.timing import Timing
from kvscope.errors import Busy, EngineFailed, KVScopeError
from kvscope.traces.schema import Reason

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Submit:
    prompt: list[int]
    params: SamplingParams
    user: str
    text: str | None
    stream: Stream
    accepted: Future[int] = field(default_factory=Future)


@dataclass(slots=True)
class _Abort:
    request_id: int


@dataclass(slots=True)
class _Call:
    work: Callable[[Engine], object]
    done: Future[object] = field(default_factory=Future)


class _Stop:
    pass


class Stream:
    """The tokens of one request as they come: an async iterator over lists of tokens, ended by the last sample's end.

    Leave it with `EngineLoop.release`, however it ends: that aborts what is unfinished.
    """

    def __init__(self, samples: int) -> None:
        self.request_id = -1
        self.seq = -1  # trace event from which on the request is to be found; -1 without a trace
        self.open = samples  # answers that have not ended
        self.sequence: Sequence | None = None  # its first one, for what the scheduler says of it
        self.asked_at = time.monotonic()
        self.last_at = 0.0  # when its newest tokens came; engine thread only
        self._arrived: asyncio.Queue[list[Token] | BaseException] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()

    def put(self, item: list[Token] | BaseException) -> None:
        """Hand something over, from any thread; never blocks, and a client that is gone does not matter."""
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, item)
        except RuntimeError:  # its event loop has been closed
            log.debug("request %d: the client's event loop is gone", self.request_id)

    async def __aiter__(self) -> AsyncIterator[list[Token]]:
        while self.open > 0:
            item = await self._arrived.get()
            if isinstance(item, BaseException):
                raise item
            self.open -= sum(token.finish is not Reason.NONE for token in item)
            yield item


class EngineLoop:
    """Runs an engine in a thread of its own.

    Args:
        engine: nobody else may touch it while the loop runs; see `call`.
        max_requests: requests queued and running at once; more are refused with `Busy`.
        before_step, on_step: called in the engine thread around every step, for hooks of the rooms above.
        on_failed: called in the engine thread once, with what ended the serving; its requests have been told.
    """

    def __init__(
        self, engine: Engine, *, max_requests: int = 256, before_step: Callable[[], None] | None = None,
        on_step: Callable[[], None] | None = None, on_failed: Callable[[Exception], None] | None = None,
    ) -> None:  # fmt: skip
        self.engine = engine
        self.max_requests = max_requests
        self.started = time.time()
        self.served = 0
        self.tokens = 0  # generated so far
        self.timing = Timing()
        self.failed: str | None = None  # why it no longer serves
        self.observer: Observer | None = None  # is told what clients ask for
        self._on_failed = on_failed
        self._before_step, self._on_step = before_step, on_step
        self._inbox: queue.SimpleQueue[_Submit | _Abort | _Call | _Stop] = queue.SimpleQueue()
        self._streams: dict[int, Stream] = {}  # engine thread only
        self._places = threading.BoundedSemaphore(max_requests)
        self._live = 0
        self._lock = threading.Lock()
        self._stopping = False
        self._drained = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kvscope-engine", daemon=True)

    @property
    def live(self) -> int:
        """Requests that are queued or running."""
        return self._live

    @property
    def stopping(self) -> bool:
        """Whether it takes no more requests."""
        return self._stopping

    def start(self) -> EngineLoop:
        """Start the thread."""
        self._thread.start()
        return self

    async def submit(self, prompt: list[int], params: SamplingParams, *, user: str = "",
                     prompt_text: str | None = None) -> Stream:  # fmt: skip
        """Queue a request; returns when the engine has taken it.

        Raises:
            Busy: too many requests are there, or the server is shutting down. EngineFailed: a step broke.
            UsageError: the engine could never run it.
        """
        if self.failed is not None:
            raise EngineFailed(self.failed)
        if self._stopping:
            raise Busy("the server is shutting down: try another one")
        if not self._places.acquire(blocking=False):
            raise Busy(f"{self.max_requests} requests are queued or running, the most at once: try again later")
        stream = Stream(params.n)
        command = _Submit(prompt, params, user, prompt_text, stream)
        with self._lock:
            self._live += 1
        self._inbox.put(command)
        try:
            stream.request_id = await asyncio.shield(asyncio.wrap_future(command.accepted))
        except asyncio.CancelledError:
            # The client left before its request was taken: let it be taken, and abort it then.
            command.accepted.add_done_callback(partial(self._abandon, stream))
            raise
        except BaseException:
            self._free_place()
            raise
        return stream

    def release(self, stream: Stream) -> None:
        """The client is done with the stream: abort what is unfinished and free its place."""
        self._leave(stream, stream.request_id)

    def call(self, work: Callable[[Engine], object], timeout_s: float = 10.0) -> object:
        """Run something between two steps, in the engine thread, and return its result.

        Raises:
            EngineFailed: the thread is gone. TimeoutError: a step takes longer than that.
        """
        if not self._thread.is_alive():
            raise EngineFailed(self.failed or "the engine thread has ended")
        command = _Call(work)
        self._inbox.put(command)
        return command.done.result(timeout_s)

    def stop(self, grace_s: float = 10.0) -> bool:
        """Take nothing more, let what runs finish for `grace_s` seconds, then abort the rest; True if all finished."""
        self._stopping = True
        if not self._thread.is_alive():
            return True
        end = time.monotonic() + grace_s
        while self._live and time.monotonic() < end:
            time.sleep(0.02)
        finished = self._live == 0
        self._inbox.put(_Stop())
        self._thread.join(grace_s + 60)
        return finished

    def _leave(self, stream: Stream, request_id: int) -> None:
        if stream.open > 0:
            self._inbox.put(_Abort(request_id))
        self._free_place()

    def _abandon(self, stream: Stream, accepted: Future[int]) -> None:
        if accepted.exception() is None:
            self._leave(stream, accepted.result())
        else:
            self._free_place()

    def _free_place(self) -> None:
        with self._lock:
            self._live -= 1
            self.served += 1
        self._places.release()

    # -- in the engine thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._commands():
                if self.engine.has_work and self.failed is None:
                    self._step()
        finally:
            try:
                self.engine.close()
            except Exception as error:  # noqa: BLE001 - what a failed step left behind may not come apart cleanly
                log.error("engine: what was unfinished could not be given back: %s", error)
            for stream in list(self._streams.values()):
                stream.put(EngineFailed("the server was shut down before the answer was complete"))
            self._streams.clear()

    def _commands(self) -> bool:
        """Carry out what has come in; wait for something when there is nothing to step. False to end."""
        wait = not self.engine.has_work or self.failed is not None
        while True:
            try:
                command = self._inbox.get(block=wait)
            except queue.Empty:
                return True
            wait = False
            if isinstance(command, _Stop):
                return False
            if isinstance(command, _Abort):
                self._abort(command.request_id)
            elif isinstance(command, _Submit):
                self._submit(command)
            else:
                self._call(command)

    def _submit(self, command: _Submit) -> None:
        try:
            if self.failed is not None:
                raise EngineFailed(self.failed)
            sink = self.engine.sink
            command.stream.seq = -1 if sink is None else sink.next_seq
            name = f"user {command.user}"[:64] if command.user else ""
            number = self.engine.submit(command.prompt, command.params, name=name, prompt_text=command.text,
                                        user=command.user)  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            command.accepted.set_exception(error)
            return
        command.stream.sequence = self.engine.sequences(number)[0]
        self._streams[number] = command.stream
        command.accepted.set_result(number)

    def _abort(self, request_id: int) -> None:
        self._streams.pop(request_id, None)
        try:
            self.engine.abort(request_id)
        except Exception as error:  # noqa: BLE001 - as a failed step
            self._fail(error)

    def _call(self, command: _Call) -> None:
        try:
            command.done.set_result(command.work(self.engine))
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever asked
            command.done.set_exception(error)

    def _step(self) -> None:
        try:
            if self._before_step is not None:
                self._before_step()
            tokens = self.engine.step()
            if self._on_step is not None:
                self._on_step()
        except Exception as error:  # noqa: BLE001 - its requests are told, the process lives
            self._fail(error)
            return
        self.tokens += len(tokens)
        by_request: dict[int, list[Token]] = {}
        for token in tokens:
            by_request.setdefault(token.request_id, []).append(token)
        now = time.monotonic()
        for number, items in by_request.items():
            stream = self._streams.get(number)
            if stream is None:
                continue
            stream.put(items)
            if stream.last_at:
                self.timing.between_tokens.add(now - stream.last_at, len(items))
            else:
                self.timing.first_token.add(now - stream.asked_at)
            stream.last_at = now
            if not self.engine.sequences(number):
                del self._streams[number]
                self.timing.whole.add(now - stream.asked_at)

    def _fail(self, error: Exception) -> None:
        first = self.failed is None
        said = " ".join(str(error).split()) or type(error).__name__
        self.failed = f"a step failed: {said}"
        if isinstance(error, KVScopeError):
            log.error("engine stopped: %s", said)
        else:
            log.error("engine stopped: a step failed", exc_info=error)
        for stream in self._streams.values():
            stream.put(EngineFailed(self.failed))
        self._streams.clear()
        if first and self._on_failed is not None:
            self._on_failed(error)
