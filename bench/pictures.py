"""Draws the pictures of the documents: three seeded histories by `replay --plot`, a job by `diagnose --plot`."""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import families
import timelines

PICTURES = Path(__file__).resolve().parents[1] / "docs/pictures"
STORIES = {
    "leak": families.leak,
    "flapping": families.flapping,
    "half": families.part_slow(0.5),
}


def main() -> None:
    """Write every history and job, and run the command on it."""
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, generate in STORIES.items():
            rates = generate(np.random.default_rng(4), 720, 12).rate
            file = Path(folder) / f"{name}.csv"
            with file.open("w", newline="") as stream:
                rows = csv.writer(stream)
                rows.writerow(("time", "node", "rate"))
                for tick, values in enumerate(rates.tolist()):
                    rows.writerows(
                        (tick * families.TICK, f"node-{node:02d}", value) for node, value in enumerate(values)
                    )
            plot("replay", file, name)
        file = Path(folder) / "job.csv"
        job = timelines.interleaved(
            np.random.default_rng(4), stages=4, replicas=4, steps=80, culprit=5, late=0.1, since=30
        )
        file.write_text(job.csv())
        plot("diagnose", file, "job")


def plot(command: str, file: Path, name: str) -> None:
    """Run a command of `ingero-fleet` on a file, with a plot of that name."""
    program = Path(sys.executable).parent / "ingero-fleet"
    subprocess.run([program, command, file, "--plot", PICTURES / f"{name}.png"], check=True)


if __name__ == "__main__":
    main()
