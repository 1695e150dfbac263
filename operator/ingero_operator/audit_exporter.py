"""Exports taint events to the Fleet of a FleetCluster, which forwards them to Echo or another collector."""

import asyncio
import itertools
import json
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from ingero_contract import routes
from ingero_kit.backoff import Backoff
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_kit.otlp_client import DeliveryFailure, Disposition, http_failure
from ingero_operator.tasks import Tasks
from ingero_operator.untrusted_http import NoResponse, explain, open_session, ssl_context_for

log = get(__name__)

WAITING: Final = 1000
"""Most records that wait for an answer or a retry; further ones are dropped."""
KEPT_SECONDS: Final = 900.0
"""How long a record is retried. The node, its Events and the status have the facts of a lost record."""
SEND_SECONDS: Final = 5.0
CONCURRENT: Final = 8
"""Most concurrent requests."""


@dataclass(frozen=True, kw_only=True)
class OtlpTarget:
    """A Fleet's OTLP/HTTP receiver."""

    url: str
    token: str | None = None
    authority: str | None = None
    """PEM of the CA that signed its certificate."""


@dataclass
class AuditExporter:
    """Sends records, a bounded number at a time, and retries each until it is accepted or too old."""

    clock: Clock
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=60.0))
    kept_seconds: float = KEPT_SECONDS
    tasks: Tasks = field(default_factory=Tasks)
    sent: int = 0
    lost: int = 0
    _running: set[asyncio.Task[None]] = field(default_factory=set)
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CONCURRENT))

    def __len__(self) -> int:
        return len(self._running)

    def export(self, target: OtlpTarget, request: dict[str, Any]) -> None:
        """Send an export request for logs in the background."""
        if len(self._running) >= WAITING:
            self._lose("too many wait")
            return
        task = self.tasks.start("taint event", self._deliver(target, json.dumps(request).encode()))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _lose(self, why: str) -> None:
        self.lost += 1
        log.warning("evidence_lost", reason=why)

    async def _deliver(self, target: OtlpTarget, body: bytes) -> None:
        until = self.clock() + self.kept_seconds
        for attempt in itertools.count():
            try:
                async with self._limit:
                    status = await _send(target, body)
            except (aiohttp.ClientError, OSError, ValueError, NoResponse) as error:
                why = str(error) if isinstance(error, NoResponse) else explain(error)
            else:
                failed = http_failure(status)
                if failed is None:
                    self.sent += 1
                    return
                if failed[0] is DeliveryFailure.REFUSED and failed[1] is not Disposition.RETRY:
                    self._lose(f"Fleet refuses the record: HTTP {status}")
                    return
                why = f"Fleet answers {status}"
            delay = self.backoff.delay(attempt)
            if self.clock() + delay > until:
                self._lose(why)
                return
            await asyncio.sleep(delay)


async def _send(target: OtlpTarget, body: bytes) -> int:
    """Send a request once; the status of the answer, whose body is not read."""
    headers = {"Content-Type": "application/json"}
    if target.token:
        headers["Authorization"] = f"Bearer {target.token}"
    context = ssl_context_for(target.authority)
    async with (
        open_session(SEND_SECONDS, 1) as session,
        session.post(
            target.url + routes.OTLP_LOGS, data=body, headers=headers, ssl=context, allow_redirects=False
        ) as response,
    ):
        return response.status
