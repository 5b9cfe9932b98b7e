"""Requests by name: which sequences they have, and how long their prompts are."""

from __future__ import annotations

import numpy as np

from kvscope.errors import UsageError
from kvscope.inspector.source import Names, TraceLike, joined
from kvscope.traces.schema import Kind


def find_request(trace: TraceLike, names: Names, request: str | int) -> list[int]:
    """The sequences of a request, or of one sample.

    Raises:
        UsageError: there is none, or there are several; says which there are.
    """
    known: dict[str, list[int]] = {}
    numbers: dict[str, list[int]] = {}  # how a request is called by its number
    samples: dict[str, list[str]] = {}  # whole request -> how its samples can be called
    sequences = [s for s in np.unique(trace.events["seq_id"]).tolist() if s >= 0]
    for seq_id in sequences:
        number, name, whole = names.request(seq_id), names(seq_id), names.whole(seq_id)
        for key in {name, f"s{seq_id}", whole}:
            known.setdefault(key, []).append(seq_id)
        if number is not None:
            numbers.setdefault(str(number), []).append(seq_id)
            known.setdefault(f"r{number}", []).append(seq_id)
        samples.setdefault(whole, []).append(f"{whole}/0" if name == whole else name)
    for seq_id in sequences:
        if names.request(seq_id) is not None and names(seq_id) == names.whole(seq_id):
            known.setdefault(f"{names(seq_id)}/0", [seq_id])  # the first sample, as its texts are called
    wanted = str(request)
    if isinstance(request, int) and wanted in numbers:
        return sorted(set(numbers[wanted]))
    found = sorted({*known.get(wanted, ()), *numbers.get(wanted, ())})
    if len({names.request(seq_id) for seq_id in found}) > 1:
        raise UsageError(_which(names, wanted, found, numbers.keys() - known.keys()))
    if found:
        return found
    searched = {names.whole(seq_id) for seq_id in sequences if names.beams(seq_id)}

    def told(whole: str, each: list[str]) -> str:
        what = "beams" if whole in searched else "samples"
        return f"{whole} ({what} {', '.join(each[:8])}{', ...' if len(each) > 8 else ''})" if len(each) > 1 else whole

    listed = [told(whole, each) for whole, each in samples.items()]
    more = f", and {len(listed) - 20} more" if len(listed) > 20 else ""
    raise UsageError(f"no request is called {wanted!r}; this trace has {', '.join(listed[:20]) or 'none'}{more}")


def _which(names: Names, wanted: str, found: list[int], plain: set[str]) -> str:
    """How to say which of several requests is meant: by its number where that is no name, else by its sequences."""
    ways = []
    for number in dict.fromkeys(names.request(seq_id) for seq_id in found):
        its = [f"s{seq_id}" for seq_id in found if names.request(seq_id) == number]
        ways.append(f"{number} ({', '.join(its)})" if str(number) in plain else joined(its))
    return f"{wanted!r} is what {len(ways)} requests of this trace are called: say which, {' or '.join(ways)}"


def prompt_lengths(trace: TraceLike, names: Names) -> dict[int, int]:
    """Prompt tokens by sequence; a fork that nobody told of has its parent's."""
    by_request = {
        int(f["request"]): int(f.get("prompt_tokens") or 0) for f in trace.facts if f.get("type") == "request"
    }
    submits = trace.events[trace.events["kind"] == Kind.SUBMIT]
    out = dict(zip(submits["seq_id"].tolist(), submits["aux"].tolist(), strict=True))
    for seq_id in np.unique(trace.events["seq_id"]).tolist():
        request = names.request(seq_id)
        if request is not None and by_request.get(request):
            out[seq_id] = by_request[request]
    forks = trace.events[trace.events["kind"] == Kind.FORK]
    for child, parent in zip(forks["seq_id"].tolist(), forks["aux"].tolist(), strict=True):
        if child not in out and parent in out:
            out[child] = out[parent]
    return out
