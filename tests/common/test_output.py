"""Programs whose output cannot be written."""

import subprocess
from pathlib import Path

import pytest

from ingero_testing.processes import BIN


@pytest.mark.parametrize(
    "command", ["ingero-fleet --help", "ingero-operator crds", "ingero agent --version", "ingero-sink --help"]
)
def test_output_that_cannot_be_written_is_said_in_one_line(command: str) -> None:
    program, *arguments = command.split()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([BIN / program, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (1, f"{program}: standard output: No space left on device\n")


@pytest.mark.parametrize("command", ["ingero-fleet validate", "ingero-sink --help", "ingero agent --version"])
def test_output_into_a_closed_stream_is_lost_without_an_error(command: str) -> None:
    done = subprocess.run(["sh", "-c", f"exec {BIN}/{command} >&-"], stderr=subprocess.PIPE, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (0, "")


def test_a_wrong_flag_ends_with_its_status_where_all_streams_are_closed() -> None:
    done = subprocess.run(["sh", "-c", f"exec {BIN}/ingero-fleet validate --set a=1 <&- >&- 2>&-"], timeout=60)

    assert done.returncode == 2


def test_a_ports_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    file = tmp_path / "missing" / "ports.json"
    command = [str(BIN / "ingero-sink"), "--listen", "127.0.0.1:0", "--ports-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 1
    assert f"ingero-sink: the ports file {file} cannot be written: No such file or directory" in done.stderr
    assert "Traceback" not in done.stderr
