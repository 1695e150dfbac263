"""Onward by OTLP over HTTP."""

import time
from typing import Final

import httpx

from ingero_fleet.exporters import BadContent, Permanent, Retryable
from ingero_fleet.settings import ExporterConfig
from ingero_kit.backoff import parse_retry_after
from ingero_kit.otlp_receiver import Signal
from ingero_kit.settings import SettingsError
from ingero_kit.tokens import read_authorization

RETRYABLE_HTTP: Final = frozenset({408, 429, 502, 503, 504})
"""What the OTLP specification allows to send again."""

UNAUTHORIZED_HTTP: Final = frozenset({401, 403})
"""A token that was rotated is a matter of minutes on either side, so these are tried again as well."""

BAD_CONTENT_HTTP: Final = frozenset({400, 413, 422, 500})
"""Refusals that may be meant for one record, or for the size; receivers that stumble over a record say 500."""


class HttpTransport:
    """OTLP/HTTP in protobuf. The token is read for every request, certificates again after a broken connection."""

    def __init__(self, config: ExporterConfig) -> None:
        self._config = config
        self._url = config.endpoint.rstrip("/")
        if "://" not in self._url:
            self._url = f"{'http' if config.tls.insecure else 'https'}://{self._url}"
        read_authorization(config.bearer_token_file)
        self._client: httpx.AsyncClient | None = self._open()

    def _open(self) -> httpx.AsyncClient:
        verify = self._config.tls.context() if self._url.startswith("https") else False
        return httpx.AsyncClient(verify=verify, timeout=self._config.timeout, trust_env=False)

    async def send(self, signal: Signal, body: bytes) -> bytes:
        """POST one batch."""
        try:
            client = self._client = self._client or self._open()
            fields = {"content-type": "application/x-protobuf"}
            if token := read_authorization(self._config.bearer_token_file):
                fields["authorization"] = token
            answer = await client.post(self._url + signal.path, content=body, headers=fields)
        except SettingsError as error:
            raise Retryable(str(error)) from None
        except httpx.HTTPError as error:
            await self.close()
            raise Retryable(f"{type(error).__name__}: {error}") from None
        status = answer.status_code
        if status in RETRYABLE_HTTP:
            raise Retryable(f"HTTP {status}", parse_retry_after(answer.headers.get("retry-after"), time.time()))
        if status in UNAUTHORIZED_HTTP:
            raise Retryable(f"HTTP {status}: the token is not accepted")
        if status >= 300:
            kind = BadContent if status in BAD_CONTENT_HTTP else Permanent
            raise kind(f"HTTP {status}: {answer.text[:200]}")
        return answer.content

    async def close(self) -> None:
        """Give connections back."""
        client, self._client = self._client, None
        if client:
            await client.aclose()
