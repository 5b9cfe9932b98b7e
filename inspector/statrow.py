"""Rows of numbers, the same on the dashboard's pages and in `kvscope top`.

stat_cells   a run in eight numbers, each as `inspector.summary` has it
now_cells    a pool at one moment, from its measures by their names (`measures_now`; a server's frame has them too)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvscope.inspector.holes import IN_ONE_PIECE, allocator_of
from kvscope.inspector.numerals import ABSENT, bytes_text, count_text, duration_text, factor_text, ratio_text
from kvscope.inspector.palette import BY_NAME, STATES
from kvscope.inspector.state import PoolState, longest_free

LOST = "Lost"
IN_USE = ("private", "shared", "in_transit", "lost")  # tables or leases hold the block, or it is lost
Cell = tuple[str, str, str, str]  # label, value, small text after it, what hovering says


def stat_cells(facts: dict[str, Any], findings: int | None) -> tuple[Cell, ...]:
    """The cells; `findings` is None where nobody has checked."""
    held, pool = facts["held_blocks"]["peak"], facts["geometry"]["num_blocks"]
    use, sharing = facts["utilization"], facts["sharing_factor"]
    copied = bytes_text(facts["cow_bytes"]) if facts["cow_bytes"] else ""
    shares = (
        ("Sharing", factor_text(sharing["mean"]), "mean",
         f"Table entries per distinct block, mean over time. Peak {factor_text(sharing['peak'])}."),
        ("Prefix hits", ratio_text(facts["prefix_hit_rate"]), "",
         "Prompt tokens found in the prefix cache at first admission; those after a preemption are not counted."),
        ("COW copies", count_text(facts["cow_copies"]), copied, "Copies made before a write to a shared block."),
    )  # fmt: skip
    return (
        ("Pool", count_text(pool), "blocks", "Blocks in the pool, reserved ones not counted."),
        ("Peak held", count_text(held), "blocks", "The most blocks in use at once: held by tables or leases, or lost."),
        ("Utilization", ratio_text(use["mean"]), "mean",
         f"Share of the memory in use that holds live tokens, mean over time. Peak {ratio_text(use['peak'])}."),
        *(hole_cells(facts["holes"]) if facts["holes"] else shares),
        ("Preemptions", count_text(facts["preemptions"]), "", "Sequences that gave up their blocks, to be recomputed."),
        ("Findings", count_text(findings), "", "Broken rules: see the page Findings."),
    )  # fmt: skip


def measures_now(now: PoolState, block_bytes: int) -> dict[str, Any]:
    """The measures of a pool at one moment; a ratio with nothing under it is None."""
    in_tables = now.entries - now.lost
    reached = int(now.held.sum()) * now.block_size
    slots, filled = reached + now.num_lost * now.block_size, int(now.fill[now.held].sum())
    entries, distinct = int(in_tables.sum()), int((in_tables > 0).sum())
    return {
        "seq": now.seq, "blocks": now.counts, "num_blocks": now.num_blocks, "block_size": now.block_size,
        "block_bytes": block_bytes, "table_entries": entries, "saved_blocks": entries - distinct,
        "saved_bytes": (entries - distinct) * block_bytes,
        "lost_blocks": now.num_lost, "filled_slots": filled, "largest_free_run": longest_free(now),
        "tail_waste": 1 - filled / reached if reached else None, "utilization": filled / slots if slots else None,
        "sharing_factor": entries / distinct if distinct else None,
        "pool_utilization": filled / (now.num_blocks * now.block_size) if now.num_blocks else None,
    }  # fmt: skip


def now_cells(
    pool: Mapping[str, Any], allocator: str, findings: int | None, when: tuple[Cell, ...]
) -> tuple[Cell, ...]:
    """A pool at one moment.

    Args:
        pool: its measures. allocator: who gave the memory out.
        findings: None where nobody has checked.
        when: `going_cells` of a run that goes on, `moment_cells` of one that is recorded.
    """
    blocks, total = pool["blocks"], pool["num_blocks"]
    held = in_use(blocks)
    share = f", {held / total:.0%}" if total else ""
    lost = lost_cells(blocks["lost"], pool["block_bytes"])  # takes the place of what is free: the row stays one row
    saved = pool["saved_blocks"]
    size = bytes_text(saved * pool["block_bytes"]) if pool["block_bytes"] and saved else "blocks"
    shares = (
        ("Cached", count_text(blocks["cached"]), "blocks", "Held by nobody, kept for the prefix cache."),
        ("Sharing", factor_text(pool["sharing_factor"]), "", "Table entries per distinct block."),
        ("Saved", count_text(saved), size, "Table entries less distinct blocks: blocks saved by sharing."),
    )
    return (
        ("Held", count_text(held), f"of {count_text(total)}{share}",
         "Blocks in use: tables or leases hold them, or they are lost."),
        *(lost or (("Free", count_text(blocks["free"]), "blocks", "Blocks on the free list."),)),
        *(_pieces(pool) if allocator in IN_ONE_PIECE else shares),
        (_waste_of(allocator), ratio_text(pool["tail_waste"]), "", "Share of held slots that hold no token."),
        *when,
        ("Findings", count_text(findings), "" if findings is not None else "not checked",
         "Broken rules that were found: see the page Findings, or `kvscope check`."),
    )  # fmt: skip


def in_use(blocks: Mapping[str, int]) -> int:
    """Blocks that tables or leases hold, and lost ones, of the blocks by state."""
    return sum(blocks[name] for name in IN_USE)


def going_cells(running: int | None, waiting: int | None, known: bool, tokens_per_s: float | None) -> tuple[Cell, ...]:
    """What a run that goes on does now.

    Args:
        running, waiting: None where nobody is there to run them.
        known: else who came before the events that are left may be missing.
    """
    least = "" if known or running is None else "≥ "
    queued = "" if waiting is None else f"{least}{count_text(waiting)} waiting"
    speed = ABSENT if tokens_per_s is None else f"{tokens_per_s:,.0f}"
    return (
        ("Running", f"{least}{count_text(running)}", queued, "Sequences that hold blocks."),
        ("Speed", speed, "tokens/s", "Tokens computed per second, mean of the last 5 seconds."),
    )  # fmt: skip


def moment_cells(step: int, seconds: float) -> tuple[Cell, ...]:
    """Which moment of a recorded run it is."""
    return (
        ("Step", count_text(max(step, 0)), "", "Engine step of this event."),
        ("Time", duration_text(seconds), "", "Since the first event."),
    )


def _pieces(pool: Mapping[str, Any]) -> tuple[Cell, ...]:
    """Of an allocator of regions, which can share nothing: how its free memory is cut up now."""
    free, largest = pool["blocks"]["free"], pool["largest_free_run"]
    return (
        ("Fragmentation", ratio_text(1 - largest / free if free else None), "",
         "External: share of the free memory outside the largest hole."),
        ("Largest hole", count_text(largest), f"of {count_text(free)} free",
         "The longest run of free blocks: more than that nobody can have in one piece."),
    )  # fmt: skip


def state_cells(counts: dict[str, int], num_blocks: int) -> list[Cell]:
    """A cell for each state of a block: how many there are, and what share of the pool."""
    share = {name: f"{count / num_blocks:.0%}" if num_blocks else "" for name, count in counts.items()}
    return [(s.label.capitalize(), count_text(counts[s.name]), share[s.name], s.meaning) for s in STATES]


def lost_cells(lost: int, block_bytes: int) -> tuple[Cell, ...]:
    """What is lost, where anything is; it is to be an alarm."""
    if not lost:
        return ()
    size = f" {bytes_text(lost * block_bytes)}." if block_bytes else ""
    unit = "block" if lost == 1 else "blocks"
    return ((LOST, count_text(lost), unit, f"Blocks {BY_NAME['lost'].meaning}.{size}"),)


def waste_title(trace: Any) -> str:
    """What the empty share of held slots is called: where room is reserved it is a matter of that policy."""
    return _waste_of(allocator_of(trace.facts))


def _waste_of(allocator: str) -> str:
    return "Reservation waste" if allocator == "reserved" else "Tail waste"


def hole_cells(holes: dict[str, Any]) -> tuple[Cell, ...]:
    """Of an allocator of regions, which can share nothing: how its free memory is cut up, and what that cost."""
    first = holes["first"]
    largest: Cell = ("Largest hole", ABSENT, "", "No refusal was caused by holes.")
    if first:
        largest = (
            "Largest hole", count_text(first["largest"]), f"of {count_text(first['free'])} free",
            f"At event {count_text(first['seq'])}, the first refusal that holes caused: "
            f"{count_text(first['needed'])} blocks side by side were needed.",
        )  # fmt: skip
    return (
        ("Fragmentation", ratio_text(holes["mean"]), "mean",
         "External: share of the free memory outside the largest hole, mean over time. Worst "
         f"{ratio_text(holes['peak'])}."),
        largest,
        ("Refused by holes", count_text(holes["refusals"]), f"of {count_text(holes['of_refusals'])}",
         "Refusals that free blocks would have served, had they lain side by side: a paged pool has none."),
    )  # fmt: skip
