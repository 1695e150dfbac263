"""An HTTP/1.1 client for small requests, without redirects, proxies and cookies.

Connections stay open for the next request to the same server.
"""

import asyncio
import contextlib
import re
import select
import socket
import ssl
import time
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit

import httptools

MAX_ANSWER: Final = 4 << 20
"""Longest answer that is read, head included, bytes."""

IDLE_SECONDS: Final = 30.0
"""How long a connection without requests is used again."""

_CHUNK: Final = 64 << 10
_CLOSE_SECONDS: Final = 1.0
_NEXT_ADDRESS_SECONDS: Final = 2.0
"""How long an address of a name is tried if there is another."""

_SAFE: Final = "/?:@!$&'()*+,;=~%[]"
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"(?:[!-~\x80-\xff](?:[\t -~\x80-\xff]*[!-~\x80-\xff])?)?")
"""Names and values of headers (RFC 9110, 5.1 and 5.5)."""


class NoAnswerError(Exception):
    """There is no answer, or none that is HTTP; the text says why."""


class AnswerTimeoutError(NoAnswerError):
    """There was no whole answer in time."""


@dataclass(frozen=True)
class HttpAnswer:
    """A whole answer. Names of headers are in lower case; values of one that is repeated are joined by commas."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body; what is not UTF-8 is replaced."""
        return self.body.decode(errors="replace")


class RequestTarget(NamedTuple):
    """Where a request goes: the server, its name as requests give it, credentials of the URL, path with query."""

    host: str
    port: int
    tls: bool
    name: str
    authorization: str
    path: str


def parse_url(url: str) -> RequestTarget:
    """Split a URL. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{url}: an http or https URL has a host")
    if not parts.netloc.isascii():
        raise ValueError(f"{url}: the name of a host has ASCII letters (xn--...)")
    tls = parts.scheme == "https"
    user, at, name = parts.netloc.rpartition("@")
    credentials = b64encode(unquote(user if ":" in user else f"{user}:").encode()).decode()
    path = quote(parts.path or "/", safe=_SAFE) + (f"?{quote(parts.query, safe=_SAFE)}" if parts.query else "")
    port = parts.port or (443 if tls else 80)
    return RequestTarget(unquote(parts.hostname), port, tls, name, f"Basic {credentials}" if at else "", path)


def encode_request(method: str, target: RequestTarget, headers: Mapping[str, str], body: bytes | None) -> bytes:
    """The bytes of a request. Raises `ValueError` for headers that HTTP forbids."""
    fields = {"host": target.name, "accept": "*/*", "accept-encoding": "identity"}
    if target.authorization:
        fields["authorization"] = target.authorization
    fields |= {name.lower(): value for name, value in headers.items()}
    if body is not None or method != "GET":
        fields["content-length"] = str(len(body or b""))
    for name, value in fields.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} has characters that HTTP forbids")
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {target.path} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + (body or b"")


class _AnswerParser:
    """Collects one answer from callbacks of httptools; informational ones that precede it are dropped."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.complete = self.reusable = False
        self._parser: Any = httptools.HttpResponseParser(self)

    def feed(self, data: bytes) -> None:
        """Parse some bytes; none means that the connection has ended. Raises `NoAnswerError`."""
        if data:
            self._parser.feed_data(data)
        elif self.status and not {"content-length", "transfer-encoding"} & self.headers.keys():
            self.complete = True  # the end of the connection is that of the answer (RFC 9112, 6.3)
        else:
            raise NoAnswerError("the server closed the connection")

    def on_message_begin(self) -> None:
        self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.status:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:
            self.headers.clear()
        elif not self.complete:
            self.status = status

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.body += body

    def on_message_complete(self) -> None:
        if self.status and not self.complete:
            self.complete, self.reusable = True, self._parser.should_keep_alive()


@dataclass
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    context: ssl.SSLContext | None
    used_at: float = 0.0

    def usable(self, context: ssl.SSLContext | None) -> bool:
        """Whether another request may be sent."""
        if self.writer.is_closing() or self.context is not context or time.monotonic() - self.used_at >= IDLE_SECONDS:
            return False
        # What a server sends unasked is its end. The loop may not have run since, so only the socket knows.
        unasked = select.poll()
        unasked.register(self.writer.get_extra_info("socket"), select.POLLIN)
        return not self.reader.at_eof() and not unasked.poll(0)

    async def exchange(self, request: bytes) -> tuple[HttpAnswer, bool]:
        """Send a request and read its answer; also whether the connection can take another request."""
        self.writer.write(request)
        with contextlib.suppress(ConnectionError):  # a server may answer before it has read the whole body
            await self.writer.drain()
        found, received = _AnswerParser(), 0
        while not found.complete:
            data = await self.reader.read(_CHUNK)
            received += len(data)
            if received > MAX_ANSWER:
                raise NoAnswerError(f"an answer of more than {MAX_ANSWER} bytes")
            found.feed(data)
        self.used_at = time.monotonic()
        return HttpAnswer(found.status, found.headers, bytes(found.body)), found.reusable

    async def close(self) -> None:
        """Close it, at once if the server does not answer the end of TLS."""
        self.writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.writer.wait_closed()
        self.writer.transport.abort()


class HttpClient:
    """Sends requests to the server of a URL, in at most `timeout` seconds each, and keeps one connection open.

    `context` gives the TLS context, for https; a changed one is used from the next request on.
    """

    def __init__(self, url: str, timeout: float, context: Callable[[], ssl.SSLContext] | None = None) -> None:
        self._server = parse_url(url)
        self._timeout, self._context = timeout, context
        self._idle: _Connection | None = None

    async def request(
        self, method: str, url: str, headers: Mapping[str, str] = MappingProxyType({}), body: bytes | None = None
    ) -> HttpAnswer:
        """Send one request to a URL of the same server.

        Raises `NoAnswerError`, and `ValueError` for what cannot be sent.
        """
        request = encode_request(method, parse_url(url), headers, body)
        context = self._context() if self._context else None
        connection = None
        try:
            async with asyncio.timeout(self._timeout) as limit:
                connection = await self._take_idle(context) or await self._open(context)
                answer, reusable = await connection.exchange(request)
        except TimeoutError as error:
            if limit.expired():
                raise AnswerTimeoutError(f"no answer within {self._timeout:g} s") from None
            raise NoAnswerError(_words(error)) from None
        except (OSError, ValueError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise NoAnswerError(_words(error)) from None
        else:
            if reusable and self._idle is None:
                self._idle, connection = connection, None
            return answer
        finally:
            if connection is not None:
                connection.writer.transport.abort()

    async def close(self) -> None:
        """Close the connection that is kept open."""
        found, self._idle = self._idle, None
        if found is not None:
            await found.close()

    async def _take_idle(self, context: ssl.SSLContext | None) -> _Connection | None:
        found, self._idle = self._idle, None
        if found is None or found.usable(context):
            return found
        await found.close()
        return None

    async def _open(self, context: ssl.SSLContext | None) -> _Connection:
        server = self._server
        if server.tls and context is None:
            raise ValueError("https without a TLS context")
        name = server.host if server.tls else None
        connected = await _connect(server.host, server.port)
        reader, writer = await asyncio.open_connection(sock=connected, ssl=context, server_hostname=name)
        return _Connection(reader, writer, context)


async def _connect(host: str, port: int) -> socket.socket:
    """A connected socket; the addresses of a name are tried one after the other. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for left, (family, kind, protocol, _, address) in zip(range(len(found) - 1, -1, -1), found, strict=True):
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        try:
            async with asyncio.timeout(_NEXT_ADDRESS_SECONDS if left else None):
                await loop.sock_connect(made, address)
            return made
        except BaseException as error:
            made.close()
            if not left or not isinstance(error, OSError):
                raise
    raise OSError(f"{host} has no address")


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")
