"""Tables of results for the audit command, and its answers."""

import json
import math
import random
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from ingero_fleet.cli import main

HEADER = "Hostname,GPU Index,Perf (ms),SM Clock (MHz),Power Draw (W),GPU Temp (C),run,Driver"


def results(slow: dict[tuple[int, int], float], runs: int = 4, seed: int = 1) -> list[str]:
    """Results of 12 nodes with 8 GPUs; the named ones are slow, at a low clock."""
    draw = random.Random(seed)
    lines = [HEADER]
    healthy = {(node, gpu): draw.gauss(0, 0.01) for node in range(12) for gpu in range(8)}
    for run in range(runs):
        common = draw.gauss(0, 0.05)
        for (node, gpu), effect in healthy.items():
            loss = slow.get((node, gpu), 0.0)
            value = 1000 * math.exp(effect + common + loss + draw.gauss(0, 0.01))
            clock = (1200 if loss else 1380) + draw.randint(-4, 4)
            lines.append(f"node-{node},{gpu},{value:.2f},{clock},{300 + draw.gauss(0, 2):.1f},60,{run},550")
    return lines


def written(folder: Path, lines: list[str], name: str = "results.csv") -> Path:
    file = folder / name
    file.write_text("\n".join(lines) + "\n")
    return file


def run(*arguments: str | Path, text: str | None = None) -> Result:
    return CliRunner().invoke(main, ["audit", *map(str, arguments)], input=text)


def answer(*arguments: str | Path, text: str | None = None) -> dict[str, Any]:
    done = run(*arguments, "--json", text=text)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def short(slow: dict[tuple[int, int], float], runs: int = 4, seed: int = 1) -> list[tuple[str, str, int, float]]:
    """The results as node, GPU, run and milliseconds."""
    rows = [line.split(",") for line in results(slow, runs, seed)[1:]]
    return [(row[0], row[1], int(row[6]), float(row[2])) for row in rows]
