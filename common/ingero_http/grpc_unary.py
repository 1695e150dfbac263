"""Serves unary gRPC calls over HTTP/2 (protocol description "gRPC over HTTP2").

A method gets the metadata of a call and its one message, still encoded, and returns a `Reply` made by `respond` or
`refuse`. The server ignores deadlines: the client resets the stream, which cancels an awaited method.
"""

import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final

from ingero_http.content import DecodeError, decompress, media_type
from ingero_http.http2.hpack import Field
from ingero_http.http2.messages import Reply, RequestFailure, RequestHead


class StatusCode(IntEnum):
    """Status codes (gRPC, "Status codes and their use in gRPC")."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


Fields = Mapping[bytes, bytes]
"""A call's metadata: names in lower case, values as sent."""

Method = Callable[[Fields, bytes], Reply | Awaitable[Reply]]
CallCheck = Callable[[Fields], Reply | None]
"""Checks a call before its message is read; a reply ends it."""

PREFIX: Final = 5
"""Bytes before a message: whether it is compressed, and its length."""

ENCODINGS: Final = b"identity,deflate,gzip,zstd"

_MEDIA: Final = b"application/grpc"
_BEGUN: Final[list[Field]] = [(b":status", b"200"), (b"content-type", _MEDIA)]
_OK_TRAILERS: Final[list[Field]] = [(b"grpc-status", b"0")]
_LONGEST_MESSAGE: Final = 1024


def frame_message(message: bytes) -> bytes:
    """A message in wire format, not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


def respond(message: bytes, metadata: Iterable[tuple[str, str]] = ()) -> Reply:
    """A successful reply; the metadata comes before the message, as initial metadata."""
    more = [(name.encode(), value.encode()) for name, value in metadata]
    return Reply.of([*_BEGUN, *more], frame_message(message), _OK_TRAILERS)


def refuse(code: StatusCode, message: str, details: bytes = b"", extra: Iterable[Field] = ()) -> Reply:
    """A failure, in trailers only. `details` is an encoded google.rpc.Status."""
    fields = [*_BEGUN, (b"grpc-status", b"%d" % code), (b"grpc-message", escape(message)), *extra]
    if details:
        fields.append((b"grpc-status-details-bin", base64.b64encode(details).rstrip(b"=")))
    return Reply.of(fields)


def escape(message: str) -> bytes:
    """A status message in wire format: printable ASCII except the percent sign, all other bytes of UTF-8 as %XX."""
    text = message.encode()[:_LONGEST_MESSAGE]
    return b"".join(b"%c" % byte if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in text)


class GrpcService:
    """Serves unary methods by their path, `/package.Service/Method`.

    `message_bytes` limits a message as sent, `decoded_bytes` after decompression.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        check_call: CallCheck | None = None,
        message_bytes: int = 4 << 20,
        decoded_bytes: int = 16 << 20,
    ) -> None:
        self._methods = {path.encode(): method for path, method in methods.items()}
        self.check_call = check_call
        self.decoded_bytes = decoded_bytes
        self._failures = {
            RequestFailure.HEADERS_TOO_LARGE: refuse(StatusCode.RESOURCE_EXHAUSTED, "the metadata is too large"),
            RequestFailure.BODY_TOO_LARGE: refuse(
                StatusCode.RESOURCE_EXHAUSTED, f"the message is larger than {message_bytes} bytes"
            ),
            RequestFailure.TOO_SLOW: refuse(StatusCode.DEADLINE_EXCEEDED, "the request took too long"),
            RequestFailure.OVERLOADED: refuse(StatusCode.UNAVAILABLE, "too much is being received at once"),
            RequestFailure.HANDLER_FAILED: refuse(StatusCode.INTERNAL, "internal error"),
        }

    def route(self, head: RequestHead) -> "_Call":
        """Find the method; a request that is not a gRPC call gets an HTTP status."""
        media = media_type(head.fields.get(b"content-type", b""))
        method = self._methods.get(head.path)
        encoding = head.fields.get(b"grpc-encoding", b"identity")
        refusal = None
        if head.method != b"POST":
            refusal = Reply.of([(b":status", b"405"), (b"allow", b"POST")])
        elif media not in (_MEDIA, _MEDIA + b"+proto"):
            refusal = Reply.of([(b":status", b"415")])
        elif method is None:
            refusal = refuse(StatusCode.UNIMPLEMENTED, f"there is no method {head.path.decode('latin-1')}")
        elif encoding not in ENCODINGS.split(b","):
            message = f"grpc-encoding {encoding.decode('latin-1')!r} is not supported"
            refusal = refuse(StatusCode.UNIMPLEMENTED, message, extra=[(b"grpc-accept-encoding", ENCODINGS)])
        return _Call(self, method, head.fields, encoding, refusal)

    def fail(self, failure: RequestFailure) -> Reply:
        """The status of a call that did not reach its method."""
        return self._failures[failure]


class _Call:
    """Serves calls with equal heads."""

    __slots__ = ("_encoding", "_fields", "_method", "_refusal", "_service")

    def __init__(
        self, service: GrpcService, method: Method | None, fields: Fields, encoding: bytes, refusal: Reply | None
    ) -> None:
        self._service, self._method, self._fields = service, method, fields
        self._encoding, self._refusal = encoding, refusal

    def begin(self) -> Reply | None:
        check_call = self._service.check_call
        return self._refusal or (check_call(self._fields) if check_call else None)

    def complete(self, body: bytes) -> Reply | Awaitable[Reply]:
        assert self._method is not None
        if len(body) < PREFIX or len(body) - PREFIX < int.from_bytes(body[1:PREFIX], "big"):
            return refuse(StatusCode.INTERNAL, "the call ended before its message")
        if len(body) - PREFIX > int.from_bytes(body[1:PREFIX], "big"):
            return refuse(StatusCode.INTERNAL, "more than one message in a unary call")
        message = body[PREFIX:]
        if body[0]:
            if body[0] != 1 or self._encoding == b"identity":
                return refuse(StatusCode.INTERNAL, "a compressed message without grpc-encoding")
            try:
                message = decompress(self._encoding, message, self._service.decoded_bytes)
            except DecodeError as error:
                code = StatusCode.RESOURCE_EXHAUSTED if error.status == 413 else StatusCode.INTERNAL
                return refuse(code, str(error))
        return self._method(self._fields, message)
