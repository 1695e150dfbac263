"""OTLP/HTTP pushes over one keep-alive connection, and the threshold API."""

import gzip
import time
from typing import Final, NamedTuple
from urllib.parse import quote

import httpx
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.transport import PushFailure, PushReply, PushTarget, base_url
from ingero_contract import headers, routes
from ingero_kit.backoff import parse_retry_after
from ingero_kit.otlp_encode import to_json
from ingero_kit.settings import SettingsError

MAX_ANSWER: Final = 8 * 1024
"""Longest answer of the threshold API that is read, bytes."""

_BUSY: Final = frozenset({429, 503})
_UNAUTHENTICATED: Final = frozenset({401, 403})


def metrics_url(route: PushTarget) -> str:
    """The address to POST to; a path that is already there is not repeated."""
    return _url(route, route.endpoint, routes.OTLP_METRICS)


def failure_of(status: int) -> PushFailure | None:
    """What an HTTP status means for a push; `None` for success."""
    if 200 <= status < 300:
        return None
    if status in _BUSY:
        return PushFailure.BUSY
    if status in _UNAUTHENTICATED:
        return PushFailure.UNAUTHENTICATED
    return PushFailure.SERVER_ERROR if status >= 500 else PushFailure.REFUSED


class HttpTransport:
    """POSTs to /v1/metrics. The headers of every answer are read, also of refusals.

    After a broken connection the client is made anew, with what the certificate files hold then.
    """

    def __init__(self, route: PushTarget) -> None:
        self._route = route
        self._url = metrics_url(route)
        self._client: httpx.AsyncClient | None = _client(route)

    async def send(self, request: ExportMetricsServiceRequest) -> PushReply:
        """Send one push and wait for its reply."""
        if self._route.encoding == "json":
            body, fields = to_json(request), {"content-type": "application/json"}
        else:
            body, fields = request.SerializeToString(), {"content-type": "application/x-protobuf"}
        if self._route.compression == "gzip":
            body, fields["content-encoding"] = gzip.compress(body, mtime=0), "gzip"
        try:
            client = self._client = self._client or _client(self._route)
            answer = await client.post(self._url, content=body, headers=_authorized(self._route, fields))
        except SettingsError as error:
            return PushReply(failure=PushFailure.TOKEN, detail=str(error))
        except httpx.HTTPError as error:
            await self.close()
            kind = PushFailure.TIMEOUT if isinstance(error, httpx.TimeoutException) else PushFailure.UNREACHABLE
            return PushReply(failure=kind, detail=f"{type(error).__name__}: {error}")
        failure = failure_of(answer.status_code)
        wait = (
            parse_retry_after(answer.headers.get("retry-after"), time.time()) if failure is PushFailure.BUSY else None
        )
        return PushReply(
            failure=failure,
            detail=f"HTTP {answer.status_code}" if failure else "",
            threshold=answer.headers.get(headers.THRESHOLD),
            quorum=answer.headers.get(headers.QUORUM_MET),
            verdict=answer.headers.get(headers.VERDICT),
            retry_after=wait or 0.0,
        )

    async def close(self) -> None:
        """Give the connection back."""
        client, self._client = self._client, None
        if client:
            await client.aclose()


class ThresholdAnswer(NamedTuple):
    """What the threshold API said: no threshold before the first quorum, no quorum either where it was an error."""

    threshold: float | None = None
    quorum: bool | None = None
    retry_after: float = 0.0


class ThresholdApi:
    """Fleet's answer to "what is the threshold now?", for when pushes bring none. HTTP whatever pushes speak."""

    def __init__(self, route: PushTarget, address: str) -> None:
        self._route = route
        self._url = _url(route, address, routes.FLEET_THRESHOLD)
        self._client = _client(route)

    async def ask(self) -> ThresholdAnswer:
        """Threshold and quorum. Raises `ValueError` when the API cannot be reached or makes no sense."""
        try:
            fields = _authorized(self._route, {"accept": "application/json"})
            answer = await self._client.get(self._url, headers=fields)
            if answer.status_code != 200:
                wait = parse_retry_after(answer.headers.get("retry-after"), time.time())
                return ThresholdAnswer(retry_after=wait or 0.0)
            if len(answer.content) > MAX_ANSWER:
                raise ValueError(f"an answer of more than {MAX_ANSWER} bytes")
            tree = answer.json()
            threshold, quorum = float(tree["threshold"]), tree["quorum_met"] is True
        except (httpx.HTTPError, SettingsError, KeyError, TypeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        if 0.1 <= threshold <= 0.99:
            return ThresholdAnswer(threshold, quorum)
        if (threshold, quorum) == (0.0, False):
            return ThresholdAnswer(None, False)
        raise ValueError(f"threshold {threshold}")

    async def close(self) -> None:
        """Give the connection back."""
        await self._client.aclose()


def _url(route: PushTarget, address: str, path: str) -> str:
    base = base_url(address, route.tls.insecure)
    tail = "" if base.endswith(path) else path
    return f"{base}{tail}?{routes.CLUSTER_PARAMETER}={quote(route.cluster, safe='')}"


def _client(route: PushTarget) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        timeout=route.timeout,
        verify=False if route.tls.insecure else route.tls.context(),
        trust_env=False,
        follow_redirects=False,
        limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=30),
    )


def _authorized(route: PushTarget, fields: dict[str, str]) -> dict[str, str]:
    bearer = route.authorization()
    return {**fields, "authorization": bearer} if bearer else fields
