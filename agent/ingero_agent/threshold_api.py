"""The client of Fleet's threshold API, used when pushes return no threshold."""

import time
from dataclasses import replace
from typing import Final, NamedTuple

import httpx

from ingero_contract import routes
from ingero_kit.backoff import parse_retry_after
from ingero_kit.otlp_client import ClientConfig
from ingero_kit.otlp_http_client import HttpConnection, otlp_url
from ingero_kit.settings import SettingsError
from ingero_kit.tokens import read_authorization

MAX_ANSWER: Final = 8 * 1024
"""Longest answer of the threshold API that is read, bytes."""


class ThresholdAnswer(NamedTuple):
    """An answer of the threshold API: no threshold before the first quorum, and no quorum either after an error."""

    threshold: float | None = None
    quorum: bool | None = None
    retry_after: float = 0.0


class ThresholdApi:
    """Asks Fleet for the current threshold over HTTP, whatever protocol pushes use."""

    def __init__(self, config: ClientConfig, address: str) -> None:
        self._token_file = config.token_file
        self._url = otlp_url(replace(config, endpoint=address), routes.FLEET_THRESHOLD)
        self._connection = HttpConnection(self._url, config.tls, config.timeout)

    async def ask(self) -> ThresholdAnswer:
        """Threshold and quorum. Raises `ValueError` when the API cannot be reached or its answer is invalid."""
        try:
            token = read_authorization(self._token_file)
            fields = {"accept": "application/json", **({"authorization": token} if token else {})}
            answer = await self._connection.request("GET", self._url, fields)
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
        """Close the connection."""
        await self._connection.close()
