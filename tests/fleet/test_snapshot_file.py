"""When the state is written: often while that costs little."""

from pathlib import Path

import pytest

from ingero_fleet.snapshot_file import SnapshotFile


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
