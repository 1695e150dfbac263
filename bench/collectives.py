"""The NCCL side in figures: points a second on one core from bytes to verdict, and who is named in simulated jobs.

`make bench-collectives` prints the table.
"""

import os
import statistics
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/support"))

from ingero_fleet.collectives.attribution import AttributionConfig, find_late_rank  # noqa: E402
from ingero_fleet.collectives.desk import CollectivesDesk  # noqa: E402
from ingero_fleet.collectives.settings import NcclConfig  # noqa: E402
from ingero_kit.otlp import Decoder  # noqa: E402
from ingero_kit.otlp_server import Push, Signal  # noqa: E402
from ingero_testing.collectives import BEGIN, Job  # noqa: E402

TARGET = 100_000
STEPS = 50
RUNS = 200


def row(what: str, ours: str, target: str, reached: bool | None) -> None:
    """One line of the table."""
    verdict = "–" if reached is None else "reached" if reached else "NOT REACHED"
    print(f"| {what} | {ours} | {target} | {verdict} |", flush=True)


def points_per_second(ranks: int, pushes: int) -> float:
    """Points a second of processor time, everything included: receiver's decoder, reader, grouping, verdict."""
    rates = []
    for seed in range(3):
        job = Job(ranks, late_ms={5: 5.0}, clock_seconds=10, seed=seed)
        bodies = [body for _ in range(pushes) for body in job.pushes(100)]
        desk, decoder = CollectivesDesk(NcclConfig()), Decoder()
        started = time.process_time()
        for body in bodies:
            decoder.decode(body, "protobuf", BEGIN)
            desk.take(Push(Signal.METRICS, "protobuf", body), BEGIN)
        desk.judge(BEGIN + 1)
        rates.append(desk.points / (time.process_time() - started))
        if [node for _, node in desk.culprits] != ["node-5"]:
            raise SystemExit("bench: the culprit was not named")
    return statistics.median(rates)


def named(ranks: int, jitter_ms: float, late_ms: float) -> tuple[int, int]:
    """Runs in which the culprit, and in which anybody else, was named after 50 collectives."""
    right = wrong = 0
    for seed in range(RUNS):
        culprit = seed % ranks
        job = Job(ranks, jitter_ms=jitter_ms, late_ms={culprit: late_ms} if late_ms else {}, seed=seed)
        _, blocked = job.run(STEPS)
        ordered = np.sort(blocked, axis=1)
        finding = find_late_rank(
            blocked.argmin(axis=1), ordered[:, 1] - ordered[:, 0], 1000 * (job.moment - BEGIN), ranks,
            AttributionConfig(),
        )  # fmt: skip
        if finding and finding.accused:
            right += finding.rank == culprit and late_ms > 0
            wrong += finding.rank != culprit or late_ms == 0
    return right, wrong


def memory_of(communicators: int, ranks: int) -> float:
    """Megabytes more after so many communicators than before."""

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    before, desk = resident(), CollectivesDesk(NcclConfig())
    for number in range(communicators):
        for body in Job(ranks, comm=f"{number:016x}").pushes(2):
            desk.take(Push(Signal.METRICS, "protobuf", body), BEGIN)
        if number % 500 == 499:
            desk.judge(BEGIN)
    desk.judge(BEGIN)
    return resident() - before


def main() -> None:
    """Run everything and print the table."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print("| what | ours | target | |\n| --- | --- | --- | --- |", flush=True)
    for ranks, pushes in ((8, 40), (64, 10), (1024, 1)):
        rate = points_per_second(ranks, pushes)
        row(f"collective points/s on one core, {ranks} ranks", f"{rate:,.0f}", f"≥ {TARGET:,}", rate >= TARGET)
    for ranks in (8, 64):
        for jitter in (1.0, 2.0, 3.0, 5.0):
            right, wrong = named(ranks, jitter, 5.0)
            what = f"{ranks} ranks, one late by 5 % of the step, jitter {jitter:g} %, {STEPS} collectives: named"
            row(what, f"{right} of {RUNS}", "victims 0", wrong == 0)
        _, wrong = named(ranks, 2.0, 0.0)
        row(f"{ranks} ranks, nobody late, jitter 2 %: anybody named", f"{wrong} of {RUNS}", "0", wrong == 0)
    row("memory of 10,000 communicators of 8 ranks", f"{memory_of(10_000, 8):.0f} MB", "–", None)


if __name__ == "__main__":
    main()
