"""`gen:` workloads: lengths, arrivals, shared system prompts and samples from a few numbers and a seed.

    gen:requests=500,prompt=450,output=120
    gen:requests=1000,rate=20,system=2000,prompt=exp:300,output=20-200,samples=4,seed=7

    requests  how many (default 100)          prompt, output  lengths in tokens (defaults 512 and 128)
    rate      arrivals per second, Poisson;   system  tokens of a system prompt in front of each prompt
              0, the default: all at once     groups  how many different system prompts there are (default 1)
    beams     beams per request, counted as samples that are never reordered (default 0: none)
    samples   answers per request             seed    same seed, same workload
    users     u0, u1, ...: u0 sends half of   priorities  levels 0, 1, ..., drawn evenly (default 1)
              the requests (default 1)

A length is `450` (fixed), `100-1024` (uniform), `exp:450` (exponential) or `ln:6k:0.6` (log-normal with that mean, and
that sigma of the logarithm); `k` is 1024.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable

from kvscope.errors import UsageError
from kvscope.inspector.workloads.request import MAX_OUTPUT, MAX_PROMPT, MAX_SAMPLES, Rows, Workload

DEFAULTS = {"requests": "100", "prompt": "512", "output": "128", "rate": "0", "system": "0", "groups": "1",
            "samples": "1", "beams": "0", "seed": "0", "users": "1", "priorities": "1"}  # fmt: skip
MAX_REQUESTS = 10_000_000
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)(k?)")
Length = Callable[[random.Random], int]
_IN_TOKENS = ("prompt", "output", "system")
_LENGTHS = ("prompt", "output")


def generate(spec: str, limit: int | None = None) -> Workload:
    """The workload that a `gen:` spec describes; equal specs give equal workloads.

    Raises:
        UsageError: an unknown key, or a value that makes no sense.
    """
    values = _values(spec)
    requests = _integer("requests", values["requests"], 1, MAX_REQUESTS)
    prompt, output = _length("prompt", values["prompt"], MAX_PROMPT), _length("output", values["output"], MAX_OUTPUT)
    system = _integer("system", values["system"], 0, MAX_PROMPT)
    groups = _integer("groups", values["groups"], 1, MAX_REQUESTS)
    samples = _integer("samples", values["samples"], 1, MAX_SAMPLES)
    beams = _integer("beams", values["beams"], 0, MAX_SAMPLES)
    if beams and samples > 1:
        raise UsageError(f"beams={beams} and samples={samples}: a request has one or the other")
    rate = _rate(values["rate"])
    seed = _integer("seed", values["seed"], 0, 1 << 63)
    users = _integer("users", values["users"], 1, 10_000)
    levels = _integer("priorities", values["priorities"], 1, 1000)
    chance, who = random.Random(seed), random.Random(f"users {seed}")  # who asks changes nothing else
    rows = Rows(spec, "gen", limit)
    seconds = 0.0
    for number in range(requests):
        if rows.full:
            break
        group = chance.randrange(groups)
        parts = [(group, system)] if system else []
        rows.add(
            number + 1, int(seconds * 1e9), system + prompt(chance), output(chance), samples=beams or samples,
            parts=parts, priority=who.randrange(levels), user=_user(who, users),
        )  # fmt: skip
        seconds += chance.expovariate(rate) if rate else 0.0
    if beams:
        rows.workload.notes.append("beams are counted as samples: they share the prompt, and are never reordered")
    return rows.done()


def _user(who: random.Random, users: int) -> str:
    """The first of several users sends half of all requests, the others the rest."""
    if users == 1:
        return ""
    return "u0" if who.random() < 0.5 else f"u{who.randrange(1, users)}"


def _values(spec: str) -> dict[str, str]:
    values = dict(DEFAULTS)
    for item in filter(None, spec.removeprefix("gen:").split(",")):
        key, sign, value = item.partition("=")
        if key.strip() not in DEFAULTS or not sign:
            raise UsageError(f"gen: {item!r} is not key=value with one of {', '.join(DEFAULTS)}")
        values[key.strip()] = value.strip()
    return values


def _number(text: str) -> float | None:
    """`450`, or `6k`, which is 6 x 1024; None for anything else."""
    match = _NUMBER.fullmatch(text.strip().lower())
    return float(match[1]) * (1024 if match[2] else 1) if match is not None else None


def _integer(key: str, text: str, low: int, high: int, given: str | None = None) -> int:
    """A whole number; `given` is all that was given for the key, where `text` is a part of it."""
    value = _number(text)
    said = text if given is None else given
    if value is None:
        wanted = "tokens, such as 450 or 6k" if key in _IN_TOKENS else f"a whole number, {low}..{high:,}"
        wanted += "; or 100-1024, exp:450, ln:6k:0.6" if key in _LENGTHS else ""
        raise UsageError(f"gen: {key} is {said!r}: wanted {wanted}")
    if not low <= value <= high or value != int(value):
        unit = "tokens" if key in _IN_TOKENS else key
        part = f" ({text.strip()})" if said != text else ""
        raise UsageError(f"gen: {key} is {said}{part}: must be a whole number of {unit}, {low}..{high:,}")
    return int(value)


def _rate(text: str) -> float:
    value = _number(text)
    if value is None:
        raise UsageError(f"gen: rate is {text!r}: wanted arrivals per second, such as 20 or 0.5; 0 is all at once")
    if value and not 1e-6 <= value <= 1e9:
        raise UsageError(f"gen: rate is {text}: must be 0 (all at once), or up to a billion per second")
    return value


def _length(key: str, text: str, most: int) -> Length:
    """A draw of lengths, each 1..`most`."""

    def cut(value: float) -> int:
        return min(max(round(value), 1), most)

    kind, _, rest = text.partition(":")
    if kind == "exp":
        mean = _integer(key, rest, 1, most, text)
        return lambda chance: cut(chance.expovariate(1 / mean))
    if kind == "ln":
        first, _, second = rest.partition(":")
        mean, sigma = _integer(key, first, 1, most, text), _number(second or "0.5")
        if sigma is None or not 0 <= sigma <= 5:
            raise UsageError(f"gen: {key} is {text}: its sigma must be a number, 0..5")
        mu = math.log(mean) - sigma**2 / 2
        return lambda chance: cut(chance.lognormvariate(mu, sigma))
    if "-" in text:
        first, _, second = text.partition("-")
        low, high = _integer(key, first, 1, most, text), _integer(key, second, 1, most, text)
        if low > high:
            raise UsageError(f"gen: {key} is {text}: the first length is above the second")
        return lambda chance: chance.randint(low, high)
    fixed = _integer(key, text, 1, most)
    return lambda chance: fixed
