"""Load on the HTTP server, with recording off, on, and sanitized, in turn: `kvscope bench serve [OPTIONS]`.

Open loop: requests come when they come, whether or not the server has answered the ones before. Three servers stand
side by side and get the same requests one after the other, round by round, in changing order. First-token times count
from when a request was due; goodput counts the requests that met both limits.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvscope.benchmarks.http_client import Answer, percentiles, stream
from kvscope.benchmarks.program import as_program
from kvscope.benchmarks.served import Served, serving
from kvscope.benchmarks.shown import positive, say_now
from kvscope.benchmarks.tiny import CONTEXT, VOCAB, tiny_model
from kvscope.errors import UsageError

ARMS = ("off", "trace", "sanitize")


@dataclass(frozen=True)
class Planned:
    """One request of the load."""

    at_s: float
    prompt: list[int]
    output: int


@dataclass
class Arm:
    """What one server has answered so far."""

    answers: list[Answer] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def row(self, name: str, slo: tuple[float, float], baseline: Arm) -> dict[str, Any]:
        """Throughput beside the baseline's, and what clients felt."""
        pieces = sum(len(a.arrivals) for a in self.answers)
        ratios = [mine / theirs for mine, theirs in zip(self.cpu_s, baseline.cpu_s, strict=True)]
        good = sum((a.first_token_s or 9e9) <= slo[0] and (a.per_token_s or 0) <= slo[1] for a in self.answers)
        gaps = [b - a for answer in self.answers for a, b in zip(answer.arrivals, answer.arrivals[1:], strict=False)]
        rate = pieces / sum(self.seconds)
        return {
            "name": f"serve, recording {name}", "value": round(rate, 1), "unit": "tokens/s",
            "baseline": round(sum(len(a.arrivals) for a in baseline.answers) / sum(baseline.seconds), 1),
            "ratio": round(statistics.median(ratios), 4), "gate": None, "ok": None,
            "requests": len(self.answers), "failed": sum(not a.done for a in self.answers),
            "goodput_per_s": round(good / sum(self.seconds), 2),
            "first_token_s": percentiles([a.first_token_s for a in self.answers if a.first_token_s is not None]),
            "between_tokens_s": percentiles(gaps), "cpu_s": round(sum(self.cpu_s), 3),
        }  # fmt: skip


def plan(arrivals: str, requests: int, rate: float, prompt: int, output: int, seed: int) -> tuple[list[Planned], str]:
    """(requests with their times, what had to be changed); lengths fit the model's context.

    Args:
        arrivals: `poisson`, or a workload: an Azure CSV, a Mooncake JSONL, or what else `open_workload` reads. Its
            times are stretched to `rate` requests per second on average.
    """
    draw = random.Random(seed)
    if arrivals == "poisson":
        at, planned = 0.0, []
        shared = [draw.randrange(5, VOCAB - 30) for _ in range(prompt // 2)]
        for _ in range(requests):
            own = [draw.randrange(5, VOCAB - 30) for _ in range(prompt - len(shared))]
            planned.append(Planned(at, shared + own, output))
            at += draw.expovariate(rate)
        return planned, ""
    from kvscope.inspector.workloads.opening import open_workload
    from kvscope.inspector.workloads.request import prompt_tokens

    work = open_workload(arrivals, limit=requests).requests
    if len(work) < 3:
        raise UsageError(f"{arrivals} has {len(work)} requests: at least 3 are needed")
    span = (work[-1].arrival_ns - work[0].arrival_ns) / 1e9 or 1.0
    stretch = len(work) / rate / span
    longest = max(r.prompt + r.output for r in work)
    scale = min(1.0, (CONTEXT - 2) / longest)  # all by the same factor: their spread is what makes a load
    planned = []
    for number, asked in enumerate(work):
        tokens, count = prompt_tokens(asked, number), max(1, int(asked.prompt * scale))
        picked = [tokens[i * asked.prompt // count] * 2654435761 % (VOCAB - 40) + 5 for i in range(count)]
        at = (asked.arrival_ns - work[0].arrival_ns) / 1e9 * stretch
        planned.append(Planned(at, picked, max(1, int(asked.output * scale))))
    return planned, f"times x {stretch:.3g}, lengths x {scale:.3g} (the model's context is {CONTEXT})"


async def play(base: str, planned: list[Planned], said: str) -> list[Answer]:
    """Ask for everything when it is due; `said` is told with how much is answered."""
    start, answered = time.perf_counter() + 0.05, 0

    async def one(item: Planned) -> Answer:
        await asyncio.sleep(max(0.0, start + item.at_s - time.perf_counter()))
        body = {"model": "tiny", "prompt": item.prompt, "max_tokens": item.output, "temperature": 0, "ignore_eos": True}
        answer = await stream(base, body, due=start + item.at_s)
        nonlocal answered
        answered += 1
        say_now(f"{said}: {answered} of {len(planned)} answered")
        return answer

    return list(await asyncio.gather(*(one(item) for item in planned)))


def run(planned: list[Planned], rounds: int, slo: tuple[float, float]) -> list[dict[str, Any]]:
    """One row for each kind of recording."""
    arms = {name: Arm() for name in ARMS}
    with tempfile.TemporaryDirectory(prefix="kvscope-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        model = tiny_model(folder / "tiny")
        servers: dict[str, Served] = {}
        for arm in ARMS:
            say_now(f"starting the server with recording {arm}")
            recording = [] if arm == "off" else ["--trace", folder / f"{arm}.kvtrace", "--record", arm]
            servers[arm] = stack.enter_context(
                serving(model, "--name", "tiny", "--num-blocks", 2048, "--max-requests", 4096, "--max-seqs", 64,
                        "--threads", 1, "--device", "cpu", *recording)
            )  # fmt: skip
            asyncio.run(play(servers[arm].base, planned[:3], f"warming up, recording {arm}"))
        for number in range(rounds):
            order = [*ARMS[number % len(ARMS) :], *ARMS[: number % len(ARMS)]]
            for arm in order:
                cpu, began = servers[arm].cpu_s(), time.perf_counter()
                answers = asyncio.run(
                    play(servers[arm].base, planned, f"round {number + 1} of {rounds}, recording {arm}")
                )
                arms[arm].seconds.append(time.perf_counter() - began)
                servers[arm].idle()
                arms[arm].cpu_s.append(servers[arm].cpu_s() - cpu)
                arms[arm].answers += answers
        say_now("ending the servers")
    say_now("")
    return [arms[name].row(name, slo, arms["off"]) for name in ARMS]


def main(arguments: list[str] | None = None) -> int:
    """Print the rows; exit code 1 when a request was not answered."""
    parser = argparse.ArgumentParser(prog="kvscope bench serve", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--arrivals", default="poisson", help="poisson, an Azure CSV, or a Mooncake JSONL")
    parser.add_argument("--rate", type=positive, default=40.0, help="requests per second")
    parser.add_argument("--requests", type=int, default=200, help="in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=96, help="tokens, for poisson; half of them shared by all")
    parser.add_argument("--output", type=int, default=32, help="tokens, for poisson")
    parser.add_argument("--slo-first", type=positive, default=0.5, help="seconds to the first token, for goodput")
    parser.add_argument("--slo-next", type=positive, default=0.05, help="seconds per further token, for goodput")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.requests < 3 or options.rounds < 1 or options.output < 1:
        parser.error("--requests is 3 or more, --rounds and --output 1 or more")
    if not 2 <= options.prompt <= CONTEXT - options.output - 1:
        parser.error(f"--prompt is 2 or more, and with --output below the context of {CONTEXT}")
    planned, note = plan(options.arrivals, options.requests, options.rate, options.prompt, options.output, options.seed)
    rows = run(planned, options.rounds, (options.slo_first, options.slo_next))
    if options.json:
        print(json.dumps({"arrivals": options.arrivals, "rate_per_s": options.rate, "note": note, "rows": rows}))
    else:
        print(f"{len(planned)} requests a round, {options.rate:g} per second, {options.rounds} rounds. {note}")
        for row in rows:
            first, gaps = row["first_token_s"], row["between_tokens_s"]
            print(
                f"{row['name']:26} {row['value']:8,.0f} tokens/s  goodput {row['goodput_per_s']:6.2f}/s  first token "
                + " ".join(f"{p} {(v or 0) * 1e3:.1f} ms" for p, v in first.items())
                + "  between " + " ".join(f"{p} {(v or 0) * 1e3:.1f} ms" for p, v in gaps.items())
                + f"  processor time x {row['ratio']:.3f}" + (f"  {row['failed']} FAILED" if row["failed"] else "")
            )  # fmt: skip
    return 1 if any(row["failed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(as_program(main))
