"""A small HTTP server in its own thread, for `/metrics`, `/healthz`, `/readyz` and other pages.

Scrapes and the component's work never wait for each other.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeVar

from ingero_http.http1.messages import Handler, Request, Response
from ingero_http.http1.server import Http1Server
from ingero_http.limits import Limits
from ingero_http.sockets import format_address
from ingero_http.tls import TlsFiles
from ingero_kit.addresses import is_local_name, parse_listen
from ingero_kit.exposition import CONTENT_TYPE, Collector, exposition
from ingero_kit.logs import get

log = get(__name__)

LIMITS: Final = Limits(connections=32, read_seconds=10.0, idle_seconds=10.0)

Result = TypeVar("Result")

Reason = Callable[[], str | None]
"""Returns why the component is not healthy or not ready, or `None`."""


class PageServer:
    """Serves pages from its creation until `stop`. An empty host is every IPv4 and IPv6 address.

    The pages' functions run on the server's thread. Raises `OSError`.
    """

    def __init__(
        self, address: tuple[str, int], pages: Mapping[bytes, Handler], tls: TlsFiles | None = None,
        purpose: str = "metrics",
    ) -> None:  # fmt: skip
        self._pages = pages
        self._loop = asyncio.new_event_loop()
        self._server = Http1Server(self._answer, limits=LIMITS)
        self._thread = threading.Thread(target=self._run, name=purpose, daemon=True)
        self._thread.start()
        try:
            self.port = self._call(self._server.start(*address, tls=tls, purpose=purpose))
        except OSError:
            self._end()
            raise

    def stop(self) -> None:
        """Stop serving and release the port."""
        self._call(self._server.stop(0.5))
        self._end()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def _call(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _answer(self, request: Request) -> Response | Awaitable[Response]:
        page = self._pages.get(request.path)
        return page(request) if page else Response(404, b"not found; here is %b\n" % b", ".join(self._pages))


def metrics_pages(collectors: Sequence[Collector], ready: Reason, healthy: Reason) -> dict[bytes, Handler]:
    """The pages of every component."""

    async def scrape(_: Request) -> Response:
        """Collected in a thread of its own, so that probes do not wait for it."""
        body = await asyncio.to_thread(exposition, collectors)
        return Response(200, body, CONTENT_TYPE.encode())

    return {
        b"/metrics": scrape,
        b"/healthz": lambda _: _verdict(healthy(), "not healthy"),
        b"/readyz": lambda _: _verdict(ready(), "not ready"),
    }


def _verdict(reason: str | None, state: str) -> Response:
    return Response(200, b"ok\n") if reason is None else Response(503, f"{state}: {reason}\n".encode())


def serve_metrics(
    listen: str, collectors: Sequence[Collector], ready: Reason, healthy: Reason = lambda: None, *, flag: str = "",
    pages: Mapping[bytes, Handler] = MappingProxyType({}),
) -> PageServer:  # fmt: skip
    """Serve the pages of every component, and `pages`, at `host:port` until `stop`.

    Raises `OSError` that names the address, and its `flag`.
    """
    address = parse_listen(listen)
    try:
        server = PageServer(address, {**metrics_pages(collectors, ready, healthy), **pages})
    except OSError as error:
        raise OSError(f"{flag} {listen}: {error}".strip()) from None
    if not is_local_name(address[0]):
        log.warning("metrics_open_to_the_network", listen=listen)
    log.info("listening", address=format_address(address[0], server.port))
    return server
