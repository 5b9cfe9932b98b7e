"""What follows from the evidence: layers, symptoms, cases that do not pay; nothing is claimed that was not measured."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from kvscope.inspector.doctor.evidence import Evidence
from kvscope.inspector.units import agrees, counted, percent

PAYS = 1.5  # benefit ratio from which paging saves a third of a reservation or more
NEAR_LIMIT = 0.75  # of max_model_len: a request as long as that gains little


@dataclass(frozen=True, slots=True)
class Layer:
    """One of the three causes of lost memory, which have three different cures and are never mixed."""

    name: str
    cause: str  # allocator, policy, capacity
    value: float | None
    evidence: str
    cure: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether one symptom or case applies; `found` is None where the evidence to tell is missing."""

    name: str
    title: str
    found: bool | None
    confidence: str  # high, medium, low
    evidence: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All that `kvscope doctor` says."""

    benefit_ratio: float | None
    p50: float
    max_model_len: int | None
    pays: bool | None
    layers: tuple[Layer, ...]
    symptoms: tuple[Verdict, ...]
    does_not_pay: tuple[Verdict, ...]
    notes: tuple[str, ...] = ()  # what makes the evidence less than complete

    @property
    def complaints(self) -> list[Verdict]:
        """What was found."""
        return [verdict for verdict in (*self.symptoms, *self.does_not_pay) if verdict.found]

    def to_json(self) -> dict[str, Any]:
        return {"schema": "kvscope-doctor/1", **asdict(self)}


def diagnose(e: Evidence) -> Diagnosis:
    """The diagnosis that this evidence supports."""
    ratio = e.benefit_ratio
    return Diagnosis(
        ratio,
        e.p50,
        e.max_model_len,
        None if ratio is None else ratio >= PAYS and e.p50 >= e.block_size,
        _layers(e),
        _symptoms(e),
        _cases(e),
        e.notes,
    )


def _layers(e: Evidence) -> tuple[Layer, ...]:
    simulated = e.source == "workload"
    holes = "if it grew contiguously (first fit)" if simulated else "of the free memory lies outside the largest hole"
    tails = "in the tails of a paged pool" if simulated else "in tails"
    reserved = "if each reserved the limit" if simulated else "of what was reserved stayed empty"
    return (
        Layer("external fragmentation", "allocator", e.external_fragmentation,
              f"{_measured(e.external_fragmentation, holes)}{_by_holes(e)}; none in a paged pool, whose blocks are all "
              "alike",
              "page, or compact; more memory does not help"),
        Layer("reservation waste", "scheduling policy", e.reservation_waste,
              f"{_measured(e.reservation_waste, reserved)}; {tails} {_tails(e)}",
              "take blocks as they are needed; a better allocator does not help"),
        Layer("pool exhausted", "capacity", e.waits_for_memory,
              f"{_waits(e)}; {e.preemptions:,} preemptions, {_refusals(e)}", _cure(e)),
    )  # fmt: skip


def _by_holes(e: Evidence) -> str:
    """What the holes did: `; they caused 74 of 74 refusals, and the queue waits for them 9 % of the time`."""
    caused = f"they caused {e.refusals_by_holes:,} of {e.refusals:,} refusals" if e.refusals_by_holes else ""
    waits = f"the queue waits because of them {percent(e.waits_for_holes)} of the time" if e.waits_for_holes else ""
    return "".join(f"; {said}" for said in (caused, waits) if said)


def _refusals(e: Evidence) -> str:
    if not e.refusals_by_holes:
        return f"{e.refusals:,} refusals"
    scarce = e.refusals - e.refusals_by_holes
    return f"{scarce:,} refusals with too little free (the other {e.refusals_by_holes:,} are of holes)"


def _cure(e: Evidence) -> str:
    if e.refusals_by_holes and e.refusals_by_holes == e.refusals:
        return "first the holes: in no refusal too little was free in all, so paging helps; then more memory for KV"
    return "more memory for KV, fewer bytes per token (fp8, fewer KV heads), or less load; paging does not help"


def _tails(e: Evidence) -> str:
    return f"{percent(e.tail_waste)} of what is held is empty" if e.tail_waste is not None else "nothing was measured"


def _waits(e: Evidence) -> str:
    if e.waits_for_memory is None:
        return "how long the queue waits for blocks was not measured"
    return f"the queue waits for blocks {percent(e.waits_for_memory)} of the time"


def _symptoms(e: Evidence) -> tuple[Verdict, ...]:
    return _flat(e), _long(e), _short(e), _apart(e), _still_out(e)


def _flat(e: Evidence) -> Verdict:
    name, title = "flat-throughput", "concurrency went up, throughput did not"
    step = "look for the gather cost: a larger block size, and a kernel that reads the table (kvscope bench kernels)"
    if e.throughput_gain is None or e.batch_gain is None:
        return Verdict(name, title, None, "low", "no steps of different sizes were timed", "record a run under load")
    flat = e.throughput_gain < 1 + 0.25 * (e.batch_gain - 1)
    said = f"decode steps with {e.batch_gain:.1f} x the sequences yield {e.throughput_gain:.2f} x the tokens/s"
    return Verdict(name, title, flat, "medium", said, step if flat else "nothing to do")


def _long(e: Evidence) -> Verdict:
    name, title = "long-gain-little", "long requests gain little"
    if not e.max_model_len or not e.lengths:
        return Verdict(name, title, None, "low", "the limit or the lengths are not known", "record max_model_len")
    near = sum(length >= NEAR_LIMIT * e.max_model_len for length in e.lengths) / len(e.lengths)
    said = (
        f"{percent(near, 0)} of the sequences reach {percent(NEAR_LIMIT, 0)} of the limit of {e.max_model_len:,} tokens"
    )
    return Verdict(name, title, near > 0.25, "high", said, "expected: what they reserve they use; nothing to cure")


def _short(e: Evidence) -> Verdict:
    name, title = "short-got-worse", "short requests got worse"
    if not e.lengths:
        return Verdict(name, title, None, "low", "no lengths are known", "record a run that finishes requests")
    tiny = sum(length < 2 * e.block_size for length in e.lengths) / len(e.lengths)
    tail = e.tail_waste or 0.0
    said = f"{percent(tiny, 0)} of the sequences are below two blocks of {e.block_size}; in tails {_tails(e)}"
    step = f"smaller blocks than {e.block_size} against tails, larger ones against table overhead: kvscope plan card"
    found = True if tiny > 0.25 or tail > 0.3 else None if e.tail_waste is None else False
    return Verdict(name, title, found, "medium", said, step)


def _apart(e: Evidence) -> Verdict:
    name, title = "sharing-does-not-engage", "prefix sharing does not engage"
    if e.prompts < 2:
        return Verdict(name, title, None, "low", "there are not two prompts to share", "nothing to do")
    hits = f"prefix hits: {_measured(e.prefix_hit_rate, 'of the prompt tokens')}"
    if e.splits:
        s = e.splits[0]
        said = (
            f"{hits}; {s.prompts} prompts differ in {s.looks_like} and go on alike: {s.first} and {s.second} first at "
            f"character {s.position:,} (about token {s.token:,}), "
            f"{s.ours!r} and {s.theirs!r}; about {counted(s.all_blocks, 'block')} "
            f"{agrees(s.all_blocks, 'is', 'are')} stored again"
        )
        step = "put what changes (time, ids, names in no fixed order) behind what stays the same"
        return Verdict(name, title, True, "high", said, step)
    if e.splits is not None:
        return Verdict(name, title, False, "high", f"{hits}; no prompts part early and go on alike", "nothing to do")
    if e.prefix_hit_rate is None:
        return Verdict(name, title, None, "low", "nothing says what prompts have in common", "record a run")
    if e.prefix_hit_rate > 0.05:
        return Verdict(name, title, False, "medium", hits, "nothing to do")
    step = "record with --record-text, and the first differing words are shown"
    return Verdict(name, title, None, "low", f"{hits}; the prompts' text is not recorded", step)


def _still_out(e: Evidence) -> Verdict:
    name, title = "still-out-of-memory", "still out of memory"
    share = e.waits_for_memory or 0.0
    out = bool(e.refusals or share > 0.2)
    said = f"{e.refusals:,} refusals, {_waits(e)}"
    step = "the pool is too small beside weights and activations: kvscope plan card says what is left for KV"
    if e.refusals_by_holes:
        said = f"{e.refusals:,} refusals, in {e.refusals_by_holes:,} of them enough was free, in holes too small"
        step = "page: a pool of blocks has no holes, and would have served them from what was free"
    if e.lost_blocks:
        said += f"; {e.lost_blocks:,} of {e.num_blocks:,} blocks are held by nobody, and not free: a leak"
        step = "give back what ended sequences hold: kvscope check names each block and the release that is missing"
    return Verdict(name, title, out, "medium" if out else "high", said, step if out else "nothing to do")


def _cases(e: Evidence) -> tuple[Verdict, ...]:
    ratio, typical = e.benefit_ratio, math.ceil(e.p50 / e.block_size)
    near = None if ratio is None else ratio < PAYS
    below = e.p50 < e.block_size if e.lengths else None
    scarce = e.num_blocks < 4 * typical if e.lengths else None
    return (
        Verdict("lengths-near-limit", "lengths are near the limit", near, "high",
                f"benefit ratio {ratio:.2f} = limit / P50 length" if ratio else "limit or lengths are not known",
                f"from {PAYS} on paging is worth its tables"),
        Verdict("below-a-block", "requests are shorter than a block", below, "high",
                f"P50 length {e.p50:,.0f}, block {e.block_size} slots", "take smaller blocks, or none"),
        Verdict("one-at-a-time", "one request per card", e.peak_running == 1 if e.peak_running else None, "high",
                f"at most {e.peak_running:,} ran at once", "sharing memory needs somebody to share with"),
        Verdict("no-paged-kernel", "there is no kernel that reads block tables", None, "low",
                "a trace does not say which kernel ran", "kvscope bench kernels measures this machine's"),
        Verdict("no-memory-for-kv", "no memory is left for KV", scarce, "medium",
                f"the pool holds {e.num_blocks:,} blocks, a request of the P50 length takes {typical:,}",
                "a smaller model, a quantised cache, or a larger card: kvscope plan card"),
    )  # fmt: skip


def _measured(value: float | None, of: str) -> str:
    """`1.5 % of it`, or that it was not measured."""
    return f"{percent(value)} {of}" if value is not None else "not measured"
