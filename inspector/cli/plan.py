"""`kvscope plan`: the arithmetic of paging for numbers of yours."""

from __future__ import annotations

import json
import sys
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvscope.errors import UsageError
from kvscope.inspector.units import ABSENT, number, percent, size

if TYPE_CHECKING:
    from kvscope.inspector.plan import BlockSize
    from kvscope.inspector.shapes import ModelShape

app = typer.Typer(
    help="What reserving wastes, and what a pool or a card holds: arithmetic, no model.\n\n"
    "Example: kvscope plan waste --max-len 32k --lengths 2k,6k,16k,30k",
    no_args_is_help=True,
)

Model = Annotated[str | None, typer.Option(help="A name such as llama-3-8b, or a folder with config.json.")]
Layers = Annotated[int | None, typer.Option(help="In place of the model's.")]
Heads = Annotated[int | None, typer.Option(help="In place of the model's; all heads for multi-head attention.")]
HeadDim = Annotated[int | None, typer.Option(help="In place of the model's.")]
Latent = Annotated[int | None, typer.Option(help="Numbers per token and layer of latent attention, in place of heads.")]
Window = Annotated[int | None, typer.Option(help="Tokens that every layer looks back; 0 for no sliding window.")]
Dtype = Annotated[str, typer.Option(help="Of the cache: fp16, bf16, fp8, int8, fp32.")]
Ranks = Annotated[int, typer.Option("--tensor-parallel", help="Ranks that share the heads; sizes are of one rank.")]
BlockSizeOption = Annotated[int, typer.Option(help="Token slots per block.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on standard output.")]
MaxLen = Annotated[str, typer.Option(help="Where a request ends, and what reserving reserves; k is 1024.")]


@app.command("waste")
def waste(
    max_len: MaxLen,
    lengths: Annotated[str, typer.Option(help="Actual lengths in tokens, separated by commas; k is 1024.")],
    block_size: BlockSizeOption = 16,
    as_json: Json = False,
) -> None:
    """What reserving max-len for each request wastes, by its actual length, beside paging's half-filled last block.

    Example: kvscope plan waste --max-len 32k --lengths 2k,6k,16k,30k
    """
    from kvscope.inspector import plan

    rows = plan.waste(_tokens("max-len", max_len), _lengths(lengths), block_size)
    if as_json:
        _print({"max_len": _tokens("max-len", max_len), "block_size": block_size, "rows": [r.to_json() for r in rows]})
        return
    table = _table("length", "reserved and empty", "blocks", "paged and empty")
    for row in rows:
        table.add_row(number(row.length), percent(row.waste), number(row.blocks), percent(row.tail_waste))
    _console().print(table)


@app.command("pool")
def pool(
    memory: Annotated[str, typer.Option(help="Memory for KV, such as 20GiB.")],
    model: Model = None,
    layers: Layers = None,
    kv_heads: Heads = None,
    head_dim: HeadDim = None,
    latent_dim: Latent = None,
    dtype: Dtype = "fp16",
    block_size: BlockSizeOption = 16,
    tensor_parallel: Ranks = 1,
    as_json: Json = False,
) -> None:
    """How many blocks and tokens of a model a pool holds.

    Example: kvscope plan pool --memory 20GiB --layers 32 --kv-heads 8 --head-dim 128 --dtype fp16 --block-size 16
    """
    from kvscope.engine.sizing import parse_bytes
    from kvscope.inspector import plan

    shape = _shape(model, layers, kv_heads, head_dim, latent_dim, None, dtype, tensor_parallel)
    held = plan.pool(parse_bytes(memory), shape, block_size)
    if as_json:
        _print({"model": shape.name, "memory": held.memory, "bytes_per_token": held.bytes_per_token,
                "block_size": block_size, "block_bytes": held.block_bytes, "num_blocks": held.num_blocks,
                "tokens": held.tokens})  # fmt: skip
        return
    console = _console()
    console.print(f"{shape.name}: {size(held.bytes_per_token)} per token, {size(held.block_bytes)} per block")
    console.print(f"{size(held.memory)} = [bold]{held.num_blocks:,} blocks[/] of {block_size} = {held.tokens:,} tokens")


@app.command("card")
def card(
    max_len: MaxLen,
    mean_len: Annotated[str, typer.Option(help="Actual length on average, prompt and answer; k is 1024.")],
    kv_memory: Annotated[str | None, typer.Option(help="Memory for KV; or give --card and what else is on it.")] = None,
    card: Annotated[str | None, typer.Option("--card", help="Memory of the card.")] = None,
    weights: Annotated[str | None, typer.Option(help="Of it, the weights.")] = None,
    activations: Annotated[str | None, typer.Option(help="Of it, activations at their peak.")] = None,
    other: Annotated[str | None, typer.Option(help="Of it, everything else.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Your lengths, for the block size; else the mean.")] = None,
    model: Model = None,
    layers: Layers = None,
    kv_heads: Heads = None,
    head_dim: HeadDim = None,
    latent_dim: Latent = None,
    window: Window = None,
    dtype: Dtype = "fp16",
    block_size: BlockSizeOption = 16,
    tensor_parallel: Ranks = 1,
    reached: Annotated[bool, typer.Option("--reached", help="Also simulate what is reached, and what the gap is.")] = (
        False
    ),
    as_json: Json = False,
) -> None:
    """How many sequences a card holds, reserving and paging; how the gain shrinks; which block size.

    Example: kvscope plan card --card 80GiB --weights 16GiB --activations 4GiB --other 2GiB --max-len 32k --mean-len 6k --model llama-3-8b
    """  # noqa: E501 - one line, to be copied
    from kvscope.inspector import plan

    memory = _memory(kv_memory, card, {"weights": weights, "activations": activations, "other": other})
    shape = _shape(model, layers, kv_heads, head_dim, latent_dim, window, dtype, tensor_parallel)
    limit, mean = _tokens("max-len", max_len), _tokens("mean-len", mean_len)
    held, found = plan.pool(memory, shape, block_size), plan.capacity(memory, shape, limit, mean, block_size)
    own = [mean] if lengths is None else _lengths(lengths)
    if max(own) > limit:
        raise UsageError(f"length {max(own):,} is above max-len {limit:,}: a request ends there")
    sizes = plan.block_sizes(shape, own, mean=lengths is None)
    best, why = plan.recommend(sizes)
    points = plan.curve(memory, shape, limit, block_size)
    answer: dict[str, Any] = {
        "model": shape.name, "kv_memory": memory, "bytes_per_token": shape.bytes_per_token, "block_size": block_size,
        "block_bytes": held.block_bytes, "num_blocks": held.num_blocks, "max_len": limit, "mean_len": mean,
        "reserved_capacity": found.reserved, "paged_capacity": found.paged, "gain": found.gain,
        "benefit_ratio": None if lengths is None else limit / median(own),
        "curve": [{"mean_len": c.mean_len, "reserved": c.reserved, "paged": c.paged, "gain": c.gain} for c in points],
        "block_sizes": [row.to_json() for row in sizes],
        "recommended_block_size": best.block_size, "because": why,
    }  # fmt: skip
    if reached:
        from kvscope.inspector.reached import reached as simulated

        answer["reached"] = [
            {"allocator": name, "cause": c.name, "concurrency": c.concurrency, "lost": c.lost}
            for name in ("reserved", "paged")
            for c in simulated(memory, shape, limit, mean, block_size, allocator=name)
        ]
    if as_json:
        _print(answer)
    else:
        _show_card(_console(), shape, answer, sizes)


@app.command("sharing")
def sharing(
    prefix: Annotated[str, typer.Option(help="Tokens that all have in common; k is 1024.")],
    sequences: Annotated[int, typer.Option(help="How many there are at once.")],
    tail: Annotated[str, typer.Option(help="Tokens of its own that each has behind them; k is 1024.")],
    samples: Annotated[bool, typer.Option("--samples", help="They are samples of one prompt, not requests.")] = False,
    model: Model = None,
    layers: Layers = None,
    kv_heads: Heads = None,
    head_dim: HeadDim = None,
    latent_dim: Latent = None,
    dtype: Dtype = "fp16",
    block_size: BlockSizeOption = 16,
    as_json: Json = False,
) -> None:
    """What sharing a prefix saves in memory and prefill, what it costs in copies, and whether it is worth it.

    Example: kvscope plan sharing --prefix 2000 --sequences 100 --tail 300 --model llama-3-8b
    """
    from dataclasses import asdict

    from kvscope.inspector import plan

    shape = _shape(model, layers, kv_heads, head_dim, latent_dim, None, dtype, 1)
    found = plan.sharing(shape, _tokens("prefix", prefix), sequences, _tokens("tail", tail), block_size,
                         samples=samples)  # fmt: skip
    if as_json:
        _print({"model": shape.name, "block_size": block_size, **asdict(found)})
        return
    console = _console()
    console.print(f"{found.blocks_apart:,} blocks apart, [bold]{found.blocks_shared:,}[/] shared: saves "
                  f"{size(found.saved_bytes)} and {found.prefill_saved:,} prefill tokens; {found.copies:,} copies on "
                  f"write of at most {size(block_size * shape.bytes_per_token)} each")  # fmt: skip
    console.print(f"worth it? {found.worth}")


def _show_card(console: Console, shape: ModelShape, answer: dict[str, Any], sizes: list[BlockSize]) -> None:
    console.print(
        f"{shape.name}: {size(answer['bytes_per_token'])} per token; {size(answer['kv_memory'])} for KV = "
        f"{answer['num_blocks']:,} blocks of {answer['block_size']}, {size(answer['block_bytes'])} each\n"
        f"sequences of {answer['mean_len']:,} tokens at once, in theory: reserving {answer['max_len']:,} each "
        f"[bold]{answer['reserved_capacity']:,}[/], paged [bold]{answer['paged_capacity']:,}[/]\n"
    )
    table = _table("mean length", "reserved", "paged", "gain")
    for point in answer["curve"]:
        gain = f"{point['gain']:.1f} x" if point["gain"] is not None else ABSENT
        table.add_row(number(point["mean_len"]), number(point["reserved"]), number(point["paged"]), gain)
    console.print(table)
    table = _table("block", "tail waste", "entries = allocations = gathers", "a copy moves")
    for row in sizes:
        table.add_row(str(row.block_size), percent(row.tail_waste), number(row.entries), size(row.copy_bytes))
    console.print(table)
    console.print(f"block size {answer['recommended_block_size']}: {answer['because']}")
    ratio = answer["benefit_ratio"] or answer["max_len"] / answer["mean_len"]
    if ratio < 1.25:
        console.print(f"paging gains little here: lengths are near the limit (max-len is {ratio:.2f} x them)")
    if "reached" in answer:
        table = _table("allocator", "at once", "lost", "with")
        for row in answer["reached"]:
            table.add_row(row["allocator"], f"{row['concurrency']:.1f}", f"{row['lost']:.1f}", row["cause"])
        console.print(table)


def _shape(model: str | None, layers: int | None, kv_heads: int | None, head_dim: int | None,
           latent_dim: int | None, window: int | None, dtype: str, ranks: int) -> ModelShape:  # fmt: skip
    """The model's shape with the sizes that were given in place of its own."""
    from dataclasses import replace

    from kvscope.inspector.shapes import ModelShape, model_shape, parse_dtype

    bytes_each = parse_dtype(dtype)
    given = {"num_layers": layers, "num_kv_heads": kv_heads, "head_dim": head_dim}
    if model is None:
        if latent_dim is not None:
            given |= {"num_kv_heads": kv_heads or 1, "head_dim": head_dim or latent_dim}
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise UsageError("no model: give --model, or --layers, --kv-heads and --head-dim")
        shape = ModelShape("own sizes", given["num_layers"] or 0, given["num_kv_heads"] or 0, given["head_dim"] or 0,
                           1 << 20, bytes_each)  # fmt: skip
    else:
        shape = model_shape(model, dtype_bytes=bytes_each)
        own = {name: value for name, value in given.items() if value is not None}
        shape = replace(shape, name="own sizes", **own) if own else shape
    if latent_dim is not None:
        shape = replace(shape, latent_dim=latent_dim)
    if window is not None:
        shape = replace(shape, window=window, window_layers=shape.num_layers if window else 0)
    return shape.split(ranks)


def _memory(kv_memory: str | None, card: str | None, parts: dict[str, str | None]) -> int:
    """Bytes for KV: given, or what is left of the card."""
    from kvscope.engine.sizing import parse_bytes

    if (kv_memory is None) == (card is None):
        raise UsageError(
            "give either --kv-memory, or --card with what else is on it: --weights, --activations, --other"
        )
    if kv_memory is not None:
        if given := [name for name, value in parts.items() if value is not None]:
            raise UsageError(f"--{given[0]} is a part of --card: leave it out with --kv-memory")
        return parse_bytes(kv_memory)
    whole = parse_bytes(str(card))
    used = sum(parse_bytes(value) for value in parts.values() if value is not None and value.strip() != "0")
    if used >= whole:
        raise UsageError(f"nothing is left for KV: the parts take {size(used)} of {size(whole)}")
    return whole - used


def _tokens(name: str, text: str) -> int:
    from kvscope.inspector.shapes import parse_tokens

    return parse_tokens(name, text)


def _lengths(text: str) -> list[int]:
    lengths = [_tokens("lengths", part) for part in text.split(",")]
    if len(lengths) > 10_000:
        raise UsageError(f"{len(lengths):,} lengths: give at most 10,000")
    return lengths


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, 100)
    return console


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold cyan")
    for column in columns:
        table.add_column(column, justify="left" if column in ("allocator", "with") else "right", no_wrap=True)
    return table


def _print(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"schema": "kvscope-plan/1", **answer}, ensure_ascii=False) + "\n")
