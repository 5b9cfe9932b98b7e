"""docs/kernels.md from a result of the kernel benchmark: `python -m kvscope.benchmarks.kernel_page RESULT PAGE`.

The page holds no figure that is not in the file, and every row of it that has a gate, met or missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HEAD = """# Kernels on the GPU

Made from `{source}` by `python -m kvscope.benchmarks.kernel_page {source} docs/kernels.md`; that file is what
`kvscope bench kernels --out FILE` wrote on one {device} with torch {torch}.

Times are of one call in a CUDA graph, medians, over other random block tables in each call, so that the L2 cache holds
nothing of the next one. 32 query heads, 8 KV heads of 128, bfloat16, blocks of 16. Copy bandwidth measured in the same
run: {copy:,.0f} GB/s. A ratio above 1 says that ours is faster. torch's attention ran beside it over contiguous keys
and values; kernels of other projects are not installed there: their times were measured on such a card before
(`benchmarks/kernel_peers.json`) and are scaled by the copy bandwidth of both runs.

{met} of {gates} goals are met.{missed}

A copy of blocks begins while the one before it in the graph ends; other kernels lie in between in an engine. Paging is
held against tables in order, not against keys and values without a table; the rotation apart from the write is torch's.
The tests of the kernels ran there too (`PYTHONPATH=src python3 -m pytest tests/kernels tests/gpu`):
`benchmarks/results/kernel-tests-h200.txt`.
"""
PEERS = {
    "copy bandwidth": "of copy",
    "FA3": "FA3",
    "FlashInfer": "FlashInfer",
    "vLLM Triton": "vLLM Triton",
    "SDPA flash": "torch flash",
    "SDPA cuDNN": "torch cuDNN",
}
Row = dict[str, Any]


def page(result: dict[str, Any], source: str) -> str:
    """The text of the page."""
    rows: list[Row] = result["rows"]
    judged = [row for row in rows if row["gate"] is not None]
    missed = [row for row in judged if not row["ok"]]
    names = "; ".join(f"{row['name']}: {row['ratio']:.3f} x {row['baseline']}, goal {row['gate']:g}" for row in missed)
    head = HEAD.format(
        source=source, device=result["device"], torch=result["torch"], copy=rows[0]["value"], gates=len(judged),
        met=len(judged) - len(missed), missed=f" Missed: {names}." if missed else "",
    )  # fmt: skip
    parts = [head]
    for kind, title in (("decode ", "Decode: one new token of each sequence"), ("prefill ", "Prefill")):
        parts.append(f"## {title}\n\n" + _beside(rows, kind))
    parts.append("## All goals\n\n" + _table(["", "", "ratio", "goal", ""], [_goal(row) for row in judged]))
    others = [row for row in rows[1:] if row["gate"] is None and not _peer(row)]
    parts.append("## The rest\n\n" + _table(["", "", "ratio"], [_goal(row)[:3] for row in others]))
    return "\n".join(parts)


def _peer(row: Row) -> str | None:
    """The column of a shape's row; None for rows that are about something else."""
    if not row["name"].startswith(("decode ", "prefill ")) or "," in row["name"] or row["baseline"] is None:
        return None
    return next((column for peer, column in PEERS.items() if row["baseline"].startswith(peer)), None)


def _beside(rows: list[Row], kind: str) -> str:
    """A line per shape, a column per rival."""
    shapes: dict[str, dict[str, str]] = {}
    for row in rows:
        column = _peer(row)
        if column is not None and row["name"].startswith(kind):
            line = shapes.setdefault(row["name"].removeprefix(kind), {"us": f"{row['value']:,.1f}"})
            line[column] = f"{row['ratio']:.2f}"
    columns = [column for column in ("us", *PEERS.values()) if any(column in line for line in shapes.values())]
    return _table(["", *columns], [[name, *(line.get(c, "-") for c in columns)] for name, line in shapes.items()])


def _goal(row: Row) -> list[str]:
    ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f} x {row['baseline']}"
    verdict = "met" if row["ok"] else "**missed**"
    return [row["name"], f"{row['value']:,.1f} {row['unit']}", ratio, f"{row['gate'] or 0:g}", verdict]


def _table(head: list[str], lines: list[list[str]]) -> str:
    rule = ["---"] * len(head)
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, rule, *lines])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("result", type=Path, help="what `kvscope bench kernels --out FILE` wrote")
    parser.add_argument("page", type=Path, help="the Markdown file to write")
    args = parser.parse_args()
    try:
        result = json.loads(args.result.read_text(encoding="utf-8"))
        text = page(result, args.result.as_posix())
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        print(f"kvscope: error: {args.result} is no result of the kernel benchmark: {error}", file=sys.stderr)
        return 2
    args.page.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
