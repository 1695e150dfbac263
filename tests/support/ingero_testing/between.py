"""A proxy between an operator and the API server that simulates network failures for requests that a test chooses."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import aiohttp
from aiohttp import web

Fate = Literal["pass", "lose", "fail"]
"""What happens to a request: `lose` forwards it but drops the answer, `fail` answers 500 without forwarding it."""
_HOPS = {"connection", "content-length", "transfer-encoding", "content-encoding", "host", "accept-encoding"}


@dataclass
class Between:
    """A running proxy; `fate` decides by method and path."""

    port: int = 0
    fate: Callable[[str, str], Fate] = lambda method, path: "pass"
    lost: int = 0
    failed: int = 0


@contextmanager
def between(upstream: str) -> Iterator[Between]:
    """Forward everything to the API server at `upstream` until the block ends."""
    found, ready, over = Between(), threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False) as session:

            async def forward(request: web.Request) -> web.StreamResponse:
                fate, body = found.fate(request.method, request.path), await request.read()
                if fate == "fail":
                    found.failed += 1
                    tree = {"kind": "Status", "reason": "InternalError", "message": "played by the test", "code": 500}
                    return web.json_response(tree, status=500)
                headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOPS}
                async with session.request(
                    request.method, upstream + request.raw_path, headers=headers, data=body or None, ssl=False
                ) as answer:
                    if fate == "lose":
                        await answer.read()
                        found.lost += 1
                        assert request.transport is not None
                        request.transport.abort()
                        return web.Response()
                    kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOPS}
                    response = web.StreamResponse(status=answer.status, headers=kept)
                    with contextlib.suppress(ConnectionError):
                        await response.prepare(request)
                        async for chunk in answer.content.iter_any():
                            await response.write(chunk)
                        await response.write_eof()
                    return response

            app = web.Application(client_max_size=1 << 24)
            app.router.add_route("*", "/{path:.*}", forward)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            found.port = int(runner.addresses[0][1])
            ready.set()
            await over.wait()
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(30)
        yield found
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(30)
