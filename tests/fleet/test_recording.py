"""Recording what the detector saw, on a disk that becomes full."""

import csv
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from ingero_detect.observation import ACTIVE, Observation
from ingero_fleet.recording import TickRecorder

def seen(value):
    count = 40
    return Observation(
        names=[("c", f"node-{i}") for i in range(count)], cohort=np.zeros(count, int), value=np.full(count, value),
        state=np.full(count, ACTIVE), cohorts=[("c", "training", "", "", "", "", "rate")],
    )

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
recorder, full = TickRecorder(Path(sys.argv[1]), 1 << 20), resource.getrlimit(resource.RLIMIT_FSIZE)
recorder.write(1.0, seen(1.0))
resource.setrlimit(resource.RLIMIT_FSIZE, (Path(sys.argv[1]).stat().st_size + 100, full[1]))
recorder.write(2.0, seen(2.0))
recorder.write(3.0, seen(3.0))
resource.setrlimit(resource.RLIMIT_FSIZE, full)
recorder.write(4.0, seen(4.0))
recorder.close()
print(recorder.failures)
"""


def test_ticks_that_the_disk_does_not_take_are_left_out_as_a_whole_and_the_next_is_written(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    command = [sys.executable, "-c", SCRIPT, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert ended.stdout.splitlines()[-1] == "2"
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["time"] for row in rows] == ["1.0"] * 40 + ["4.0"] * 40
    assert {row["recorded"] for row in rows} == {"whole"}
