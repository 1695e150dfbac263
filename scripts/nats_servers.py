"""Real NATS servers with JetStream on free ports, which demos and tests kill, stop and start again."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.controlplane import MORTAL, free_ports

BIN = Path(sys.executable).parent
START_SECONDS = 60.0


class NatsServers:
    """One server, or a cluster of several; every one keeps its ports and its folder when it is started again."""

    def __init__(self, folder: Path, count: int, extra: str) -> None:
        """`extra` is added to every configuration file."""
        self._folder, self._extra = folder, extra
        ports = free_ports(2 * count)
        self._ports, self._routes = ports[:count], ports[count:]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> list[str]:
        """Where clients connect to."""
        return [f"nats://127.0.0.1:{port}" for port in self._ports]

    def start(self, number: int) -> None:
        """Start one server, and wait until it listens."""
        folder = self._folder / f"n{number}"
        folder.mkdir(parents=True, exist_ok=True)
        config = folder / "nats.conf"
        config.write_text(self._config(number, folder))
        with (folder / "log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [*MORTAL, str(BIN / "nats-server"), "-c", str(config)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._listens(number):
            if time.monotonic() > deadline:
                raise RuntimeError(f"NATS server {number} does not listen after {START_SECONDS:.0f} s")
            time.sleep(0.02)

    def kill(self, number: int) -> None:
        """End one server at once."""
        process = self._processes.pop(number)
        process.kill()
        process.wait(30)

    def stop(self, number: int) -> None:
        """End one server as a restart does: it hands its work over first."""
        process = self._processes.pop(number)
        process.terminate()
        process.wait(30)

    def running(self) -> list[int]:
        """Servers that were not ended."""
        return list(self._processes)

    def _listens(self, number: int) -> bool:
        if self._processes[number].poll() is not None:
            raise RuntimeError((self._folder / f"n{number}/log").read_text())
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._ports[number]), 1):
            return True
        return False

    def _config(self, number: int, folder: Path) -> str:
        lines = [
            f"server_name: n{number}",
            f"listen: 127.0.0.1:{self._ports[number]}",
            f"jetstream {{ store_dir: {json.dumps(str(folder / 'data'))}, max_mem: 64MB, max_file: 4GB }}",
        ]
        if len(self._ports) > 1:
            routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self._routes)
            lines.append(f"cluster {{ name: test, listen: 127.0.0.1:{self._routes[number]}, routes: [{routes}] }}")
        return "\n".join([*lines, self._extra, ""])


@contextmanager
def nats_servers(folder: Path, count: int = 1, extra: str = "") -> Iterator[NatsServers]:
    """Servers that listen; they end with the block."""
    servers = NatsServers(folder, count, extra)
    try:
        for number in range(count):
            servers.start(number)
        yield servers
    finally:
        for number in servers.running():
            servers.kill(number)
