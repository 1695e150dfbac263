"""Tests whether a process with a seccomp filter survives a return probe: some kernels would kill it."""

import select
import subprocess
import sys
from pathlib import Path
from typing import Final

from ingero_agent.trace import kernel
from ingero_agent.trace.calibrate import SCRATCH_NUMBER, Twins

CHILD: Final = Path(__file__).with_name("seccomp_child.py")
CALLS: Final = 1000
SECONDS: Final = 20.0
_NO_FILTER: Final = 3


def explain_exit(status: int) -> str:
    """Why return probes are not safe, from the exit status of the test process; empty if they are."""
    if status == 0:
        return ""
    if status == _NO_FILTER:
        return "no filter of system calls could be set, so that it is not known whether one survives"
    if status < 0:
        return f"a process under a filter of system calls dies of a return probe (signal {-status})"
    return f"the process that tried ended with {status}"


def try_returns(entry: int, at_return: int, *, multi: bool = True) -> str:
    """Try it on a test process; empty if it survives, otherwise why not. `entry`, `at_return`: programs."""
    try:
        twins = Twins()
    except OSError as error:
        return str(error)
    command = [sys.executable, "-I", "-S", str(CHILD), str(twins.descriptor), str(CALLS)]
    try:
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            pass_fds=[twins.descriptor],
        ) as child:  # fmt: skip
            assert child.stdin
            assert child.stdout
            try:
                begun = select.poll()
                begun.register(child.stdout, select.POLLIN)
                if not begun.poll(SECONDS * 1000):
                    return f"the process that is to try it did not begin within {SECONDS:.0f} s"
                child.stdout.readline()
                with kernel.attached((entry, at_return), twins.path, {0: SCRATCH_NUMBER}, pid=child.pid, multi=multi):
                    child.communicate(b"\n", SECONDS)
            finally:
                child.kill()
        return explain_exit(child.returncode)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        twins.close()
