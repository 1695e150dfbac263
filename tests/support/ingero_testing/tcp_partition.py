"""A TCP proxy between a client and a server that can be cut as a network partition does: nothing arrives, or ends."""

import asyncio
from typing import Self
from urllib.parse import urlsplit


class TcpPartition:
    """Forwards connections to a server; between `cut` and `heal` nothing passes, and what was sent waits."""

    def __init__(self, server: str) -> None:
        """`server`: its address, `scheme://host:port`."""
        self._server = urlsplit(server)
        self._open = asyncio.Event()
        self._open.set()
        self._pumps: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._listener.close()
        for task in self._pumps:
            task.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    @property
    def url(self) -> str:
        """Where clients connect to."""
        return f"{self._server.scheme}://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Let nothing pass."""
        self._open.clear()

    def heal(self) -> None:
        """Deliver what waits, and go on."""
        self._open.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection(self._server.hostname, self._server.port)
        except OSError:
            writer.close()
            return
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._pump(source, target))
            self._pumps.add(task)
            task.add_done_callback(self._pumps.discard)

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                await self._open.wait()
                target.write(data)
                await target.drain()
        except OSError:
            pass
        finally:
            target.close()
