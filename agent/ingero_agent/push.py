"""Pushes to Fleet and reads its answers: threshold, verdict, and when to push again."""

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.health.classification import FleetResponse
from ingero_contract import headers, routes
from ingero_contract.verdicts import parse_verdict
from ingero_kit.backoff import Backoff, parse_retry_after
from ingero_kit.http_library import httpx
from ingero_kit.logs import get
from ingero_kit.otlp_client import NETWORK_FAILURES, ClientConfig, ExportResult, make_client
from ingero_kit.otlp_encode import to_json
from ingero_kit.otlp_http_client import HttpConnection, otlp_url
from ingero_kit.otlp_signal import Signal
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
        """Threshold and quorum; neither while Fleet is busy or new.

        Raises `ValueError` when the API cannot be reached, refuses, or its answer is invalid.
        """
        try:
            token = read_authorization(self._token_file)
            fields = {"accept": "application/json", **({"authorization": token} if token else {})}
            answer = await self._connection.request("GET", self._url, fields)
            if answer.status_code in (429, 503):
                wait = parse_retry_after(answer.headers.get("retry-after"), time.time())
                return ThresholdAnswer(retry_after=wait or 0.0)
            if answer.status_code != 200:
                raise ValueError(f"HTTP {answer.status_code}")
            if len(answer.content) > MAX_ANSWER:
                raise ValueError(f"an answer of more than {MAX_ANSWER} bytes")
            tree = answer.json()
            threshold, quorum = float(tree["threshold"]), tree["quorum_met"] is True
        except (httpx.HTTPError, SettingsError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        if 0.1 <= threshold <= 0.99:
            return ThresholdAnswer(threshold, quorum)
        if (threshold, quorum) == (0.0, False):
            return ThresholdAnswer(None, False)
        raise ValueError(f"threshold {threshold}")

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()


log = get(__name__)

UNREACHABLE_AFTER: Final = 3
"""Failed pushes in a row after which Fleet counts as unreachable."""

RETRY: Final = Backoff(first=0.24, jitter=1 / 3)
"""The pause before the single retry after a network failure: 0.16 to 0.24 s."""


@dataclass
class PushCounters:
    """Results of pushes; `failed` by `Failure`. `thresholds`: answers by what became of their threshold."""

    sent: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    retried: int = 0
    thresholds: Counter[str] = field(default_factory=lambda: Counter(taken=0, missing=0, rejected=0))


def read_threshold(threshold: str | None, quorum: str | None) -> tuple[float, bool] | None:
    """Parse the two headers; `None` when they are absent. Raises `ValueError` when they are invalid."""
    if threshold is None or quorum is None:
        return None
    value = float(threshold)
    if quorum.lower() not in ("true", "false"):
        raise ValueError(f"quorum {quorum!r}")
    if not 0.1 <= value <= 0.99:
        raise ValueError(f"threshold {value}")
    return value, quorum.lower() == "true"


class FleetClient:
    """The client of Fleet. `response` is Fleet's latest answer, `pushed_at` when the last push arrived (seconds)."""

    def __init__(self, config: ClientConfig, threshold_url: str | None = None) -> None:
        self.response = FleetResponse()
        self.counters = PushCounters()
        self.retry_after = 0.0
        self.pushed_at: float | None = None
        self._failures = 0
        self._ask_failed = False
        self._json = config.protocol == "http" and config.encoding == "json"
        self._client = make_client(config)
        self._api = ThresholdApi(config, threshold_url) if threshold_url else None

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()
        if self._api:
            await self._api.close()

    async def push(self, request: ExportMetricsServiceRequest, now: float) -> bool:
        """Send a health report. A network error is retried once, a refusal is not. Returns whether it arrived."""
        body = self._encode(request)
        reply = await self._client.send(Signal.METRICS, body)
        if reply.failure in NETWORK_FAILURES:
            self.counters.retried += 1
            await asyncio.sleep(RETRY.delay(0))
            reply = await self._client.send(Signal.METRICS, body)
        self.retry_after = reply.retry_after or 0.0
        if reply.answered:
            self._read_headers(reply, now)
        if reply.failure is None:
            self.counters.sent += 1
            if self._failures:
                log.info("push_succeeded_again", failed=self._failures)
            self.pushed_at, self._failures = now, 0
        else:
            self.counters.failed[str(reply.failure)] += 1
            self._failures += 1
            if self._failures == 1:
                log.warning("push_failed", reason=str(reply.failure), detail=reply.detail)
        self.response = replace(self.response, reachable=self._failures < UNREACHABLE_AFTER)
        return reply.failure is None

    async def send_event(self, request: ExportMetricsServiceRequest) -> None:
        """Send anything other than a health report, once. The result is ignored."""
        await self._client.send(Signal.METRICS, self._encode(request))

    async def send_logs(self, request: ExportLogsServiceRequest) -> bool:
        """Send log records, once. Returns whether they arrived."""
        return (await self._client.send(Signal.LOGS, self._encode(request))).failure is None

    async def ask(self, now: float) -> float:
        """Ask the threshold API, used when pushes return no threshold. Returns the seconds until the next request."""
        if self._api is None:
            return 0.0
        try:
            answer = await self._api.ask()
        except ValueError as error:
            self.counters.thresholds["rejected"] += 1
            if not self._ask_failed:
                log.warning("threshold_not_read", reason=str(error))
            self._ask_failed = True
            return 0.0
        self._ask_failed = False
        if answer.quorum is not None:
            self.response = replace(self.response, threshold=answer.threshold, quorum=answer.quorum, threshold_at=now)
        return answer.retry_after

    def _encode(self, request: ExportMetricsServiceRequest | ExportLogsServiceRequest) -> bytes:
        return to_json(request) if self._json else request.SerializeToString()

    def _read_headers(self, reply: ExportResult, now: float) -> None:
        """Read the headers of every answer, also of refusals. Only an accepted push returns a verdict.

        A Fleet that has just started answers without threshold and verdict; until it is old, the previous one counts.
        """
        found = None
        try:
            found = read_threshold(
                _header(reply, headers.THRESHOLD, headers.GRPC_THRESHOLD),
                _header(reply, headers.QUORUM_MET, headers.GRPC_QUORUM_MET),
            )
        except ValueError as error:
            self.counters.thresholds["rejected"] += 1
            log.debug("threshold_rejected", reason=str(error))
        else:
            self.counters.thresholds["missing" if found is None else "taken"] += 1
            if found is not None:
                self.response = replace(self.response, threshold=found[0], quorum=found[1], threshold_at=now)
        if reply.failure is None:
            line = _header(reply, headers.VERDICT, headers.GRPC_VERDICT)
            verdict = parse_verdict(line) if line else None
            if verdict or found is not None:
                self.response = replace(self.response, verdict=verdict, verdict_at=now)


def _header(reply: ExportResult, http: str, grpc: str) -> str | None:
    return reply.headers.get(http.lower()) or reply.headers.get(grpc)
