"""Serves ASGI applications on the listener of this package: uvicorn's protocol parses HTTP, the listener sets limits.

uvicorn's own server has no limits for clients that send or read nothing, so that they can block its port, and it
reads certificates only once. h11 is used because it ignores a request to change the protocol; uvicorn's httptools
protocol loses the body of such a request.
"""

import asyncio
import logging
import time
from email.utils import formatdate
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ingero_http.limits import Limits
from ingero_http.listener import Listener
from ingero_http.structured_logs import structlog
from ingero_http.tls import TlsFiles

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

API_LIMITS: Final = Limits(connections=512, idle_seconds=30.0)
"""Limits for APIs and pages, which have few clients."""

_ERRORS: Final = logging.getLogger("uvicorn.error.clients")
"""Without uvicorn's warnings, which say what clients send and not who did; errors are about the application."""
_ERRORS.setLevel(logging.ERROR)

QUIET_SECONDS: Final = 60.0
"""How long further unreadable requests are counted and not logged: a port scan must not fill the log."""


def head_as_get(app: Any) -> Any:
    """Wrap an application so that it answers HEAD like GET; the server leaves out the body."""

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await app(scope, receive, send)

    return wrapped


class _Client(H11Protocol):
    """One client."""

    def __init__(self, server: "AsgiServer") -> None:
        super().__init__(server.config, server.state, {})
        self.logger = _ERRORS
        self._server = server
        self._since = time.monotonic()
        self._served = False

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if not self._server.register(self):
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.unregister(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.busy and not self._in_request:
            self._since = time.monotonic()
        super().data_received(data)

    def on_response_complete(self) -> None:
        self._served, self._since = True, time.monotonic()
        self._server.counters.requests += 1
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self._server.unreadable(self.client, time.monotonic())
        super().send_400_response(msg)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._server.writing_paused(self)

    def resume_writing(self) -> None:
        self._server.writing_resumed(self)
        super().resume_writing()

    # listener.Connection.

    @property
    def _in_request(self) -> bool:
        """Whether a request is incomplete; input buffered after a request that is being answered does not count."""
        if self.cycle is not None and self.cycle.more_body:
            return True
        return not self.busy and bool(self.conn.trailing_data[0])

    @property
    def busy(self) -> bool:
        """Whether a response is in progress."""
        return self.cycle is not None and not self.cycle.response_complete

    @property
    def idle_since(self) -> float | None:
        """When a request started or a response ended; `None` while a complete request is being answered."""
        return None if self.busy and not self.cycle.more_body else self._since

    @property
    def unsent(self) -> int:
        """Bytes of responses that the client has not read."""
        return self.transport.get_write_buffer_size()

    def drain(self) -> None:
        """Close now, or after the response in progress."""
        if not self.transport.is_closing():
            self.shutdown()

    def close(self) -> None:
        """Close once everything is written."""
        self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def expire(self, now: float, limits: Limits) -> bool:
        """Close the connection if a request takes too long or none comes; returns whether a request was cut short."""
        reading = self._in_request
        if self.busy and not reading:
            return False
        if now - self._since <= (limits.read_seconds if reading or not self._served else limits.idle_seconds):
            return False
        self.transport.abort()
        return reading


class AsgiServer(Listener[_Client]):
    """Serves one application."""

    def __init__(self, app: Any, limits: Limits = API_LIMITS) -> None:
        super().__init__(limits)
        # The listener closes idle connections; uvicorn's timer would only be set and cancelled.
        self.config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_keep_alive=3600
        )
        self.config.load()
        self.state = ServerState()
        self._unreadable, self._quiet_until = 0, 0.0

    def connection(self) -> asyncio.BaseProtocol:
        """A new connection's protocol."""
        return _Client(self)

    def unreadable(self, peer: tuple[str, int] | None, now: float) -> None:
        """Count a request that is no HTTP; the first in a while is logged, with the number since the last one."""
        self.counters.malformed += 1
        self._unreadable += 1
        if now >= self._quiet_until:
            log.warning("unreadable_requests", count=self._unreadable, latest_from=peer[0] if peer else None)
            self._unreadable, self._quiet_until = 0, now + QUIET_SECONDS

    async def start(
        self, host: str, port: int, *, tls: TlsFiles | None = None, reuse_port: bool = False, purpose: str = ""
    ) -> int:
        """See `Listener.start`."""
        self._date()
        return await super().start(host, port, tls=tls, reuse_port=reuse_port, purpose=purpose)

    def _check_connections(self) -> None:
        self._date()
        super()._check_connections()

    def _date(self) -> None:
        self.state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Stop listening, let requests in progress be answered, then cancel what is left."""
        await super().stop(grace_seconds)
        for task in list(self.state.tasks):
            task.cancel()
        await asyncio.gather(*self.state.tasks, return_exceptions=True)
