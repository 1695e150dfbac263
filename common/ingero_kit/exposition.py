"""A page of metrics in the Prometheus text format, version 0.0.4, from families of samples. Pure.

The format is documented at https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge", "histogram", "untyped"]

_HELP: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def format_value(value: float) -> str:
    """A number as Prometheus reads it."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


@dataclass
class Family:
    """One metric: its name as on the page, the names of its labels, and its samples."""

    kind: Kind
    name: str
    help: str
    labels: tuple[str, ...] = ()
    _lines: list[str] = field(default_factory=list, init=False)

    def add(self, values: Sequence[str], value: float, suffix: str = "", **more: str) -> None:
        """Add a sample with the values of the labels, and `more` labels; `suffix` follows the name."""
        pairs = sorted([*zip(self.labels, values, strict=True), *more.items()])
        labels = ",".join([f'{name}="{str(text).translate(_LABEL)}"' for name, text in pairs])
        self._lines.append(f"{self.name}{suffix}{f'{{{labels}}}' if labels else ''} {format_value(value)}\n")

    def add_histogram(self, values: Sequence[str], buckets: Iterable[tuple[float, float]], total: float) -> None:
        """Add a histogram: cumulative counts by upper bound, the last of which is infinite, and the sum of all."""
        count = 0.0
        for bound, count in buckets:
            self.add(values, count, "_bucket", le=f"{bound:g}" if bound < math.inf else "+Inf")
        self.add(values, count, "_count")
        self.add(values, total, "_sum")

    def lines(self) -> Iterator[str]:
        """The lines of the page."""
        yield f"# HELP {self.name} {self.help.translate(_HELP)}\n"
        yield f"# TYPE {self.name} {self.kind}\n"
        yield from self._lines


class Collector(Protocol):
    """Makes families anew for every scrape."""

    def collect(self) -> Iterable[Family]:
        """The families with their current samples."""


def exposition(collectors: Iterable[Collector]) -> bytes:
    """The page of all collectors."""
    return "".join(line for one in collectors for family in one.collect() for line in family.lines()).encode()
