"""Many streaming clients at once: `python -m kvscope.benchmarks.serve_soak [--clients 1000] [--rounds 3] [--json]`.

Every client is connected before any of them asks. Each reply is compared with what the engine says to that prompt
alone, greedy. Afterwards: every block is back, the trace has no finding, the server's memory has grown by no more than
2 % in the last round (told after each one). Exit code 1 where any of it is not so.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.benchmarks.http_client import Answer, connect, percentiles, stream
from kvscope.benchmarks.program import as_program
from kvscope.benchmarks.served import Served, said_no_finding, serving
from kvscope.benchmarks.tiny import tiny_model

if TYPE_CHECKING:
    from kvscope.engine.model import LoadedModel

MOST_GROWTH = 1.02  # of the server's memory in the last round
SHARED = "the cat and the dog sat on the mat, "


def prompts(clients: int, number: int) -> list[str]:
    """One for each client: half of them begin alike, all end differently."""
    return [f"{SHARED if i % 2 else ''}page {number} of client {i}, a table of blocks" for i in range(clients)]


def alone(loaded: LoadedModel, asked: list[str], tokens: int) -> list[str]:
    """What the engine says to each prompt when there is no other."""
    from kvscope.engine.engine import Engine, EngineConfig
    from kvscope.engine.sequence import SamplingParams

    engine = Engine(loaded, EngineConfig(num_blocks=64, block_size=8, share_prefixes=False))
    said = []
    for number, text in enumerate(asked):
        engine.submit(loaded.tokenizer.encode(text, add_special=True), SamplingParams(tokens, ignore_eos=True))
        said.append(loaded.tokenizer.decode([token.token for token in engine.run()]))
        if sys.stderr.isatty() and number % 50 == 0:
            print(f"\ralone: {number} of {len(asked)}", end="", file=sys.stderr)
    return said


async def crowd(base: str, asked: list[str], tokens: int) -> list[Answer]:
    """All at once."""
    connections = await asyncio.gather(*(connect(base) for _ in asked))
    bodies = [{"model": "tiny", "prompt": text, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
              for text in asked]  # fmt: skip
    return list(await asyncio.gather(
        *(stream(base, body, connection=one) for body, one in zip(bodies, connections, strict=True))
    ))  # fmt: skip


def soak(clients: int, rounds: int, tokens: int, *, record: str = "sanitize") -> dict[str, Any]:
    """What was asked and what was wrong: `problems` has one line for each thing."""
    import torch

    from kvscope.engine.model import load_model

    problems: list[str] = []
    answers: list[Answer] = []
    memory: list[int] = []
    began = time.perf_counter()
    torch.set_num_threads(1)  # with a model this small threads would mostly wait for one another
    with tempfile.TemporaryDirectory(prefix="kvscope-soak-") as name:
        folder = Path(name)
        model, trace = tiny_model(folder / "tiny"), folder / "soak.kvtrace"
        loaded = load_model(model)
        with serving(model, "--name", "tiny", "--num-blocks", 1024, "--block-size", 8, "--max-seqs", 128,
                     "--max-requests", clients + 8, "--max-batched-tokens", 1024, "--threads", 1, "--device", "cpu",
                     "--trace", trace, "--record", record) as server:  # fmt: skip
            for number in range(rounds):
                asked = prompts(clients, number)
                before, start = server.cpu_s(), time.perf_counter()
                got = asyncio.run(crowd(server.base, asked, tokens))
                taken = time.perf_counter() - start
                problems += _compare(asked, got, alone(loaded, asked, tokens))
                problems += _back(server)
                answers += got
                memory.append(server.resident_bytes())
                print(f"round {number + 1}: {len(got):,} replies in {taken:.1f} s, {server.cpu_s() - before:.1f} s of "
                      f"the server's processor; memory {memory[-1] / 2**20:.1f} MiB", file=sys.stderr)  # fmt: skip
        problems += said_no_finding([trace])
        size = sum(file.stat().st_size for file in trace.iterdir())
    if len(memory) > 2 and memory[-1] > memory[-2] * MOST_GROWTH:
        problems.append(f"memory has grown from {memory[-2]:,} to {memory[-1]:,} bytes in the last round")
    first = [a.first_token_s for a in answers if a.first_token_s is not None]
    return {
        "clients": clients, "rounds": rounds, "replies": len(answers), "complete": sum(a.done for a in answers),
        "first_token_s": percentiles(first), "resident_bytes": memory, "trace_bytes": size,
        "elapsed_s": round(time.perf_counter() - began, 1), "problems": problems,
    }  # fmt: skip


def _compare(asked: list[str], got: list[Answer], wanted: list[str]) -> list[str]:
    known: dict[str, int] = {text: i for i, text in enumerate(wanted)}
    problems = []
    for i, (answer, text) in enumerate(zip(got, wanted, strict=True)):
        if not answer.done or answer.error:
            problems.append(f"client {i}: lost after {len(answer.text)} characters: {answer.status} {answer.error}")
        elif answer.text != text:
            whose = known.get(answer.text)
            mixed = "" if whose is None else f", which is the reply to client {whose}"
            problems.append(f"client {i} asked {asked[i]!r} and got {answer.text!r} instead of {text!r}{mixed}")
    return problems


def _back(server: Served) -> list[str]:
    state = server.idle()
    blocks = state["blocks"]
    left = {name: blocks[name] for name in ("private", "shared", "in_transit", "quarantined") if blocks[name]}
    problems = [f"blocks are not back: {left}"] if left else []
    return problems + ([f"sequences are left: {state['sequences']}"] if state["sequences"] else [])


def main(arguments: list[str] | None = None) -> int:
    """Print what was done; exit code 1 when something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m kvscope.benchmarks.serve_soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=16, help="of each reply")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if not 1 <= options.clients <= 10_000 or options.rounds < 1 or not 1 <= options.tokens <= 256:
        parser.error("--clients is 1..10,000, --rounds 1 or more, --tokens 1..256")
    result = soak(options.clients, options.rounds, options.tokens)
    if options.json:
        print(json.dumps(result))
    else:
        print(f"{result['complete']:,} of {result['replies']:,} replies complete, {result['clients']:,} at once, "
              f"in {result['elapsed_s']} s; memory {', '.join(f'{m >> 20} MiB' for m in result['resident_bytes'])}; "
              + ("all as alone, all blocks back, no finding" if not result["problems"] else
                 f"{len(result['problems'])} PROBLEMS"))  # fmt: skip
        for line in result["problems"][:20]:
            print(f"  {line}")
    return 1 if result["problems"] else 0


if __name__ == "__main__":
    sys.exit(as_program(main))
