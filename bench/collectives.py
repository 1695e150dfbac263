"""Measures collectives: points a second on one core from bytes to verdict, and ranks named in simulated jobs.

`make bench-collectives` prints the table; `ARGS="--job 50"` runs a real synchronised job 50 times instead.
"""

import argparse
import os
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests/support"), str(ROOT)]

from ingero_fleet.collectives.attribution import find_late_rank  # noqa: E402
from ingero_fleet.collectives.tracker import CollectivesTracker, polls_per_tick, shared_error  # noqa: E402
from ingero_fleet.collectives.unequal_work import WorkRoom, WorkTable  # noqa: E402
from ingero_fleet.collectives.window import CommunicatorWindow  # noqa: E402
from ingero_fleet.processor_settings import NcclConfig  # noqa: E402
from ingero_kit import logs  # noqa: E402
from ingero_kit.otlp_decode import ReportDecoder  # noqa: E402
from ingero_kit.otlp_receiver import Push  # noqa: E402
from ingero_kit.otlp_signal import Signal  # noqa: E402
from ingero_testing.collectives import BEGIN, Job, Lengths  # noqa: E402
from scripts.lab import LabFailed, Site, laboratory  # noqa: E402
from scripts.synchronised import Jobs, Plan, can_trace  # noqa: E402

TARGET = 100_000
STEPS = 50
RUNS = 200
PUSH = 5.0
WITHIN, MEDIAN, WORST = 10.0, 3.0, 5.0
"""Bounds of the time to the verdict, seconds."""


LATE = 0.08
VARYING = (
    ("lengths vary at random by 30 %", Lengths(0.3)),
    ("the same, time grows with the square", Lengths(0.3, quadratic=1.0)),
    ("lengths vary by 30 % and drift slowly", Lengths(0.3, memory=0.98)),
    ("lengths vary by 30 %, one rank's are 30 % longer", Lengths(0.3, skew=0.3)),
    ("the same, time grows with the square", Lengths(0.3, skew=0.3, quadratic=1.0)),
    ("lengths vary by 10 %, one rank's are 10 % longer", Lengths(0.1, skew=0.1)),
    ("lengths never vary, one rank's are 10 % longer", Lengths(0.0, skew=0.1)),
)
"""Jobs whose ranks do different work."""


def row(what: str, ours: str, target: str, reached: bool | None) -> None:
    """One line of the table."""
    verdict = "–" if reached is None else "reached" if reached else "NOT REACHED"
    print(f"| {what} | {ours} | {target} | {verdict} |", flush=True)


def points_per_second(ranks: int, pushes: int, lengths: Lengths | None = None) -> float:
    """Points per second of processor time for the whole path: receiver's decoder, reader, grouping, verdict."""
    rates = []
    for seed in range(3):
        job = Job(ranks, late_ms={5: 5.0}, clock_seconds=10, seed=seed, lengths=lengths)
        bodies = [body for _ in range(pushes) for body in job.pushes(100)]
        tracker, decoder = CollectivesTracker(NcclConfig()), ReportDecoder()
        started = time.process_time()
        for body in bodies:
            decoder.decode(body, "protobuf", BEGIN)
            tracker.take(Push(Signal.METRICS, "protobuf", body), BEGIN)
        tracker.judge(BEGIN + 1)
        rates.append(tracker.points / (time.process_time() - started))
        if [node for _, node in tracker.stragglers] != ["node-5"]:
            raise SystemExit("bench: the culprit was not named")
    return statistics.median(rates)


def named(ranks: int, jitter_ms: float, late_ms: float) -> tuple[int, int]:
    """Runs in which the straggler, and runs in which another rank, was named after 50 collectives."""
    right = wrong = 0
    config = NcclConfig()
    live, _ = shared_error(config, polls_per_tick(PUSH, config.poll_interval))
    for seed in range(RUNS):
        straggler = seed % ranks
        job = Job(ranks, jitter_ms=jitter_ms, late_ms={straggler: late_ms} if late_ms else {}, seed=seed)
        _, blocked = job.run(STEPS)
        ordered = np.sort(blocked, axis=1)
        finding = find_late_rank(
            blocked.argmin(axis=1), ordered[:, 1] - ordered[:, 0], 1000 * (job.moment - BEGIN), ranks,
            live,
        )  # fmt: skip
        if finding and finding.accused:
            right += finding.rank == straggler and late_ms > 0
            wrong += finding.rank != straggler or late_ms == 0
    return right, wrong


def named_by_work(ranks: int, lengths: Lengths, late: float, tells: bool) -> tuple[int, int, int]:
    """Runs in which the straggler was named, those in which another rank was, and those that are unknown."""
    right = wrong = unknown = 0
    config = NcclConfig()
    live, _ = shared_error(config, polls_per_tick(PUSH, config.poll_interval))
    for seed in range(RUNS):
        straggler = seed % ranks
        job = Job(ranks, lengths=lengths, late={straggler: late} if late else {}, seed=seed)
        _, blocked = job.run(STEPS)
        assert job.work is not None
        ordered = np.sort(blocked, axis=1)
        window = CommunicatorWindow(ranks, np.zeros(ranks, np.int32), 0.0)
        if tells:
            table = WorkTable(blocked.astype(np.float32), job.work.astype(np.float32), np.zeros(STEPS, np.int32))
            window.note_work(table, WorkRoom((), config.window))
        moments = np.linspace(BEGIN, job.moment, STEPS)
        window.add(blocked.argmin(axis=1), ordered[:, 1] - ordered[:, 0], moments, 1.0, config.window, 60.0)
        window.judge(live)
        finding = window.finding
        if finding and finding.accused:
            right += finding.rank == straggler and late > 0
            wrong += finding.rank != straggler or late == 0
        unknown += finding is not None and finding.unknown
    return right, wrong, unknown


def varying_lengths() -> None:
    """Rows of jobs whose ranks do different work: who is named if they tell it, and if they do not."""
    for ranks in (8, 64):
        for what, lengths in VARYING:
            for late in (0.0, LATE):
                told, silent = (named_by_work(ranks, lengths, late, tells) for tells in (True, False))
                who = f"one rank late by {late:.0%}" if late else "nobody late"
                ours = ", ".join(
                    [*([f"named {told[0]}"] if late else []), f"wrongly {told[1]}", f"unknown {told[2]} of {RUNS}"]
                )
                row(f"{ranks} ranks, {what}, {who} (work not told: named {silent[0]}, wrongly {silent[1]})", ours,
                    "wrongly 0", told[1] == 0)  # fmt: skip


def memory_of(communicators: int, ranks: int) -> float:
    """Memory growth after so many communicators, megabytes."""

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    before, tracker = resident(), CollectivesTracker(NcclConfig())
    for number in range(communicators):
        for body in Job(ranks, comm=f"{number:016x}").pushes(2):
            tracker.take(Push(Signal.METRICS, "protobuf", body), BEGIN)
        if number % 500 == 499:
            tracker.judge(BEGIN)
    tracker.judge(BEGIN)
    return resident() - before


def real_jobs(runs: int, gloo: bool) -> None:
    """Run a real synchronised job repeatedly: which rank is named, and how long after the first late step."""
    plan, rng = Plan(), random.Random(0)
    within, wrong, seconds = 0, 0, []
    with laboratory("bench") as lab:
        jobs = Jobs(Site(lab, "job", PUSH, ()), plan, not gloo and can_trace(), gloo)
        jobs.site.start_fleet()
        jobs.start()
        print(f"{jobs.path}; {plan.step_seconds:g} s a step, jitter {plan.jitter:.0%}, ticks of {PUSH:g} s")
        for run in range(runs):
            outcome = jobs.watch(settle=rng.uniform(1.0, 1.0 + PUSH))
            within += outcome.seconds is not None and outcome.seconds <= WITHIN
            wrong += bool(outcome.wrong)
            seconds += [] if outcome.seconds is None else [outcome.seconds]
            took = "not named" if outcome.seconds is None else f"named after {outcome.seconds:.1f} s"
            print(f"  run {run + 1}: {took}; wrongly named: {sorted(outcome.wrong) or 'nobody'}", file=sys.stderr)
    print("| what | ours | target | |\n| --- | --- | --- | --- |")
    what = f"real job of {plan.ranks} processes, one late by {plan.extra:.0%}"
    row(f"{what}: named within {WITHIN:g} s", f"{within} of {runs}", f"{runs} of {runs}", within == runs)
    row(f"{what}: runs with anybody else named, or anybody too early", str(wrong), "0", not wrong)
    if seconds:
        middle, worst = statistics.median(seconds), max(seconds)
        row(f"{what}: seconds, median / worst", f"{middle:.1f} / {worst:.1f}", f"≤ {MEDIAN:g} / {WORST:g}",
            middle <= MEDIAN and worst <= WORST)  # fmt: skip


def main() -> None:
    """Run everything and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-collectives ARGS=...", description=__doc__)
    parser.add_argument("--job", type=int, metavar="N", help="run a real synchronised job N times instead")
    parser.add_argument("--gloo", action="store_true", help="with --job: processes of PyTorch (make torch)")
    flags = parser.parse_args()
    if flags.job:
        try:
            real_jobs(flags.job, flags.gloo)
        except LabFailed as error:
            raise SystemExit(f"bench: {error}") from None
        return
    logs.configure("error")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    print("| what | ours | target | |\n| --- | --- | --- | --- |", flush=True)
    for ranks, pushes in ((8, 40), (64, 10), (1024, 1)):
        rate = points_per_second(ranks, pushes)
        row(f"collective points/s on one core, {ranks} ranks", f"{rate:,.0f}", f"≥ {TARGET:,}", rate >= TARGET)
        told = points_per_second(ranks, pushes, Lengths(0.1))
        row(f"the same, with the work of every point, {ranks} ranks", f"{told:,.0f}", f"≥ {TARGET:,}", told >= TARGET)
    for ranks in (8, 64):
        for jitter in (1.0, 2.0, 3.0, 5.0):
            right, wrong = named(ranks, jitter, 5.0)
            what = f"{ranks} ranks, one late by 5 % of the step, jitter {jitter:g} %, {STEPS} collectives: named"
            row(what, f"{right} of {RUNS}", "victims 0", wrong == 0)
        _, wrong = named(ranks, 2.0, 0.0)
        row(f"{ranks} ranks, nobody late, jitter 2 %: anybody named", f"{wrong} of {RUNS}", "0", wrong == 0)
    row("memory of 10,000 communicators of 8 ranks", f"{memory_of(10_000, 8):.0f} MB", "–", None)
    varying_lengths()


if __name__ == "__main__":
    main()
