"""Measures the detector and three common rules on the same seeded histories; one table from one run.

`make bench-detection` prints it in about ten minutes of processor time, with `ARGS=--quick` in one. With
`ARGS="--family NAME"` it has only rows whose name contains NAME. Rows that miss their target are flagged. All
parameters are the defaults.
"""

import argparse
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))

import families
import timelines
from families import TICK, WARMUP, Generator
from ingero_contract.identifiers import node_key
from ingero_detect.nodes.detector import Detector
from ingero_detect.nodes.observation import ACTIVE, Observation
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.ranks.diagnosis import diagnose
from optimal_delay import optimal_delay
from rules import OURS, RULES, Score, judge

BUDGETS = (0.1, 0.01, 0.001)
FAULT_BUDGET = 0.001


def poisson_interval(count: int, level: float = 0.95) -> tuple[float, float]:
    """Exact interval of a Poisson mean (Garwood 1936), by bisection on the distribution function."""

    def below(mean: float, most: int) -> float:
        return (
            sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(most + 1)) if mean else 1.0
        )

    def solve(most: int, wanted: float) -> float:
        low, high = 0.0, 3.0 * count + 20
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if below(middle, most) > wanted else (low, middle)
        return high

    tail = (1 - level) / 2
    return (solve(count - 1, 1 - tail) if count else 0.0), solve(count, tail)


@dataclass(frozen=True)
class Job:
    """One family under one rule. `sizes` holds (nodes of a cluster, clusters); all are simulated together."""

    family: str
    rule: str
    budget: float
    ticks: int
    sizes: tuple[tuple[int, int], ...]

    def words(self) -> str:
        """A description of the job for the progress line."""
        return f"{self.family}, {self.rule}, budget {self.budget:g}"


FAULTS: dict[str, Generator] = {
    "step of 3 sigma": families.step_faults(3), "step of 5 sigma": families.step_faults(5),
    "step of 10 sigma": families.step_faults(10), "step of 5 sigma, AR(1) 0.8": families.step_faults(5, True),
    "collapse, idle": families.collapse, "collapse, rate": families.vanished_rate,
    "leak of 1 % a minute": families.leak,
    "slow from birth by 30 %": families.born_slow, "an eighth with another role": families.roles,
    "half of the fleet 3x slower": families.part_slow(0.5),
    "60 % of the fleet 3x slower": families.part_slow(0.6), "fault, recovery, fault": families.flapping,
    "phase change of the job": families.phase_change, "everybody restarts": families.all_restart,
}  # fmt: skip


def play(job: Job) -> dict[int, Score]:
    """The score by cluster size, computed in a worker process. Number, size and family are a cluster's seed."""
    generator = {**families.HEALTHY, **FAULTS}[job.family]
    clusters = [(nodes, number) for nodes, count in job.sizes for number in range(count)]
    histories = [
        generator(np.random.default_rng([number, nodes, *job.family.encode()]), job.ticks, nodes)
        for nodes, number in clusters
    ]
    scores = {nodes: Score() for nodes, _ in job.sizes}
    for (nodes, _), history, result in zip(clusters, histories, RULES[job.rule](histories, job.budget), strict=True):
        scores[nodes].add(judge(history, result))
    return scores


TARGETS: dict[str, tuple[str, float]] = {
    "step of 3 sigma": ("mean delay <= 4", 4.0), "step of 5 sigma": ("mean delay <= 2.5, none missed", 2.5),
    "step of 10 sigma": ("mean delay <= 2, none missed", 2.0), "step of 5 sigma, AR(1) 0.8": ("mean delay <= 5", 5.0),
    "collapse, idle": ("within 2 ticks", 2.0), "collapse, rate": ("within 2 ticks", 2.0),
    "leak of 1 % a minute": ("before 15 % is lost: 180 ticks", 180.0),
    "slow from birth by 30 %": ("10 ticks after warm-up: 40", 40.0),
    "an eighth with another role": ("nobody", math.inf),
    "half of the fleet 3x slower": ("the slow nodes, nobody else", math.inf),
    "60 % of the fleet 3x slower": ("the slow nodes, nobody else", math.inf),
    "fault, recovery, fault": ("each once", math.inf),
    "phase change of the job": ("nobody", math.inf), "everybody restarts": ("nobody", math.inf),
}  # fmt: skip


STEPS = {
    "step of 3 sigma": (3.0, 0.0), "step of 5 sigma": (5.0, 0.0), "step of 10 sigma": (10.0, 0.0),
    "step of 5 sigma, AR(1) 0.8": (5.0, 0.8),
}  # fmt: skip
"""Loss in standard deviations, and autocorrelation of the noise."""


def least_delay(family: str, nodes: int) -> float | None:
    """Least mean delay in ticks, at the same budget, of any test that knows the noise, the baseline and the loss.

    The common level is not known to it, only the mean of the other nodes. The first tick of a loss stands out of
    autocorrelated noise by more than seven deviations, so that the first tick is enough.
    """
    if family not in STEPS:
        return None
    sigmas, phi = STEPS[family]
    seen = sigmas / math.sqrt(1 + 1 / (nodes - 1))
    return 1.0 if phi else optimal_delay(seen, 3600 / TICK / FAULT_BUDGET)


FLOOR = "pauses of 1-2 ticks"
"""A family in which a test that names a large loss on its second tick accuses one node of every cohort."""

HEALTHY_SIZES = {
    0.1: ((8, 32), (64, 4), (512, 1)), 0.01: ((8, 32), (64, 4), (512, 1)), 0.001: ((8, 96), (64, 12), (512, 2)),
}  # fmt: skip
"""Clusters by budget: at the smallest budget at least 7,000 node-hours a row, for 7 expected false alarms."""


def healthy_jobs(quick: bool, chosen: str) -> Iterable[Job]:
    """Ten hours of every healthy family; two hours for the common rules, which accuse continuously."""
    for family in (name for name in families.HEALTHY if chosen in name.lower()):
        for budget, sizes in HEALTHY_SIZES.items():
            yield Job(family, OURS, budget, 7200, ((64, 2),) if quick else sizes)
        for rule in list(RULES)[1:]:
            yield Job(family, rule, FAULT_BUDGET, 1440, ((64, 1),) if quick else ((8, 8), (64, 1), (512, 1)))


def fault_jobs(quick: bool, chosen: str) -> Iterable[Job]:
    """Every fault at every cluster size for which it makes sense."""
    for family in (name for name in FAULTS if chosen in name.lower()):
        ticks, sizes = 1440, ((8, 20), (64, 20), (512, 1))
        if "step" in family:
            ticks, sizes = 720 + 120 * 64 + 60, ((8, 8), (64, 1), (512, 1))
        elif "collapse" in family:
            sizes = ((3, 20), (8, 20), (64, 20))
        elif "birth" in family or "role" in family:
            ticks = 240
        for rule in RULES:
            yield Job(family, rule, FAULT_BUDGET, ticks, ((64, 4 if ticks < 2000 else 1),) if quick else sizes)


Done = dict[Job, dict[int, Score]]


def others(done: Done, family: str, nodes: int, show: Callable[[Score], str]) -> list[str]:
    """Table cells of the common rules."""
    found = {job.rule: scores[nodes] for job, scores in done.items() if job.family == family and nodes in scores}
    return [show(found[rule]) if rule in found else "-" for rule in list(RULES)[1:]]


def show_healthy(console: Console, done: Done) -> int:
    """Calibration: achieved false alarms per node-hour against the budget. Returns how many rows miss it."""
    table = Table(title="healthy fleets: false accusations per node-hour (95 % Poisson interval)")
    for name in ("family", "nodes", "budget", "ingero", "", "node-hours", *list(RULES)[1:]):
        table.add_column(name, justify="left" if name == "family" else "right")
    short = 0
    rows = [
        (job, nodes, score)
        for job, scores in done.items()
        if job.rule == OURS and job.family in families.HEALTHY
        for nodes, score in scores.items()
    ]
    order = list(families.HEALTHY)
    for job, nodes, score in sorted(rows, key=lambda row: (order.index(row[0].family), row[1], -row[0].budget)):
        low, high = (bound / score.hours for bound in poisson_interval(score.false))
        kept = low <= 2 * job.budget
        clusters = dict(job.sizes)[nodes]
        floor = not kept and job.family == FLOOR and score.false <= clusters
        short += not kept and not floor
        table.add_row(
            job.family, str(nodes), f"{job.budget:g}", f"{score.false / score.hours:.2g} [{low:.2g}, {high:.2g}]",
            "kept" if kept else "FLOOR" if floor else "ABOVE", f"{score.hours:.0f}",
            *others(done, job.family, nodes, lambda theirs: f"{theirs.false / theirs.hours:.3g}"),
        )  # fmt: skip
    if table.rows:
        console.print(table)
    return short


def in_words(score: Score) -> str:
    """Mean delay, missed faults of all, accused innocent nodes."""
    average = f"{np.mean(score.delays):.1f}" if score.delays else "-"
    return f"{average} / {score.missed} of {len(score.delays) + score.missed} / {score.false}"


def is_good(family: str, score: Score) -> bool:
    """Whether the detector reaches its target."""
    _, most = TARGETS[family]
    mean = float(np.mean(score.delays)) if score.delays else math.nan
    worst = any(word in family for word in ("collapse", "leak", "birth"))
    delay = max(score.delays, default=math.inf) if worst and score.delays else mean
    expected = 2 * FAULT_BUDGET * score.hours + 3 * math.sqrt(FAULT_BUDGET * score.hours)
    lost = 0 if family == "step of 3 sigma" else score.missed
    return (not score.delays or delay <= most) and not lost and not score.repeated and score.false <= expected


def show_faults(console: Console, done: Done) -> int:
    """Delay and misses of every rule. Returns the number of the detector's rows that miss their target."""
    table = Table(title="faults at a budget of 0.001 per node-hour: mean delay in ticks / missed / others accused")
    for name in ("fault", "nodes", "target", "", "knows the noise", *RULES):
        table.add_column(name)
    short = 0
    for job, scores in done.items():
        if job.rule != OURS or job.family not in FAULTS:
            continue
        for nodes, score in scores.items():
            good = is_good(job.family, score)
            least = least_delay(job.family, nodes)
            short += not good
            table.add_row(
                job.family, str(nodes), TARGETS[job.family][0], "reached" if good else "SHORT",
                "" if least is None else f"{least:.1f}", in_words(score), *others(done, job.family, nodes, in_words),
            )  # fmt: skip
    if table.rows:
        console.print(table)
    return short


RING = "one late by 5 %"
VARYING: dict[str, dict[str, Any]] = {
    "at random": {}, "slowly": {"memory": 0.98}, "and one rank always has half as much again": {"skew": 0.5},
    "with quadratic time": {"quadratic": 0.3},
}  # fmt: skip
TIMELINES: dict[str, tuple[str, Callable[[np.random.Generator], timelines.Table]]] = {
    **{
        f"ring of {ranks}, {RING}, jitter {jitter:.0%}": (
            "node", partial(timelines.ring, ranks=ranks, jitter=jitter, culprit=5)
        )
        for ranks in (8, 64)
        for jitter in (0.01, 0.02, 0.03, 0.05)
    },
    f"8 x 8 in two groups each, {RING}, jitter 1%": ("node", partial(timelines.grid, culprit=5)),
    f"4 x 4 in two groups each, {RING}, jitter 1%": ("node", partial(timelines.grid, tensor=4, data=4, culprit=5)),
    "8 x 8 in two groups each, nobody late": ("none", partial(timelines.grid, late=0.0)),
    "ring of 64, nobody late": ("none", partial(timelines.ring, ranks=64, late=0.0)),
    "pipeline, even": ("none", partial(timelines.pipeline, heavy=0.0)),
    "pipeline, last stage 40 % longer": ("stage_imbalance", timelines.pipeline),
    "pipeline, long sequences in random steps": (
        "sequence_imbalance", partial(timelines.pipeline, heavy=0.0, long_share=0.1)
    ),
    "pipeline, one rank late by 15 %": ("node", partial(timelines.pipeline, heavy=0.0, culprit=5, late=0.15)),
    **{
        f"lengths vary {how}, {ranks} ranks, nobody late": (
            "sequence_imbalance", partial(timelines.varying, ranks=ranks, **change)
        )
        for ranks in (8, 64)
        for how, change in VARYING.items()
    },
    **{
        f"lengths vary {how}, {ranks} ranks, one computes 8 % longer": (
            "node", partial(timelines.varying, ranks=ranks, culprit=5, late=0.08, **change)
        )
        for ranks in (8, 64)
        for how, change in VARYING.items()
    },
    "1F1B pipeline, even": ("none", timelines.interleaved),
    "1F1B pipeline, last stage 40 % longer": ("stage_imbalance", partial(timelines.interleaved, heavy=0.4)),
    "1F1B pipeline, one rank computes 10 % longer": ("node", partial(timelines.interleaved, culprit=5, late=0.1)),
    "1F1B pipeline, the same from the middle on": (
        "node", partial(timelines.interleaved, culprit=5, late=0.1, since=15)
    ),
    "1F1B pipeline, one rank stands still on its host": (
        "node", partial(timelines.interleaved, culprit=5, stall=0.01)
    ),
}  # fmt: skip
"""The timelines, and the verdict that each must get: `node` where rank 5 is late, also beside uneven data."""

ROUNDS = {name: 1000 if name.startswith("ring") else 50 if name.startswith("1F1B") else 200 for name in TIMELINES}


def play_timelines(job: tuple[str, int]) -> tuple[int, int, int]:
    """How many verdicts were right, named an innocent rank, or named no rank although one was late."""
    name, rounds = job
    wanted, generate = TIMELINES[name]
    right = victims = silent = 0
    for number in range(rounds):
        found = diagnose(timelines.as_timeline(generate(np.random.default_rng([number, *name.encode()]))))
        culprits = {5} if wanted == "node" else set()
        named = {*found.ranks, *(rank for other in found.evidence.get("also", ()) for rank in other["ranks"])}
        right += str(found.cause) == wanted and named == culprits
        victims += bool(named - culprits)
        silent += bool(culprits) and not named
    return right, victims, silent


def show_timelines(console: Console, done: dict[tuple[str, int], tuple[int, int, int]]) -> int:
    """The verdicts of `diagnose`, with clocks off by up to 10 s. Returns how many rows miss their target."""
    table = Table(title="timelines of 50 steps, clocks off by up to 10 s: verdicts of diagnose")
    for name in ("timeline", "verdict wanted", "right", "innocent named", "nobody named", ""):
        table.add_column(name, justify="left" if name in ("timeline", "verdict wanted") else "right")
    short = 0
    for (name, rounds), (right, victims, silent) in done.items():
        short += right < rounds
        table.add_row(
            name, TIMELINES[name][0], f"{right} of {rounds}", str(victims), str(silent),
            "reached" if right == rounds else "SHORT",
        )  # fmt: skip
    if table.rows:
        console.print(table)
    return short


TICK_MS = 30
"""Longest time that a tick of 100,000 nodes may take on one core."""


def cost(console: Console, nodes: int = 100_000) -> int:
    """One tick of 100,000 nodes, and the memory of their state; 1 if it takes too long."""
    rng = np.random.default_rng(7)
    detector = Detector(Parameters(tick_seconds=TICK))
    names = [node_key("bench", f"{node:06d}") for node in range(nodes)]
    cohorts = [("bench", f"job-{number}") for number in range(nodes // 64 + 1)]
    cohort = rng.permutation(np.arange(nodes) // 64)
    state = np.full(nodes, ACTIVE, np.uint8)
    seconds = []
    for tick in range(WARMUP + 60):
        seen = Observation(names, cohort, cohorts, 100 * (1 + 0.03 * rng.normal(size=nodes)), state)
        started = time.process_time()
        detector.tick(tick * TICK, seen)
        if tick > WARMUP:
            seconds.append(time.process_time() - started)
    held = sum(detector.memory.node(name).nbytes for name in detector.memory._columns) / nodes
    window = detector.memory.window().nbytes / nodes
    middle = 1000 * float(np.median(seconds))
    short = middle >= TICK_MS
    console.print(
        f"{nodes:,} nodes in {len(cohorts):,} cohorts: a tick takes {middle:.1f} ms of one core (worst of "
        f"{len(seconds)}: {1000 * max(seconds):.1f}; target {TICK_MS}: {'SHORT' if short else 'reached'}); "
        f"{held:.0f} bytes of state a node (target 200) and {window:.0f} of window"
    )
    return int(short)


def gather(
    pool: Executor, work: Callable[[Any], Any], jobs: list[Any], words: Callable[[Any], str]
) -> dict[Any, Any]:
    """Simulate all jobs, in their order; shows the progress in one line on a terminal, line by line elsewhere."""
    started, terminal = time.monotonic(), sys.stderr.isatty()
    waiting: dict[Future[Any], Any] = {pool.submit(work, job): job for job in jobs}
    done = {}
    for future in as_completed(waiting):
        job = waiting[future]
        done[job] = future.result()
        line = f"{len(done)} of {len(jobs)}, {time.monotonic() - started:.0f} s: {words(job)}"
        print(f"\r{line:<100}" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)
    if terminal and jobs:
        print(file=sys.stderr)
    return {job: done[job] for job in jobs}


def main() -> int:
    """Run everything, print the tables."""
    parser = argparse.ArgumentParser(prog="make bench-detection ARGS=...", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 nodes and shorter histories")
    parser.add_argument("--family", default="", help="only families and timelines whose name contains this")
    parser.add_argument(
        "--jobs",
        type=int,
        default=len(os.sched_getaffinity(0)),
        help="processes to play them in (default: all cores)",
    )
    flags = parser.parse_args()
    if flags.jobs < 1:
        parser.error("--jobs must be at least 1")
    console = Console(width=max(150, Console().width))
    chosen = flags.family.lower()
    with ProcessPoolExecutor(flags.jobs) as pool:
        jobs = [*healthy_jobs(flags.quick, chosen), *fault_jobs(flags.quick, chosen)]
        done = gather(pool, play, jobs, Job.words)
        short = show_healthy(console, done) + show_faults(console, done)
        names = [name for name in TIMELINES if chosen in name.lower()]
        rounds = [(name, min(40, ROUNDS[name]) if flags.quick else ROUNDS[name]) for name in names]
        short += show_timelines(console, gather(pool, play_timelines, rounds, lambda job: str(job[0])))
    if not chosen:
        short += cost(console)
    seconds = sum(resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    words = "every row reached" if not short else f"{short} rows fall short of their target"
    console.print(f"{words}; {seconds / 60:.1f} minutes of processor time")
    return 0


if __name__ == "__main__":
    sys.exit(main())
