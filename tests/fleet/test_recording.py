"""Recording what the detector saw: ticks without nodes, and a disk that becomes full."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np

from ingero_analyze.replay.judge import replay
from ingero_analyze.replay.recorded_history import RecordedHistory
from ingero_contract.identifiers import node_key
from ingero_detect.nodes.detector import Detector
from ingero_detect.nodes.fingerprint import state_hash
from ingero_detect.nodes.observation import ACTIVE, Observation
from ingero_detect.nodes.parameters import Parameters
from ingero_fleet.recording import MERGEABLE, TickRecorder

SCRIPT = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from ingero_detect.nodes.observation import ACTIVE, Observation
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


def test_ticks_without_nodes_are_replayed_too(tmp_path: Path) -> None:
    recorder = TickRecorder(tmp_path / "history.csv", 1 << 20)
    parameters = Parameters(tick_seconds=10.0, warmup=5)
    detector = Detector(parameters, MERGEABLE)
    random = np.random.default_rng(1)
    for tick in range(60):
        count = 0 if tick < 7 or 40 <= tick < 45 else 6
        seen = Observation(
            names=[node_key("c", f"node-{number}") for number in range(count)], cohort=np.zeros(count, np.int64),
            cohorts=[("c", "training", "", "", "", "", "rate")] if count else [],
            value=100 * np.exp(0.03 * random.normal(size=count)), state=np.full(count, ACTIVE, np.uint8),
        )  # fmt: skip
        outcome = detector.tick(10.0 * tick, seen)
        recorder.write(10.0 * tick, seen)
        recorder.note_state(outcome.digest, state_hash(detector.memory))
    recorder.close()

    found = replay(RecordedHistory([str(tmp_path / "history.csv")], 10.0), "ingero", parameters)

    summary = found.summary()
    assert (summary["nodes"], summary["ticks"], summary["digest"]) == (6, 60, outcome.digest)
    assert (summary["recorded_states"]["compared"], summary["recorded_states"]["differ"]) == (60, 0)
    published = replay(RecordedHistory([str(tmp_path / "history.csv")], 10.0), "mad", parameters)
    assert published.ticks == 60


def test_ticks_that_the_disk_does_not_take_are_left_out_as_a_whole_and_the_next_is_written(tmp_path: Path) -> None:
    file = tmp_path / "history.csv"
    command = [sys.executable, "-c", SCRIPT, str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)

    assert ended.stdout.splitlines()[-1] == "2"
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["time"] for row in rows] == ["1.0"] * 40 + ["4.0"] * 40
    assert {row["recorded"] for row in rows} == {"whole"}
