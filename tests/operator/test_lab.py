"""What a demo, a bench or a test has started is gone when it is, however it ended."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ingero_testing.needs import needs_util_linux
from ingero_testing.processes import wait_until

LAB = """
import signal, time
from scripts.lab import laboratory
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
with laboratory("test") as lab:
    lab.start("sleeper", "sleep", "1000")
    print(lab.processes["sleeper"].pid, lab.folder, lab.memory or lab.folder, flush=True)
    while True:
        time.sleep(0.1)
"""
ROOT = Path(__file__).parents[2]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@needs_util_linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_lab_leaves_no_process_and_no_file_behind(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", LAB], stdout=subprocess.PIPE, text=True, cwd=ROOT) as lab:
        assert lab.stdout
        pid, *folders = lab.stdout.readline().split()
        wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "the sleeper to sleep")
        lab.send_signal(number)
        lab.wait(60)

    wait_until(lambda: not alive(int(pid)), "the sleeper to end")
    if number is signal.SIGKILL:
        for folder in set(folders):
            shutil.rmtree(folder)
    assert not any(Path(folder).exists() for folder in folders)
