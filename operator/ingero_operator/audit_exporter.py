"""Exports taint events to the Fleet of a FleetCluster, which forwards them to Echo or another collector."""

import asyncio
import heapq
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp

from ingero_contract import routes
from ingero_kit.backoff import Backoff
from ingero_kit.clock import Clock
from ingero_kit.logs import get
from ingero_kit.otlp_client import Disposition, Failure, http_failure
from ingero_operator.tasks import Tasks
from ingero_operator.untrusted_http import NoResponse, explain, open_session, ssl_context_for

log = get(__name__)

WAITING: Final = 1000
"""Most queued records; further ones are dropped."""
KEPT_SECONDS: Final = 900.0
"""How long a record is retried. The node, its Events and the status have the facts of a lost record."""
SEND_SECONDS: Final = 5.0
AT_ONCE: Final = 8


@dataclass(frozen=True, kw_only=True)
class OtlpTarget:
    """A Fleet's OTLP/HTTP receiver."""

    url: str
    token: str | None = None
    authority: str | None = None
    """PEM of the CA that signed its certificate."""


@dataclass
class _Waiting:
    target: OtlpTarget
    body: bytes
    until: float
    tries: int = 0


@dataclass
class AuditExporter:
    """A bounded queue of records, each retried until it is accepted or too old."""

    clock: Clock
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=60.0))
    kept_seconds: float = KEPT_SECONDS
    tasks: Tasks = field(default_factory=Tasks)
    sent: int = 0
    lost: int = 0
    _line: list[tuple[float, int, _Waiting]] = field(default_factory=list)
    _serial: int = 0
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self._line)

    def export(self, target: OtlpTarget, request: dict[str, Any]) -> None:
        """Queue an export request for logs; never waits."""
        if len(self._line) >= WAITING:
            self._lose("too many wait")
            return
        self._add(_Waiting(target, json.dumps(request).encode(), self.clock() + self.kept_seconds), 0.0)

    def _add(self, item: _Waiting, delay: float) -> None:
        self._serial += 1
        heapq.heappush(self._line, (self.clock() + delay, self._serial, item))
        self._wake.set()

    def _lose(self, why: str) -> None:
        self.lost += 1
        log.warning("evidence_lost", reason=why)

    async def run(self) -> None:
        """Send until cancelled."""
        gate, running = asyncio.Semaphore(AT_ONCE), set[asyncio.Task[None]]()
        try:
            async with open_session(SEND_SECONDS, AT_ONCE) as session:
                while True:
                    item = await self._next()
                    await gate.acquire()
                    task = self.tasks.start("taint event", self._send(session, item))
                    running.add(task)
                    task.add_done_callback(_after(running, gate))
        finally:
            for task in running:
                task.cancel()

    async def _next(self) -> _Waiting:
        while True:
            now = self.clock()
            if self._line and self._line[0][0] <= now:
                return heapq.heappop(self._line)[2]
            self._wake.clear()
            try:
                async with asyncio.timeout(self._line[0][0] - now if self._line else None):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _send(self, session: aiohttp.ClientSession, item: _Waiting) -> None:
        to = item.target
        headers = {"Content-Type": "application/json"}
        if to.token:
            headers["Authorization"] = f"Bearer {to.token}"
        try:
            async with session.post(
                to.url + routes.OTLP_LOGS, data=item.body, headers=headers, ssl=ssl_context_for(to.authority),
                allow_redirects=False,
            ) as response:  # fmt: skip
                status = response.status  # the body is not read
        except (aiohttp.ClientError, OSError, ValueError, NoResponse) as error:
            self._again(item, str(error) if isinstance(error, NoResponse) else explain(error))
            return
        failed = http_failure(status)
        if failed is None:
            self.sent += 1
        elif failed[0] is Failure.REFUSED and failed[1] is not Disposition.RETRY:
            self._lose(f"Fleet refuses the record: HTTP {status}")
        else:
            self._again(item, f"Fleet answers {status}")

    def _again(self, item: _Waiting, why: str) -> None:
        """Retry a record later, unless it is too old by then."""
        delay = self.backoff.delay(item.tries)
        item.tries += 1
        if self.clock() + delay > item.until:
            self._lose(why)
        else:
            self._add(item, delay)


def _after(running: set[asyncio.Task[None]], gate: asyncio.Semaphore) -> Callable[[asyncio.Task[None]], None]:
    def done(task: asyncio.Task[None]) -> None:
        running.discard(task)
        gate.release()

    return done
