"""Keeps the nodes' taints that the operator has reported since Fleet started. Bounded in number and in time."""

import threading
from collections import Counter
from dataclasses import asdict
from typing import Any, Final

from ingero_contract.identifiers import NodeKey, node_key
from ingero_fleet.taints.records import TaintRecord, read_taint_records
from ingero_kit.clock import rfc3339
from ingero_kit.metrics_table import MetricRow, counter, gauge
from ingero_kit.otlp_receiver import Push

MAX_TAINTS: Final = 10_000
"""Nodes that are kept; records of further ones are left out and counted."""

MAX_TAINT_SECONDS: Final = 7 * 86_400.0
"""Longest time a taint is kept, seconds; the operator renews its taints well before."""

DEFAULT_TAINT_SECONDS: Final = 86_400.0
"""How long a taint without an end is kept, seconds."""

REMOVAL_MEMORY_SECONDS: Final = 900.0
"""How long a removal is remembered, seconds, so that a late record does not restore the taint."""

MAX_CLOCK_LEAD_SECONDS: Final = 600.0
"""How far ahead of Fleet's clock a record may be, seconds; one further ahead would block its successors."""

MAX_REASONS: Final = 32


class TaintTracker:
    """One for each Fleet. `take` and the answers may be called from any thread."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._taints: dict[NodeKey, tuple[TaintRecord, float]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._taints)

    def take(self, push: Push, now: float) -> None:
        """Read a push of logs; `now` in seconds since the epoch."""
        with self._lock:
            self._expire(now)
            for record in read_taint_records(push):
                if isinstance(record, TaintRecord):
                    self.outcomes[self._note(record, now)] += 1
                else:
                    self.outcomes["refused"] += 1
                    self.refused[
                        record if len(self.refused) < MAX_REASONS or record in self.refused else "other"
                    ] += 1

    def _note(self, record: TaintRecord, now: float) -> str:
        if record.time > now + MAX_CLOCK_LEAD_SECONDS:
            return "ahead"
        node = node_key(record.cluster, record.node)
        known = self._taints.get(node)
        if known and record.time < known[0].time:
            return "late"
        if known is None and len(self._taints) >= MAX_TAINTS:
            return "over_limit"
        if record.action == "remove":
            until = now + REMOVAL_MEMORY_SECONDS
        else:
            until = min(record.expires or now + DEFAULT_TAINT_SECONDS, now + MAX_TAINT_SECONDS)
            if until <= now:
                self._taints.pop(node, None)
                return "expired"
        self._taints[node] = record, until
        return record.action

    def _expire(self, now: float) -> None:
        gone = [node for node, (_, until) in self._taints.items() if until <= now]
        for node in gone:
            record, _ = self._taints.pop(node)
            self.outcomes["expired"] += record.action != "remove"

    def state(self, now: float) -> list[Any]:
        """Records in force, each with the time until which it is kept."""
        with self._lock:
            self._expire(now)
            return [[asdict(record), until] for record, until in self._taints.values()]

    def restore(self, state: list[Any]) -> None:
        """Continue from a state that `state` returned."""
        with self._lock:
            records = [(TaintRecord(**record), until) for record, until in state]
            self._taints = {node_key(record.cluster, record.node): (record, until) for record, until in records}

    def taints(self, now: float, cluster: str | None = None) -> list[dict[str, Any]]:
        """Current taints, the newest first; times in RFC 3339."""
        with self._lock:
            self._expire(now)
            found = [
                (record, until)
                for record, until in self._taints.values()
                if record.action != "remove" and cluster in (None, record.cluster)
            ]
        found.sort(key=lambda item: (-item[0].since, item[0].cluster, item[0].node))
        return [_answer(record, until) for record, until in found]

    def taint(self, node: NodeKey, now: float) -> dict[str, Any] | None:
        """The taint of one node."""
        with self._lock:
            record, until = self._taints.get(node, (None, 0.0))
        return _answer(record, until) if record and record.action != "remove" and until > now else None


def _answer(record: TaintRecord, until: float) -> dict[str, Any]:
    return {
        "cluster_id": record.cluster,
        "node_id": record.node,
        "effect": record.effect or None,
        "verdict": record.verdict,
        "reason": record.reason,
        "message": record.message,
        "since": rfc3339(record.since) if record.since else None,
        "expires": rfc3339(until),
    }


TAINTS: Final[tuple[MetricRow[TaintTracker], ...]] = (
    gauge(
        "ingero_fleet_taint_records_kept",
        "Nodes with recent taint records, released ones included.",
        lambda s: len(s),
    ),
    counter("ingero_fleet_taint_records", "Taint records by outcome.", lambda s: s.outcomes, "outcome"),
)
