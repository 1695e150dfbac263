"""Runs real components as processes on free ports, and ends them by process id."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import yaml

from scripts.controlplane import MORTAL

BIN = Path(sys.executable).parent
STACKS = 20_000
"""Characters of the log of a process that did not answer which are shown."""

SHARED = next(
    (parent / "shared" for parent in Path(__file__).resolve().parents if (parent / "shared/peers").is_dir()), None
)


def free_port() -> int:
    """A TCP port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(done: Callable[[], bool], what: str | Callable[[], str], seconds: float = 90.0) -> None:
    """Wait until `done` returns true; fails after `seconds`. Checks are 5 ms apart at first and 50 ms later.

    `what` is waited for, in words; as a function it is called at the end, to say what there was instead.
    """
    deadline, pause = time.monotonic() + seconds, 0.005
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s for {what() if callable(what) else what}")
        time.sleep(pause)
        pause = min(0.05, 1.25 * pause)


def answer(url: str) -> tuple[int, str]:
    """Status and text of a page, for every status."""
    try:
        with urllib.request.urlopen(url, timeout=60) as found:
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def next_line(started: subprocess.Popen[Any], seconds: float = 90.0) -> str:
    """The next line that a process writes to its standard output, without its end.

    Do not combine it with buffered reads of the same process: it bypasses their buffer. If the process ends, or takes
    longer than `seconds`, the test fails with its command and state.
    """
    assert started.stdout
    descriptor, deadline, line = started.stdout.fileno(), time.monotonic() + seconds, bytearray()
    readable = select.poll()
    readable.register(descriptor, select.POLLIN)
    while not line.endswith(b"\n"):
        if not readable.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise AssertionError(
                f"waited {seconds} s for a line of {started.args!r}: {bytes(line)!r}, {_fate(started)}"
            )
        byte = os.read(descriptor, 1)
        if not byte:
            raise AssertionError(f"no line of {started.args!r}: {bytes(line)!r}, {_fate(started)}")
        line += byte
    return line.decode().strip()


def _fate(started: subprocess.Popen[Any]) -> str:
    return "which runs" if started.poll() is None else f"which ended with {started.returncode}"


@dataclass
class Running:
    """A process that listens."""

    process: subprocess.Popen[bytes]
    ports: dict[str, int] = field(default_factory=dict)
    log: Path = Path()

    def url(self, name: str, path: str = "") -> str:
        """Address of one of its listeners."""
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def words(self) -> str:
        """Its output so far."""
        return self.log.read_text(errors="replace")


FREE = "127.0.0.1:0"
FLEET = {
    "receivers": {"otlp": {"protocols": {"grpc": {"endpoint": FREE}, "http": {"endpoint": FREE}}}},
    "processors": {
        "ingero": {
            "push_interval": "200ms",
            "ttl_multiplier": 50,
            "quorum": {"statistical_min": 3},
            "detector": {"warmup_ticks": 5},
        }
    },
    "extensions": {
        "ingero_threshold": {"agent_endpoint": FREE, "admin_endpoint": FREE},
        "healthee": {"endpoint": FREE},
        "zpages": {"endpoint": FREE},
    },
    "exporters": {"prometheus": {"endpoint": FREE}},
    "service": {"telemetry": {"metrics": {"address": FREE}}},
}


def merge(base: dict, change: dict) -> dict:  # type: ignore[type-arg]
    """A deep copy of `base` with `change` merged into it."""
    out = {key: merge(value, {}) if isinstance(value, dict) else value for key, value in base.items()}
    for key, value in change.items():
        out[key] = merge(out.get(key, {}), value) if isinstance(value, dict) else value
    return out


@contextmanager
def fleet(folder: Path, change: dict | None = None) -> Iterator[Running]:  # type: ignore[type-arg]
    """Fleet, ready; its settings are the fast ones above with `change` merged into them."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "fleet.yaml"
    config.write_text(yaml.safe_dump(merge(FLEET, change or {})))
    ports = folder / "ports.json"
    ports.unlink(missing_ok=True)
    with process(
        folder / "fleet.log", str(BIN / "ingero-fleet"), "serve", "--config", str(config), "--ports-file", str(ports)
    ) as running:
        wait_until(lambda: ports.exists() or running.process.poll() is not None, "Fleet to listen")
        assert running.process.poll() is None, running.words()
        running.ports = json.loads(ports.read_text())
        yield running


ECHO = {
    "insecure": True,
    "ingest": {"grpc_endpoint": FREE, "http_endpoint": FREE},
    "api": {"endpoint": FREE, "requests_per_second": 10_000, "burst": 10_000},
}


@contextmanager
def echo(folder: Path, change: dict | None = None, *prefix: str) -> Iterator[Running]:  # type: ignore[type-arg]
    """Echo, ready, with its database in the folder; `prefix` is a command that starts it."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "echo.yaml"
    config.write_text(yaml.safe_dump(merge({**ECHO, "store": {"path": str(folder / "echo.duckdb")}}, change or {})))
    ports = folder / "echo-ports.json"
    ports.unlink(missing_ok=True)
    command = [*prefix, str(BIN / "ingero-echo"), "serve", "--config", str(config), "--ports-file", str(ports)]
    with process(folder / "echo.log", *command) as running:
        wait_until(lambda: ports.exists() or running.process.poll() is not None, "Echo to listen", 120)
        assert running.process.poll() is None, running.words()
        running.ports = json.loads(ports.read_text())
        yield running


@contextmanager
def unready_reader(folder: Path, change: dict) -> Iterator[Running]:  # type: ignore[type-arg]
    """A reader of shared tables that listens; `change` has the sections `table` and `read`."""
    folder.mkdir(parents=True, exist_ok=True)
    config, ports = folder / "reader.yaml", folder / "reader-ports.json"
    ports.unlink(missing_ok=True)
    config.write_text(yaml.safe_dump(merge(merge(ECHO, {"read": {"cache": str(folder / "cache")}}), change)))
    command = [str(BIN / "ingero-echo"), "read", "--config", str(config), "--ports-file", str(ports)]
    with process(folder / "reader.log", *command) as running:
        wait_until(lambda: ports.exists() or running.process.poll() is not None, "the reader to listen", 120)
        assert running.process.poll() is None, running.words()
        running.ports = json.loads(ports.read_text())
        yield running


@contextmanager
def echo_reader(folder: Path, change: dict) -> Iterator[Running]:  # type: ignore[type-arg]
    """A reader of shared tables, ready."""
    with unready_reader(folder, change) as running:
        ready = running.url("api", "/readyz")
        wait_until(
            lambda: answer(ready)[0] == 200 or running.process.poll() is not None, "the reader to be ready", 120
        )
        assert running.process.poll() is None, running.words()
        yield running


def _abort(started: subprocess.Popen[bytes]) -> None:
    """Have a process write its stacks and end, and then its children.

    These stand still meanwhile: their end would wake its threads, and a thread that runs while its stack is read may
    end the process in the middle of it. Nor do they end without a word because it has.
    """
    children = list[int]()
    for thread in Path(f"/proc/{started.pid}/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, thread.read_text().split())
    for child in children:
        _send(child, signal.SIGSTOP)
    started.send_signal(signal.SIGABRT)
    with suppress(subprocess.TimeoutExpired):
        started.wait(15)
    for child in children:
        _send(child, signal.SIGABRT)
        _send(child, signal.SIGCONT)
        with suppress(AssertionError):
            wait_until(partial(_ended, child), "a child to end", 15)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _ended(pid: int) -> bool:
    """Whether a process is gone, or waits for its parent to notice that it has ended."""
    try:
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True


@contextmanager
def process(log: Path, *command: str, **environment: str) -> Iterator[Running]:
    """Any process; it ends with the block. If it, or another one, does not answer in time, the stacks are shown."""
    variables = {**os.environ, "PYTHONFAULTHANDLER": "1", **environment}
    with log.open("wb") as stream:
        started = subprocess.Popen([*MORTAL, *command], stdout=stream, stderr=stream, env=variables)
    running = Running(started, log=log)
    try:
        yield running
    except httpx.TimeoutException as error:
        _abort(started)
        error.add_note(f"{command[0]} {_fate(started)}, its log:\n{running.words()[-STACKS:]}")
        raise
    finally:
        started.terminate()
        try:
            started.wait(15)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait(60)  # an agent with one link per probe takes a tenth of a second for each
