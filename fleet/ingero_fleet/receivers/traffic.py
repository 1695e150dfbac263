"""What was received and its outcomes, as counts that add up over processes."""

import operator
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field, replace
from typing import Final

from pydantic import TypeAdapter

from ingero_fleet.export_state import ExportState
from ingero_http.limits import Counters


@dataclass
class Traffic:
    """Counts by kind, since the process began. `exports` is the state of the exporters at present.

    `totals` are the reports taken, the malformed pushes, the score map's losses by reason, and receivers restarted.
    """

    pushes: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    listeners: dict[str, Counters] = field(default_factory=dict)
    exporters: dict[str, Counter[str]] = field(default_factory=dict)
    exports: dict[str, ExportState] = field(default_factory=dict)

    def gone(self) -> "Traffic":
        """What stays counted once the process has ended: everything but what is open or waiting."""
        listeners = {name: replace(item, open=0) for name, item in self.listeners.items()}
        return replace(self, listeners=listeners, exports={})


TRAFFIC_JSON: Final = TypeAdapter(Traffic)
"""Converts counts to JSON and back."""


def total(parts: Iterable[Traffic]) -> Traffic:
    """All of them together."""
    found = Traffic()
    for part in parts:
        for name in ("pushes", "rejected", "totals"):
            getattr(found, name).update(getattr(part, name))
        for name, listener in part.listeners.items():
            before = found.listeners.get(name, Counters())
            found.listeners[name] = Counters(*map(operator.add, astuple(before), astuple(listener)))
        for name, exporter in part.exporters.items():
            found.exporters.setdefault(name, Counter()).update(exporter)
        for name, state in part.exports.items():
            found.exports[name] = found.exports.get(name, ExportState()) + state
    return found
