"""When the state is written: often while that costs little."""

from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from ingero_detect.nodes.observation import Observation
from ingero_fleet.recording import TickRecorder
from ingero_fleet.snapshot_file import SnapshotFile

NOTHING = Observation(
    names=[], cohort=np.zeros(0, np.int64), value=np.zeros(0), state=np.zeros(0, np.uint8), cohorts=[]
)


@pytest.mark.parametrize(
    ("cost", "interval"),
    [
        pytest.param(0.0, 10.0, id="small: the shortest interval"),
        pytest.param(0.1, 20.0, id="half a per cent of a processor"),
        pytest.param(5.0, 60.0, id="large: the longest interval"),
    ],
)
def test_a_snapshot_is_written_as_often_as_it_is_cheap(tmp_path: Path, cost: float, interval: float) -> None:
    snapshots = SnapshotFile(tmp_path / "state", 10.0, 60.0)
    assert snapshots.due(100.0)
    snapshots.cost = cost

    assert not snapshots.due(100.0 + interval - 0.1)
    assert snapshots.due(100.0 + interval)


def test_what_is_no_file_is_not_read(tmp_path: Path) -> None:
    for name in (tmp_path, Path("/dev/zero")):
        assert SnapshotFile(name, 10.0, 60.0).read() is None


def test_failures_in_a_row_are_counted_and_logged_once(tmp_path: Path) -> None:
    blocked, folder = tmp_path / "folder", tmp_path / "folder" / "deep"
    snapshots, recorder = SnapshotFile(folder / "state", 10.0, 60.0), TickRecorder(folder / "history.csv", 1 << 20)
    blocked.write_text("a file where a folder should be")
    with capture_logs() as logs:
        for _ in range(3):
            snapshots.write(b"x")
            recorder.write(1.0, NOTHING)
            recorder.note_state("digest", "hash")
        blocked.unlink()
        for _ in range(2):
            snapshots.write(b"x")
            recorder.write(1.0, NOTHING)
            recorder.note_state("digest", "hash")
    recorder.close()

    assert (snapshots.failures, recorder.failures) == (3, 6)
    assert [(Path(line["file"]).name, line["event"]) for line in logs] == [
        ("state", "snapshot_not_written"), ("history.csv", "history_not_written"),
        ("history.csv.states", "history_not_written"), ("state", "snapshot_written_again"),
        ("history.csv", "history_written_again"), ("history.csv.states", "history_written_again"),
    ]  # fmt: skip
    assert snapshots.read() == b"x"
