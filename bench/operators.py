"""Tools of the operator's bench: operators, a control plane, waiting, a table, progress."""

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ingero_testing.fleets import Fleets
from scripts.controlplane import MORTAL, ControlPlane

BIN = Path(sys.executable).parent
TELL_SECONDS = 10.0
STARTED = time.monotonic()
FORKS = """
import ctypes, json, os, signal, sys
import ingero_operator.app
from ingero_operator.cli import main
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for number, target in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2)):
            os.dup2(number, target)
        main(order["arguments"])
    print(child, flush=True)
"""
"""Program that forks operators with their modules already imported, as imports are most of a start."""


def report(text: str) -> None:
    """Print a line of progress, separate from the table."""
    print(f"[{time.monotonic() - STARTED:4.0f} s] {text}", file=sys.stderr, flush=True)


@dataclass
class Operator:
    """A running operator."""

    process: subprocess.Popen[bytes]
    port: int = 0

    def page(self) -> dict[str, float]:
        """Its metrics."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line[:1] != "#"}

    def writes(self) -> float:
        """Requests that change something; the Lease, which is PUT, is left out."""
        page = self.page()
        names = [f'ingero_operator_api_requests_total{{method="{item}"}}' for item in ("PATCH", "POST", "DELETE")]
        return sum(page.get(name, 0.0) for name in names)

    def resident(self) -> float:
        """Resident memory, megabytes."""
        return self.page()["process_resident_memory_bytes"] / 1e6


@dataclass
class Rig:
    """A control plane, a double of every Fleet, and operators on demand."""

    plane: ControlPlane
    fleet: Fleets
    folder: Path

    def wait(
        self, what: str, done: Callable[[], Any], seconds: float, pause: float = 0.02,
        far: Callable[[], object] = lambda: "",
    ) -> float:  # fmt: skip
        """Wait until a condition holds; returns how long it took. `far` describes the progress at intervals."""
        started = reported_at = time.monotonic()
        while not done():
            now = time.monotonic()
            if now - started > seconds:
                raise SystemExit(f"bench: waited {seconds:.0f} s for {what}; see {self.folder}/*.log")
            if now - reported_at > TELL_SECONDS:
                reported_at = now
                report(f"waiting for {what} {far()}".rstrip())
            time.sleep(pause)
        return time.monotonic() - started

    def sleep(self, what: str, seconds: float) -> None:
        """Let time pass, and print the progress at intervals."""
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0:
            time.sleep(min(left, 6 * TELL_SECONDS))
            report(f"{what}: {max(0.0, ends - time.monotonic()):.0f} s to go")

    def note(self, what: str, ours: str, target: str, reached: bool) -> None:
        """Add a line to the table and print it at once."""
        report(f"{what}: {ours}")
        sys.stdout.write(f"| {what} | {ours} | {target} | {'reached' if reached else 'not reached'} |\n")
        sys.stdout.flush()

    def start(self, *flags: str) -> Operator:
        """Start an operator."""
        ports = self.folder / f"ports-{random.getrandbits(32):x}.json"
        with (self.folder / "operator.log").open("ab") as log:
            process = subprocess.Popen(
                [*MORTAL, str(BIN / "ingero-operator"), "run", "--listen", "127.0.0.1:0", "--ports-file", str(ports),
                 "--no-leader-election", "--no-node-policy", "--fleet-url", self.fleet.template, *flags],
                env={**os.environ, "KUBECONFIG": str(self.plane.kubeconfig)}, stdout=log, stderr=log,
            )  # fmt: skip
        self.wait("the operator to listen", lambda: ports.exists() or process.poll() is not None, 60)
        return Operator(process, json.loads(ports.read_text())["http"])

    @contextlib.contextmanager
    def forks(self) -> Iterator[Callable[..., int]]:
        """A process that starts operators quickly and returns their process ids. All of them end with the block."""
        parent = subprocess.Popen(
            [*MORTAL, sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "KUBECONFIG": str(self.plane.kubeconfig)},
        )  # fmt: skip
        assert parent.stdin is not None and parent.stdout is not None
        orders, answers = parent.stdin, parent.stdout

        def fork(*flags: str) -> int:
            words = ["run", "--listen", "127.0.0.1:0", "--no-leader-election", "--no-node-policy",
                     "--fleet-url", self.fleet.template]  # fmt: skip
            ports = self.folder / f"ports-{random.getrandbits(32):x}.json"
            arguments = [*words, "--ports-file", str(ports), *flags]
            orders.write(json.dumps({"log": str(self.folder / "operator.log"), "arguments": arguments}) + "\n")
            orders.flush()
            child = int(answers.readline())
            self.wait("the operator to listen", lambda: ports.exists() or not Path(f"/proc/{child}").exists(), 60)
            return child

        try:
            yield fork
        finally:
            parent.kill()
            parent.wait()
            orders.close()
            answers.close()

    @contextlib.contextmanager
    def operator(self, *flags: str) -> Iterator[Operator]:
        """An operator that ends with the block."""
        found = self.start(*flags)
        try:
            yield found
        finally:
            found.process.terminate()
            found.process.wait()

    def parallel(self, requests: Iterator[tuple[str, str, Any]]) -> None:
        """Send many requests as the administrator, sixteen at once."""

        async def run() -> None:
            headers = {"Authorization": f"Bearer {self.plane.token}"}
            base = f"https://127.0.0.1:{self.plane.port}"
            async with httpx.AsyncClient(
                base_url=base, verify=False, headers=headers, timeout=60, trust_env=False
            ) as client:

                async def work() -> None:
                    for method, path, body in requests:
                        kind = "application/strategic-merge-patch+json" if method == "PATCH" else "application/json"
                        answer = await client.request(
                            method, path, content=json.dumps(body), headers={"Content-Type": kind}
                        )
                        answer.raise_for_status()

                await asyncio.gather(*(work() for _ in range(16)))

        asyncio.run(run())
