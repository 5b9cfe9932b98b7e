"""JSON workloads: Mooncake's request traces (JSONL) and ShareGPT conversations (JSON or JSONL)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kvscope.errors import UsageError
from kvscope.inspector.workloads.request import Rows, Workload

BLOCK_TOKENS = 512  # what one of Mooncake's hash ids stands for
TURN_GAP_S = 60
_USER = {"human", "user"}
_ASSISTANT = {"gpt", "chatgpt", "assistant", "bot", "bard", "bing", "model"}

CountTokens = Callable[[str], int]


def read_json(name: str, lines: Iterable[str], limit: int | None, count: CountTokens | None) -> Workload:
    """The requests of a JSON or JSONL file.

    Raises:
        UsageError: it is neither kind, or an entry makes no sense; says which line.
    """
    records = _records(name, iter(lines))
    first = next(records, None)
    if first is None:
        raise UsageError(f"{name} has no requests: nothing to simulate")
    row, record = first
    everything = _chain(first, records)
    if isinstance(record, dict) and "input_length" in record:
        return _mooncake(Rows(name, "mooncake", limit), everything)
    if isinstance(record, dict) and ("conversations" in record or "conversation" in record):
        return _sharegpt(Rows(name, "sharegpt", limit), everything, count)
    raise UsageError(
        f"{name}:{row}: wanted objects with timestamp, input_length, output_length, hash_ids (Mooncake) or "
        "conversations (ShareGPT)"
    )


def _records(name: str, lines: Iterator[str]) -> Iterator[tuple[int, Any]]:
    """(line, value) of each line; (number, value) of each element where the file is one JSON list."""
    for row, line in enumerate(lines, 1):
        text = line.strip()
        if not text:
            continue
        if row == 1 and text.startswith("["):
            whole = _parse(name, row, line + "".join(lines))
            yield from enumerate(whole, 1)
            return
        yield row, _parse(name, row, text)


def _parse(name: str, row: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        line = row + getattr(error, "lineno", 1) - 1
        raise UsageError(f"{name}:{line}: not JSON: {getattr(error, 'msg', error)}") from None
    except RecursionError:
        raise UsageError(f"{name}:{row}: not JSON that can be read: nested too deeply") from None


def _chain(first: tuple[int, Any], rest: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    yield first
    yield from rest


# -- Mooncake -------------------------------------------------------------------------------------------------------


def _mooncake(rows: Rows, records: Iterator[tuple[int, Any]]) -> Workload:
    size = BLOCK_TOKENS
    for row, record in records:
        if rows.full:
            break
        if not isinstance(record, dict):
            raise rows.error(row, "wanted an object with timestamp, input_length, output_length, hash_ids")
        try:
            stamp, prompt, output = record["timestamp"], record["input_length"], record["output_length"]
        except KeyError as error:
            raise rows.error(row, f"{error.args[0]} is missing") from None
        if isinstance(stamp, bool) or not isinstance(stamp, (int, float)) or not abs(stamp) < 1e15:
            raise rows.error(row, f"timestamp is {stamp!r}: wanted milliseconds")
        size = record.get("block_size", size)
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise rows.error(row, f"block_size is {size!r}: must be at least 1 token")
        prompt = rows.prompt(row, "input_length", prompt)
        parts = _parts(rows, row, record.get("hash_ids", []), prompt, size)
        rows.add(row, int(stamp * 10**6), prompt, rows.integer(row, "output_length", output), parts=parts)
    spread = _spread(rows.workload)
    if spread:
        rows.workload.notes.append(f"{spread:,} requests share a time stamp with others: spread up to the next stamp")
    return rows.done()


def _parts(rows: Rows, row: int, ids: Any, prompt: int, size: int) -> list[tuple[int, int]]:
    if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 40 for i in ids):
        raise rows.error(row, "hash_ids: wanted a list of whole numbers, 0 or more")
    if ids and len(ids) != -(-prompt // size):
        raise rows.error(row, f"{len(ids)} hash_ids for {prompt:,} tokens: wanted {-(-prompt // size)}, one per {size}")
    return [(identity, min(size, prompt - i * size)) for i, identity in enumerate(ids)]


def _spread(workload: Workload) -> int:
    """Give requests of one time stamp even distances up to the next stamp; returns how many were moved."""
    requests, moved, i = workload.requests, 0, 0
    while i < len(requests):
        stamp, j = requests[i].arrival_ns, i
        while j < len(requests) and requests[j].arrival_ns == stamp:
            j += 1
        if j < len(requests) and j - i > 1:
            gap = requests[j].arrival_ns - stamp
            for k in range(i + 1, j):
                requests[k].arrival_ns = stamp + gap * (k - i) // (j - i)
            moved += j - i - 1
        i = j
    return moved


# -- ShareGPT -------------------------------------------------------------------------------------------------------


def estimate_tokens(text: str) -> int:
    """Tokens of a text without its tokenizer: a fourth of its characters, at least its words."""
    return max(len(text.split()), -(-len(text) // 4))


def _sharegpt(rows: Rows, records: Iterator[tuple[int, Any]], count: CountTokens | None) -> Workload:
    identities: dict[tuple[bool, str], int] = {}
    empty = 0
    for row, record in records:
        if rows.full:
            break
        parts: list[tuple[int, int]] = []
        turn, asked = 0, False
        for answer, text in _messages(rows, row, record):
            tokens = (count or estimate_tokens)(text)
            if not tokens:
                empty += 1
                continue
            identity = identities.setdefault((answer, text), len(identities))
            if answer and asked and not rows.full:
                prompt = sum(n for _, n in parts)
                rows.add(row, turn * TURN_GAP_S * 10**9, prompt, tokens, parts=parts, answer=identity, sort=True)
                turn += 1
            asked = not answer
            parts.append((identity, tokens))
    notes = rows.workload.notes
    if count is None:
        notes.append("lengths are estimates: a fourth of the characters, at least the words (no tokenizer was given)")
    notes.append(f"the file has no times: conversations start together, their turns come {TURN_GAP_S} s apart")
    if empty:
        notes.append(f"{empty:,} empty messages are left out")
    return rows.done()


def _messages(rows: Rows, row: int, record: Any) -> Iterator[tuple[bool, str]]:
    """(is an answer, text) of each message of a conversation."""
    messages = record.get("conversations", record.get("conversation")) if isinstance(record, dict) else None
    if not isinstance(messages, list):
        raise rows.error(row, "wanted an object with a list of conversations")
    for number, message in enumerate(messages):
        if not isinstance(message, dict):
            raise rows.error(row, f"message {number} is no object")
        role, text = message.get("from", message.get("role")), message.get("value", message.get("content"))
        if not isinstance(role, str) or not isinstance(text, str):
            raise rows.error(row, f"message {number} needs a role (from) and a text (value)")
        yield role.lower() in _ASSISTANT, text
