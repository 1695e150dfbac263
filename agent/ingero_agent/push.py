"""Pushes to Fleet, and what its answers say: threshold, verdict, and when to come again."""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_agent.health.classification import FleetResponse
from ingero_agent.push_http import HttpTransport, ThresholdApi
from ingero_agent.transport import RETRIED, PushReply, PushTarget, PushTransport
from ingero_contract.verdicts import parse_verdict
from ingero_kit.logs import get

log = get(__name__)

UNREACHABLE_AFTER: Final = 3
"""Failed pushes in a row after which Fleet counts as away."""

RETRY_SECONDS: Final = 0.2
"""Pause before the one repetition after a failure of the network; spread by 20 %."""


@dataclass
class PushCounters:
    """What became of pushes; `failed` by `Failure`."""

    sent: int = 0
    failed: Counter[str] = field(default_factory=Counter)
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


def make_transport(route: PushTarget) -> PushTransport:
    """The transport that the route names; gRPC is loaded only by those who speak it."""
    if route.protocol == "http":
        return HttpTransport(route)
    from ingero_agent.push_grpc import GrpcTransport

    return GrpcTransport(route)


class FleetClient:
    """Speaks with Fleet. `word` is the latest that it said, `pushed_at` when the last push arrived (seconds)."""

    def __init__(self, route: PushTarget) -> None:
        self.response = FleetResponse()
        self.counters = PushCounters()
        self.retry_after = 0.0
        self.pushed_at: float | None = None
        self._failures = 0
        self._transport = make_transport(route)
        self._api = ThresholdApi(route, route.threshold_url) if route.threshold_url else None

    async def close(self) -> None:
        """Give connections back."""
        await self._transport.close()
        if self._api:
            await self._api.close()

    async def push(self, request: ExportMetricsServiceRequest, now: float) -> bool:
        """Send a health report; a network error is tried once more, a refusal is not. Says whether it arrived."""
        reply = await self._transport.send(request)
        if reply.failure in RETRIED:
            self.counters.retried += 1
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.8, 1.2))
            reply = await self._transport.send(request)
        self.retry_after = reply.retry_after
        if reply.answered:
            self._listen(reply, now)
        if reply.failure is None:
            self.counters.sent += 1
            self.pushed_at, self._failures = now, 0
        else:
            self.counters.failed[str(reply.failure)] += 1
            self._failures += 1
            if self._failures == 1:
                log.warning("push_failed", reason=str(reply.failure), detail=reply.detail)
        self.response = replace(self.response, reachable=self._failures < UNREACHABLE_AFTER)
        return reply.failure is None

    async def send_event(self, request: ExportMetricsServiceRequest) -> None:
        """Send what is no health report, once; what becomes of it changes nothing."""
        await self._transport.send(request)

    async def ask(self, now: float) -> float:
        """Ask the threshold API, for when pushes bring no threshold; returns the seconds it wants us to stay away."""
        if self._api is None:
            return 0.0
        try:
            said = await self._api.ask()
        except ValueError as error:
            self.counters.thresholds_rejected += 1
            log.debug("threshold_rejected", reason=str(error))
            return 0.0
        if said.quorum is not None:
            self.response = replace(self.response, threshold=said.threshold, quorum=said.quorum, threshold_at=now)
        return said.retry_after

    def _listen(self, reply: PushReply, now: float) -> None:
        """Fleet's words are read on every answer, also on refusals; only a push that was taken brings a verdict."""
        try:
            found = read_threshold(reply.threshold, reply.quorum)
        except ValueError as error:
            self.counters.thresholds_rejected += 1
            log.debug("threshold_rejected", reason=str(error))
        else:
            if found is None:
                self.counters.thresholds_missing += 1
            else:
                self.counters.thresholds += 1
                self.response = replace(self.response, threshold=found[0], quorum=found[1], threshold_at=now)
        if reply.failure is None:
            verdict = parse_verdict(reply.verdict) if reply.verdict else None
            self.response = replace(self.response, verdict=verdict, verdict_at=now)
