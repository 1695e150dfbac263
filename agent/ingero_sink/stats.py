"""Bounded counters of the received events. Pure."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from ingero_contract.events import StragglerResolvedEvent, StragglerStateEvent, parse_line
from ingero_contract.identifiers import NodeKey, node_key

MAX_NODES: Final = 10_000
"""Most stragglers with a separate series, unless the settings say otherwise."""

MAX_TYPES: Final = 64
"""Event types with a separate series; others count as `other`."""


@dataclass
class SinkStats:
    """Counters, and the nodes that straggle at present, oldest first, with the source that says so."""

    max_nodes: int = MAX_NODES
    events: Counter[str] = field(default_factory=Counter)
    parse_errors: int = 0
    dropped: int = 0
    sockets: int = 1
    connections: int = 0
    last_event: float = 0.0
    active: dict[NodeKey, str] = field(default_factory=dict)

    def record_line(self, line: bytes, now: float, source: str = "") -> None:
        """Record one line of a source. Invalid lines are counted, empty lines ignored."""
        if not line.strip():
            return
        try:
            kind, event = parse_line(line)
        except ValueError:
            self.parse_errors += 1
            return
        self.events[kind if kind in self.events or len(self.events) < MAX_TYPES else "other"] += 1
        self.last_event = now
        if isinstance(event, StragglerStateEvent):
            key = node_key(event.cluster_id, event.node_id)
            if key not in self.active and len(self.active) >= self.max_nodes:
                del self.active[next(iter(self.active))]
                self.dropped += 1
            self.active[key] = source
        elif isinstance(event, StragglerResolvedEvent):
            self.active.pop(node_key(event.cluster_id, event.node_id), None)

    def source_ended(self, source: str) -> int:
        """Forget the stragglers of a source that says nothing any more; returns how many they are."""
        unknown = [key for key, known_by in self.active.items() if known_by == source]
        for key in unknown:
            del self.active[key]
        return len(unknown)

    @property
    def connected(self) -> bool:
        """Whether all agents are connected."""
        return self.connections >= self.sockets

    def ready(self, now: float, window: float) -> bool:
        """Whether any agent is connected, or was within `window` seconds."""
        return self.connections > 0 or (self.last_event > 0 and now - self.last_event <= window)
