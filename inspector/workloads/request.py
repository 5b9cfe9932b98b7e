"""What a workload is: a list of requests in order of arrival, and what its reader had to assume."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvscope.errors import UsageError

MAX_PROMPT = 1 << 21
MAX_OUTPUT = 1 << 20
MAX_SAMPLES = 256
_OFFSET_BITS = 22  # of a token id that stand for its place inside a part
_PRIVATE = 1 << 40  # identities from here on belong to one request alone


@dataclass(slots=True)
class WorkRequest:
    """One request: when it comes, how long it is, and what its prompt shares with others.

    Args:
        arrival_ns: since the first request.
        prompt, output: tokens.
        samples: answers wanted to the one prompt.
        parts: (identity, tokens) of the leading parts of the prompt; equal identities are equal text. What they do
            not cover is this request's own.
        answer: identity of the output, where a later prompt repeats it; -1 for none.
        row: line of the file, for messages.
        priority, user: as an engine's policies see it; 0 and nobody where the workload does not say.
    """

    arrival_ns: int
    prompt: int
    output: int
    samples: int = 1
    parts: tuple[tuple[int, int], ...] = ()
    answer: int = -1
    row: int = 0
    priority: int = 0
    user: str = ""


@dataclass(slots=True)
class Workload:
    """Requests in order of arrival; `notes` say what had to be assumed, for the reader of the results."""

    name: str
    kind: str
    requests: list[WorkRequest]
    notes: list[str] = field(default_factory=list)

    @property
    def names_users(self) -> bool:
        """Whether requests differ in who asks."""
        return len({r.user for r in self.requests}) > 1

    @property
    def names_priorities(self) -> bool:
        """Whether requests differ in priority."""
        return len({r.priority for r in self.requests}) > 1

    @property
    def names_prefixes(self) -> bool:
        """Whether any two requests could share something: parts are named, or there are samples."""
        return any(r.parts or r.samples > 1 for r in self.requests)


def prompt_tokens(request: WorkRequest, number: int) -> list[int]:
    """Token ids of the prompt of request `number`: equal parts give equal ids, everything else differs."""
    tokens: list[int] = []
    for identity, count in request.parts:
        tokens.extend(range(identity << _OFFSET_BITS, (identity << _OFFSET_BITS) + count))
    base = (_PRIVATE + number) << _OFFSET_BITS
    tokens.extend(range(base + len(tokens), base + request.prompt))
    return tokens


def output_token(request: WorkRequest, number: int, sample: int, index: int) -> int:
    """Token id number `index` of an answer to request `number`."""
    if request.answer >= 0 and sample == 0:
        return (request.answer << _OFFSET_BITS) + index
    return ((_PRIVATE + number) << _OFFSET_BITS) + request.prompt + index * MAX_SAMPLES + sample


class Rows:
    """Collects the requests of one file and checks each; every complaint names the file and the line."""

    def __init__(self, name: str, kind: str, limit: int | None) -> None:
        self.workload = Workload(name, kind, [])
        self.limit = limit
        self._first_ns: int | None = None
        self._last_ns = 0
        self._no_output = 0

    @property
    def full(self) -> bool:
        """Whether as many requests were read as are wanted."""
        return self.limit is not None and len(self.workload.requests) >= self.limit

    def add(self, row: int, time_ns: int, prompt: int, output: int, *, samples: int = 1,
            parts: Iterable[tuple[int, int]] = (), answer: int = -1, sort: bool = False, priority: int = 0,
            user: str = "") -> None:  # fmt: skip
        """One more request; times count from the first one.

        Raises:
            UsageError: a length is out of its range, or it comes before the one above it (unless `sort`).
        """
        if not 1 <= prompt <= MAX_PROMPT:
            raise self.error(row, f"a prompt of {prompt:,} tokens: must be 1..{MAX_PROMPT:,}")
        if not 0 <= output <= MAX_OUTPUT:
            raise self.error(row, f"an output of {output:,} tokens: must be 0..{MAX_OUTPUT:,}")
        if self._first_ns is None:
            self._first_ns = self._last_ns = time_ns
        if time_ns < self._last_ns and not sort:
            late = (self._last_ns - time_ns) * 1e-9
            raise self.error(row, f"comes {late:,.3f} s before the request above it; sort the file by time")
        self._last_ns = time_ns
        self._no_output += output == 0
        self.workload.requests.append(
            WorkRequest(
                time_ns - self._first_ns, prompt, max(output, 1), samples, tuple(parts), answer, row, priority, user
            )
        )

    def error(self, row: int, what: str) -> UsageError:
        """An error that names the line."""
        return UsageError(f"{self.workload.name}:{row}: {what}")

    def integer(self, row: int, name: str, text: object) -> int:
        """A whole number of the file.

        Raises:
            UsageError: it is none.
        """
        try:
            if isinstance(text, str) and "_" in text:  # which Python would take for a separator of thousands
                raise ValueError
            if isinstance(text, (int, str)) and not isinstance(text, bool):
                return int(text)
            if isinstance(text, float) and text.is_integer():
                return int(text)
        except ValueError:
            pass
        raise self.error(row, f"{name} is {_short(text)}: must be a whole number of tokens")

    def prompt(self, row: int, name: str, text: object) -> int:
        """The tokens of a prompt, by the name of the field that says them.

        Raises:
            UsageError: it is no whole number, or out of its range.
        """
        found = self.integer(row, name, text)
        if not 1 <= found <= MAX_PROMPT:
            raise self.error(row, f"{name} is {found:,}: must be 1..{MAX_PROMPT:,}")
        return found

    def done(self) -> Workload:
        """The workload.

        Raises:
            UsageError: there is no request in it.
        """
        if not self.workload.requests:
            raise UsageError(f"{self.workload.name} has no requests: nothing to simulate")
        self.workload.requests.sort(key=lambda r: r.arrival_ns)
        if self._no_output:
            self.workload.notes.append(f"{self._no_output:,} requests have no output: they run as if it were one token")
        return self.workload


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
