"""An HTTP/2 server for hot routes: one service answers, all resources are limited.

It serves HTTP/2 over TLS (ALPN `h2`) and over TCP with prior knowledge (RFC 9113, 3.3). It exists because a receiver
must answer several times more calls per second on one core than grpcio's Python servers can (`make bench`).
"""

import asyncio
import ssl

from ingero_http.http2 import frames as h2
from ingero_http.http2.connection import Http2Connection
from ingero_http.http2.messages import Service
from ingero_http.http2.streams import CONNECTION_WINDOW, STREAM_WINDOW
from ingero_http.limits import Limits
from ingero_http.listener import Listener


class Http2Server(Listener[Http2Connection]):
    """Passes every request to one service, within limits.

    A `Reply` is sent at once. An awaitable delays its stream, not its connection, and is cancelled when the client
    resets the stream.
    """

    def __init__(self, service: Service, *, limits: Limits | None = None) -> None:
        super().__init__(limits)
        self.service = service
        self.greeting = h2.settings(
            {
                h2.MAX_CONCURRENT_STREAMS: self.limits.streams,
                h2.INITIAL_WINDOW_SIZE: STREAM_WINDOW,
                h2.MAX_HEADER_LIST_SIZE: self.limits.header_bytes,
            }
        ) + h2.window_update(0, CONNECTION_WINDOW - h2.INITIAL_WINDOW)

    def connection(self) -> asyncio.BaseProtocol:
        """A new connection's protocol."""
        return Http2Connection(self, self.service, self.greeting)

    def prepare(self, context: ssl.SSLContext) -> ssl.SSLContext:
        """Offer `h2` alone (RFC 9113, 3.2)."""
        context.set_alpn_protocols(["h2"])
        return context
