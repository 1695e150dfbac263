"""Real NATS servers with JetStream on free ports, which tests kill, stop and start again."""

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ingero_testing.processes import BIN, free_port, wait_until
from scripts.controlplane import MORTAL


class NatsServers:
    """One server, or a cluster of several; every one keeps its ports and its folder when it is started again."""

    def __init__(self, folder: Path, count: int, extra: str) -> None:
        """`extra` is added to every configuration file."""
        self._folder, self._extra = folder, extra
        self._ports = [free_port() for _ in range(count)]
        self._routes = [free_port() for _ in range(count)]
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
        wait_until(lambda: self._listens(number), f"NATS server {number} to listen")

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
        assert self._processes[number].poll() is None, (self._folder / f"n{number}/log").read_text()
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
