"""Draws the plots of docs/detection.md: three seeded histories, written as files and plotted by `replay --plot`."""

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import families

PICTURES = Path(__file__).resolve().parents[1] / "docs/pictures"
STORIES = {
    "leak": families.leak,
    "flapping": families.flapping,
    "half": families.part_slow(0.5),
}


def main() -> None:
    """Write every history and run the detector on it."""
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
            command = [
                str(Path(sys.executable).parent / "ingero-fleet"),
                "replay",
                str(file),
                "--plot",
                str(PICTURES / f"{name}.png"),
            ]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
