"""Who is accused in fleets in which a node, or several, are slower than the others from the first tick.

python bench/born_slow.py --cohorts 24
"""

import argparse
import zlib
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from families import History
from rules import ours

TICKS = 240
NOISE = 0.02
"""Standard deviation of a rate from tick to tick, share of the rate."""

SIZES = (5, 8, 16, 64)
SPREADS = (0.0, 0.03, 0.06, 0.1)
"""Standard deviations by which the rates of healthy chips differ, log units."""


@dataclass(frozen=True)
class Family:
    """Fleets of one kind: `slow` nodes lose the shares in `losses`; they are at fault, or have another role."""

    name: str
    slow: int = 0
    losses: tuple[float, float] = (0.0, 0.0)
    fault: bool = False
    heavy: bool = False
    """Chips differ by a Student distribution with 5 degrees of freedom instead of a normal one."""


FAMILIES = (
    Family("healthy chips"),
    Family("healthy chips, t(5)", heavy=True),
    Family("one node 12 % slower", 1, (0.12, 0.12), fault=True),
    Family("one node 20 % slower", 1, (0.2, 0.2), fault=True),
    Family("one node 30 % slower", 1, (0.3, 0.3), fault=True),
    Family("one node 40 % slower", 1, (0.4, 0.4), fault=True),
    Family("two nodes, 20 to 60 % slower", 2, (0.2, 0.6), fault=True),
    Family("two with another role, 25 % less", 2, (0.25, 0.25)),
    Family("an eighth with another role, 20 % less", 8, (0.2, 0.2)),
)


def simulate(family: Family, nodes: int, spread: float, number: int) -> History:
    """One history; family, size, spread and number are its seed."""
    rng = np.random.default_rng([zlib.crc32(family.name.encode()), nodes, round(1000 * spread), number])
    draws = rng.standard_t(5, nodes) / np.sqrt(5 / 3) if family.heavy else rng.normal(size=nodes)
    level = spread * draws
    slow = rng.permutation(nodes)[: family.slow]
    level[slow] += np.log1p(-rng.uniform(*family.losses, size=len(slow)))
    rate = 100 * np.exp(level) * np.maximum(1 + NOISE * rng.normal(size=(TICKS, nodes)), 1e-3)
    return History(rate, guilty={int(node): [(0, TICKS)] for node in slow} if family.fault else {})


def cell(family: Family, nodes: int, spread: float, cohorts: int) -> str:
    """How many of the slow nodes are named, and how many cohorts have an innocent one accused."""
    if family.slow * 2 >= nodes or (family.slow == 8 and nodes < 64):
        return "-"
    histories = [simulate(family, nodes, spread, number) for number in range(cohorts)]
    named = wrong = guilty = 0
    for history, result in zip(histories, ours(histories, 1e-3), strict=True):
        accused = {node for _, node in result.alarms}
        named += len(accused & history.guilty.keys())
        guilty += len(history.guilty)
        wrong += bool(accused - history.guilty.keys())
    return f"{named} of {guilty}; {wrong}" if guilty else str(wrong)


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cohorts", type=int, default=24, help="cohorts in a cell (default 24)")
    cohorts = parser.parse_args().cohorts
    title = f"named of the slow nodes; cohorts, of {cohorts}, in which an innocent node is accused"
    table = Table("family", "chips differ by", *(f"{nodes} nodes" for nodes in SIZES), title=title)
    console = Console(width=max(Console().width, 110))
    for family in FAMILIES:
        for spread in SPREADS:
            if family.heavy and not spread:
                continue
            with console.status(f"{family.name}, {spread:.0%}"):
                row = [cell(family, nodes, spread, cohorts) for nodes in SIZES]
            table.add_row(family.name, f"{spread:.0%}", *row)
    console.print(table)


if __name__ == "__main__":
    main()
