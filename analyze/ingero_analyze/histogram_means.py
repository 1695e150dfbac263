"""Means of the histograms and summaries of Prometheus, of which a history has the sum and the count."""

from collections.abc import Iterable, Iterator
from math import isfinite

Row = dict[str, str]


def with_means(rows: Iterable[tuple[int, Row]]) -> Iterator[tuple[int, Row]]:
    """Samples with their numbers, and one more behind each second sample of a `NAME_sum` and `NAME_count`: the
    `NAME_mean` of what was observed since the samples of these before, if anything was."""
    means = _Means()
    for number, row in rows:
        yield number, row
        if (mean := means.add(row)) is not None:
            yield number, mean


class _Means:
    """The samples whose other half is to come, by series and time, and the last sum and count of each series."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, ...], dict[str, tuple[str, float]]] = {}
        self._last: dict[tuple[str, ...], tuple[float, float]] = {}

    def add(self, row: Row) -> Row | None:
        """The mean up to the time of this sample; `None` as long as it is not known. Samples are in order of time."""
        name, _, ending = row.get("__name__", "").rpartition("_")
        if ending not in ("sum", "count") or not name:
            return None
        labels = sorted(f"{key}={text}" for key, text in row.items() if key not in ("__name__", "time", "value"))
        key, value = (name, *labels), _number(row["value"])
        waiting = self._waiting.setdefault(key, {})
        other = waiting.pop(row["time"], None)
        if other is None or other[0] == ending:
            waiting[row["time"]] = (ending, value)
            return None
        total, count = (value, other[1]) if ending == "sum" else (other[1], value)
        before = self._last.get(key)
        self._last[key] = (total, count)
        if before is None or not (isfinite(total) and count > before[1] and total >= before[0]):
            return None
        return {**row, "__name__": f"{name}_mean", "value": repr((total - before[0]) / (count - before[1]))}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")
