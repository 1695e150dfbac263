"""A test double of Fleet's API on port 8080 for many FleetClusters at once; the test sets the answers of each.

It also answers Echo's health requests.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ingero_contract import echo, routes


@dataclass
class Says:
    """The answers of one Fleet."""

    interval: float = 0.2
    stragglers: set[str] = field(default_factory=set)
    idle: set[str] = field(default_factory=set)
    nodes: set[str] = field(default_factory=set)
    quorum: bool = True
    panic: bool = False
    coverage_low: bool = False
    frozen: bool = False
    status: int = 200
    raw: bytes | None = None
    """Bytes that are sent instead of any answer."""
    headers: dict[str, str] = field(default_factory=dict)
    """Further headers of every answer."""
    volume_used: float | None = None
    """Used share of the volume that an Echo of that name reports."""
    sealing: dict[str, Any] | None = None
    """How far it says that its events are sealed."""
    threshold: float = 0.71
    since: str | None = None
    windows: int = 100
    waiting: float = 0.0
    """What stragglers cost an hour; the jobs cost 98.32 USD."""
    stopped_at: float = 0.0
    exporters: dict[str, Any] = field(default_factory=dict)
    """The exporters' state."""
    network: dict[str, Any] | None = None
    """What is known of the network."""
    log_requests: list[dict[str, Any]] = field(default_factory=list)
    """Log requests that it accepted."""
    refusing: bool = False
    """Refuse log requests."""
    refused: int = 0

    def tick(self) -> str:
        """Time of the current statistics; a frozen Fleet repeats the same one."""
        now = self.stopped_at if self.frozen else time.time()
        return f"{int(now / self.interval)}"

    def answer(self, cluster: str = "c") -> dict[str, Any]:
        """The answer of the stragglers route."""
        return {
            "cluster_id": cluster,
            "generated_at": self.tick(),
            "interval_seconds": self.interval,
            "decided_by": "threshold",
            "quorum_met": self.quorum,
            "panic": self.panic,
            "coverage_low": self.coverage_low,
            "threshold": self.threshold if self.quorum else None,
            "active_nodes": len(self.nodes),
            "nodes": {"active": len(self.nodes), "idle": 0, "calibrating": 0, "expected": len(self.nodes)},
            "stragglers": [self.node(name) for name in sorted(self.stragglers)],
            "exporters": self.exporters,
            "network": self.network,
            "cost": {
                "currency": "USD",
                "symbol": "$",
                "since": "2026-01-01T00:00:00Z",
                "cost": 12.5,
                "waiting": 1.25,
                "cost_per_hour": 98.32,
                "waiting_per_hour": self.waiting,
                "gpus_without_rate": 0,
            },
        }

    def node(self, name: str) -> dict[str, Any]:
        """One node."""
        return {
            "node_id": name,
            "state": "idle" if name in self.idle else "active",
            "straggler": name in self.stragglers,
            "since": self.since,
            "score": 0.4 if name in self.stragglers else 0.95,
            "threshold": self.threshold,
            "windows": self.windows,
        }


@dataclass
class Fleets:
    """Every Fleet of a cluster behind one address."""

    port: int
    says: dict[str, Says] = field(default_factory=dict)
    asked: int = 0
    authorization: str | None = None
    """The header of the latest request."""

    @property
    def template(self) -> str:
        """Value for `--fleet-url`."""
        return f"http://127.0.0.1:{self.port}/{{namespace}}/{{name}}"

    def of(self, namespace: str, name: str) -> Says:
        """The answers of the Fleet of a FleetCluster; a new one has no stragglers."""
        return self.says.setdefault(f"{namespace}/{name}", Says())


@contextmanager
def fleets() -> Iterator[Fleets]:
    """Serve until the block ends."""
    found = Fleets(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.asked += 1
            found.authorization = self.headers["authorization"]
            parts = urlsplit(self.path)
            _, namespace, name, *rest = parts.path.split("/")
            says = found.says.get(f"{namespace}/{name}")
            path = "/" + "/".join(rest)
            if says is None or says.status != 200:
                self._answer(says.status if says else 404, {}, says.headers if says else {})
            elif says.raw is not None:
                self._send(200, says.raw, says.headers)
            elif path == routes.FLEET_STRAGGLERS:
                self._answer(200, says.answer(parse_qs(parts.query)[routes.CLUSTER_PARAMETER][0]))
            elif path == echo.HEALTH:
                health = {"status": "ok", "ready": True, echo.VOLUME_USED: says.volume_used}
                self._answer(200, {**health, echo.SEALING: says.sealing})
            else:
                wanted = parse_qs(parts.query).get(routes.NODE_PARAMETER, sorted(says.nodes))
                self._answer(200, {"nodes": [says.node(item) for item in wanted if item in says.nodes]})

        def do_POST(self) -> None:
            _, namespace, name, *rest = urlsplit(self.path).path.split("/")
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            says = found.says.get(f"{namespace}/{name}")
            if says is not None and says.refusing:
                says.refused += 1
            if says is None or says.refusing or "/" + "/".join(rest) != routes.OTLP_LOGS:
                self._answer(503, {})
            else:
                says.log_requests.append(body)
                self._answer(200, {})

        def _answer(
            self, status: int, tree: dict[str, Any], headers: Mapping[str, str] = MappingProxyType({})
        ) -> None:
            self._send(status, json.dumps(tree).encode(), headers)

        def _send(self, status: int, body: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

        def handle_error(self, request: object, client_address: object) -> None:
            """Ignore clients that disconnect."""

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
