"""Base of all servers: listening, limits on connections and on their memory, a graceful stop.

A full listener closes the connection that has been idle longest for a new one, so that no client can block a port by
opening many connections. Unread responses and incomplete requests are limited in time and, over all connections, in
bytes.
"""

import asyncio
import contextlib
import errno
import math
import random
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar, cast

from ingero_http.followed_files import FollowedFiles
from ingero_http.handshake_log import HandshakeLog
from ingero_http.limits import Counters, Limits
from ingero_http.sockets import BACKLOG, allow_open_files, open_sockets
from ingero_http.structured_logs import structlog
from ingero_http.tls import TlsFiles, follow_server_context

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

TURN_BYTES: Final = 16 << 10
"""Bytes of one connection that are processed before other connections get their turn."""

LINGER_SECONDS: Final = 2.0
"""How long input after a refusal is read and dropped, so that the client receives the refusal."""

SPARE_FILES: Final = 128
"""Open files that a process needs in addition to its connections."""

FEWER_CONNECTIONS: Final = 0.9
"""Share of the wanted connections below which it is said that there are fewer. A server that has less than a tenth to
spare is too small with either number, so a smaller difference is nothing to act on."""

_ACCEPTED_AT_ONCE: Final = 64
"""Connections accepted in one turn of the event loop."""

_SHUTDOWN_SECONDS: Final = 2.0
"""How long a client may take to end TLS and to read written responses when the server stops."""


class Connection(Protocol):
    """One client, as its listener sees it."""

    @property
    def busy(self) -> bool:
        """Whether a response is owed."""

    @property
    def idle_since(self) -> float | None:
        """When the client was last active, on the monotonic clock; `None` while a response is owed."""

    @property
    def unsent(self) -> int:
        """Bytes of responses that the client has not read."""

    def expire(self, now: float, limits: Limits) -> bool:
        """Close if a request takes too long or none comes; returns whether a request was cut short."""

    def drain(self) -> None:
        """Accept no new requests, answer those in progress."""

    def close(self) -> None:
        """Close once everything is written."""

    def abort(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=Connection)


class Listener(Generic[C]):
    """Accepts connections within limits; subclasses make the protocol of a connection."""

    purpose = ""
    """What the listener is for, in messages."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.counters = Counters()
        self.closing = False
        self.unfinished = 0
        """Bytes of incomplete requests."""
        self.unread = 0
        """Bytes of responses on connections whose writing is paused."""
        self._max_connections = self.limits.connections
        self._connections: dict[C, float] = {}
        """When each is to be drained."""
        self._opening: dict[asyncio.BaseProtocol, asyncio.Task[None]] = {}
        """Connections in their TLS handshake, oldest first."""
        self._idle: deque[tuple[float, C]] = deque()
        self._paused: dict[C, tuple[float, int]] = {}
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._sweep_task: asyncio.Task[None] | None = None
        self._tls: FollowedFiles[ssl.SSLContext] | None = None
        self._handshakes = HandshakeLog()

    def connection(self) -> asyncio.BaseProtocol:
        """A new connection's protocol, which calls `register` and `unregister`."""
        raise NotImplementedError

    async def start(
        self, host: str, port: int, *, tls: TlsFiles | None = None, reuse_port: bool = False, purpose: str = ""
    ) -> int:
        """Listen and return the port; port 0 picks a free one.

        Certificate files are read again when they change, for new connections. Raises `OSError` whose text names the
        address and the `purpose`, and `CertificateError`.
        """
        self._tls = follow_server_context(tls, self.prepare) if tls else None
        self._sockets = open_sockets(host, port, purpose=purpose or self.purpose, reuse_port=reuse_port)
        taken = int(self._sockets[0].getsockname()[1])
        files = allow_open_files() - SPARE_FILES
        if files < self._max_connections:
            if files < FEWER_CONNECTIONS * self._max_connections:
                log.warning(
                    "fewer_connections_than_wanted", port=taken, wanted=self._max_connections, possible=max(1, files),
                    hint="raise the hard limit of open files: LimitNOFILE= of the unit, or ulimit -Hn",
                )  # fmt: skip
            self._max_connections = max(1, files)
        loop = asyncio.get_running_loop()
        if self._tls:
            # Accepted here, so that handshakes count as connections and use the current certificates.
            for listening in self._sockets:
                loop.add_reader(listening, self._accept, listening)
        else:
            self._servers = [
                await loop.create_server(self.connection, sock=listening, backlog=BACKLOG)
                for listening in self._sockets
            ]
        self._sweep_task = asyncio.create_task(self._sweep())
        return taken

    def prepare(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Set what the protocol needs in a TLS context."""
        return context

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop listening, let requests in progress be answered, then close what is left."""
        self.closing = True
        loop = asyncio.get_running_loop()
        for server in self._servers:
            server.close()
        while self._sockets:
            listening = self._sockets.pop()
            if self._tls:
                loop.remove_reader(listening)
            listening.close()
        for task in list(self._opening.values()):
            task.cancel()
        for connection in list(self._connections):
            connection.drain()
        await _until(lambda: not any(connection.busy for connection in self._connections), grace_seconds)
        for connection in list(self._connections):
            connection.close()
        await asyncio.sleep(0)
        await _until(lambda: not self._connections, min(grace_seconds, _SHUTDOWN_SECONDS))
        for connection in list(self._connections):
            connection.abort()
        await _until(lambda: not self._connections, _SHUTDOWN_SECONDS)
        if self._sweep_task:
            self._sweep_task.cancel()
        await asyncio.sleep(0)

    # Opening and closing connections.

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                peer, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(listening, error)
                return
            if len(self._connections) + len(self._opening) >= self._max_connections and not self._make_room():
                self.counters.refused_connections += 1
                peer.close()
                continue
            connection = self.connection()
            task = asyncio.get_running_loop().create_task(self._open(connection, peer))
            self._opening[connection] = task
            task.add_done_callback(partial(self._opened, connection, peer))

    def _opened(self, connection: asyncio.BaseProtocol, peer: socket.socket, task: asyncio.Task[None]) -> None:
        self._opening.pop(connection, None)
        if task.cancelled():
            peer.close()

    def _cannot_accept(self, listening: socket.socket, error: OSError) -> None:
        """Out of open files or memory: close an idle connection and pause, because `accept` would fail again."""
        self.counters.refused_connections += 1
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._make_room()
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(0.1, self._accept_again, listening)

    def _accept_again(self, listening: socket.socket) -> None:
        if not self.closing:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _open(self, connection: asyncio.BaseProtocol, peer: socket.socket) -> None:
        """Do the TLS handshake of an accepted socket."""
        client = _address(peer)
        peer.setblocking(False)
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert self._tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, peer, ssl=self._tls.current(),
                ssl_handshake_timeout=self.limits.read_seconds, ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )  # fmt: skip
        except OSError as error:
            self.counters.failed_handshakes += 1
            self._handshakes.failed(error, client)

    def _make_room(self) -> bool:
        """Close the connection that has been idle longest; returns whether there was one."""
        if self._opening and (len(self._opening) > self._max_connections // 2 or not self._connections):
            self.counters.gave_way += 1
            return self._opening.pop(next(iter(self._opening))).cancel()
        for rank_again in (False, True):
            if rank_again:
                self._rank_idle()
            while self._idle:
                since, connection = self._idle.popleft()
                if connection in self._connections and connection.idle_since == since:
                    self.counters.gave_way += 1
                    self.unregister(connection)
                    connection.abort()
                    return True
        return False

    def _rank_idle(self) -> None:
        """Find several connections that have been idle longest, because a full listener tends to stay full."""
        idle = [(since, one) for one in self._connections if (since := one.idle_since) is not None]
        idle.sort(key=lambda pair: pair[0])
        self._idle = deque(idle[: 1 + self._max_connections // 32])

    def register(self, connection: C) -> bool:
        """Count a new connection; returns whether it may stay."""
        self._opening.pop(cast(asyncio.BaseProtocol, connection), None)
        full = len(self._connections) + len(self._opening) >= self._max_connections
        if self.closing or (full and not self._make_room()):
            self.counters.refused_connections += 1
            return False
        age = self.limits.age_seconds * random.uniform(0.9, 1.1)
        self._connections[connection] = time.monotonic() + age if age else math.inf
        self.counters.open = len(self._connections)
        return True

    def unregister(self, connection: C) -> None:
        """Forget a connection."""
        self._connections.pop(connection, None)
        self.writing_resumed(connection)
        self.counters.open = len(self._connections)

    # Unread responses.

    def writing_paused(self, connection: C) -> None:
        """A client does not read its responses fast enough."""
        self._track_unread(connection, time.monotonic(), connection.unsent)
        while self.unread > self.limits.unread_bytes:
            self._abort_unread(next(iter(self._paused)))

    def _track_unread(self, connection: C, now: float, size: int) -> None:
        since, before = self._paused.get(connection, (now, 0))
        self._paused[connection] = (now if size < before else since, size)
        self.unread += size - before

    def writing_resumed(self, connection: C) -> None:
        """A client reads its responses again."""
        _, size = self._paused.pop(connection, (0.0, 0))
        self.unread -= size

    def _abort_unread(self, connection: C) -> None:
        self.counters.unread += 1
        self.writing_resumed(connection)
        connection.abort()

    async def _sweep(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(min(1.0, self.limits.read_seconds / 4))
                try:
                    self._check_connections()
                except Exception:
                    log.exception("sweep_failed")

    def _check_connections(self) -> None:
        now = time.monotonic()
        for connection in list(self._paused):
            self._track_unread(connection, now, connection.unsent)
            if now - self._paused[connection][0] > self.limits.send_seconds:
                self._abort_unread(connection)
        for connection in list(self._connections):
            self.counters.timeouts += connection.expire(now, self.limits)
            if self._connections.get(connection, math.inf) <= now:
                self._connections[connection] = math.inf
                self.counters.aged += 1
                connection.drain()


def _address(peer: socket.socket) -> str:
    """The address of a client, without its port; empty if it has gone."""
    try:
        return str(peer.getpeername()[0])
    except OSError:
        return ""


async def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
