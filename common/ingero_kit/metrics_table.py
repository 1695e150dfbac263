"""Prometheus metrics as a table: one row has a metric's name, type, help, labels and the function that reads it.

A collector reads the source for every scrape, so that components need no second set of counters.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ingero_http.limits import COUNTER_KINDS, Counters
from ingero_kit.exposition import Family, Kind

Source = TypeVar("Source")

Labels = str | tuple[str, ...]

Samples = float | None | Mapping[Any, float] | Iterable[tuple[Labels, float]]
"""One value without labels (`None`: no sample), or values by label values, as a dictionary or pairs. Another thread
may write to a dictionary meanwhile; its samples are sorted."""


@dataclass(frozen=True)
class MetricRow(Generic[Source]):
    """One metric: `value` reads its samples from the source."""

    kind: Kind
    name: str
    help: str
    value: Callable[[Source], Samples]
    labels: tuple[str, ...] = ()

    def collect(self, source: Source) -> Family:
        """The metric family with its current samples."""
        return _fill(Family(self.kind, self.name, self.help, self.labels), self.value(source))


def _fill(family: Family, samples: Samples) -> Family:
    if isinstance(samples, Mapping):
        samples = sorted(dict(samples).items())
    elif samples is None or isinstance(samples, float | int):
        samples = [] if samples is None else [((), samples)]
    for labels, value in samples:
        family.add((labels,) if isinstance(labels, str) else labels, value)
    return family


def gauge(name: str, help: str, value: Callable[[Source], Samples], *labels: str) -> MetricRow[Source]:  # noqa: A002
    """A row of type gauge."""
    return MetricRow("gauge", name, help, value, labels)


def counter(name: str, help: str, value: Callable[[Source], Samples], *labels: str) -> MetricRow[Source]:  # noqa: A002
    """A row of type counter; the page adds `_total` to its name."""
    return MetricRow("counter", f"{name}_total", help, value, labels)


def untyped(name: str, help: str, value: Callable[[Source], Samples], *labels: str) -> MetricRow[Source]:  # noqa: A002
    """A row without a type, for a published name that metric linters refuse for a gauge."""
    return MetricRow("untyped", name, help, value, labels)


def gauge_now(name: str, help: str, samples: Samples, *labels: str) -> Family:  # noqa: A002
    """A gauge from given samples, for collectors without a table."""
    return _fill(Family("gauge", name, help, labels), samples)


def counter_now(name: str, help: str, samples: Samples, *labels: str) -> Family:  # noqa: A002
    """A counter from given samples, for collectors without a table."""
    return _fill(Family("counter", f"{name}_total", help, labels), samples)


def collect_rows(rows: Sequence[MetricRow[Source]], source: Source) -> Iterator[Family]:
    """The metric families of a table."""
    return (row.collect(source) for row in rows)


def listener_rows(events: str, connections: str) -> tuple[MetricRow[Mapping[str, Counters]], ...]:
    """Rows with the counters of listeners by name."""
    return (
        counter(
            events,
            "What happened at a listener, by kind.",
            lambda s: {(name, kind): getattr(counts, kind) for name, counts in s.items() for kind in COUNTER_KINDS},
            "listener",
            "kind",
        ),
        gauge(connections, "Open connections.", lambda s: {name: c.open for name, c in s.items()}, "listener"),
    )


class TableCollector(Generic[Source]):
    """Collects a table; nothing while `source` returns `None`."""

    def __init__(self, rows: Sequence[MetricRow[Source]], source: Callable[[], Source | None]) -> None:
        self._rows, self._source = rows, source

    def collect(self) -> Iterator[Family]:
        """Build the families anew for every scrape."""
        source = self._source()
        if source is not None:
            yield from collect_rows(self._rows, source)
