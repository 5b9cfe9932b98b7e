"""Small histories kept as they were recorded, and what the sanitizer says of them after a deterministic change.

`python tests/golden/histories.py findings` writes `findings.txt` anew: look at the difference before it is kept.
`... record` records the histories anew, and chooses the changes worth keeping; both are needed when an event changes
its meaning, and only then.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import numpy as np

from kvscope.inspector.findings import Finding, check
from kvscope.inspector.screen import plain
from kvscope.inspector.screen.screen import screen
from kvscope.inspector.source import frozen
from kvscope.traces.schema import EVENT_DTYPE, Kind
from kvscope.traces.sink import UNKNOWN_SITE

HERE = Path(__file__).parent
COLUMNS = ("block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "aux", "kind", "step", "reason")
KEPT = ("aux", "step", "block", "gen", "seq_id", "lblock", "ref_before", "ref_after", "fill", "kind", "reason")
MOST = 6  # findings of a line; of more, the digest is kept
WIDTH = 12  # values of a row's details, at most


class History:
    """A trace in memory, rows, details and facts as they were recorded; all of them may be changed."""

    def __init__(self, rows: np.ndarray, details: dict[int, tuple[int, ...]], about: dict[str, Any]) -> None:
        self.events, self.about, self._details = rows, about, details
        self.num_blocks, self.block_size, self.block_bytes = about["num_blocks"], about["block_size"], 0
        self.facts = [dict(fact) for fact in about["facts"]]
        self.sites, self.actors, self.warnings, self.dropped = [UNKNOWN_SITE], ["scheduler"], (), 0
        self.clean = True

    @property
    def seqs(self) -> np.ndarray:
        return np.arange(len(self.events), dtype=np.int64)

    def detail(self, seq: int) -> tuple[int, ...] | None:
        return self._details.get(seq)

    def details_of(self, kind: int) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        found = [seq for seq in sorted(self._details) if self.events["kind"][seq] == kind]
        return np.asarray(found, np.int64), [self._details[seq] for seq in found]

    def at(self, order: list[int]) -> History:
        """With these rows, in this order; details go with them."""
        details = {new: self._details[old] for new, old in enumerate(order) if old in self._details}
        return History(self.events[order].copy(), details, self.about)


def draws(text: str) -> Callable[[int], int]:
    """Numbers below what is asked for, the same for the same text in every Python."""
    state = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")]

    def below(end: int) -> int:
        state[0] = (state[0] * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state[0] >> 33) % end

    return below


def changed(history: History, name: str, number: int) -> History:
    """The history with one to three changes that its name and a number decide; number 0: as it was recorded."""
    below, order = draws(f"{name} {number}"), list(range(len(history.events)))
    if not number:
        return history.at(order)
    plan = [below(8) for _ in range(1 + below(3) // 2)]
    for how in plan:
        at, other = below(len(order)), below(len(order))
        if how == 0:
            del order[at]
        elif how == 1:
            order.insert(other, order[at])
        elif how == 2:
            order[at : at + 2] = order[at : at + 2][::-1]
        elif how == 3:
            order.insert(at + below(12), order.pop(at))
    made = history.at(order)
    for how in plan:
        if how > 3:
            _alter(made, how, below)
    return made


def _alter(made: History, how: int, below: Callable[[int], int]) -> None:
    row, by = below(len(made.events)), (-1, 1, 2, 1 << 32)
    if how == 7 and made._details:
        seq = sorted(made._details)[below(len(made._details))]
        values = list(made._details.pop(seq))
        if values and below(6):
            values[below(len(values))] += by[below(3)]
            made._details[seq] = tuple(values)
        return
    column = COLUMNS[below(len(COLUMNS))]
    value = int(made.events[column][row]) + by[below(4 if column == "aux" else 3)]
    if column == "kind":
        value = sorted(int(kind) for kind in Kind)[below(len(Kind))]
    made.events[column][row] = value % 200 if column == "reason" else value


def kept() -> dict[str, History]:
    """The histories, by name."""
    out = {}
    about, tables = stored()
    for name, table in tables.items():
        rows = np.zeros(len(table), EVENT_DTYPE)
        for i, column in enumerate(KEPT):
            rows[column] = table[:, i]
        details = {
            seq: tuple(int(value) for value in table[seq, len(KEPT) + 1 : len(KEPT) + 1 + count])
            for seq, count in enumerate(table[:, len(KEPT)].tolist())
            if count >= 0
        }
        out[name] = History(rows, details, about[name])
    return out


def told(history: History) -> str:
    """What the replay finds (rule, event, step, block, life, slots, sequence, others, related events, the numbers in
    its sentence), what it looked at, and what the screen suspects at which event."""
    result = check(history, replay=True)  # type: ignore[arg-type]
    with (
        np.errstate(all="raise"),
        mock.patch.object(plain, "FEW", 0),
    ):  # with its short cuts
        looked = screen(frozen(history))  # type: ignore[arg-type]
    assert looked.suspects or not result.findings, "the screen has passed what the replay has not"
    suspects = ",".join(f"{rule}@{seq}" for rule, seq in sorted(looked.suspects.items()))
    counts = (result.blocks, result.slots, looked.blocks, looked.slots)
    findings = [_line(finding) for finding in result.findings]
    if len(findings) > MOST:
        rest = hashlib.sha256(" ".join(findings[MOST:]).encode()).hexdigest()
        findings[MOST:] = [f"and {len(findings) - MOST} more, {rest[:12]}"]
    return " ".join([f"<{suspects}>", *map(str, counts), *findings])


def _line(finding: Finding) -> str:
    numbers = ".".join(re.findall(r"\d+", finding.why))
    where = f"{finding.seq}/{finding.step}:b{finding.block}#{finding.gen}[{finding.slot_lo}:{finding.slot_hi}]"
    related = "".join(f"{role[0]}{role[-1]}{seq}" for role, seq in finding.related)
    return f"{finding.code}@{where}s{finding.seq_id}o{'.'.join(map(str, finding.others))}{related}={numbers}"


def lines(chosen: Iterator[tuple[str, int]]) -> Iterator[str]:
    """A line of `findings.txt` for each history and number."""
    histories = kept()
    for name, number in chosen:
        yield f"{name} {number} {told(changed(histories[name], name, number))}"


def expected() -> list[str]:
    """The lines that were kept."""
    return (HERE / "findings.txt").read_text(encoding="utf-8").splitlines()


def key(line: str) -> tuple[str, int]:
    """History and number of a line."""
    name, number, _ = line.split(" ", 2)
    return name, int(number)


def recorded(toy_engine: ModuleType) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What is known of each history, and its rows with their details, recorded anew; engine: `tests/toy_engine.py`."""
    import random

    from kvscope.engine.block_manager import BlockManager
    from kvscope.inspector.faults.plays import PLAYS
    from kvscope.inspector.fuzz.device import OPERATIONS, DeviceRun
    from kvscope.inspector.fuzz.soak import Soak
    from kvscope.traces.memory import MemoryRecorder

    sinks = {name: play.run(BlockManager) for name, play in PLAYS.items()}
    for seed, slots in enumerate((1, 2, 3)):
        sinks[f"device{seed}"] = MemoryRecorder(num_blocks=5, block_size=slots)
        numbers = random.Random(seed)
        operations = [(numbers.choice(OPERATIONS), numbers.randrange(6), numbers.randrange(10)) for _ in range(50)]
        DeviceRun(5, slots, sink=sinks[f"device{seed}"]).play(operations)
    sinks["mixed"] = MemoryRecorder(num_blocks=10, block_size=2)
    soak = Soak(1, num_blocks=10, block_size=2, sink=sinks["mixed"])
    soak.run(90)
    soak.finish()
    sinks["queue"] = MemoryRecorder(num_blocks=8, block_size=4)
    engine = toy_engine.ToyEngine(sinks["queue"], num_blocks=8, block_size=4)
    for i in range(4):
        engine.submit(f"r{i}", [1] * 5 + [i] * 3, max_tokens=6 + i, n=1 + (i == 1))
    engine.run()
    tables, about = {}, {}
    for name, sink in sinks.items():
        rows = sink.events
        tables[name] = np.full((len(rows), len(KEPT) + 1 + WIDTH), -1, np.int64)
        for i, column in enumerate(KEPT):
            tables[name][:, i] = rows[column]
        for seq in range(len(rows)):
            detail = sink.detail(seq)
            if detail is not None:
                tables[name][seq, len(KEPT) : len(KEPT) + 1 + len(detail)] = (len(detail), *detail)
        about[name] = {"num_blocks": sink.num_blocks, "block_size": sink.block_size, "facts": list(sink.facts)}
    return about, tables


def stored() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """As `recorded`, as they were kept."""
    with np.load(HERE / "histories.npz") as file:
        about = json.loads(str(file["about"]))
        return about, {name: file[name] for name in about}


def choose(tried: int) -> Iterator[tuple[str, int]]:
    """Of so many changes of each history those that show something new: a rule broken in other words, a suspicion
    (for every fourth change, both together), and a few that break nothing."""
    seen: set[str] = set()
    for name, history in kept().items():
        for number in range(tried):
            made = changed(history, name, number)
            found = check(made, replay=True).findings  # type: ignore[arg-type]
            suspects = sorted(screen(frozen(made)).suspects)  # type: ignore[arg-type]
            whys = {f"{finding.code} {re.sub('[0-9]+', '', finding.why)}" for finding in found}
            shown = whys | set(suspects) or {f"{name} {number % 3}"}
            if number % 4 == 0:
                shown |= {f"{why} {rule}" for why in whys for rule in suspects}
            if not number or shown - seen:
                seen |= shown
                yield name, number


def write(chosen: list[tuple[str, int]]) -> None:
    """Write `findings.txt`."""
    (HERE / "findings.txt").write_text("".join(f"{line}\n" for line in lines(iter(chosen))), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        sys.path.append(str(HERE.parent))
        about, tables = recorded(import_module("toy_engine"))
        np.savez_compressed(HERE / "histories.npz", about=np.array(json.dumps(about)), **tables)
        write(list(choose(250)))
    elif sys.argv[1:] == ["findings"]:
        write([key(line) for line in expected()])
    else:
        sys.exit(__doc__)
