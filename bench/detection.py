"""The detector in figures, beside three rules of the field, on the same seeded histories; one table from one run.

`make bench-detection` prints it; `ARGS=--quick` takes a minute, `ARGS=--family NAME` one row. Rows that fall short of
their target are marked; parameters are the defaults everywhere.
"""

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parent))

import families
import timelines
from families import TICK, WARMUP, Generator, History
from ingero_detect.detector import Detector
from ingero_detect.diagnosis import diagnose
from ingero_detect.observation import ABSENT, ACTIVE, IDLE, Observation
from ingero_detect.parameters import Parameters
from ingero_fleet.replay.history import Moment
from ingero_fleet.replay.judge import Judge, Ours, Published


@dataclass
class Result:
    """What a rule did with one history: alarms as (tick, node, estimated onset tick), and node-hours judged."""

    alarms: list[tuple[int, int, float]] = field(default_factory=list)
    cleared: list[tuple[int, int]] = field(default_factory=list)
    loss: dict[tuple[int, int], float] = field(default_factory=dict)
    hours: float = 0.0


def _judged(judge: Judge, history: History) -> Result:
    """What a rule says about a history, tick by tick."""
    ticks, nodes = history.rate.shape
    names = [("bench", f"{node:05d}") for node in range(nodes)]
    cohort, cohorts = np.zeros(nodes, np.int64), [("bench", "")]
    result = Result()
    for tick in range(ticks):
        value = history.rate[tick]
        state = np.where(np.isnan(value), ABSENT, ACTIVE).astype(np.uint8)
        if history.idle is not None:
            state[history.idle[tick]] = IDLE
        for edge in judge.tick(Moment(tick * TICK, Observation(names, cohort, cohorts, value, state))):
            node = int(edge.verdict.node)
            if edge.what == "accused":
                result.alarms.append((tick, node, (edge.verdict.since or 0.0) / TICK))
            elif edge.what == "cleared":
                result.cleared.append((tick, node))
    result.hours = judge.node_hours
    return result


def ours(history: History, budget: float) -> Result:
    """The detector, defaults but for the budget."""
    return _judged(Ours(Parameters(tick_seconds=TICK, budget=budget, warmup=WARMUP), ()), history)


def published(history: History, _: float) -> Result:
    """The published rule as `replay --rule mad` has it."""
    return _judged(Published("rate", TICK, WARMUP), history)


def _edges(slow: np.ndarray, result: Result, was: np.ndarray, tick: int) -> None:
    for node in np.flatnonzero(slow & ~was).tolist():
        result.alarms.append((tick, node, tick))
    for node in np.flatnonzero(was & ~slow).tolist():
        result.cleared.append((tick, node))


def _relative(history: History, share: float, best: bool) -> Result:
    ticks, nodes = history.rate.shape
    result, was = Result(), np.zeros(nodes, bool)
    for tick in range(WARMUP, ticks):
        rate = history.rate[tick]
        here = np.isfinite(rate)
        if not here.any():
            continue
        slow = here & (rate < share * (np.nanmax(rate) if best else np.nanmedian(rate)))
        _edges(slow, result, was, tick)
        was = slow
        result.hours += float(here.sum()) * TICK / 3600
    return result


def twice_median(history: History, _: float) -> Result:
    """Slower than half of the median."""
    return _relative(history, 0.5, best=False)


def relative_to_best(history: History, _: float) -> Result:
    """Below 0.75 of the best."""
    return _relative(history, 0.75, best=True)


RULES = {"ingero": ours, "published": published, "2x median": twice_median, "0.75 of best": relative_to_best}


@dataclass
class Score:
    """A rule against the truth: delays of the faults found, ticks; faults missed; alarms on nodes without a fault."""

    delays: list[int] = field(default_factory=list)
    missed: int = 0
    false: int = 0
    repeated: int = 0
    hours: float = 0.0

    def add(self, other: "Score") -> None:
        """Sum up."""
        self.delays += other.delays
        self.missed += other.missed
        self.false += other.false
        self.repeated += other.repeated
        self.hours += other.hours


def judge(history: History, result: Result) -> Score:
    """Compare alarms with the truth. An alarm up to a minute after a fault ended still belongs to it.

    A node that was accused before its fault began, and still is, counts as found at once.
    """
    score = Score(hours=result.hours)
    used: set[int] = set()
    ends = sorted(result.cleared)
    for node, spells in history.guilty.items():
        starts = [(number, tick) for number, (tick, who, _) in enumerate(result.alarms) if who == node]
        for start, stop in spells:
            mine = [(number, tick) for number, tick in starts if start <= tick < stop + 12]
            earlier = [tick for _, tick in starts if tick < start]
            standing = bool(earlier) and not any(who == node and earlier[-1] < tick <= start for tick, who in ends)
            used.update(number for number, _ in mine)
            if standing:
                score.delays.append(1)
            elif mine:
                score.delays.append(mine[0][1] - start + 1)
            else:
                score.missed += 1
            score.repeated += max(0, len(mine) - (0 if standing else 1))
    score.false = len(result.alarms) - len(used)
    return score


def run(name: str, generator: Generator, rule: str, nodes: int, ticks: int, rounds: int, budget: float) -> Score:
    """Play a family so many times; the seed is the round."""
    total = Score()
    for number in range(rounds):
        rng = np.random.default_rng([number, nodes, *name.encode()])
        history = generator(rng, ticks, nodes)
        total.add(judge(history, RULES[rule](history, budget)))
    return total


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
    """One cell of the table."""

    family: str
    rule: str
    nodes: int
    ticks: int
    rounds: int
    budget: float


FAULTS: dict[str, Generator] = {
    "step of 3 sigma": families.step_faults(3), "step of 5 sigma": families.step_faults(5),
    "step of 10 sigma": families.step_faults(10), "step of 5 sigma, AR(1) 0.8": families.step_faults(5, True),
    "collapse, idle": families.collapse, "collapse, rate": families.vanished_rate,
    "leak of 1 % a minute": families.leak,
    "slow from birth by 30 %": families.born_slow, "half of the fleet 3x slower": families.part_slow(0.5),
    "60 % of the fleet 3x slower": families.part_slow(0.6), "fault, recovery, fault": families.flapping,
    "phase change of the job": families.phase_change, "everybody restarts": families.all_restart,
}  # fmt: skip


def play(job: Job) -> Score:
    """For worker processes."""
    generator = {**families.HEALTHY, **FAULTS}[job.family]
    return run(job.family, generator, job.rule, job.nodes, job.ticks, job.rounds, job.budget)


TARGETS: dict[str, tuple[str, float]] = {
    "step of 3 sigma": ("mean delay <= 4", 4.0), "step of 5 sigma": ("mean delay <= 2.5, none missed", 2.5),
    "step of 10 sigma": ("mean delay <= 2, none missed", 2.0), "step of 5 sigma, AR(1) 0.8": ("mean delay <= 5", 5.0),
    "collapse, idle": ("within 2 ticks", 2.0), "collapse, rate": ("within 2 ticks", 2.0),
    "leak of 1 % a minute": ("before 15 % is lost: 180 ticks", 180.0),
    "slow from birth by 30 %": ("10 ticks after warm-up: 40", 40.0),
    "half of the fleet 3x slower": ("the slow nodes, nobody else", math.inf),
    "60 % of the fleet 3x slower": ("the slow nodes, nobody else", math.inf),
    "fault, recovery, fault": ("each once", math.inf),
    "phase change of the job": ("nobody", math.inf), "everybody restarts": ("nobody", math.inf),
}  # fmt: skip


def healthy_jobs(quick: bool, chosen: str | None) -> Iterable[Job]:
    """Node-hours for about 6 expected false alarms at the smallest budget and 64 or more nodes, less with --quick."""
    sizes = (64,) if quick else (8, 64, 512)
    for family in families.HEALTHY:
        if chosen and chosen.lower() not in family.lower():
            continue
        for nodes in sizes:
            ticks, rounds = (
                (2880, 1) if quick else ({8: 14400, 64: 14400, 512: 8640}[nodes], {8: 4, 64: 4, 512: 1}[nodes])
            )
            for budget in (0.1, 0.01, 0.001):
                yield Job(family, "ingero", nodes, ticks, rounds, budget)
            for rule in list(RULES)[1:]:
                yield Job(family, rule, nodes, 2880, 1, 0.001)


def fault_jobs(quick: bool, chosen: str | None) -> Iterable[Job]:
    """Every fault at every size that it makes sense for."""
    for family in FAULTS:
        if chosen and chosen.lower() not in family.lower():
            continue
        sizes = (3, 8, 64) if "collapse" in family else (8, 64, 512)
        for nodes in sizes[1:2] if quick else sizes:
            rounds = 1 if "step" in family or nodes == 512 else (4 if quick else 20)
            ticks = 720 + 120 * min(nodes, 64) + 60 if "step" in family else 1440
            if family.startswith("slow from"):
                ticks = 240
            for rule in RULES:
                yield Job(family, rule, nodes, ticks, rounds, 0.001)


def show_healthy(console: Console, done: dict[Job, Score]) -> int:
    """Calibration: achieved false alarms per node-hour against the budget. Returns rows that fall short."""
    table = Table(title="healthy fleets: false accusations per node-hour (95 % Poisson interval)")
    for name in ("family", "nodes", "budget", "ingero", "", "node-hours", *list(RULES)[1:]):
        table.add_column(name, justify="left" if name == "family" else "right")
    short = 0
    for job, score in done.items():
        if job.rule != "ingero" or job.family not in families.HEALTHY:
            continue
        low, high = (bound / score.hours for bound in poisson_interval(score.false))
        kept = low <= 2 * job.budget
        short += not kept
        others = [
            next(
                (
                    f"{theirs.false / theirs.hours:.3g}"
                    for other, theirs in done.items()
                    if (other.family, other.nodes, other.rule) == (job.family, job.nodes, rule)
                ),
                "-",
            )
            for rule in list(RULES)[1:]
        ]
        table.add_row(
            job.family, str(job.nodes), f"{job.budget:g}", f"{score.false / score.hours:.2g} [{low:.2g}, {high:.2g}]",
            "kept" if kept else "ABOVE", f"{score.hours:.0f}", *others,
        )  # fmt: skip
    console.print(table)
    return short


def show_faults(console: Console, done: dict[Job, Score]) -> int:
    """Delay and misses of every rule. Returns rows of ours that fall short."""
    table = Table(title="faults at a budget of 0.001 per node-hour: mean delay in ticks / missed / others accused")
    for name in ("fault", "nodes", "target", "", *RULES):
        table.add_column(name)
    short = 0
    for job, score in done.items():
        if job.rule != "ingero" or job.family not in FAULTS:
            continue
        text, most = TARGETS[job.family]
        mean = float(np.mean(score.delays)) if score.delays else math.nan
        worst = "collapse" in job.family or "leak" in job.family or "birth" in job.family
        delay = max(score.delays, default=math.inf) if worst and score.delays else mean
        expected = 2 * job.budget * score.hours + 3 * math.sqrt(job.budget * score.hours)
        lost = 0 if job.family == "step of 3 sigma" else score.missed
        good = (not score.delays or delay <= most) and not lost and not score.repeated and score.false <= expected
        short += not good
        cells = []
        for rule in RULES:
            theirs = next(
                other_score
                for other, other_score in done.items()
                if (other.family, other.nodes, other.rule) == (job.family, job.nodes, rule)
            )
            average = f"{np.mean(theirs.delays):.1f}" if theirs.delays else "-"
            total = len(theirs.delays) + theirs.missed
            cells.append(f"{average} / {theirs.missed} of {total} / {theirs.false}")
        table.add_row(job.family, str(job.nodes), text, "reached" if good else "SHORT", *cells)
    console.print(table)
    return short


def timeline_jobs(quick: bool) -> list[tuple[str, int]]:
    """Rows of the table about synchronised jobs: what is played, and how often."""
    return [(name, 40 if quick else 1000 if "ring" in name else 200) for name in TIMELINES]


RING = "one late by 5 %"
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
}  # fmt: skip
"""What is played, and what the verdict has to be; the culprit is always rank 5."""


def play_timelines(job: tuple[str, int]) -> tuple[int, int, int]:
    """How many verdicts were right, named an innocent rank, or named nobody where somebody was late."""
    name, rounds = job
    wanted, generate = TIMELINES[name]
    right = victims = silent = 0
    for number in range(rounds):
        found = diagnose(timelines.as_timeline(generate(np.random.default_rng([number, *name.encode()]))))
        culprits = (5,) if wanted == "node" else ()
        right += str(found.cause) == wanted and found.ranks == culprits
        victims += bool(set(found.ranks) - set(culprits))
        silent += wanted == "node" and not found.ranks
    return right, victims, silent


def show_timelines(console: Console, quick: bool, pool: ProcessPoolExecutor) -> int:
    """The verdicts of `diagnose`, clocks off by up to 10 s. Returns rows that fall short."""
    table = Table(title="timelines of 50 steps, clocks off by up to 10 s: verdicts of diagnose")
    for name in ("timeline", "verdict wanted", "right", "innocent named", "nobody named", ""):
        table.add_column(name, justify="left" if name in ("timeline", "verdict wanted") else "right")
    jobs, short = timeline_jobs(quick), 0
    for (name, rounds), (right, victims, silent) in zip(jobs, pool.map(play_timelines, jobs), strict=True):
        good = right == rounds
        short += not good
        table.add_row(
            name,
            TIMELINES[name][0],
            f"{right} of {rounds}",
            str(victims),
            str(silent),
            "reached" if good else "SHORT",
        )
    console.print(table)
    return short


def cost(console: Console, nodes: int = 100_000) -> None:
    """One tick of 100,000 nodes, and what is remembered of them."""
    rng = np.random.default_rng(7)
    detector = Detector(Parameters(tick_seconds=TICK))
    names = [("bench", f"{node:06d}") for node in range(nodes)]
    cohort, cohorts = np.arange(nodes) // 64, [("bench", f"job-{number}") for number in range(nodes // 64 + 1)]
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
    console.print(
        f"{nodes:,} nodes in {len(cohorts):,} cohorts: a tick takes {1000 * float(np.median(seconds)):.1f} ms "
        f"of one core (worst of {len(seconds)}: {1000 * max(seconds):.1f}; target 30); {held:.0f} bytes of state a "
        f"node (target 200) and {window:.0f} of window"
    )


def main() -> int:
    """Play everything, print the tables."""
    parser = argparse.ArgumentParser(prog="make bench-detection ARGS=...", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="64 nodes and shorter histories")
    parser.add_argument("--family", help="only families whose name contains this")
    flags = parser.parse_args()
    console = Console(width=max(150, Console().width))
    jobs = [*healthy_jobs(flags.quick, flags.family), *fault_jobs(flags.quick, flags.family)]
    done: dict[Job, Score] = {}
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for number, (job, score) in enumerate(zip(jobs, pool.map(play, jobs), strict=True), start=1):
            done[job] = score
            if sys.stderr.isatty():
                print(f"\r{number} of {len(jobs)}", end="", file=sys.stderr, flush=True)
        short = show_healthy(console, done) + show_faults(console, done)
        if not flags.family:
            short += show_timelines(console, flags.quick, pool)
    if not flags.family:
        cost(console)
    console.print("every row reached" if not short else f"{short} rows fall short of their target")
    return 0


if __name__ == "__main__":
    sys.exit(main())
