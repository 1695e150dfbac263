"""What the tests show of a process that does not answer in time."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from ingero_testing.processes import process, wait_until

STUCK = """
import subprocess, sys, threading

def waits_for_its_child():
    child = "def waits_alone():\\n    print('started', flush=True)\\n    threading.Event().wait()\\n"
    subprocess.run([sys.executable, "-c", "import threading\\n" + child + "waits_alone()"])

threading.Thread(target=waits_for_its_child).start()
"""


def test_the_stacks_of_a_process_and_of_its_children_are_shown_if_it_does_not_answer_in_time(tmp_path: Path) -> None:
    with (
        pytest.raises(httpx.ReadTimeout) as failed,
        process(tmp_path / "log", sys.executable, "-c", STUCK) as running,
    ):
        wait_until(lambda: "started" in running.words(), "the child")
        raise httpx.ReadTimeout("late")

    (note,) = failed.value.__notes__
    assert "in waits_alone" in note and "in waits_for_its_child" in note
    assert running.process.returncode is not None


def test_one_that_has_ended_shows_what_it_wrote(tmp_path: Path) -> None:
    with pytest.raises(httpx.ReadTimeout) as failed, process(tmp_path / "log", "echo", "last words") as running:
        running.process.wait()
        raise httpx.ReadTimeout("late")

    assert "last words" in failed.value.__notes__[0] and isinstance(running.process, subprocess.Popen)
