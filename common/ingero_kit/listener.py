"""What the hot servers have in common: listening, bounds on connections, sweeping out slow ones, a graceful stop."""

import asyncio
import contextlib
import socket
import ssl
import time
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ingero_kit.logs import get
from ingero_kit.tls import LiveContext, ServerTls

log = get(__name__)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may ask of a server."""

    body_bytes: int = 4 << 20
    """Largest body as sent; larger ones are refused."""
    decoded_bytes: int = 16 << 20
    """Largest body after decompression."""
    header_bytes: int = 16 << 10
    """Largest sum of all header names and values and the path."""
    read_seconds: float = 10.0
    """Longest time from a request's first byte to its last."""
    idle_seconds: float = 120.0
    """Longest time between two requests of a connection."""
    connections: int = 20_000
    """Connections at once; further ones are closed at once and counted."""
    streams: int = 256
    """Requests at once on one HTTP/2 connection."""
    unfinished_bytes: int = 256 << 20
    """Bodies that have begun and not ended, of all HTTP/2 connections together; more is told to try again."""


@dataclass(slots=True)
class Counters:
    """What happened at the edge, by kind; read by the metrics page."""

    requests: int = 0
    open: int = 0
    refused_connections: int = 0
    timeouts: int = 0
    malformed: int = 0
    too_large: int = 0
    handler_errors: int = 0


class Connection(Protocol):
    """One client, as its listener sees it."""

    @property
    def busy(self) -> bool:
        """Whether an answer is still owed."""

    def expire(self, now: float, limits: Limits) -> bool:
        """Close what takes too long or is idle; says whether a request was cut short."""

    def drain(self) -> None:
        """Take no new requests, finish those under way."""

    def close(self) -> None:
        """Close behind what is written."""


C = TypeVar("C", bound=Connection)


class Listener(Generic[C]):
    """Accepts connections within limits; subclasses say what a connection is."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.counters = Counters()
        self.closing = False
        self._connections: set[C] = set()
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None
        self._tls: LiveContext | None = None

    def connection(self) -> asyncio.BaseProtocol:
        """A new connection's protocol, which calls `enter` and `leave`."""
        raise NotImplementedError

    async def start(self, host: str, port: int, *, tls: ServerTls | None = None, reuse_port: bool = False) -> int:
        """Listen; port 0 takes a free one. Returns the port.

        Certificate files are followed: new connections use what they hold.
        """
        self._tls = LiveContext(tls) if tls else None
        context = self.prepare(self._tls.context) if self._tls else None
        self._server = await asyncio.get_running_loop().create_server(
            self.connection, host, port, ssl=context, reuse_port=reuse_port or None, backlog=4096,
            ssl_handshake_timeout=self.limits.read_seconds if tls else None,
        )  # fmt: skip
        self._sweeper = asyncio.create_task(self._sweep())
        bound: socket.socket = self._server.sockets[0]
        return int(bound.getsockname()[1])

    def prepare(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Say in the context what this server speaks."""
        return context

    def reload_certificates(self) -> None:
        """Read the certificate files now; raises `SettingsError` when they cannot be used."""
        if self._tls:
            self._tls.reload()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop listening, let answers under way finish, then close what is left."""
        self.closing = True
        if self._sweeper:
            self._sweeper.cancel()
        if self._server:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()
        deadline = time.monotonic() + grace_seconds
        while any(connection.busy for connection in self._connections) and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)

    def enter(self, connection: C) -> bool:
        """Count a new connection; says whether it may stay."""
        if len(self._connections) >= self.limits.connections or self.closing:
            self.counters.refused_connections += 1
            return False
        self._connections.add(connection)
        self.counters.open = len(self._connections)
        return True

    def leave(self, connection: C) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self.counters.open = len(self._connections)

    async def _sweep(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(min(1.0, self.limits.read_seconds / 4))
                try:
                    self._look_after()
                except Exception:
                    log.exception("sweep_failed")

    def _look_after(self) -> None:
        now = time.monotonic()
        if self._tls:
            self._tls.follow()
        for connection in list(self._connections):
            self.counters.timeouts += connection.expire(now, self.limits)
