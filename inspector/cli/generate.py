"""`kvscope generate`: run prompts through the paged engine, and record what its memory did."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvscope.inspector.cli._engine import (
    PoolOptions,
    check_recording,
    checked,
    choose_device,
    draining,
    interruptible,
    load,
    recorder,
)
from kvscope.inspector.cli._lines import errors, say, stream
from kvscope.inspector.cli._newest import TraceAge, TraceSize, kept_newest
from kvscope.inspector.units import counted

if TYPE_CHECKING:
    from kvscope.inspector.layers import Layers
    from kvscope.inspector.online import OnlineSanitizer


def generate(
    model: Annotated[str, typer.Argument(help="smollm2, a folder with config.json and safetensors, or a .gguf file.")],
    prompts: Annotated[list[str], typer.Argument(help="One or more prompts; - reads one from standard input.")],
    n: Annotated[int, typer.Option("-n", "--samples", help="Samples per prompt; they share its blocks.")] = 1,
    beams: Annotated[int, typer.Option(help="Beam search with K beams; -n then counts its best answers.")] = 0,
    length_penalty: Annotated[
        float, typer.Option(help="With beams: above 0 favours long answers, below 0 short ones.")
    ] = 1.0,
    max_tokens: Annotated[int, typer.Option(help="New tokens per sample, at most.")] = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the K most likely tokens; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the most likely tokens up to this probability.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Same seed, same text, in any company.")] = 0,
    system: Annotated[str | None, typer.Option(help="System message, for models with a chat template.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Give the prompt as it is, without the chat template.")] = False,
    block_size: Annotated[int, typer.Option(help="Token slots per block.")] = 16,
    num_blocks: Annotated[int, typer.Option(help="Blocks in the pool.")] = 256,
    kv_memory: Annotated[str | None, typer.Option(help="Pool size instead: 512MiB, or 60% of free memory.")] = None,
    max_seqs: Annotated[int, typer.Option(help="Sequences that run at once.")] = 64,
    max_batched_tokens: Annotated[
        int, typer.Option(help="Positions computed per step; longer prompts go in chunks.")
    ] = 512,
    policy: Annotated[str, typer.Option(help="Order of the queue: fcfs, priority or fair.")] = "fcfs",
    priority: Annotated[
        str, typer.Option(help="Lower is sooner; one number, or one per prompt, separated by commas.")
    ] = "0",
    user: Annotated[str, typer.Option(help="Who asks, for --policy fair; one name, or one per prompt.")] = "",
    preemption: Annotated[str, typer.Option(help="Who finds no block is computed again: recompute; or swap.")] = (
        "recompute"
    ),
    swap_space: Annotated[str | None, typer.Option(help="Host memory for --preemption swap, such as 64MiB.")] = None,
    prefix_sharing: Annotated[bool, typer.Option(help="Find equal prompt prefixes and share their blocks.")] = True,
    trace: Annotated[
        Path | None, typer.Option(help="Record into this folder (NAME.kvtrace); missing folders are made.")
    ] = None,
    trace_size: TraceSize = None,
    trace_age: TraceAge = None,
    record: Annotated[
        str, typer.Option(help="off, trace, or sanitize (adds call stacks, and checks every step as it ends).")
    ] = "trace",
    provenance: Annotated[
        bool, typer.Option(help="With sanitize: check before attention that each slot holds the sequence's own prefix.")
    ] = True,
    content: Annotated[
        bool, typer.Option("--content", help="With sanitize: poison freed blocks, and compare digests of the others.")
    ] = False,
    watch: Annotated[
        list[str] | None, typer.Option(help="Tell who touches this block next: b37, or b37#12; may be repeated.")
    ] = None,
    on_finding: Annotated[str, typer.Option(help="With sanitize: log, or raise, which stops at the fault.")] = "log",
    record_text: Annotated[bool, typer.Option("--record-text", help="Put prompts and outputs in the trace.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a trace that is there.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes what is fastest now.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")] = False,
) -> None:
    """Generate text offline; prompts run as one batch over one paged pool.

    Example: kvscope generate smollm2 "Name three rivers." "Why is the sea salty?" --trace run.kvtrace
    """
    from kvscope.engine.limits import check_request
    from kvscope.engine.model.registry import locate
    from kvscope.engine.scheduler import SchedulerConfig
    from kvscope.engine.sequence import MAX_SAMPLES, SamplingParams
    from kvscope.errors import UsageError

    # What can be refused without torch is refused before it is loaded.
    if not 1 <= n <= MAX_SAMPLES:
        raise UsageError(f"--samples is {n}: must be 1..{MAX_SAMPLES}")
    params = SamplingParams(
        max_tokens, temperature, top_k, top_p, seed, n, beams=beams, length_penalty=length_penalty
    )  # fmt: skip
    limits = SchedulerConfig(
        max_seqs=max_seqs, max_batched_tokens=max_batched_tokens, policy=policy, preemption=preemption
    )
    pool = PoolOptions(block_size, num_blocks, kv_memory, swap_space)
    pool.check(swaps=preemption == "swap")
    check_recording(trace, record, overwrite=overwrite, on_finding=on_finding, watch=watch or (), content=content,
                    num_blocks=num_blocks if kv_memory is None else None, provenance=provenance)  # fmt: skip
    newest = kept_newest(trace, trace_size, trace_age)
    texts = [_text(prompt) for prompt in prompts]
    check_text("the system message", system or "")
    priorities, users = _priorities(priority, len(texts)), _each("user", user, len(texts))
    locate(model)

    from kvscope.engine.engine import Engine, EngineConfig

    device, dtype = choose_device(device)
    loaded = load(model, device=device, dtype=dtype, threads=threads, quiet=as_json)
    blocks = pool.blocks(loaded, dtype.itemsize, device)
    config = EngineConfig(
        num_blocks=blocks, block_size=block_size, scheduler=limits, share_prefixes=prefix_sharing,
        record_text=record_text, dtype=dtype, device=device, host_blocks=pool.host_blocks(loaded, dtype.itemsize),
    )  # fmt: skip
    encoded = [_encode(loaded.tokenizer, text, system, raw) for text in texts]
    for tokens in encoded:  # before there is a trace
        check_request(tokens, params, context=loaded.config.max_model_len, max_seqs=max_seqs, num_blocks=blocks,
                      block_size=block_size, share_prefixes=prefix_sharing)  # fmt: skip
    # With sanitize the JSON comes when all has been looked at, what is left behind included; or when it has stopped.
    late = as_json and record == "sanitize"
    with recorder(
        trace, record, config, loaded, overwrite=overwrite, on_finding=on_finding, watch=watch or (), kept=newest,
        at_end=lambda online: view.finish_json(encoded, trace, _looked(online, beside)) if late else None,
    ) as sink:  # fmt: skip
        engine = Engine(loaded, config, sink=sink)
        layers = checked(engine, record, provenance=provenance, content=content, on_finding=on_finding)
        with draining(engine), layers as beside:
            view = _View(loaded.tokenizer, texts, n, live=not as_json and len(texts) * n == 1)
            for text, tokens, level, name in zip(texts, encoded, priorities, users, strict=True):
                engine.submit(tokens, params, prompt_text=text, priority=level, user=name)
            try:
                view.run(engine)
            except KeyboardInterrupt:
                if not as_json:
                    view.show()
                kept = f"; the trace {trace} is whole up to here" if sink is not None else ""
                say(f"\ninterrupted after {counted(view.tokens, 'token')}{kept}")
                raise
        if not as_json:
            view.finish(trace if sink is not None else None)
        elif not late:
            view.finish_json(encoded, trace if sink is not None else None)


def _text(prompt: str) -> str:
    """The prompt, or standard input where it is `-`."""
    from kvscope.errors import UsageError

    if prompt == "-":
        if sys.stdin is None:
            raise UsageError("the prompt is - but standard input is closed")
        try:
            prompt = sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input is not UTF-8 text: byte {error.start} is wrong") from None
    check_text("the prompt", prompt)
    if not prompt.strip():
        raise UsageError("the prompt is empty: give at least one token")
    return prompt


def check_text(what: str, text: str) -> None:
    """Raises UsageError for an argument whose bytes are no UTF-8: no tokenizer takes it."""
    from kvscope.errors import UsageError

    try:
        text.encode()
    except UnicodeEncodeError as error:
        at = len(text[: error.start].encode("utf-8", "surrogateescape"))
        raise UsageError(f"{what} is not UTF-8 text: byte {at} is wrong") from None


def _each(name: str, given: str, count: int) -> list[str]:
    """One value for all prompts, or one for each."""
    from kvscope.errors import UsageError

    values = [value.strip() for value in given.split(",")]
    if len(values) not in (1, count):
        raise UsageError(f"{name} has {len(values)} values for {count} prompts: give one, or one per prompt")
    return values * count if len(values) == 1 else values


def _priorities(given: str, count: int) -> list[int]:
    from kvscope.engine.sequence import MAX_PRIORITY
    from kvscope.errors import UsageError

    try:
        levels = [int(value) for value in _each("priority", given, count)]
    except ValueError:
        raise UsageError(f"priority is {given!r}: wanted whole numbers, separated by commas") from None
    if any(abs(level) > MAX_PRIORITY for level in levels):
        raise UsageError(f"priority is {given}: must be {-MAX_PRIORITY}..{MAX_PRIORITY}")
    return levels


def _encode(tokenizer: Any, text: str, system: str | None, raw: bool) -> list[int]:
    if raw or not tokenizer.has_chat_template:
        return list(tokenizer.encode(text, add_special=True))
    messages = [{"role": "system", "content": system}] if system else []
    return list(tokenizer.encode(tokenizer.chat([*messages, {"role": "user", "content": text}])))


def _looked(online: OnlineSanitizer, beside: Layers | None) -> dict[str, Any]:
    """What the sanitizer found, and what it and the checkers beside the tensors looked at."""
    return {
        "clean": not online.findings,
        "stopped": online.stopped,
        "findings": [finding.to_json() for finding in online.findings],
        "checked_events": online.checked,
        **(beside.to_json() if beside is not None else {}),
    }


class _View:
    """What the user sees: one stream as it comes, or all samples at the end."""

    def __init__(self, tokenizer: Any, prompts: list[str], samples: int, *, live: bool) -> None:
        self.tokenizer = tokenizer
        self.prompts = prompts
        self.live = live
        self.outputs: dict[tuple[int, int], list[int]] = {
            (i, k): [] for i in range(len(prompts)) for k in range(samples)
        }
        self.finish_reasons: dict[tuple[int, int], str] = {}
        self.seconds = 0.0

    @property
    def tokens(self) -> int:
        return sum(len(tokens) for tokens in self.outputs.values())

    def run(self, engine: Any) -> None:
        start = time.perf_counter()
        words = self.tokenizer.stream()
        total = sum(1 for _ in self.outputs)
        quiet = not errors.is_terminal or self.live
        waiting = _Quiet() if quiet else errors.status("prefill ...")
        with interruptible() as pressed, self._ending(words), waiting as status:
            for token in self._tokens(engine, pressed):
                key = (token.request_id, token.sample)
                self.outputs[key].append(token.token)
                if token.finish:
                    self.finish_reasons[key] = token.finish.name.lower()
                if self.live:
                    stream(words.push(token.token))
                elif status is not None:
                    status.update(
                        f"{counted(self.tokens, 'token')}, {len(self.finish_reasons)} of {total} samples done"
                    )
                self.seconds = time.perf_counter() - start

    @contextmanager
    def _ending(self, words: Any) -> Iterator[None]:
        """The text ends with a line, however the run ends."""
        try:
            yield
        finally:
            if self.live:
                stream(words.finish() + "\n")

    @staticmethod
    def _tokens(engine: Any, pressed: Callable[[], bool]) -> Iterator[Any]:
        while engine.has_work:
            yield from engine.step()
            if pressed():
                raise KeyboardInterrupt

    def show(self) -> None:
        """All samples under their prompts."""
        if self.live:
            return
        for (request, number), tokens in self.outputs.items():
            label = f"[{request}]" if max(k for _, k in self.outputs) == 0 else f"[{request}.{number}]"
            if number == 0:
                sys.stdout.write(f"\n{label.split('.')[0].rstrip(']')}] > {self.prompts[request].strip()}\n")
            sys.stdout.write(f"{label} {self.tokenizer.decode(tokens).strip()}\n")

    @property
    def rate(self) -> float | None:
        """Tokens per second; None before the first."""
        return self.tokens / self.seconds if self.seconds else None

    def finish_json(
        self, encoded: list[list[int]], trace: Path | None, sanitizer: dict[str, Any] | None = None
    ) -> None:  # fmt: skip
        """The whole as JSON, with what the sanitizer has to say."""
        samples = [
            {"prompt": i, "sample": k, "text": self.tokenizer.decode(tokens), "tokens": len(tokens),
             "prompt_tokens": len(encoded[i]), "finish_reason": self.finish_reasons.get((i, k))}
            for (i, k), tokens in self.outputs.items()
        ]  # fmt: skip
        record = {"samples": samples, "tokens_per_second": self.rate, "trace": str(trace) if trace else None,
                  "sanitizer": sanitizer}  # fmt: skip
        sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")

    def finish(self, trace: Path | None) -> None:
        """The closing lines."""
        self.show()
        pace = f", {self.rate:.1f} tokens/s" if self.rate else ""
        say(f"\n{counted(self.tokens, 'token')} generated{pace}")
        if trace is not None:
            named = quote(str(trace))
            say(f"trace: {trace}\n  kvscope check {named}\n  kvscope dashboard {named}")


class _Quiet:
    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None
