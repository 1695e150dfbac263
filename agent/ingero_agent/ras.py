"""Asks NCCL's RAS service on this node whether the job hangs, and reports it to Fleet.

RAS answers for the whole job on each of its hosts, and every answer costs all of them messages. So the first host in
the order of addresses asks every `interval`, the second every two, the third every three: together 1,000 hosts ask
seven times in an interval, and if the first is gone the next ones speak.
"""

import asyncio
import ipaddress
import random
import socket
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from ingero_agent.push import FleetClient
from ingero_contract.values import HangVerdict
from ingero_detect.hangs.ras_hangs import RasRank
from ingero_detect.hangs.ras_status import RasStatus, RasUnreadable, parse_status
from ingero_detect.hangs.ras_watch import RasFinding, RasWatch
from ingero_kit.addresses import parse_endpoint
from ingero_kit.clock import Clock
from ingero_kit.hang_records import MAX_NAMED, HangRank, HangRecord, encode_hangs
from ingero_kit.health_report import HealthReport
from ingero_kit.logs import get
from ingero_kit.ras_client import ANSWER_SECONDS, RasFailure, RasUnavailable, fetch_status

log = get(__name__)

MAX_STATUS: Final = 32 << 20
"""Largest status that is read, bytes: that of some 40,000 entries of ranks."""

LONGEST_PAUSE: Final = 3600.0
"""Longest time between two questions, seconds."""

LONGEST_REPORT: Final = 900.0
"""Longest time that a report counts for, seconds."""

OUTCOMES: Final = ("answered", *map(str, RasFailure), "unreadable", "failed")

SHOWN: Final = 8
"""Most ranks that a sentence names."""


def is_local(host: str) -> bool:
    """Whether an IP address belongs to this machine: only such an address can be bound to."""
    with suppress(OSError, ValueError):
        address = ipaddress.ip_address(host)
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
        return not address.is_unspecified
    return False


def place_of(status: RasStatus, local: Callable[[str], bool]) -> int:
    """The place of this machine among the hosts of a job, from 0; 0 where it is none of them."""
    return next((place for place, host in enumerate(status.hosts) if local(host)), 0)


class RasPoller:
    """Asks until it is cancelled. `polls` counts questions by outcome, `reports` counts records."""

    def __init__(
        self, address: str, interval: float, identity: Callable[[], HealthReport], client: FleetClient, clock: Clock,
        *, local: Callable[[str], bool] = is_local, timeout: float = ANSWER_SECONDS, limit: int = MAX_STATUS,
    ) -> None:  # fmt: skip
        """`interval`, `timeout` in seconds; `limit` in bytes; `identity`: the node and its present job."""
        self.polls: Counter[str] = Counter(
            dict.fromkeys(("answered", *map(str, RasFailure), "unreadable", "failed"), 0)
        )
        self.reports: Counter[str] = Counter(sent=0, failed=0)
        self.place = 0
        self._address, self._interval, self._identity = address, interval, identity
        self._host = parse_endpoint(address)[0]
        self._client, self._clock, self._local = client, clock, local
        self._timeout, self._limit = timeout, limit
        self._watch = RasWatch()
        self._last_outcome = ""

    @property
    def hanging(self) -> int:
        """Jobs that hang."""
        return self._watch.hanging

    @property
    def period(self) -> float:
        """Seconds between two questions of this host."""
        return min((self.place + 1) * self._interval, max(self._interval, LONGEST_PAUSE))

    async def run(self) -> None:
        """Ask again and again; what goes wrong is counted. Agents that start together ask at different times."""
        await asyncio.sleep(self._interval * random.random())
        while True:
            await self.poll()
            await asyncio.sleep(self.period * random.uniform(1.0, 1.1))

    async def poll(self) -> None:
        """Ask once, and report what follows."""
        try:
            outcome = await self._poll()
        except RasUnavailable as error:
            outcome = self._note(str(error.failure), str(error))
            if error.failure is RasFailure.REFUSED:
                self.place = 0
        except RasUnreadable as error:
            outcome = self._note("unreadable", str(error))
        except Exception as error:
            log.exception("ras_failed")
            outcome = self._note("failed", str(error))
        self.polls[outcome] += 1
        self._last_outcome = outcome

    def _note(self, outcome: str, reason: str) -> str:
        """Log an outcome when it is another one; without a job nothing listens, which is ordinary."""
        if outcome != self._last_outcome:
            write = log.debug if outcome == RasFailure.REFUSED else log.warning
            write("ras_not_read", outcome=outcome, reason=reason)
        return outcome

    async def _poll(self) -> str:
        data = await fetch_status(self._address, self._limit, self._timeout)
        now, hanging = self._clock(), self.hanging
        findings, problems = await asyncio.to_thread(self._judge, data, now)
        await self._report(findings, now)
        if self.hanging > hanging:
            log.warning("job_hangs", why=in_words(findings[-1], now))
        return self._note("unreadable", problems[0]) if problems else "answered"

    def _judge(self, data: bytes, now: float) -> tuple[list[RasFinding], list[str]]:
        """Times are those of this machine, because hosts may set their clocks."""
        problems: list[str] = []
        status = parse_status(data, problems.append)
        status.at = now
        self.place = place_of(status, lambda host: host == self._host or self._local(host))
        return self._watch.take(status, damaged=bool(problems)), problems

    async def _report(self, findings: list[RasFinding], now: float) -> None:
        node, until = self._identity(), now + min(3 * self.period, LONGEST_REPORT)
        records = [hang_record(finding, node, now, until) for finding in findings]
        sent = await self._client.send_logs(encode_hangs(records, node))
        self.reports["sent" if sent else "failed"] += len(records)


def hang_record(finding: RasFinding, node: HealthReport, now: float, until: float) -> HangRecord:
    """A finding as it is sent; `now` and `until` in seconds since the epoch."""
    found = finding.verdict
    fronts = [front for front in found.fronts if not set(found.ranks).isdisjoint(front.missing)] or found.fronts
    front = max(fronts, key=lambda item: item.entered, default=None)
    return HangRecord(
        cluster=node.cluster_id, node=node.node_id, job=node.job_id, key=finding.job, kind=found.kind,
        message=in_words(finding, now), time=now, since=finding.since, until=until,
        comm=front.comm if front else "", op=front.op if front else "", waiting=front.entered if front else 0,
        ranks=_ranks(found.ranks), rank_count=len(found.ranks),
        possible=_ranks(found.possible), possible_count=len(found.possible),
    )  # fmt: skip


def _ranks(ranks: tuple[RasRank, ...]) -> tuple[HangRank, ...]:
    return tuple(HangRank(rank.name, *rank.process) for rank in ranks[:MAX_NAMED])


def in_words(finding: RasFinding, now: float) -> str:
    """A finding as a sentence for people."""
    found = finding.verdict
    still = f"No rank has started a collective for {now - finding.since:.0f} s"
    match found.kind:
        case HangVerdict.HANG:
            return f"{still}: the job waits for {_named(found.ranks)}, which waits for no other."
        case HangVerdict.DEAD:
            return f"{still}: NCCL considers {_named(found.ranks)} dead."
        case HangVerdict.UNKNOWN:
            return f"{still}: {found.reason}. Possible: {_named(found.possible)}."
    return "The job goes on."


def _named(ranks: tuple[RasRank, ...]) -> str:
    shown = ", ".join(f"rank {rank.name} on {rank.process[0]}" for rank in ranks[:SHOWN])
    more = f" and {len(ranks) - SHOWN} more" if len(ranks) > SHOWN else ""
    return shown + more if ranks else "nobody is known"
