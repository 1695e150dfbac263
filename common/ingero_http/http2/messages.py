"""Request heads and replies of an HTTP/2 server, and what a service has to implement. Pure."""

import re
from collections.abc import Awaitable
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from typing import Final, Protocol

from ingero_http.http2.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_HEAD,
    HEADERS,
    MAX_FRAME,
    ErrorCode,
    Http2StreamError,
)  # fmt: skip
from ingero_http.http2.hpack import EMPTY_TABLE, Field, encode_block

_NAME: Final = re.compile(rb"[!-9;-@\[-~]{1,256}")
_FORBIDDEN_BYTE: Final = re.compile(rb"[\0\r\n]")
_CONNECTION_HEADERS: Final = {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
_PSEUDO: Final = {b":method", b":scheme", b":path", b":authority"}


@dataclass(frozen=True, slots=True)
class RequestHead:
    """The fields of a request. Of a field that is repeated, the last one counts."""

    method: bytes
    path: bytes
    fields: dict[bytes, bytes]
    length: int | None
    """content-length, bytes."""


def read_head(fields: list[Field]) -> RequestHead:
    """Check a request's fields (RFC 9113, 8.2 and 8.3); raises `Http2StreamError` for a malformed request."""
    pseudo: dict[bytes, bytes] = {}
    regular: dict[bytes, bytes] = {}
    for name, value in fields:
        if name in _PSEUDO:
            if regular or name in pseudo:
                raise _malformed(f"{name!r} is repeated or follows other fields")
            pseudo[name] = value
        elif _is_name(name):
            regular[name] = value
        else:
            raise _malformed(f"{name!r} is not a field name, or is not allowed in HTTP/2")
    _check(fields, regular)
    if not pseudo.get(b":path") or b":method" not in pseudo or b":scheme" not in pseudo:
        raise _malformed("a request needs :method, :scheme and :path")
    length = regular.get(b"content-length")
    if length is not None and not (length.isdigit() and len(length) < 20):
        raise _malformed("content-length is not a number")
    return RequestHead(pseudo[b":method"], pseudo[b":path"], regular, None if length is None else int(length))


def check_trailers(fields: list[Field]) -> None:
    """Check the trailers of a request (RFC 9113, 8.1); raises `Http2StreamError`."""
    if not all(_is_name(name) for name, _ in fields):
        raise _malformed("the name of a trailer is not a field name")
    _check(fields, dict(fields))


def _check(fields: list[Field], regular: dict[bytes, bytes]) -> None:
    if _FORBIDDEN_BYTE.search(b" ".join([value for _, value in fields])):
        raise _malformed("a value holds NUL, CR or LF")
    if regular.get(b"te", b"trailers") != b"trailers":
        raise _malformed("te is not trailers")


@lru_cache(1024)
def _is_name(name: bytes) -> bool:
    """Whether a regular field may have this name in HTTP/2; cached, because all clients send the same few names."""
    return bool(_NAME.fullmatch(name)) and name not in _CONNECTION_HEADERS


def _malformed(reason: str) -> Http2StreamError:
    return Http2StreamError(ErrorCode.PROTOCOL_ERROR, reason)


class Reply:
    """A reply, encoded once for all streams that get it: a header block, data and a trailer block."""

    __slots__ = ("data", "head", "pieces", "tail")

    def __init__(self, head: bytes, data: bytes = b"", tail: bytes = b"") -> None:
        if len(head) > MAX_FRAME or len(tail) > MAX_FRAME:
            raise ValueError("a reply's fields do not fit into one frame")
        self.head, self.data, self.tail = head, data, tail
        self.pieces: tuple[bytes, ...] = ()
        """The frames split where the stream number goes between; empty if the data needs several frames."""
        ended = END_STREAM | END_HEADERS
        if len(data) > MAX_FRAME:
            return
        if data and tail:
            self.pieces = (
                _head(head, HEADERS, END_HEADERS),
                head + _head(data, DATA, 0),
                data + _head(tail, HEADERS, ended),
                tail,
            )
        elif data:
            self.pieces = (_head(head, HEADERS, END_HEADERS), head + _head(data, DATA, END_STREAM), data)
        elif tail:
            self.pieces = (_head(head, HEADERS, END_HEADERS), head + _head(tail, HEADERS, ended), tail)
        else:
            self.pieces = (_head(head, HEADERS, ended), head)

    @classmethod
    def of(cls, fields: list[Field], data: bytes = b"", trailers: list[Field] | None = None) -> "Reply":
        """A reply from its fields."""
        return cls(encode_block(fields), data, encode_block(trailers) if trailers else b"")

    def as_first(self) -> "Reply":
        """This reply as the first of a connection, which also empties the client's dynamic table."""
        return Reply(EMPTY_TABLE + self.head, self.data, self.tail)


def _head(payload: bytes, kind: int, flags: int) -> bytes:
    """A frame's head without the stream number."""
    return FRAME_HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, 0)[:5]


class RequestFailure(Enum):
    """Why a request is not answered by the service."""

    HEADERS_TOO_LARGE = auto()
    BODY_TOO_LARGE = auto()
    TOO_SLOW = auto()
    OVERLOADED = auto()
    HANDLER_FAILED = auto()


class Exchange(Protocol):
    """Serves the requests with one head; one object may serve many streams at once."""

    def begin(self) -> Reply | None:
        """Check a request before its body is read; a reply ends the stream."""

    def complete(self, body: bytes) -> Reply | Awaitable[Reply]:
        """Answer a complete request."""


class Service(Protocol):
    """What an HTTP/2 server serves."""

    def route(self, head: RequestHead) -> Exchange:
        """The exchange for a head; it may be used again for equal heads."""

    def fail(self, failure: RequestFailure) -> Reply:
        """The reply to a request that cannot be served."""
