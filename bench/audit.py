"""Measures the audit on simulated fleets: false discoveries, and its power compared with a test that knows the noise.

`make bench-audit` prints it in about two hours of processor time, with `ARGS=--quick` in five minutes, and tells of
every row that is done. The bound knows the distribution of healthy chips, the effects of runs and the usual speed,
and applies the same false-discovery rate. The oracle knows the same, how many chips are slow and by how much, but not
which shape the healthy ones have: it tells that from the fleet, and has only the shapes of these fleets to choose
from. All parameters of the audit are the defaults. Rows that miss their target are flagged with what they are short
of: the rate, or more than 5 % in power of the bound, or even of the oracle.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/support"))

from audit_bound import table_of_bounds
from ingero_detect.audit.audit import audit
from ingero_detect.audit.audit_tiers import AuditLevel
from ingero_detect.discoveries import adjusted_chances
from ingero_detect.grouped import Bools, Floats
from ingero_detect.healthy_spread import normal_upper_tail
from ingero_testing.audit_fleets import (
    BAD_VALUES,
    CHIP_SPREADS,
    NOISES,
    SINGLE_RUN_NOISES,
    SimulatedFleet,
    huber_of_rows,
)

FDR: Final = 0.05
NEAR: Final = 0.05
"""How far the power may be below the bound."""

CLEAR: Final = (0.16, 0.28)
"""Logarithmic losses that one run shows: six to eleven times the spread of all values."""


OUTERMOST: Final = (-25.0, 40.0)
WIDTH: Final = 0.2
"""Where the oracle counts values, in spreads of healthy ones, and how finely."""


@dataclass(frozen=True)
class Tally:
    """Over all fleets of a row: share with a false finding, false discoveries, power, and those of the references.

    `oracle_false`: false discoveries of the oracle.
    """

    fleets: int
    wrong_fleets: float
    false_share: float
    false_error: float
    power: float | None
    bound: float | None
    oracle: float | None
    oracle_false: float | None

    @property
    def short_of(self) -> str:
        """What is missed: the rate (by two standard errors), or the power of the bound or even that of the oracle."""
        if self.false_share > FDR + 2 * max(self.false_error, np.sqrt(FDR * (1 - FDR) / self.fleets)):
            return "rate"
        references = {"oracle": self.oracle, "bound": self.bound}
        near = (self.power is None or power is None or self.power >= power - NEAR for power in references.values())
        return next((name for name, reached in zip(references, near, strict=True) if not reached), "")


def bound_power(fleet: SimulatedFleet, known: Floats, values: Floats, slow: Bools) -> float:
    """Share of slow chips that the test with the known distribution names."""
    chance = _chances_among(known, values)
    if fleet.noise in ("normal", "lognormal") and fleet.chips_are == "normal":
        chance = normal_upper_tail((values - np.median(known)) / known.std())
    return power_of(chance, slow)


def power_of(chance: Floats, slow: Bools) -> float:
    """Share of slow chips that are named by their chances."""
    return float((adjusted_chances(chance)[slow] <= FDR).mean())


class Oracle:
    """Knows spreads, losses and the share of slow chips, and the shapes that healthy ones may have, but not which."""

    def __init__(self, fleet: SimulatedFleet, random: np.random.Generator) -> None:
        if fleet.runs < 3:
            candidates = [replace(fleet, noise=noise) for noise in SINGLE_RUN_NOISES]
        else:
            candidates = [replace(fleet, chips_are=shape) for shape in ("normal", *CHIP_SPREADS)]
        known = [one.known(random) for one in candidates]
        self._known = [values - np.median(values) for values in known]
        spread = float(np.median([1.4826 * np.median(np.abs(values)) for values in self._known]))
        self._edges = spread * np.arange(*OUTERMOST, WIDTH)
        self._logs = [self._density(values, fleet, random) for values in self._known]

    def _density(self, healthy: Floats, fleet: SimulatedFleet, random: np.random.Generator) -> Floats:
        """Logarithms of the shares of all chips between the edges, a few of which are slow."""
        slow = random.permutation(healthy) + random.uniform(*fleet.loss, len(healthy))
        counts = (np.histogram(values, self._edges)[0] + 0.05 for values in (healthy, slow))
        of_healthy, of_slow = (count / len(healthy) for count in counts)
        found: Floats = np.log((1 - fleet.slow_share) * of_healthy + fleet.slow_share * of_slow)
        return found

    def chances(self, values: Floats) -> Floats:
        """The chance of every value, averaged over the shapes by how well each explains all values."""
        place = np.clip(np.searchsorted(self._edges, values) - 1, 0, len(self._edges) - 2)
        logs = np.array([one[place].sum() for one in self._logs])
        weights = np.exp(logs - logs.max())
        found: Floats = weights @ np.array([_chances_among(one, values) for one in self._known]) / weights.sum()
        return found


def _chances_among(known: Floats, values: Floats) -> Floats:
    found: Floats = (len(known) - np.searchsorted(known, values) + 0.5) / (len(known) + 1)
    return found


def measure(fleet: SimulatedFleet, fleets: int, seed: int) -> Tally:
    """Judge `fleets` simulated fleets."""
    random = np.random.default_rng(seed)
    known = fleet.known(random)
    compared = bool(fleet.slow_share) and not fleet.slow_nodes and not fleet.missing
    oracle = Oracle(fleet, np.random.default_rng(seed)) if compared else None
    false, power, bound, blind, blind_false = [], list[float](), list[float](), list[float](), list[float]()
    for _ in range(fleets):
        population, slow, slow_node = fleet.draw(random)
        found = audit([population], FDR).findings
        right = {(AuditLevel.CHIP, int(chip)) for chip in np.flatnonzero(slow)}
        right |= {(AuditLevel.NODE, int(node)) for node in np.flatnonzero(slow_node)}
        named = {(one.level, one.number) for one in found}
        false.append(len(named - right) / max(1, len(named)))
        if right:
            power.append(len(named & right) / len(right))
        if oracle:
            table = population.slowness.reshape(fleet.chips, fleet.runs)
            table = table - np.median(table[~slow], axis=0) if fleet.runs > 1 else table - np.median(table[~slow])
            bound.append(bound_power(fleet, known, huber_of_rows(table), slow))
            told = adjusted_chances(oracle.chances(huber_of_rows(table))) <= FDR
            blind.append(float(told[slow].mean()))
            blind_false.append(float((told & ~slow).sum() / max(1, told.sum())))
    return Tally(
        fleets, float(np.mean(np.array(false) > 0)), float(np.mean(false)), float(np.std(false) / np.sqrt(fleets)),
        *(float(np.mean(shares)) if shares else None for shares in (power, bound, blind, blind_false)),
    )  # fmt: skip


def rows(quick: bool) -> list[tuple[str, SimulatedFleet]]:
    """Every row of the table."""
    found = []
    for noise in NOISES:
        for chips in (200,) if quick else (100, 200, 400):
            for runs in (1, 10) if quick else (1, 3, 10, 100):
                base = SimulatedFleet(chips=chips, runs=runs, noise=noise)
                label = f"{noise}; {chips} GPUs; {runs} runs"
                found.append((f"healthy; {label}", base))
                found.append((f"3 % of chips slow; {label}", replace(base, slow_share=0.03)))
    for noise in BAD_VALUES:
        for runs in (3,) if quick else (2, 3, 5, 10):
            found.append((f"healthy; {noise}; 400 GPUs; {runs} runs", SimulatedFleet(400, runs, noise=noise)))
    for runs in (1, 10):
        base = SimulatedFleet(runs=runs)
        found += [
            (f"2 slow nodes of 25; {runs} runs", replace(base, slow_nodes=2)),
            (f"2 slow nodes and 3 % of chips; {runs} runs", replace(base, slow_nodes=2, slow_share=0.03)),
            (f"nodes differ by 2 %; {runs} runs", replace(base, node_spread=0.02)),
            (f"half of all values missing; {runs} runs", replace(base, runs=2 * runs, missing=0.5)),
            (f"10 % of chips slow; {runs} runs", replace(base, slow_share=0.1)),
        ]
    for chips_are in CHIP_SPREADS:
        for chips in (200,) if quick else (100, 200, 400):
            base = SimulatedFleet(chips=chips, runs=5, chip_spread=0.02, chips_are=chips_are)
            label = f"chips are {chips_are}; {chips} GPUs; 5 runs"
            found.append((f"healthy; {label}", base))
            found.append((f"3 % of chips slow by 16 to 28 %; {label}", replace(base, slow_share=0.03, loss=CLEAR)))
    for noise in SINGLE_RUN_NOISES:
        for chips in (200,) if quick else (100, 200, 400):
            for runs in (1, 2):
                base = SimulatedFleet(chips=chips, runs=runs, noise=noise)
                label = f"{noise}; {chips} GPUs; {runs} runs"
                if noise not in NOISES or runs == 2:
                    found.append((f"healthy; {label}", base))
                found.append(
                    (f"3 % of chips slow by 16 to 28 %; {label}", replace(base, slow_share=0.03, loss=CLEAR))
                )
    return found


def main() -> int:
    """Print the table; 1 if a row misses its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and fleets")
    parser.add_argument("--family", default="", help="only rows whose name contains this")
    parser.add_argument("--fleets", type=int, default=0, help="fleets of a row")
    parser.add_argument("--bound", action="store_true", help="what any test can find that does not know the shape")
    asked = parser.parse_args()
    fleets = asked.fleets or (40 if asked.quick else 200)
    if asked.bound:
        Console(width=None if sys.stdout.isatty() else 150).print(table_of_bounds(fleets))
        return 0
    chosen = [row for row in rows(asked.quick) if asked.family in row[0]]
    table = Table(title=f"audit at a false-discovery rate of {FDR:g}, {fleets} fleets a row")
    names = ("fleets with a false finding", "false discoveries", "of the oracle", "power", "bound", "oracle")
    table.add_column("fleet")
    for name in names:
        table.add_column(name, justify="right")
    table.add_column("short of")
    missed = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        tallies = [pool.submit(measure, fleet, fleets, seed) for seed, (_, fleet) in enumerate(chosen)]
        for number, ((name, _), waiting) in enumerate(zip(chosen, tallies, strict=True), 1):
            tally = waiting.result()
            print(f"{number} of {len(chosen)}: {name}{' SHORT' if tally.short_of else ''}", file=sys.stderr)
            missed += bool(tally.short_of)
            shares = [
                tally.wrong_fleets,
                tally.false_share,
                tally.oracle_false,
                tally.power,
                tally.bound,
                tally.oracle,
            ]
            shown = ["-" if share is None else f"{100 * share:.1f} %" for share in shares]
            table.add_row(name, *shown, tally.short_of)
    Console(width=None if sys.stdout.isatty() else 150).print(table)
    print(f"{len(chosen) - missed} of {len(chosen)} rows within their target")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
