"""The OTLP receiver: one handler takes pushes over HTTP and gRPC, and its answer becomes a status of either protocol.

Status codes follow the OTLP specification. What the sender must not retry is 400 / INVALID_ARGUMENT. What it may
retry is 429 or 503 with Retry-After / RESOURCE_EXHAUSTED or UNAVAILABLE with RetryInfo. Rejected parts are reported
as `partial_success` in a 200.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import parse_qs, unquote

import orjson

from ingero_contract import headers, routes
from ingero_http.content import media_type
from ingero_http.grpc_unary import PREFIX, Fields, GrpcService, StatusCode, refuse, respond
from ingero_http.http1.messages import Request, Response
from ingero_http.http1.server import Http1Server
from ingero_http.http2.messages import Reply
from ingero_http.http2.server import Http2Server
from ingero_http.limits import Limits
from ingero_kit.addresses import is_local_request
from ingero_kit.logs import get
from ingero_kit.otlp_signal import Encoding, Signal
from ingero_kit.otlp_wire import write_varint
from ingero_kit.tokens import TokenStore, token_refusal

log = get(__name__)


class Status(Enum):
    """The outcome of a push: (HTTP status, gRPC status)."""

    OK = (200, StatusCode.OK)
    INVALID = (400, StatusCode.INVALID_ARGUMENT)
    UNAUTHENTICATED = (401, StatusCode.UNAUTHENTICATED)
    FORBIDDEN = (403, StatusCode.PERMISSION_DENIED)
    BUSY = (429, StatusCode.RESOURCE_EXHAUSTED)
    UNAVAILABLE = (503, StatusCode.UNAVAILABLE)
    INTERNAL = (500, StatusCode.INTERNAL)


@dataclass(slots=True)
class Push:
    """One export request, still encoded. `authorization` is the raw header of an already accepted request."""

    signal: Signal
    encoding: Encoding
    body: bytes
    cluster: str = ""
    authorization: bytes | str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The handler's decision. `http_headers`: raw lines that end in CRLF; `metadata`: the same for gRPC."""

    status: Status = Status.OK
    message: str = ""
    rejected: int = 0
    retry_seconds: float = 1.0
    http_headers: bytes = b""
    metadata: tuple[tuple[str, str], ...] = ()


ACCEPTED: Final = Answer()

Handler = Callable[[Push], Answer | Awaitable[Answer]]
"""Called on the event loop, which awaits an awaitable; it must not block."""

_OK: Final = Status.OK
_SIGNALS: Final = {signal.path.encode(): signal for signal in Signal}
_REMEMBERED: Final = 4096
"""Distinct queries and encoded answers that are cached."""

_CLUSTER_HEADER: Final = headers.CLUSTER.encode()
_CONTENT_TYPES: Final[dict[Encoding, bytes]] = {"protobuf": b"application/x-protobuf", "json": b"application/json"}
_MEDIA: Final = {media: encoding for encoding, media in _CONTENT_TYPES.items()}


def partial_success(signal: Signal, rejected: int, message: str, encoding: Encoding) -> bytes:
    """Encode an export response: empty when everything was accepted, otherwise the count and the reason."""
    if not rejected and not message:
        return b"" if encoding == "protobuf" else b"{}"
    if encoding == "json":
        return orjson.dumps({"partialSuccess": {signal.rejected_field: str(rejected), "errorMessage": message}})
    text = message.encode()[:4096]
    inner = (b"\x08" + write_varint(rejected) if rejected else b"") + (
        b"\x12" + write_varint(len(text)) + text if text else b""
    )
    return b"\x0a" + write_varint(len(inner)) + inner


def error_status(code: int, message: str, encoding: Encoding) -> bytes:
    """Encode a google.rpc.Status, the body of every OTLP/HTTP failure."""
    if encoding == "json":
        return orjson.dumps({"code": code, "message": message})
    text = message.encode()[:4096]
    return b"\x08" + write_varint(code) + b"\x12" + write_varint(len(text)) + text


def retry_info(message: str, seconds: float, code: StatusCode = StatusCode.RESOURCE_EXHAUSTED) -> bytes:
    """Encode a google.rpc.Status with RetryInfo, for `grpc-status-details-bin`."""
    nanos = int(seconds * 1e9)
    duration = b"\x08" + write_varint(nanos // 10**9) + b"\x10" + write_varint(nanos % 10**9)
    info = b"\x0a" + write_varint(len(duration)) + duration
    url = b"type.googleapis.com/google.rpc.RetryInfo"
    detail = b"\x0a" + write_varint(len(url)) + url + b"\x12" + write_varint(len(info)) + info
    return error_status(code, message, "protobuf") + b"\x1a" + write_varint(len(detail)) + detail


class Authenticator:
    """Checks the bearer token of a push; without `tokens` every request is accepted."""

    def __init__(self, tokens: TokenStore[Any] | None = None) -> None:
        self.tokens = tokens
        self.refused = 0
        self.local_only = False
        """Serve only requests to this machine's own name that come from no page of another host. Set when no token is
        required."""

    def admit(self, authorization: bytes | str | None) -> bool:
        """Whether a request with this Authorization header is accepted."""
        if self.tokens is None or self.tokens.find(authorization) is not None:
            return True
        self.refused += 1
        return False


class OtlpHttpReceiver(Http1Server):
    """OTLP/HTTP: protobuf and JSON, plain, gzip or zstd."""

    purpose = "OTLP over HTTP"

    def __init__(self, handler: Handler, authenticator: Authenticator, limits: Limits | None = None) -> None:
        super().__init__(self._serve, limits=limits, check_head=self._check_head)
        self._handle, self._authenticator = handler, authenticator

    def _check_head(self, request: Request) -> Response | None:
        if request.path not in _SIGNALS:
            return Response(404, b"not found: OTLP is at /v1/metrics, /v1/logs and /v1/traces")
        if request.method != b"POST":
            return Response(405, b"use POST", extra=b"allow: POST\r\n")
        if self._authenticator.local_only and not is_local_request(request.headers):
            return Response(403, b"without tokens only loopback names are served")
        authorization = request.headers.get(b"authorization")
        if not self._authenticator.admit(authorization):
            return Response(401, token_refusal(authorization).encode(), extra=b"www-authenticate: Bearer\r\n")
        return None

    def _serve(self, request: Request) -> Response | Awaitable[Response]:
        content_type = request.headers.get(b"content-type", b"")
        encoding = _MEDIA.get(content_type) or _MEDIA.get(media_type(content_type))
        if encoding is None:
            return Response(415, b"content-type must be application/x-protobuf or application/json")
        cluster = _query_cluster(request.query) if request.query else ""
        if not cluster:
            cluster = request.headers.get(_CLUSTER_HEADER, b"").decode("latin-1")
        signal = _SIGNALS[request.path]
        push = Push(signal, encoding, request.body, cluster, request.headers.get(b"authorization"))
        answer = self._handle(push)
        return _http(answer, push) if isinstance(answer, Answer) else _http_later(answer, push)


async def _http_later(answer: Awaitable[Answer], push: Push) -> Response:
    return _http(await answer, push)


def _http(answer: Answer, push: Push) -> Response:
    """The response to a push; common ones are encoded once."""
    if answer.status is _OK and not answer.rejected and not answer.message:
        return _accepted(answer.http_headers, push.encoding)
    extra = answer.http_headers
    if answer.status is _OK:
        body = partial_success(push.signal, answer.rejected, answer.message, push.encoding)
        return Response(200, body, _CONTENT_TYPES[push.encoding], extra)
    status, code = answer.status.value
    if answer.status in (Status.BUSY, Status.UNAVAILABLE):
        extra += b"retry-after: %d\r\n" % max(1, round(answer.retry_seconds))
    body = error_status(code, answer.message, push.encoding)
    return Response(status, body, _CONTENT_TYPES[push.encoding], extra)


@lru_cache(_REMEMBERED)
def _accepted(http_headers: bytes, encoding: Encoding) -> Response:
    return Response(200, b"" if encoding == "protobuf" else b"{}", _CONTENT_TYPES[encoding], http_headers)


@lru_cache(_REMEMBERED)
def _query_cluster(query: bytes) -> str:
    prefix = routes.CLUSTER_PARAMETER.encode() + b"="
    if query.startswith(prefix) and b"&" not in query:
        text = query[len(prefix) :].decode("latin-1")
        return unquote(text) if "%" in text or "+" in text else text
    values = parse_qs(query.decode("latin-1"), max_num_fields=32).get(routes.CLUSTER_PARAMETER)
    return values[0] if values else ""


class OtlpGrpcReceiver(Http2Server):
    """OTLP/gRPC on the HTTP/2 server; the handler gets messages still encoded.

    `body_bytes` limits a message if no `limits` are given.
    """

    purpose = "gRPC"

    def __init__(
        self,
        handler: Handler,
        authenticator: Authenticator,
        limits: Limits | None = None,
        *,
        body_bytes: int = 4 << 20,
    ) -> None:
        self._handle, self._authenticator = handler, authenticator
        limits = limits or Limits(body_bytes=body_bytes, decoded_bytes=body_bytes)
        service = GrpcService(
            {signal.grpc_method: partial(self._export, signal) for signal in Signal},
            check_call=self._check_call,
            message_bytes=limits.body_bytes,
            decoded_bytes=limits.decoded_bytes,
        )
        super().__init__(service, limits=replace(limits, body_bytes=limits.body_bytes + PREFIX))

    def _check_call(self, fields: Fields) -> Reply | None:
        authorization = fields.get(b"authorization")
        if self._authenticator.admit(authorization):
            return None
        return refuse(StatusCode.UNAUTHENTICATED, token_refusal(authorization))

    def _export(self, signal: Signal, fields: Fields, message: bytes) -> Reply | Awaitable[Reply]:
        cluster = fields.get(_CLUSTER_HEADER, b"").decode("latin-1")
        answer = self._handle(Push(signal, "protobuf", message, cluster, fields.get(b"authorization")))
        return _grpc(answer, signal) if isinstance(answer, Answer) else _grpc_later(answer, signal)


async def _grpc_later(answer: Awaitable[Answer], signal: Signal) -> Reply:
    return _grpc(await answer, signal)


def _grpc(answer: Answer, signal: Signal) -> Reply:
    """The reply to a push; common ones are encoded once."""
    if answer.status is _OK and not answer.rejected and not answer.message:
        return _grpc_accepted(answer.metadata)
    if answer.status is _OK:
        message = partial_success(signal, answer.rejected, answer.message, "protobuf")
        return respond(message, answer.metadata)
    code, details = answer.status.value[1], b""
    if answer.status in (Status.BUSY, Status.UNAVAILABLE):
        details = retry_info(answer.message, answer.retry_seconds, code)
    return refuse(code, answer.message, details)


@lru_cache(_REMEMBERED)
def _grpc_accepted(metadata: tuple[tuple[str, str], ...]) -> Reply:
    return respond(b"", metadata)
