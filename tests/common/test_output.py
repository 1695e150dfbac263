"""Programs whose output cannot be written."""

import subprocess
from pathlib import Path

import pytest

from ingero_testing.processes import BIN


@pytest.mark.parametrize("command", ["ingero-fleet --help", "ingero-operator crds", "ingero agent --version"])
def test_output_that_cannot_be_written_is_said_in_one_line(command: str) -> None:
    program, *arguments = command.split()
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([BIN / program, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)

    assert (done.returncode, done.stderr) == (1, f"{program}: standard output: No space left on device\n")
