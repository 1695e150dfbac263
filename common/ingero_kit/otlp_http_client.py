"""OTLP over HTTP: one POST per request, over persistent connections."""

import gzip
import ssl
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlsplit

from ingero_contract import routes
from ingero_kit.backoff import parse_retry_after
from ingero_kit.http_library import httpx
from ingero_kit.otlp_client import (
    ClientConfig,
    DeliveryFailure,
    Disposition,
    ExportResult,
    base_url,
    explained,
    http_failure,
)  # fmt: skip
from ingero_kit.otlp_signal import Signal
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls
from ingero_kit.tokens import read_authorization


def otlp_url(config: ClientConfig, path: str) -> str:
    """The URL of a path under the endpoint, unless that already ends with it, with the cluster as a parameter.

    Raises `SettingsError` for an invalid URL.
    """
    base = base_url(config.endpoint, config.tls.insecure)
    query = f"?{routes.CLUSTER_PARAMETER}={quote(config.cluster, safe='')}" if config.cluster else ""
    url = f"{base}{'' if base.endswith(path) else path}{query}"
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port == 0:
            raise SettingsError(f"{config.endpoint}: an address has a host and a port, such as fleet:4318")
        httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise SettingsError(f"{config.endpoint}: {error}") from None
    return url


_HINTS: Final = {404: " (is this the port of OTLP over HTTP? It is usually 4318)"}
"""What a status probably means that a receiver of OTLP does not give."""


class HttpConnection:
    """Connections to one address, without redirects and proxy settings.

    They are opened anew after a failure, and when the certificate files have changed. Raises `SettingsError` for
    unusable TLS files.
    """

    def __init__(self, url: str, tls: ClientTls, timeout: float) -> None:
        self._timeout = timeout
        self._context = tls.follow(tls.context) if url.startswith("https:") else None
        self._opened_with: ssl.SSLContext | None = None
        self._client: httpx.AsyncClient | None = None

    async def request(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> httpx.Response:
        """Send one request and wait for the answer; raises `httpx.HTTPError`."""
        context = self._context.current() if self._context else None
        if context is not self._opened_with:
            await self.close()
        if self._client is None:
            self._opened_with = context
            self._client = httpx.AsyncClient(
                timeout=self._timeout,
                verify=context or False,
                trust_env=False,
                follow_redirects=False,
                limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=30),
            )
        try:
            return await self._client.request(method, url, headers=headers, content=body)
        except httpx.HTTPError:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connections."""
        client, self._client = self._client, None
        if client:
            await client.aclose()


class OtlpHttpClient:
    """See `ingero_kit.otlp_client.OtlpClient`. Results have the headers of every answer, also of refusals."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._urls = {signal: otlp_url(config, signal.path) for signal in Signal}
        media = "application/json" if config.encoding == "json" else "application/x-protobuf"
        self._headers = {"content-type": media}
        if config.compression == "gzip":
            self._headers["content-encoding"] = "gzip"
        self._connection = HttpConnection(self._urls[Signal.METRICS], config.tls, config.timeout)

    async def send(self, signal: Signal, body: bytes) -> ExportResult:
        """Send one request and wait for the answer."""
        if self._config.compression == "gzip":
            body = gzip.compress(body, mtime=0)
        try:
            token = read_authorization(self._config.token_file)
            headers = {**self._headers, "authorization": token} if token else self._headers
            answer = await self._connection.request("POST", self._urls[signal], headers, body)
        except SettingsError as error:
            return ExportResult(failure=DeliveryFailure.TOKEN, disposition=Disposition.RETRY, detail=str(error))
        except httpx.HTTPError as error:
            kind = (
                DeliveryFailure.TIMEOUT if isinstance(error, httpx.TimeoutException) else DeliveryFailure.UNREACHABLE
            )
            said = f"{type(error).__name__}: {error}".removesuffix(": ")
            detail = explained(said, self._urls[signal])
            return ExportResult(failure=kind, disposition=Disposition.RETRY, detail=detail)
        failed = http_failure(answer.status_code)
        if failed is None:
            return ExportResult(response=answer.content, headers=answer.headers)
        wait = answer.headers.get("retry-after") if failed[1] is Disposition.RETRY else None
        return ExportResult(
            failure=failed[0],
            disposition=failed[1],
            detail=f"HTTP {answer.status_code}: {answer.text[:200]}".removesuffix(": ")
            + _HINTS.get(answer.status_code, ""),
            headers=answer.headers,
            retry_after=parse_retry_after(wait, time.time()),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._connection.close()
