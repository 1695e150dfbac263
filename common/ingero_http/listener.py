"""What the servers have in common: listening, bounds on connections and on what they hold, a graceful stop.

A listener that is full makes room: the connection that has been silent longest gives way to a new one, so that nobody
closes a port by opening it often. Answers that nobody reads and requests that never end are bounded in time and, over
all connections, in octets.
"""

import asyncio
import contextlib
import errno
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Protocol, TypeVar, cast

import structlog

from ingero_http.limits import Counters, Limits
from ingero_http.sockets import BACKLOG, allow_open_files, open_sockets
from ingero_http.tls import ReloadingContext, TlsFiles

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

TURN_BYTES: Final = 16 << 10
"""Octets of one connection that are worked through before the others get their turn."""

LINGER_SECONDS: Final = 2.0
"""Seconds for which what follows a refusal is read and dropped, so that the refusal arrives."""

SPARE_FILES: Final = 128
"""Open files that a process needs besides its connections."""

_ACCEPTED_AT_ONCE: Final = 64
"""Connections taken in one turn of the event loop."""

_SHUTDOWN_SECONDS: Final = 2.0
"""How long a client may take to say goodbye in TLS, and what was written to reach it when the server stops."""


class Connection(Protocol):
    """One client, as its listener sees it."""

    @property
    def busy(self) -> bool:
        """Whether an answer is still owed."""

    @property
    def idle_since(self) -> float | None:
        """When it was heard of last, on the monotonic clock; `None` while an answer is owed."""

    @property
    def unsent(self) -> int:
        """Octets of answers that its client has not read."""

    def expire(self, now: float, limits: Limits) -> bool:
        """Close what takes too long or is idle; says whether a request was cut short."""

    def drain(self) -> None:
        """Take no new requests, finish those under way."""

    def close(self) -> None:
        """Close behind what is written."""

    def abort(self) -> None:
        """Close at once."""


C = TypeVar("C", bound=Connection)


class Listener(Generic[C]):
    """Accepts connections within limits; subclasses say what a connection is."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.counters = Counters()
        self.closing = False
        self.unfinished = 0
        """Octets of requests that have begun and not ended."""
        self.unread = 0
        """Octets of answers of stalled connections."""
        self._most = self.limits.connections
        self._connections: set[C] = set()
        self._opening: dict[asyncio.BaseProtocol, asyncio.Task[None]] = {}
        """Accepted and not entered yet: on their way through TLS, oldest first."""
        self._silent: deque[tuple[float, C]] = deque()
        self._stalled: dict[C, tuple[float, int]] = {}
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._sweeper: asyncio.Task[None] | None = None
        self._tls: ReloadingContext | None = None

    def connection(self) -> asyncio.BaseProtocol:
        """A new connection's protocol, which calls `enter` and `leave`."""
        raise NotImplementedError

    async def start(
        self, host: str, port: int, *, tls: TlsFiles | None = None, reuse_port: bool = False, purpose: str = ""
    ) -> int:
        """Listen; port 0 takes a free one. Returns the port.

        Raises `OSError` whose text names the address, and `CertificateError`.

        Certificate files are followed: new connections use what they hold.
        """
        self._tls = ReloadingContext(tls, self.prepare) if tls else None
        self._sockets = open_sockets(host, port, purpose=purpose, reuse_port=reuse_port)
        taken = int(self._sockets[0].getsockname()[1])
        files = allow_open_files() - SPARE_FILES
        if files < self._most:
            log.warning("fewer_connections_than_wanted", port=taken, wanted=self._most, open_files=files)
            self._most = max(1, files)
        loop = asyncio.get_running_loop()
        if self._tls:
            # Accepted here, so that handshakes count and each takes the certificates of its time.
            for one in self._sockets:
                loop.add_reader(one, self._accept, one)
        else:
            self._servers = [
                await loop.create_server(self.connection, sock=one, backlog=BACKLOG) for one in self._sockets
            ]
        self._sweeper = asyncio.create_task(self._sweep())
        return taken

    def prepare(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Say in the context what this server speaks."""
        return context

    def reload_certificates(self) -> None:
        """Read the certificate files now; raises `CertificateError` when they cannot be used."""
        if self._tls:
            self._tls.reload()

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop listening, let answers under way finish, then close what is left."""
        self.closing = True
        loop = asyncio.get_running_loop()
        for server in self._servers:
            server.close()
        while self._sockets:
            one = self._sockets.pop()
            if self._tls:
                loop.remove_reader(one)
            one.close()
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
        if self._sweeper:
            self._sweeper.cancel()
        await asyncio.sleep(0)

    # Connections come and go.

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                peer, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._cannot_accept(listening, error)
                return
            if len(self._connections) + len(self._opening) >= self._most and not self._make_room():
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
        """Out of open files or memory: make room, and look again soon, because the system says so at once again."""
        self.counters.refused_connections += 1
        if error.errno in (errno.EMFILE, errno.ENFILE):
            self._make_room()
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening)
        loop.call_later(0.1, self._listen_again, listening)

    def _listen_again(self, listening: socket.socket) -> None:
        if not self.closing:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    async def _open(self, connection: asyncio.BaseProtocol, peer: socket.socket) -> None:
        """Make a connection of an accepted socket, by way of a handshake."""
        peer.setblocking(False)
        with contextlib.suppress(OSError):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        assert self._tls
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection, peer, ssl=self._tls.context,
                ssl_handshake_timeout=self.limits.read_seconds, ssl_shutdown_timeout=_SHUTDOWN_SECONDS,
            )  # fmt: skip
        except OSError:
            self.counters.failed_handshakes += 1

    def _make_room(self) -> bool:
        """Close whoever has been silent longest; says whether there was one."""
        if self._opening and (len(self._opening) > self._most // 2 or not self._connections):
            self.counters.gave_way += 1
            return self._opening.pop(next(iter(self._opening))).cancel()
        for fresh in (False, True):
            if fresh:
                self._rank()
            while self._silent:
                since, connection = self._silent.popleft()
                if connection in self._connections and connection.idle_since == since:
                    self.counters.gave_way += 1
                    self.unregister(connection)
                    connection.abort()
                    return True
        return False

    def _rank(self) -> None:
        """Note those that have been silent longest, several at once, because a listener that is full stays so."""
        silent = [(since, one) for one in self._connections if (since := one.idle_since) is not None]
        silent.sort(key=lambda pair: pair[0])
        self._silent = deque(silent[: 1 + self._most // 32])

    def register(self, connection: C) -> bool:
        """Count a new connection; says whether it may stay."""
        self._opening.pop(cast(asyncio.BaseProtocol, connection), None)
        full = len(self._connections) + len(self._opening) >= self._most
        if self.closing or (full and not self._make_room()):
            self.counters.refused_connections += 1
            return False
        self._connections.add(connection)
        self.counters.open = len(self._connections)
        return True

    def unregister(self, connection: C) -> None:
        """Forget a connection."""
        self._connections.discard(connection)
        self.writing_resumed(connection)
        self.counters.open = len(self._connections)

    # Answers that nobody reads.

    def writing_paused(self, connection: C) -> None:
        """A connection holds answers that its client does not read."""
        self._note(connection, time.monotonic(), connection.unsent)
        while self.unread > self.limits.unread_bytes:
            self._give_up(next(iter(self._stalled)))

    def _note(self, connection: C, now: float, octets: int) -> None:
        since, before = self._stalled.get(connection, (now, 0))
        self._stalled[connection] = (now if octets < before else since, octets)
        self.unread += octets - before

    def writing_resumed(self, connection: C) -> None:
        """What a connection held is being read."""
        _, octets = self._stalled.pop(connection, (0.0, 0))
        self.unread -= octets

    def _give_up(self, connection: C) -> None:
        self.counters.unread += 1
        self.writing_resumed(connection)
        connection.abort()

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
        for connection in list(self._stalled):
            self._note(connection, now, connection.unsent)
            if now - self._stalled[connection][0] > self.limits.send_seconds:
                self._give_up(connection)
        for connection in list(self._connections):
            self.counters.timeouts += connection.expire(now, self.limits)


async def _until(done: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
