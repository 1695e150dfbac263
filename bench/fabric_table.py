"""The table of what is named in simulated jobs on a two-level fabric."""

from collections import Counter
from typing import Final

from ingero_testing.fabric_jobs import FabricJob

OUTCOMES: Final = ("right", "inseparable", "unknown", "innocent", "missed", "lacking")


class OutcomeTable:
    """How often what came out, by what was slow."""

    def __init__(self) -> None:
        self.table: dict[str, Counter[str]] = {}

    def add(self, job: FabricJob, result: str, verdict: object) -> None:
        """Count a job, and print one that was judged worse than it can be."""
        for row in (job.fault, "all"):
            self.table.setdefault(row, Counter())[result] += 1
        if result not in OUTCOMES[:2]:
            print(f"job {job.number}: {result}: {job.kind} {job.name} since {job.onset}, {verdict}")

    def show(self, title: str) -> bool:
        """Print the table; returns whether 99 % are as good as they can be and nobody innocent is named."""
        print(f"{title:28}{''.join(f'{name:>13}' for name in OUTCOMES)}")
        for row in sorted(self.table, key=lambda name: (name == "all", name)):
            print(f"{row:28}{''.join(f'{self.table[row][name]:13}' for name in OUTCOMES)}")
        found = self.table["all"]
        return not found["innocent"] and found["right"] + found["inseparable"] >= 0.99 * found.total()
