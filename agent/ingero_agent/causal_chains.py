"""Sends why this node straggles: what `ingero-agent explain` finds, as log records of causal chains."""

import asyncio
import uuid
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, SeverityNumber

from ingero_agent.push import FleetClient
from ingero_agent.trace.evidence import read_time_window
from ingero_agent.trace.findings import Finding, Severity, find_causes
from ingero_agent.trace.queries import Filter
from ingero_contract import attributes, echo
from ingero_kit.clock import Every
from ingero_kit.health_report import HealthReport
from ingero_kit.logs import get
from ingero_kit.otlp_encode import SCOPE, VERSION, pairs, resource_attributes

log = get(__name__)

WINDOW_SECONDS: Final = 120.0
"""How far back causes are searched."""

SEARCH_SECONDS: Final = 30.0
"""Time between two searches; in an episode one more follows when its call stacks are there."""

STACKS_SECONDS: Final = 10.0
"""How long after an episode has begun the call stacks that the tracer then samples are in its database."""

BUDGET_SECONDS: Final = 5.0
"""How long one search may read the database."""

MAX_COLLECTIVES: Final = 20_000
"""Most single collectives that one search reads, the newest."""

MAX_LATEST: Final = 20
"""Most sent findings that are kept for questions."""

MAX_RECORDS: Final = 10
"""Most records of one episode."""

_LEVELS: Final = {
    Severity.LOW: SeverityNumber.SEVERITY_NUMBER_INFO,
    Severity.MEDIUM: SeverityNumber.SEVERITY_NUMBER_WARN,
    Severity.HIGH: SeverityNumber.SEVERITY_NUMBER_WARN,
}


@dataclass
class StragglerEpisode:
    """A time in which the node straggles or its job waits for it, from `begun` (seconds) on.

    `known`: severity by finding, as sent last. `searched_stacks`: whether a search has read its call stacks.
    """

    begun: float
    known: dict[str, Severity] = field(default_factory=dict)
    records: int = 0
    searched_stacks: bool = False

    def stacks_due(self, now: float) -> bool:
        """Whether the call stacks of the episode may be there, and no search has read them."""
        return not self.searched_stacks and now >= self.begun + STACKS_SECONDS

    def unsent(self, findings: Iterable[Finding]) -> list[Finding]:
        """Findings that are new in this episode, and those whose severity has changed."""
        return [one for one in findings if self.known.get(one.id) is not one.severity]

    def note(self, findings: Iterable[Finding], records: int) -> None:
        """Remember findings, of which `records` were sent."""
        self.known.update({one.id: one.severity for one in findings})
        self.records += records


def find_recent(file: Path, pid: int | None, now: float, seconds: float) -> list[Finding]:
    """Causes of the last `seconds`; of one process, or of all for `None`. Raises `OSError`, `sqlite3.Error`."""
    wanted = Filter(begin=now - seconds, end=now, pid=pid, limit=MAX_COLLECTIVES)
    return find_causes(read_time_window(file, wanted, BUDGET_SECONDS))


def chain_id(finding: Finding, begun: float, node: HealthReport) -> str:
    """The causal chain of a finding in the episode that began then."""
    return f"{node.node_id}:{finding.kind}:{finding.id}:{begun:.0f}"


def encode_chains(
    findings: Iterable[Finding], begun: float, node: HealthReport, now: float
) -> ExportLogsServiceRequest:
    """One record for each finding. A finding has one causal chain in an episode, whatever becomes of its severity."""
    request, time_ns = ExportLogsServiceRequest(), int(now * 1e9)
    block = request.resource_logs.add()
    block.resource.attributes.extend(pairs(resource_attributes(node)))
    records = block.scope_logs.add(scope=InstrumentationScope(name=SCOPE, version=VERSION)).log_records
    for one in findings:
        found = {
            attributes.EVENT_ID: str(uuid.uuid4()),
            echo.CAUSAL_CHAIN_ID: chain_id(one, begun, node),
            echo.CHAIN_SEVERITY: str(one.severity),
            echo.CHAIN_ROOT_CAUSE: one.kind,
            echo.CHAIN_SUBJECT: one.subject,
            echo.CHAIN_EVIDENCE: "\n".join(one.evidence),
            echo.CHAIN_ADVICE: "\n".join(one.advice),
        }
        records.append(
            LogRecord(
                time_unix_nano=time_ns, observed_time_unix_nano=time_ns, severity_number=_LEVELS[one.severity],
                event_name=echo.CAUSAL_CHAIN_EVENT, body=AnyValue(string_value=one.summary), attributes=pairs(found),
            )
        )  # fmt: skip
    return request


class CausalChains:
    """Searches for causes in the tracer's database while the node straggles, or collectives of its job wait for it.

    `outcomes` counts records: `sent`, `failed` (they are sent again after the next search) and `over_limit`; and
    searches that were `unreadable`.
    """

    def __init__(self, file: Path, pid: int | None, node: HealthReport, client: FleetClient) -> None:
        """`pid`: only this process; `None` for all."""
        self.outcomes: Counter[str] = Counter(sent=0, failed=0, over_limit=0, unreadable=0)
        self._file, self._pid, self.node, self._client = file, pid, node, client
        self.latest: deque[dict[str, Any]] = deque(maxlen=MAX_LATEST)
        """The last findings that were sent, with their chains."""
        self._due = Every(SEARCH_SECONDS)
        self._episode: StragglerEpisode | None = None
        self._search: asyncio.Task[None] | None = None

    def follow(self, waited_for: bool, now: float) -> None:
        """Begin or end an episode, and start a search when one is due. Returns at once."""
        if not waited_for:
            self._episode = None
            return
        if self._episode is None:
            self._episode = StragglerEpisode(now)
        if self._search is not None and not self._search.done():
            return
        stacks = self._episode.stacks_due(now)
        if self._due.due(now) or stacks:
            self._episode.searched_stacks |= stacks
            self._search = asyncio.create_task(self._explain(self._episode, now))

    async def close(self) -> None:
        """Wait for the search under way, which is short."""
        if self._search:
            await self._search

    async def _explain(self, episode: StragglerEpisode, now: float) -> None:
        try:
            findings = await asyncio.to_thread(find_recent, self._file, self._pid, now, WINDOW_SECONDS)
        except Exception as error:
            self.outcomes["unreadable"] += 1
            log.warning("causes_not_searched", reason=str(error))
            return
        fresh = episode.unsent(findings)
        chosen = fresh[: max(0, MAX_RECORDS - episode.records)]
        if chosen and not await self._client.send_logs(encode_chains(chosen, episode.begun, self.node, now)):
            self.outcomes["failed"] += len(chosen)
            return
        self.outcomes.update(sent=len(chosen), over_limit=len(fresh) - len(chosen))
        episode.note(fresh, len(chosen))
        for one in chosen:
            chain = chain_id(one, episode.begun, self.node)
            self.latest.append({"sent_at": now, echo.CAUSAL_CHAIN_ID: chain, "id": one.id, **asdict(one)})
            log.info("cause", kind=one.kind, severity=str(one.severity), summary=one.summary)
