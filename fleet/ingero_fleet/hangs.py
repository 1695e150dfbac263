"""Keeps the jobs that hang now, as agents report them from NCCL RAS. Bounded in number and in time. For display and
alerts: nothing acts on it."""

import threading
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

from ingero_contract.values import HangVerdict
from ingero_kit.clock import rfc3339
from ingero_kit.hang_records import HangRank, HangRecord, read_hangs
from ingero_kit.metrics_table import MetricRow, Samples, counter, gauge
from ingero_kit.otlp_receiver import Push

MAX_HANGS: Final = 1_000
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

    Hosts of one job may each report its hang: the newest record counts, and the earliest onset.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._hangs: dict[_Key, tuple[HangRecord, float]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._hangs)

    def take(self, push: Push, now: float) -> None:
        """Read a push of logs; `now` in seconds since the epoch."""
        with self._lock:
            self._expire(now)
            for record in read_hangs(push.body, push.cluster):
                self.outcomes[self._note(record, now) if isinstance(record, HangRecord) else "refused"] += 1

    def _note(self, record: HangRecord, now: float) -> str:
        key = record.cluster, record.key
        known = self._hangs.get(key)
        if record.time > now + MAX_CLOCK_LEAD_SECONDS:
            return "ahead"
        if known and record.time < known[0].time:
            return "late"
        until = now + min(record.until - record.time, MAX_SECONDS)
        if until <= now:
            return "expired"
        if known is None and len(self._hangs) >= MAX_HANGS:
            return "over_limit"
        # One that goes on is remembered too, so that a late record does not bring the hang back.
        self._hangs[key] = record, until
        return str(record.kind)

    def expire(self, now: float) -> None:
        """Forget what counts no more."""
        with self._lock:
            self._expire(now)

    def _expire(self, now: float) -> None:
        for key in [key for key, (_, until) in self._hangs.items() if until <= now]:
            del self._hangs[key]

    def state(self, now: float) -> list[Any]:
        """Records in force, each with the time until which it is kept."""
        with self._lock:
            self._expire(now)
            return [[{**asdict(record), "kind": str(record.kind)}, until] for record, until in self._hangs.values()]

    def restore(self, state: list[Any]) -> None:
        """Continue from a state that `state` returned."""
        with self._lock:
            records = [(_restored(facts), until) for facts, until in state]
            self._hangs = {(record.cluster, record.key): (record, until) for record, until in records}

    def hangs(self, now: float, cluster: str | None = None) -> list[dict[str, Any]]:
        """Jobs that hang now, the longest first, at most `SHOWN`; times in RFC 3339."""
        with self._lock:
            self._expire(now)
            found = [
                record for record, _ in self._hangs.values() if _hangs(record) and cluster in (None, record.cluster)
            ]
        found.sort(key=lambda record: (record.since, record.cluster, record.key))
        return [_answer(record) for record in found[:SHOWN]]

    def by_kind(self) -> Samples:
        """Numbers of jobs that hang, by cluster and kind."""
        found: Counter[tuple[str, str]] = Counter()
        with self._lock:
            for record, _ in self._hangs.values():
                found[record.cluster, str(record.kind)] += _hangs(record)
        return {labels: count for labels, count in found.items() if count}


def _hangs(record: HangRecord) -> bool:
    return record.kind is not HangVerdict.NONE


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
        "ingero_fleet_hanging_jobs", "Jobs that hang, by what is known.", lambda s: s.by_kind(), "cluster_id", "kind"
    ),
    counter("ingero_fleet_hang_records", "Records of jobs that hang, by outcome.", lambda s: s.outcomes, "outcome"),
)
