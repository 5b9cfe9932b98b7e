"""The row of eight numbers that a run begins with, each as `inspector.summary` has it."""

from __future__ import annotations

from typing import Any

from kvscope.dashboard.numbers import bytes_text, count_text, factor_text, ratio_text

Cell = tuple[str, str, str, str]  # label, value, small text after it, what hovering says


def stat_cells(facts: dict[str, Any], findings: int | None) -> tuple[Cell, ...]:
    """The cells; `findings` is None where nobody has checked."""
    held, pool = facts["held_blocks"]["peak"], facts["geometry"]["num_blocks"]
    use, sharing = facts["utilization"], facts["sharing_factor"]
    copied = bytes_text(facts["cow_bytes"]) if facts["cow_bytes"] else ""
    return (
        ("Pool", count_text(pool), "blocks", "Blocks in the pool, reserved ones not counted."),
        ("Peak held", count_text(held), "blocks", "The most blocks that tables or leases held at once."),
        ("Utilization", ratio_text(use["mean"]), "",
         f"Share of held memory that holds live tokens, mean over time. Peak {ratio_text(use['peak'])}."),
        ("Sharing", factor_text(sharing["mean"]), "",
         f"Table entries per distinct block, mean over time. Peak {factor_text(sharing['peak'])}."),
        ("Prefix hits", ratio_text(facts["prefix_hit_rate"]), "",
         "Prompt tokens found in the prefix cache at first admission; those after a preemption are not counted."),
        ("COW copies", count_text(facts["cow_copies"]), copied, "Copies made before a write to a shared block."),
        ("Preemptions", count_text(facts["preemptions"]), "", "Sequences that gave up their blocks, to be recomputed."),
        ("Findings", count_text(findings), "", "Broken rules: see the page Findings."),
    )  # fmt: skip
