"""Pushes to Fleet over OTLP/HTTP, and what its answers say: threshold, verdict, and when to come again."""

import asyncio
import random
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import httpx
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.health.decision import FleetWord
from ingero_contract import headers, routes
from ingero_contract.verdicts import parse_verdict
from ingero_kit.backoff import parse_retry_after
from ingero_kit.logs import get
from ingero_kit.otlp import to_json
from ingero_kit.settings import SettingsError
from ingero_kit.tls import ClientTls
from ingero_kit.tokens import read_tokens

log = get(__name__)

UNREACHABLE_AFTER: Final = 3
MAX_ANSWER: Final = 8 * 1024


def base_url(endpoint: str, insecure: bool) -> str:
    """`host:port` or a URL into a URL without a trailing slash.

    Raises `SettingsError` for anything that is neither http nor https.
    """
    text = endpoint.strip().rstrip("/")
    if any(ord(letter) < 33 for letter in text):
        raise SettingsError(f"{endpoint!r}: an address cannot hold spaces or control characters")
    if "://" not in text:
        return f"{'http' if insecure else 'https'}://{text}"
    if not text.startswith(("http://", "https://")):
        raise SettingsError(f"{endpoint}: only http and https are spoken")
    return text


def check_key(file: Path | None, loose: bool) -> None:
    """Refuse a private key that others may read."""
    if file is not None and not loose and file.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingsError(f"{file}: the private key is readable by others: chmod 600 it")


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where and how to push."""

    endpoint: str
    cluster: str
    tls: ClientTls
    token_file: Path | None = None
    threshold_url: str | None = None
    timeout: float = 5.0
    encoding: Literal["protobuf", "json"] = "protobuf"


@dataclass
class PushCounters:
    """What became of pushes."""

    sent: int = 0
    failed: int = 0
    retried: int = 0
    thresholds: int = 0
    thresholds_missing: int = 0
    thresholds_rejected: int = 0


def read_threshold(threshold: str | None, quorum: str | None) -> tuple[float, bool] | None:
    """The two headers together, or nothing. Raises `ValueError` when they are there and make no sense."""
    if threshold is None or quorum is None:
        return None
    value = float(threshold)
    if quorum.lower() not in ("true", "false"):
        raise ValueError(f"quorum {quorum!r}")
    if not 0.1 <= value <= 0.99:
        raise ValueError(f"threshold {value}")
    return value, quorum.lower() == "true"


class FleetClient:
    """One keep-alive connection to Fleet. `word` is the latest that it said."""

    def __init__(self, route: Route, interval: float) -> None:
        self.word = FleetWord()
        self.counters = PushCounters()
        self.retry_after = 0.0
        self._route = route
        self._interval = interval
        self._failures = 0
        base = base_url(route.endpoint, route.tls.insecure)
        path = "" if base.endswith(routes.OTLP_METRICS) else routes.OTLP_METRICS
        self._url = f"{base}{path}?{routes.CLUSTER_PARAMETER}={quote(route.cluster, safe='')}"
        self._threshold_url = ""
        if route.threshold_url:
            base = base_url(route.threshold_url, route.tls.insecure)
            path = "" if base.endswith(routes.FLEET_THRESHOLD) else routes.FLEET_THRESHOLD
            self._threshold_url = f"{base}{path}?{routes.CLUSTER_PARAMETER}={quote(route.cluster, safe='')}"
        verify = route.tls.context() if not route.tls.insecure else False
        self._client = httpx.AsyncClient(
            timeout=route.timeout, verify=verify, trust_env=False, follow_redirects=False,
            limits=httpx.Limits(max_connections=2, max_keepalive_connections=1, keepalive_expiry=30),
        )  # fmt: skip

    async def close(self) -> None:
        """Give the connection back."""
        await self._client.aclose()

    async def push(self, request: ExportMetricsServiceRequest, now: float) -> bool:
        """Send a health report; a network error is tried once more, a refusal is not. Says whether it arrived."""
        answer = await self._post(request)
        if answer is None:
            self.counters.retried += 1
            await asyncio.sleep(0.2 * random.uniform(0.8, 1.2))
            answer = await self._post(request)
        self.retry_after = 0.0
        if answer is not None:
            self._listen(answer, now)
            if answer.status_code in (429, 503):
                self.retry_after = parse_retry_after(answer.headers.get("retry-after"), time.time()) or 0.0
        well = answer is not None and answer.is_success
        self._failures = 0 if well else self._failures + 1
        self.counters.sent += well
        self.counters.failed += not well
        if not well and self._failures == 1:
            log.warning("push_failed", status=answer.status_code if answer else None, url=self._url)
        self.word = replace(self.word, reachable=self._failures < UNREACHABLE_AFTER)
        return well

    async def send_event(self, request: ExportMetricsServiceRequest) -> None:
        """Send a straggler event, once; what becomes of it changes nothing."""
        await self._post(request)

    async def ask(self, now: float) -> None:
        """Ask the threshold API, for when pushes bring no threshold."""
        if not self._threshold_url:
            return
        try:
            answer = await self._client.get(self._threshold_url, headers=self._auth({"accept": "application/json"}))
            if answer.status_code == 200 and len(answer.content) <= MAX_ANSWER:
                tree = answer.json()
                threshold, quorum = float(tree["threshold"]), tree["quorum_met"] is True
                if 0.1 <= threshold <= 0.99:
                    self.word = replace(self.word, threshold=threshold, quorum=quorum, threshold_at=now)
                elif (threshold, quorum) == (0.0, False):
                    self.word = replace(self.word, threshold=None, quorum=False, threshold_at=now)
                else:
                    self.counters.thresholds_rejected += 1
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            self.counters.thresholds_rejected += 1

    def _auth(self, extra: dict[str, str]) -> dict[str, str]:
        if self._route.token_file:
            extra["authorization"] = f"Bearer {read_tokens(self._route.token_file)[0]}"
        return extra

    async def _post(self, request: ExportMetricsServiceRequest) -> httpx.Response | None:
        if self._route.encoding == "json":
            body, media = to_json(request), "application/json"
        else:
            body, media = request.SerializeToString(), "application/x-protobuf"
        try:
            return await self._client.post(self._url, content=body, headers=self._auth({"content-type": media}))
        except httpx.HTTPError as error:
            log.debug("push_error", reason=f"{type(error).__name__}: {error}")
            return None
        except SettingsError as error:
            log.warning("token_unreadable", reason=str(error))
            return None

    def _listen(self, answer: httpx.Response, now: float) -> None:
        """Headers are read on every answer, also on refusals."""
        try:
            found = read_threshold(answer.headers.get(headers.THRESHOLD), answer.headers.get(headers.QUORUM_MET))
        except ValueError as error:
            self.counters.thresholds_rejected += 1
            log.debug("threshold_rejected", reason=str(error))
        else:
            if found is None:
                self.counters.thresholds_missing += 1
            else:
                self.counters.thresholds += 1
                self.word = replace(self.word, threshold=found[0], quorum=found[1], threshold_at=now)
        line = answer.headers.get(headers.VERDICT)
        if answer.is_success:
            self.word = replace(self.word, verdict=parse_verdict(line) if line else None, verdict_at=now)
