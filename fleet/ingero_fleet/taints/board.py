"""Which nodes are marked now, as far as the operator told since Fleet started. Bounded in number and in time."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ingero_detect.column_store import NodeKey
from ingero_fleet.taints.records import Told, read
from ingero_kit.clock import rfc3339
from ingero_kit.otlp_receiver import Push

MAX_MARKS: Final = 10_000
"""Nodes that are kept; records of further ones are left out and counted."""

LONGEST: Final = 7 * 86_400.0
"""Longest that a mark is believed, seconds; the operator renews its marks well before."""

UNDATED: Final = 86_400.0
"""How long a mark is believed whose record names no end, seconds."""

REMEMBERED: Final = 900.0
"""How long a removal is remembered, seconds, so that a record which comes late brings no mark back."""

AHEAD: Final = 600.0
"""How far ahead of Fleet's clock a record may lie, seconds; one further ahead would shut out its successors."""

MAX_REASONS: Final = 32


class TaintBoard:
    """One for each Fleet. `take` and the answers may be called from any thread."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._marks: dict[NodeKey, tuple[Told, float]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._marks)

    def take(self, push: Push, now: float) -> None:
        """Read a push of logs; `now` in seconds since the epoch."""
        with self._lock:
            self._expire(now)
            for told in read(push):
                if isinstance(told, Told):
                    self.outcomes[self._note(told, now)] += 1
                else:
                    self.outcomes["refused"] += 1
                    self.refused[told if len(self.refused) < MAX_REASONS or told in self.refused else "other"] += 1

    def _note(self, told: Told, now: float) -> str:
        if told.time > now + AHEAD:
            return "ahead"
        node = (told.cluster, told.node)
        known = self._marks.get(node)
        if known and told.time < known[0].time:
            return "late"
        if known is None and len(self._marks) >= MAX_MARKS:
            return "over_limit"
        if told.action == "remove":
            until = now + REMEMBERED
        else:
            until = min(told.expires or now + UNDATED, now + LONGEST)
            if until <= now:
                self._marks.pop(node, None)
                return "expired"
        self._marks[node] = told, until
        return told.action

    def _expire(self, now: float) -> None:
        gone = [node for node, (_, until) in self._marks.items() if until <= now]
        for node in gone:
            told, _ = self._marks.pop(node)
            self.outcomes["expired"] += told.action != "remove"

    def marks(self, now: float, cluster: str | None = None) -> list[dict[str, Any]]:
        """Marks that stand now, the newest first; times in RFC 3339."""
        with self._lock:
            self._expire(now)
            found = [
                (told, until)
                for told, until in self._marks.values()
                if told.action != "remove" and cluster in (None, told.cluster)
            ]
        found.sort(key=lambda item: (-item[0].since, item[0].cluster, item[0].node))
        return [_answer(told, until) for told, until in found]

    def mark(self, node: NodeKey, now: float) -> dict[str, Any] | None:
        """The mark on one node."""
        with self._lock:
            told, until = self._marks.get(node, (None, 0.0))
        return _answer(told, until) if told and told.action != "remove" and until > now else None


def _answer(told: Told, until: float) -> dict[str, Any]:
    return {
        "cluster_id": told.cluster,
        "node_id": told.node,
        "effect": told.effect or None,
        "verdict": told.verdict,
        "reason": told.reason,
        "words": told.words,
        "since": rfc3339(told.since) if told.since else None,
        "expires": rfc3339(until),
    }


class TaintPage(Collector):
    """Marks for the findings page."""

    def __init__(self, board: TaintBoard) -> None:
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """Build the families anew for every scrape."""
        kept = GaugeMetricFamily(
            "ingero_fleet_taint_records_kept", "Nodes of which the operator told lately, those released among them."
        )
        kept.add_metric([], len(self._board))
        records = CounterMetricFamily(
            "ingero_fleet_taint_records", "Records of marks by what became of them.", labels=["outcome"]
        )
        for name, count in list(self._board.outcomes.items()):
            records.add_metric([name], count)
        yield from (kept, records)
