"""OTLP over HTTP: one POST per request, over persistent connections."""

import gzip
import time
from urllib.parse import quote, urlsplit

from ingero_contract import routes
from ingero_http.http1.client import AnswerTimeoutError, HttpClient, NoAnswerError, parse_url
from ingero_kit.backoff import parse_retry_after
from ingero_kit.otlp_client import ClientConfig, DeliveryFailure, Disposition, ExportResult, base_url, http_failure
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
        parse_url(url)
    except ValueError as error:
        raise SettingsError(f"{config.endpoint}: {error}") from None
    return url


def make_http_client(url: str, tls: ClientTls, timeout: float) -> HttpClient:
    """A client for the server of a URL. Raises `SettingsError` for unusable TLS files."""
    return HttpClient(url, timeout, tls.follow(tls.context).current if url.startswith("https:") else None)


class OtlpHttpClient:
    """See `ingero_kit.otlp_client.OtlpClient`. Results have the headers of every answer, also of refusals."""

    def __init__(self, config: ClientConfig) -> None:
        self._config = config
        self._urls = {signal: otlp_url(config, signal.path) for signal in Signal}
        media = "application/json" if config.encoding == "json" else "application/x-protobuf"
        self._headers = {"content-type": media}
        if config.compression == "gzip":
            self._headers["content-encoding"] = "gzip"
        self._client = make_http_client(self._urls[Signal.METRICS], config.tls, config.timeout)

    async def send(self, signal: Signal, body: bytes) -> ExportResult:
        """Send one request and wait for the answer."""
        if self._config.compression == "gzip":
            body = gzip.compress(body, mtime=0)
        try:
            token = read_authorization(self._config.token_file)
            headers = {**self._headers, "authorization": token} if token else self._headers
            answer = await self._client.request("POST", self._urls[signal], headers, body)
        except (SettingsError, ValueError) as error:
            return ExportResult(failure=DeliveryFailure.TOKEN, disposition=Disposition.RETRY, detail=str(error))
        except NoAnswerError as error:
            late = isinstance(error, AnswerTimeoutError)
            kind = DeliveryFailure.TIMEOUT if late else DeliveryFailure.UNREACHABLE
            return ExportResult(failure=kind, disposition=Disposition.RETRY, detail=str(error))
        failed = http_failure(answer.status)
        if failed is None:
            return ExportResult(response=answer.body, headers=answer.headers)
        wait = answer.headers.get("retry-after") if failed[1] is Disposition.RETRY else None
        return ExportResult(
            failure=failed[0],
            disposition=failed[1],
            detail=f"HTTP {answer.status}: {answer.text[:200]}".removesuffix(": "),
            headers=answer.headers,
            retry_after=parse_retry_after(wait, time.time()),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
