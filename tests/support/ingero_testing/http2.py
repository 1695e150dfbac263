"""A small HTTP/2 client that may break every rule, for tests of the server."""

import asyncio
from typing import NamedTuple, Self

import hpack

from ingero_http.http2 import frames as h2

TIMEOUT = 10.0
"""Seconds to wait for anything."""


class Frame(NamedTuple):
    """One received frame."""

    kind: int
    flags: int
    number: int
    payload: bytes

    @property
    def code(self) -> int:
        """The error code of RST_STREAM or GOAWAY."""
        return int.from_bytes(self.payload[4:8] if self.kind == h2.GOAWAY else self.payload[:4], "big")


class Client:
    """Use as an async context manager; sends the preface, acknowledges nothing by itself."""

    def __init__(self, port: int, **values: int) -> None:
        self.port = port
        self.values = {getattr(h2, name.upper()): value for name, value in values.items()}
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self.frames: list[Frame] = []

    async def __aenter__(self) -> Self:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        if h2.HEADER_TABLE_SIZE in self.values:
            self.decoder.max_allowed_table_size = self.values[h2.HEADER_TABLE_SIZE]
        self.send(h2.PREFACE + h2.settings(self.values))
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.writer.close()

    def send(self, octets: bytes) -> None:
        """Write raw octets."""
        self.writer.write(octets)

    def head(self, *more: tuple[str, str], method: str = "POST", path: str = "/echo") -> bytes:
        """The header block of a request."""
        return self.encoder.encode([(":method", method), (":scheme", "http"), (":path", path), *more])

    def request(self, number: int, body: bytes = b"", *more: tuple[str, str]) -> None:
        """Send a whole request."""
        self.send(h2.frame(h2.HEADERS, h2.END_HEADERS, number, self.head(*more)))
        self.send(h2.frame(h2.DATA, h2.END_STREAM, number, body))

    async def next(self) -> Frame | None:
        """The next frame, `None` at the end of the connection."""
        try:
            head = await asyncio.wait_for(self.reader.readexactly(h2.FRAME_HEAD_BYTES), TIMEOUT)
            high, low, kind, flags, number = h2.FRAME_HEAD.unpack(head)
            payload = await asyncio.wait_for(self.reader.readexactly(high << 8 | low), TIMEOUT)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        frame = Frame(kind, flags, number, payload)
        self.frames.append(frame)
        return frame

    async def until(self, kind: int, number: int = 0) -> Frame:
        """The next frame of this kind on this stream."""
        while frame := await self.next():
            if (frame.kind, frame.number) == (kind, number):
                return frame
        raise AssertionError(f"the connection ended after {self.frames}")

    async def answer(self, number: int) -> tuple[dict[bytes, bytes], bytes]:
        """All fields and all data of one reply; other streams' replies in between are decoded and dropped."""
        fields: dict[bytes, bytes] = {}
        data = b""
        while frame := await self.next():
            decoded = self.decoder.decode(frame.payload, raw=True) if frame.kind == h2.HEADERS else ()
            if frame.number != number:
                continue
            assert frame.kind != h2.RST_STREAM, f"reset: {frame.code}"
            fields.update(decoded)
            data += frame.payload if frame.kind == h2.DATA else b""
            if frame.kind in (h2.HEADERS, h2.DATA) and frame.flags & h2.END_STREAM:
                return fields, data
        raise AssertionError(f"the connection ended after {self.frames}")

    async def ended(self) -> Frame | None:
        """Wait for the end of the connection; returns its GOAWAY."""
        goodbye = None
        while frame := await self.next():
            goodbye = frame if frame.kind == h2.GOAWAY else goodbye
        return goodbye
