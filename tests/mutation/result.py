"""What became of the mutants: counts, an interval, the survivors."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field

from mutation.known import known
from mutation.making import Mutant


@dataclass(slots=True)
class Result:
    """What was judged so far."""

    places: int
    seed: int
    same: int = 0
    by: Counter[str] = field(default_factory=Counter)
    alive: list[Mutant] = field(default_factory=list)
    modules: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def judged(self) -> int:
        """Mutants that were tried."""
        return sum(self.by.values())

    @property
    def explained(self) -> int:
        """Survivors of which it is known why no test tells them from the original."""
        return sum(known(made.module, made.shown) is not None for made in self.alive)

    @property
    def counted(self) -> int:
        """Mutants that were tried, without those."""
        return self.judged - self.explained

    @property
    def share(self) -> float:
        """Of these, how many died."""
        return (self.judged - self.by["alive"]) / self.counted if self.counted else 0.0

    def note(self, made: Mutant, how: str) -> None:
        """One more; survivors are printed at once."""
        self.by[how or "alive"] += 1
        self.modules.setdefault(made.module, Counter())[how or "alive"] += 1
        if not how:
            self.alive.append(made)
            print(f"alive: {made.module}:{made.line} {made.operator}: {made.shown[0]}  ->  {made.shown[1]}", flush=True)
            if why := known(made.module, made.shown):
                print(f"       {why}", flush=True)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the share of all mutants lies with 95 % confidence (Wilson 1927)."""
        n, z = self.counted, 1.96
        if not n:
            return 0.0, 1.0
        middle, half = self.share + z * z / (2 * n), z * ((self.share * (1 - self.share) + z * z / (4 * n)) / n) ** 0.5
        return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)

    def words(self) -> str:
        """In one line."""
        return (
            f"{self.judged - self.by['alive']} of {self.judged} mutants killed, {self.explained} survivors change "
            f"nothing that can be told: {self.share:.1%} of {self.counted} (of all {self.interval[0]:.1%} to "
            f"{self.interval[1]:.1%} with 95 % confidence; {dict(self.by)}), {self.same} were the same program, of "
            f"{self.places:,} places"
        )

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        alive = [
            {k: v for k, v in asdict(m).items() if k not in ("code", "of")} | {"known": known(m.module, m.shown)}
            for m in self.alive
        ]
        return {"places": self.places, "same": self.same, "judged": self.judged, "explained": self.explained,
                "share": self.share, "interval": self.interval,
                "modules": {name: dict(by) for name, by in sorted(self.modules.items())},
                "by": dict(self.by), "seed": self.seed, "alive": alive}  # fmt: skip

    def page(self) -> str:
        """As Markdown: the share, each module, each survivor with its change."""
        lines = ["# Mutation testing", "", f"Made by `python tests/mutants.py --seed {self.seed} --markdown FILE`.", "",
                 f"{self.words()}.", "", "| module | judged | killed |", "|---|---|---|"]  # fmt: skip
        for name, by in sorted(self.modules.items()):
            lines.append(f"| {name} | {by.total()} | {1 - by['alive'] / by.total():.0%} |")
        lines += ["", "## Survivors", ""]
        for made in sorted(self.alive, key=lambda made: (made.module, made.line)):
            why = known(made.module, made.shown) or "not explained yet"
            lines += [f"{made.module}:{made.line} ({made.operator}): {why}.", "", "```diff", f"- {made.shown[0]}",
                      f"+ {made.shown[1]}", "```", ""]  # fmt: skip
        return "\n".join(lines)
