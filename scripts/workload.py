"""The demo's job: matrix products at a steady pace, one step after the other, counted in a file.

SIGUSR1 halves its speed, SIGUSR2 brings it back. `python -m scripts.workload FILE` runs until it is ended.
"""

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

STEPS_PER_SECOND = 40.0


def main() -> None:
    """Work until ended; the parent's end ends it too."""
    file = Path(sys.argv[1])
    parent = os.getppid()
    speed = [1.0]
    signal.signal(signal.SIGUSR1, lambda *_: speed.__setitem__(0, 0.5))
    signal.signal(signal.SIGUSR2, lambda *_: speed.__setitem__(0, 1.0))
    matrix = np.random.default_rng(0).standard_normal((96, 96))
    steps, due = 0, time.monotonic()
    part = file.with_suffix(".part")
    while os.getppid() == parent:
        matrix = np.tanh(matrix @ matrix.T / 96)
        steps += 1
        part.write_text(str(steps))
        part.replace(file)
        now = time.monotonic()
        due = max(due + 1 / (STEPS_PER_SECOND * speed[0]), now - 0.25)
        time.sleep(max(0.0, due - now))


if __name__ == "__main__":
    main()
