"""Programs whose output cannot be written, and that are interrupted."""

import signal
import subprocess
from functools import partial
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


def test_a_command_that_is_interrupted_ends_with_its_own_status_and_one_line() -> None:
    """1 would say that it found a straggler."""
    command = [str(BIN / "ingero-fleet"), "replay", "-"]
    ordinary = partial(
        signal.signal, signal.SIGINT, signal.default_int_handler
    )  # a shell's background jobs ignore it
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=ordinary
    ) as replay:
        assert replay.stdin
        assert replay.stderr
        replay.stdin.write("time,node,rate\n" + "1,a,1\n" * 100_000)  # more than a pipe holds, so it reads
        replay.stdin.flush()
        replay.send_signal(signal.SIGINT)
        said = replay.stderr.read()

    assert (replay.returncode, said) == (130, "interrupted\n")
