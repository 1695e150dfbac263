"""A job without a GPU: matrix products at a steady rate, one step after the other, counted in a file.

SIGUSR1 slows it to `--slow` of its speed, SIGUSR2 restores it; SIGALRM starts a decline of `--leak` a second.
It stands for a GPU's work, which other programs on the CPU do not slow down, so it raises its priority if permitted.
`python -m scripts.workload FILE` runs until it is ended.
"""

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path

import numpy as np


def main() -> None:
    """Work until ended; it also ends with its parent."""
    parser = argparse.ArgumentParser(prog="workload", description=__doc__)
    parser.add_argument("file", type=Path, help="file to count the steps in")
    parser.add_argument("--steps", type=float, default=40.0, help="steps a second (default 40)")
    parser.add_argument("--size", type=int, default=96, help="rows of the matrix (default 96)")
    parser.add_argument("--slow", type=float, default=0.5, help="speed after SIGUSR1 (default 0.5)")
    parser.add_argument("--leak", type=float, default=0.01, help="speed lost a second after SIGALRM (default 0.01)")
    flags = parser.parse_args()
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    parent = os.getppid()
    speed, leaking_since = 1.0, float("inf")

    def change(number: int, _: object) -> None:
        nonlocal speed, leaking_since
        speed = flags.slow if number == signal.SIGUSR1 else 1.0
        leaking_since = time.monotonic() if number == signal.SIGALRM else float("inf")

    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM):
        signal.signal(number, change)
    matrix = np.random.default_rng(0).standard_normal((flags.size, flags.size))
    steps, due = 0, time.monotonic()
    part = flags.file.with_suffix(".part")
    while os.getppid() == parent:
        matrix = np.tanh(matrix @ matrix.T / flags.size)
        steps += 1
        part.write_text(str(steps))
        part.replace(flags.file)
        now = time.monotonic()
        pace = flags.steps * speed * max(0.1, 1 - flags.leak * max(0.0, now - leaking_since))
        due = max(due + 1 / pace, now - 0.25)
        time.sleep(max(0.0, due - now))


if __name__ == "__main__":
    main()
