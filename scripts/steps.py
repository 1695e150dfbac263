"""Long runs: what each step does and how long it takes, and commands that end with the run, whatever they started."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import click

SECONDS_TO_END: Final = 10.0
"""How long a command's processes may take to end before they are killed."""


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print what is done now, and afterwards how long it took. Decorates a function too."""
    began = time.monotonic()
    click.echo(f"{what} ...")
    yield
    click.echo(f"  took {time.monotonic() - began:.0f} s")


def command(
    arguments: list[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    *,
    errors: int | None = None,
    seconds: float | None = None,
    output: IO[str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command in a process group of its own, of which nothing is left when a signal or an error ends the run.

    Output goes to the result or to a file, standard error where `errors` says. A command that takes longer than
    `seconds` is ended too; its exit status is then that of the signal.
    """
    started = subprocess.Popen(
        arguments, cwd=folder, env=environment, stdout=output or subprocess.PIPE,
        stderr=subprocess.PIPE if errors is None else errors, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        printed, complaints = started.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(started)
        printed, complaints = started.communicate()
    except BaseException:
        end(started)
        raise
    return subprocess.CompletedProcess(arguments, started.returncode, printed or "", complaints or "")


def end(started: subprocess.Popen[str]) -> None:
    """End all processes of a command's group: they are asked, and killed if that does not help."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(started.pid, number)
        deadline = time.monotonic() + SECONDS_TO_END
        while _any_of(started) and time.monotonic() < deadline:
            time.sleep(0.02)


def _any_of(started: subprocess.Popen[str]) -> bool:
    """Whether a process of the group is left."""
    started.poll()
    try:
        os.killpg(started.pid, 0)
    except ProcessLookupError:
        return False
    return True


def end_by_signals() -> None:
    """Have TERM and HUP end this process as INT does: by an exception, so that commands and temporary folders go."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ended)


def _ended(number: int, _: object) -> None:
    raise SystemExit(128 + number)
