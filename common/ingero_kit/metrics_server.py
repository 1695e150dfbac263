"""A small HTTP server in its own thread: `/metrics` for Prometheus, `/healthz`, `/readyz`.

Scrapes and the component's work never wait for each other.
"""

import contextlib
import socket
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest

from ingero_kit.logs import get

log = get(__name__)

MAX_CONNECTIONS: Final = 32
"""Connections at once; for a further one, the connection that has been idle longest is closed."""

Reason = Callable[[], str | None]
"""Returns why the component is not healthy or not ready, or `None`."""


def is_reachable_from_outside(host: str) -> bool:
    """Whether other machines can reach a listener on that host."""
    return not (host == "localhost" or host == "::1" or host.startswith("127."))


class MetricsServer(ThreadingHTTPServer):
    """Listens from its creation; `start` serves, `stop` ends it. An empty host is every IPv4 and IPv6 address."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry, ready: Reason, healthy: Reason) -> None:
        host, port = address
        self._both = not host and socket.has_dualstack_ipv6()
        self.address_family = socket.AF_INET6 if self._both or ":" in host else socket.AF_INET
        self.registry = registry
        self.ready = ready
        self.healthy = healthy
        self._lock = threading.Lock()
        self._silent: dict[Any, None] = {}
        """Connections without a request yet, oldest first."""
        self._open: set[Any] = set()
        self._thread: threading.Thread | None = None
        super().__init__((host, port), _RequestHandler)

    def server_bind(self) -> None:
        """Bind without a reverse lookup of this machine's name."""
        if self._both:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @property
    def port(self) -> int:
        """The port in use."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Answer requests until `stop`."""
        self._thread = threading.Thread(target=self.serve_forever, name="pages", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop serving and release the port."""
        if self._thread:
            self.shutdown()
            self._thread.join(5)
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve the connection in a thread; a full server closes its longest idle one, so that probes get in."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTIONS and self._silent:
                longest = next(iter(self._silent))
                self._forget(longest)
                with contextlib.suppress(OSError):
                    longest.shutdown(socket.SHUT_RDWR)
            room = len(self._open) < MAX_CONNECTIONS
            if room:
                self._open.add(request)
                self._silent[request] = None
        if room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve the connection and free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                self._forget(request)

    def mark_active(self, request: Any) -> None:
        """Keep a connection with a request in progress until it is answered."""
        with self._lock:
            self._silent.pop(request, None)

    def _forget(self, request: Any) -> None:
        self._open.discard(request)
        self._silent.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect; log anything else."""
        if not isinstance(sys.exc_info()[1], OSError):
            log.exception("page_failed")


class _RequestHandler(BaseHTTPRequestHandler):
    timeout = 10
    server: MetricsServer

    def do_GET(self) -> None:
        self.server.mark_active(self.request)
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, generate_latest(self.server.registry), "text/plain; version=0.0.4; charset=utf-8")
        elif path == "/healthz":
            self._verdict(self.server.healthy(), "not healthy")
        elif path == "/readyz":
            self._verdict(self.server.ready(), "not ready")
        else:
            self._answer(404, b"not found: /metrics, /healthz, /readyz\n")

    def _verdict(self, reason: str | None, state: str) -> None:
        if reason is None:
            self._answer(200, b"ok\n")
        else:
            self._answer(503, f"{state}: {reason}\n".encode())

    def _answer(self, status: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base class names it so
        """Scrapes are not logged."""
