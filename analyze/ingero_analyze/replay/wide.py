"""Tables with a column for each node, as dashboards export them: turned into a row for each node and time. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from ingero_analyze.audit.columns import words_of
from ingero_analyze.audit.wide import cells_of_gpus
from ingero_analyze.member_columns import ColumnsOfMembers, as_array, is_whole, spread
from ingero_analyze.replay.column_names import (
    date_of,
    is_gpu,
    is_index,
    is_node,
    measure_named,
    metrics_with_meaning,
    time_column,
    unit_of,
)
from ingero_analyze.replay.columns import Columns
from ingero_analyze.table_batch import TableBatch
from ingero_analyze.terminal import listed

MOST_NAMES: Final = 10
"""Most metrics that an error names."""

FEWEST_NODES: Final = 3
"""Columns of one value with names alike but for their numbers that are those of nodes."""

_BETWEEN: Final = re.compile(r"[\s_.:/|-]+")
_NODE: Final = re.compile(r"(?!p\d)\S*[A-Za-z.]\S*\d")
"""A name of a node in that of a column: with a number at its end, and no percentile."""

_NO_NODE: Final = re.compile(
    r"p\d+|min|max|mean|avg|median|std|first|last|total|train(?:ing)?|eval|val(?:id)?|test|forward|backward|optimizer|data",
    re.IGNORECASE,
)
"""Names of statistics, phases and parts of steps before that of a value."""

_WATTS: Final = re.compile(r"(?<= )(?:\[W\]|\(W\))$")
"""A unit behind the name of a node that says what its values are."""

_BESIDE: Final = re.compile(
    r"(?:(?:global|train|training) )?(?:step|iteration|iter|epoch)s?|tick|(?:train |training |val |eval )?loss|lr"
    r"|learning rate|grad norm|mean|avg|average|median|std|stddev|min|max|minimum|maximum|sum|total|all|count|cv"
    r"|p\d{1,3}"
)
"""Names of columns beside those of nodes: numbers of steps, what a trainer logs, and statistics over all nodes."""

_DIGITS: Final = re.compile(r"\d+")

_LABELLED: Final = re.compile(r"(?P<metric>[\w:.]*)\s*\{(?P<labels>.*)\}")
_RANKED: Final = re.compile(r"(?P<metric>[^:{}]+):(?P<rank>\d{1,3})")
_TUPLE: Final = re.compile(r"\('(?P<metric>[^']+)', '(?P<node>[^']+)'\)")
_LABEL: Final = re.compile(r'(\w+)\s*=\s*"((?:[^"\\]|\\.)*)"')
_TAG: Final = re.compile(r"([\w.-]+):([^,]+)")
"""Labels of Prometheus and tags of Datadog in the names of series."""

_NO_NODES: Final = ("_span", "_spandays")
"""What Splunk puts beside the columns of nodes."""

_STATISTICS: Final = ("__MIN", "__MAX")

_TRACKED: Final = re.compile(r"system[./]gpu[./](?P<gpu>\d{1,2})[./](?P<held>[A-Za-z]+)(?:/l:(?P<host>.+))?")
"""What W&B records of each GPU of a run, in shared runs with the label of a host."""

_TRACKED_AS: Final = {"gpu": "gpu utilization", "powerWatts": "power (W)", "smClock": "sm clock (MHz)"}
"""What three of these are; any other one is of the GPU, but says nothing about its work."""


@dataclass(frozen=True)
class Series:
    """A column of one node. `labels`: those of Prometheus, if its name has them."""

    column: str
    node: str
    metric: str
    labels: Mapping[str, str]


def series_of(names: Sequence[str]) -> list[Series]:
    """Columns as nodes and metrics: `node`, `metric{label="node"}`, `('metric', 'node')` as pandas writes Parquet,
    also in the other order, `metric:rank` where ranks are counted from 0, or `node - metric`, of which the columns
    with minimum and maximum of W&B are none; also `node_metric` where all have the same metric."""
    found = []
    ranked = _ranked(names)
    shared = _shared_end(names)
    pairs = _pairs(names)
    for name in names:
        labelled = _LABELLED.fullmatch(name)
        run, dash, metric = name.rpartition(" - ")
        if labelled:
            labels = dict(_LABEL.findall(labelled["labels"]) or _TAG.findall(labelled["labels"]))
            metric = labelled["metric"] or labels.pop("__name__", "")
            found.append(Series(name, name, metric, labels))
        elif name in pairs:
            metric, node = pairs[name]
            found.append(Series(name, node, metric, {}))
        elif name in ranked:
            metric, _, rank = name.rpartition(":")
            found.append(Series(name, rank, metric, {}))
        elif shared and not dash:
            found.append(Series(name, name.removesuffix(shared), shared[1:], {}))
        elif dash and (tracked := _TRACKED.fullmatch(metric)):
            found.append(Series(name, f"{run}/{tracked['gpu']}", _held(tracked), {}))
        elif not name.endswith(_STATISTICS) and not (dash and metric.startswith("_")):
            found.append(Series(name, run if dash else name, metric if dash else "", {}))
    differ = {
        key
        for one in found
        for key, text in one.labels.items()
        if any(text != other.labels.get(key) for other in found)
    }
    return [
        replace(one, node="/".join(text for key, text in one.labels.items() if key in differ) or one.node)
        if one.labels else one for one in found
    ]  # fmt: skip


def _pairs(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By column whose name has two levels the metric and the node, in whichever order these are."""
    pairs = {name: (pair["metric"], pair["node"]) for name in names if (pair := _TUPLE.fullmatch(name))}
    first, second = ([pair[place] for pair in pairs.values()] for place in (0, 1))
    if metrics_with_meaning(second) and not metrics_with_meaning(first):
        return {name: (metric, node) for name, (node, metric) in pairs.items()}
    return pairs


def _shared_end(names: Sequence[str]) -> str:
    """The end of all names, with what separates it, where it says what values are."""
    first = names[0] if names else ""
    ends = (first[place:] for place, letter in enumerate(first) if place and letter in " _-./")
    shared = (end for end in ends if all(name.endswith(end) and name != end for name in names))
    shared = (end for end in shared if not any(_NO_NODE.fullmatch(name.removesuffix(end)) for name in names))
    return next((end for end in shared if measure_named(end[1:])), "")


def wide_measure(metric: str | None, file: str) -> str | None:
    """What the columns of nodes hold, by their metric or the name of the file; `None` if neither says it."""
    return measure_named(metric or file)


def wide_metric(names: Sequence[str], time: str) -> str:
    """The only metric of the columns of nodes, or of several the one that says most about work; "" for none."""
    metrics = list(dict.fromkeys(one.metric for one in series_of(_of_nodes(names, time))))
    fitting = metrics if len(metrics) == 1 else metrics_with_meaning(metrics) if all(metrics) else []
    return fitting[0] if len(fitting) == 1 else ""


def _ranked(names: Sequence[str]) -> set[str]:
    """Columns of one metric that are counted from 0, as `gpu_usage:0` and `gpu_usage:1`."""
    ranks: dict[str, set[int]] = {}
    for name in names:
        if found := _RANKED.fullmatch(name):
            ranks.setdefault(found["metric"], set()).add(int(found["rank"]))
    counted = {metric for metric, its in ranks.items() if its == set(range(len(its))) and len(its) > 1}
    return {name for name in names if _RANKED.fullmatch(name) and name.rpartition(":")[0] in counted}


@dataclass(frozen=True)
class WideTable:
    """The columns of such a table: the time, the nodes of one metric, and those beside them that are none."""

    time: str
    series: Sequence[Series]
    beside: tuple[str, ...]

    def long(self, batch: TableBatch, measure: str) -> TableBatch:
        """A row for each node and row of a batch, in the order of its rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        rows, order = spread(batch.rows, len(self.series))
        values = pa.concat_arrays([as_array(batch.columns[one.column]) for one in self.series])
        columns: dict[str, Any] = {
            "time": pc.take(batch.columns[self.time], pa.array(rows)),
            "node": pa.array([one.node for one in self.series] * batch.rows, pa.string()),
            measure: pc.take(values, pa.array(order)),
        }
        places = rows if batch.places is None else batch.places[rows]
        return replace(batch, columns=columns, rows=len(rows), places=places)

    def columns(self, measure: str) -> Columns:
        """The columns of the long table."""
        metric = self.series[0].metric
        per_second, steps = time_column(self.time)
        return Columns(
            {"time": ("time",), "node": ("node",), measure: (measure,)}, measure, unit_of(metric) or 1.0, per_second,
            self.beside, recorded=False, steps=steps,
        )  # fmt: skip


def columns_of_members(names: Sequence[str], chosen: Iterable[str]) -> ColumnsOfMembers | None:
    """Such a table; `None` for any other, for names of two levels, and where a column of one GPU or node is `chosen`.

    Where no column names a host, those of nodes and GPUs must say what they hold: else `--wide` does.
    """
    taken = set(chosen)
    if any(map(_TUPLE.fullmatch, names)):
        return None
    for role, cells in (("gpu", _tracked(names)), ("node", _cells_of_nodes(names)), ("gpu", _cells_of_gpus(names))):
        if cells and taken.isdisjoint(cells):
            return ColumnsOfMembers(role, names, cells)
    return None


def _cells_of_gpus(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    cells = cells_of_gpus(names)
    known = any(map(is_node, names)) or metrics_with_meaning(held for _, held in cells.values())
    return cells if known else {}


def _tracked(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By column of W&B of one GPU the number of this, behind its host if that is there, and what the column holds, if
    this is its work and every GPU has such a column."""
    found = [(name, of) for name in names if (of := _TRACKED.fullmatch(name)) and of["held"] in _TRACKED_AS]
    cells = {name: ("/".join(filter(None, (of["host"], of["gpu"]))), _held(of)) for name, of in found}
    gpus = {gpu for gpu, _ in cells.values()}
    held = [one for one in _TRACKED_AS.values() if {gpu for gpu, its in cells.values() if its == one} == gpus]
    return {name: cell for name, cell in cells.items() if cell[1] in held}


def _held(tracked: re.Match[str]) -> str:
    return _TRACKED_AS.get(tracked["held"], f"gpu {tracked['held']}")


def _cells_of_nodes(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """By column of one node, such as `node-06 tokens/s` and `step_time_rank3`, the node and the name of what it
    holds, which says what this is; empty where another column tells the node or GPU."""
    if any(is_node(name) or is_gpu(name) for name in names):
        return {}
    cells = {name: found for name in names if (found := _node_and_held(name))}
    nodes = {node for node, _ in cells.values()}
    alike = len({_DIGITS.sub("0", node) for node in nodes}) == 1
    return cells if alike and is_whole(cells) and len(nodes) >= FEWEST_NODES else {}


def _node_and_held(name: str) -> tuple[str, str] | None:
    """The node in the name of a column, and the rest, which says what the column holds: beside a blank if there is
    one, as in `GPU util gpu-node-5`."""
    name = _WATTS.sub("power (W)", name)
    places = list(_BETWEEN.finditer(name))
    for between in ([place for place in places if not place[0].strip()], places):
        parts = [(name[: place.start()], name[place.end() :]) for place in between]
        found = [
            (node, held)
            for node, held in (*parts, *((last, first) for first, last in parts))
            if _NODE.fullmatch(node) and metrics_with_meaning([held])
        ]
        if found:
            return max(found, key=lambda one: len(one[1]))
    return None


def _of_nodes(names: Sequence[str], time: str) -> list[str]:
    """The columns of nodes."""
    no_nodes = {*_NO_NODES, *date_of(names, time)}
    others = [name for name in names if name != time and not is_index(name) and not _BESIDE.fullmatch(words_of(name))]
    return [name for name in others if {name, name.strip().lower()}.isdisjoint(no_nodes)]


def wide_table(names: Sequence[str], time: str, metric: str | None) -> WideTable:
    """The columns of a table whose columns but the time are nodes. `ValueError` if that is not certain."""
    others = _of_nodes(names, time)
    doubled = [name for name in (time, *others) if names.count(name) > 1]
    if doubled:
        raise ValueError(f"the column {doubled[0]} is there twice")
    series = series_of(others)
    metrics = list(dict.fromkeys(one.metric for one in series))
    named = [name for name in metrics if name]
    known = f"there are: {listed(named[:MOST_NAMES], len(named))}"
    if metric is not None:
        series = [one for one in series if one.metric == metric]
        if not series:
            raise ValueError(f"no column is of the metric {metric!r} ({known})")
    elif len(metrics) > 1:
        raise ValueError(f"columns are of several metrics ({known}): choose one with --metric NAME")
    if not series:
        raise ValueError("no column but the time is that of a node")
    beside = tuple(name for name in names if name not in (time, *others) and name and not is_index(name))
    return WideTable(time, series, beside)
