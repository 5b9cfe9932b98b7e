"""The row of eight numbers that a run begins with, each as `inspector.summary` has it."""

from __future__ import annotations

from typing import Any

from kvscope.dashboard.numbers import ABSENT, bytes_text, count_text, factor_text, ratio_text
from kvscope.dashboard.palette import BY_NAME, STATES
from kvscope.inspector.holes import allocator_of

LOST = "Lost"
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
    return "Reservation waste" if allocator_of(trace.facts) == "reserved" else "Tail waste"


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
