"""An HTTP/1.1 server for hot routes: httptools parses, one handler answers, all resources are limited.

It exists because a receiver must answer more requests per second on one core than an ASGI server can (`make bench`
prints both). For other routes use an ASGI framework (`ingero_http.asgi`).
"""

import asyncio

from ingero_http.http1.connection import Http1Connection
from ingero_http.http1.messages import Handler, HeadCheck
from ingero_http.limits import Limits
from ingero_http.listener import Listener


class Http1Server(Listener[Http1Connection]):
    """Passes every request to one handler, within limits.

    A `Response` is sent at once. An awaitable delays its connection, not the server. Responses of one connection keep
    the order of its requests.
    """

    def __init__(
        self, handler: Handler, *, limits: Limits | None = None, check_head: HeadCheck | None = None
    ) -> None:
        super().__init__(limits)
        self.handler = handler
        self.check_head = check_head

    def connection(self) -> asyncio.BaseProtocol:
        """A new connection's protocol."""
        return Http1Connection(self, self.handler, self.check_head)
