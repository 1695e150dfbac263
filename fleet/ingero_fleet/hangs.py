"""Keeps the jobs that agents watch through NCCL RAS, and which of them hang. Bounded in number and in time.

For display and alerts: nothing acts on it.
"""

import threading
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

from ingero_contract.values import HangVerdict
from ingero_kit.clock import rfc3339
from ingero_kit.hang_records import HangRank, HangRecord, read_hangs
from ingero_kit.metrics_table import MetricRow, Samples, counter, gauge
from ingero_kit.otlp_receiver import Push

MAX_JOBS: Final = 10_000
"""Jobs that are kept; records of further ones are left out and counted."""

MAX_SECONDS: Final = 3600.0
"""Longest time that a record counts for, seconds; by Fleet's clock, as those of agents may differ."""

MAX_CLOCK_LEAD_SECONDS: Final = 600.0
"""How far ahead of Fleet's clock a record may be, seconds."""

SHOWN: Final = 100
"""Most jobs in an answer."""

_Key = tuple[str, str]
"""Cluster and the job's key."""


class HangTracker:
    """One for each Fleet. `take` and the answers may be called from any thread.

    Hosts of one job may each report it: the newest record counts.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._jobs: dict[_Key, tuple[HangRecord, float]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._jobs)

    def take(self, push: Push, now: float) -> None:
        """Read a push of logs; `now` in seconds since the epoch."""
        with self._lock:
            for record in read_hangs(push.body, push.cluster):
                self.outcomes[self._note(record, now) if isinstance(record, HangRecord) else "refused"] += 1

    def _note(self, record: HangRecord, now: float) -> str:
        key = record.cluster, record.key
        known = self._jobs.get(key)
        if record.time > now + MAX_CLOCK_LEAD_SECONDS:
            return "ahead"
        if known and record.time < known[0].time:
            return "late"
        until = now + min(record.until - record.time, MAX_SECONDS)
        if until <= now:
            return "expired"
        if known is None and len(self._jobs) >= MAX_JOBS:
            return "over_limit"
        if known is None or known[1] <= now or known[0].node == record.node or _decides(record, known[0]):
            self._jobs[key] = record, until
        return str(record.kind)

    def expire(self, now: float) -> None:
        """Forget what counts no more."""
        with self._lock:
            self._expire(now)

    def _expire(self, now: float) -> None:
        for key in [key for key, (_, until) in self._jobs.items() if until <= now]:
            del self._jobs[key]

    def state(self, now: float) -> list[Any]:
        """Records in force, each with the time until which it is kept."""
        with self._lock:
            self._expire(now)
            return [[{**asdict(record), "kind": str(record.kind)}, until] for record, until in self._jobs.values()]

    def restore(self, state: list[Any]) -> None:
        """Continue from a state that `state` returned."""
        with self._lock:
            records = [(_restored(facts), until) for facts, until in state]
            self._jobs = {(record.cluster, record.key): (record, until) for record, until in records}

    def hangs(self, now: float, cluster: str | None = None) -> list[dict[str, Any]]:
        """Jobs that hang now, the longest first, at most `SHOWN`; times in RFC 3339."""
        found = [record for record in self._watched(now, cluster) if record.kind is not HangVerdict.NONE]
        found.sort(key=lambda record: (record.since, record.cluster, record.key))
        return [_answer(record) for record in found[:SHOWN]]

    def watched(self, now: float, cluster: str | None = None) -> int:
        """Jobs of which agents know whether they hang."""
        return len(self._watched(now, cluster))

    def _watched(self, now: float, cluster: str | None) -> list[HangRecord]:
        with self._lock:
            return [
                record
                for record, until in self._jobs.values()
                if until > now and cluster in (None, record.cluster)
            ]  # fmt: skip

    def by_kind(self) -> Samples:
        """Numbers of jobs that hang after the latest tick, by cluster and kind."""
        with self._lock:
            kept = [record for record, _ in self._jobs.values() if record.kind is not HangVerdict.NONE]
        return Counter((record.cluster, str(record.kind)) for record in kept)

    def by_cluster(self) -> Samples:
        """Numbers of jobs after the latest tick, by cluster."""
        with self._lock:
            return Counter(record.cluster for record, _ in self._jobs.values())


def _decides(record: HangRecord, known: HangRecord) -> bool:
    """Whether a record replaces that of another host. A host that asks less often may not know yet of a hang."""
    return known.kind is HangVerdict.NONE or record.kind is not HangVerdict.NONE or record.since > 0


def _restored(facts: dict[str, Any]) -> HangRecord:
    ranks = {name: tuple(HangRank(*rank) for rank in facts[name]) for name in ("ranks", "possible")}
    return HangRecord(**{**facts, **ranks, "kind": HangVerdict(facts["kind"])})


def _answer(record: HangRecord) -> dict[str, Any]:
    return {
        "cluster_id": record.cluster,
        "job_id": record.job or None,
        "kind": str(record.kind),
        "since": rfc3339(record.since),
        "why": record.message,
        "comm": record.comm or None,
        "op": record.op or None,
        "waiting": record.waiting,
        "ranks": [rank._asdict() for rank in record.ranks],
        "rank_count": record.rank_count,
        "possible": [rank._asdict() for rank in record.possible],
        "possible_count": record.possible_count,
        "reported_by": record.node,
        "reported": rfc3339(record.time),
    }


HANGS: Final[tuple[MetricRow[HangTracker], ...]] = (
    gauge(
        "ingero_fleet_hanging_jobs",
        "Jobs that hang, by what is known.",
        lambda s: s.by_kind(),
        "cluster_id",
        "kind",
    ),
    gauge(
        "ingero_fleet_watched_jobs",
        "Jobs of which agents know whether they hang.",
        lambda s: s.by_cluster(),
        "cluster_id",
    ),
    counter("ingero_fleet_hang_records", "Records of watched jobs, by outcome.", lambda s: s.outcomes, "outcome"),
)
