"""Onward by OTLP over HTTP."""

import time
from typing import Final

import httpx

from ingero_fleet.exporters import Permanent, Retryable
from ingero_fleet.settings import ExporterConfig
from ingero_kit.backoff import parse_retry_after
from ingero_kit.otlp_server import Signal
from ingero_kit.tokens import read_tokens

RETRYABLE_HTTP: Final = frozenset({408, 429, 502, 503, 504})
"""What the OTLP specification allows to send again."""


class HttpTransport:
    """OTLP/HTTP in protobuf."""

    def __init__(self, config: ExporterConfig) -> None:
        self._url = config.endpoint.rstrip("/")
        if "://" not in self._url:
            self._url = f"{'http' if config.tls.insecure else 'https'}://{self._url}"
        verify = config.tls.context() if self._url.startswith("https") else False
        self._client = httpx.AsyncClient(verify=verify, timeout=config.timeout, trust_env=False)
        self._headers = {"content-type": "application/x-protobuf"}
        if config.bearer_token_file:
            self._headers["authorization"] = f"Bearer {read_tokens(config.bearer_token_file)[0]}"

    async def send(self, signal: Signal, body: bytes) -> None:
        """POST one batch."""
        try:
            answer = await self._client.post(self._url + signal.path, content=body, headers=self._headers)
        except httpx.HTTPError as error:
            raise Retryable(f"{type(error).__name__}: {error}") from None
        if answer.status_code in RETRYABLE_HTTP:
            raise Retryable(
                f"HTTP {answer.status_code}", parse_retry_after(answer.headers.get("retry-after"), time.time())
            )
        if answer.status_code >= 300:
            raise Permanent(f"HTTP {answer.status_code}: {answer.text[:200]}")

    async def close(self) -> None:
        """Give connections back."""
        await self._client.aclose()
