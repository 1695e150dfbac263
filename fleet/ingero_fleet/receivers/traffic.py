"""What was received and its outcomes, as counts that add up over processes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from ingero_fleet.exporters import ExporterCounters
from ingero_http.limits import Counters

_COUNTS: Final = ("pushes", "rejected", "self_reported", "waiting")
_NUMBERS: Final = (
    "reports",
    "malformed",
    "nodes_over_limit",
    "clusters_over_limit",
    "cohorts_over_limit",
    "late_reports",
    "receiver_restarts",
)


@dataclass
class Traffic:
    """Counts by kind, since the process began. `waiting` is the exporters' queues, pushes at present."""

    pushes: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    self_reported: Counter[str] = field(default_factory=Counter)
    reports: int = 0
    malformed: int = 0
    nodes_over_limit: int = 0
    clusters_over_limit: int = 0
    receiver_restarts: int = 0
    listeners: dict[str, Counters] = field(default_factory=dict)
    exporters: dict[str, ExporterCounters] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    cohorts_over_limit: int = 0
    late_reports: int = 0

    def gone(self) -> "Traffic":
        """What stays counted once the process has ended: everything but what is open or waiting."""
        listeners = {name: Counters(**{**asdict(item), "open": 0}) for name, item in self.listeners.items()}
        return Traffic(**{**vars(self), "listeners": listeners, "waiting": Counter()})

    def as_json(self) -> dict[str, Any]:
        """Plain values, for `from_json`."""
        return {
            **vars(self),
            "listeners": {name: asdict(item) for name, item in self.listeners.items()},
            "exporters": {name: asdict(item) for name, item in self.exporters.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Traffic":
        """Read what `as_json` gave."""
        return cls(
            **{
                **value,
                **{name: Counter(value[name]) for name in _COUNTS},
                "listeners": {name: Counters(**item) for name, item in value["listeners"].items()},
                "exporters": {name: ExporterCounters(**item) for name, item in value["exporters"].items()},
            }
        )


def total(parts: Iterable[Traffic]) -> Traffic:
    """All of them together."""
    found = Traffic()
    for part in parts:
        for name in _COUNTS:
            getattr(found, name).update(getattr(part, name))
        for name in _NUMBERS:
            setattr(found, name, getattr(found, name) + getattr(part, name))
        for name, listener in part.listeners.items():
            found.listeners[name] = Counters(*_sums(found.listeners.get(name, Counters()), listener))
        for name, exporter in part.exporters.items():
            found.exporters[name] = ExporterCounters(*_sums(found.exporters.get(name, ExporterCounters()), exporter))
    return found


def _sums(first: Any, second: Any) -> list[int]:
    return [one + other for one, other in zip(asdict(first).values(), asdict(second).values(), strict=True)]
