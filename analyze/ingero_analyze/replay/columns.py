"""Finds which columns of a history hold what, by their names and what was chosen. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from shlex import quote
from typing import Final

from ingero_analyze.audit.columns import words_of
from ingero_analyze.replay.column_names import (
    LABELS,
    MEASURES,
    are_queried,
    clock_beside,
    is_named,
    later_nodes,
    later_times,
    measures_of,
    of_nvidia_smi,
    preferred,
    time_column,
    unit_of,
)
from ingero_analyze.replay.work_names import columns_of_work
from ingero_fleet.recording import RECORDED

FILE: Final = "file"
"""Stands for the column of the node where each file is one."""

ROLES: Final = ("time", "node", *MEASURES, "cluster", "rack", "gpu", "state", "metric", *LABELS)
WORK: Final = "work"
"""The role of the work of a row whose time is judged, which is known by its name only beside such a time."""

_SCRAPED: Final = "instance"
"""Name of the address that Prometheus asks, which is an exporter's where another column is the host."""

_VALUES: Final = ("value", "values", "metric value", "counter value", "as double", "as int")
"""Names of the column of the values of all metrics; a point of OTLP has one of the last two."""

_POINTS: Final = ("as double", "as int")
_NAME: Final = "name"
"""Values of OTLP, and the name of the column of their metrics beside one of these."""

_NESTED: Final = ("time", "node", *MEASURES, "cluster", "rack", "gpu", *LABELS)
"""What may be known by the part of its name behind a point."""

_LABELLED: Final = re.compile(r'\{.*(?:="|\w:\S)')
"""What names of series have, of which several in one table are nodes: rate{instance="n1"}, avg:rate{host:n1}."""

_CALENDAR: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}")
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}|\d{10}")


_OF_JOBS: Final = (
    "rows are jobs with the time that each took, which says nothing about a node unless all do the same work: if "
    "they do, as runs of a benchmark, choose --column time={} --column step_seconds={} --column job_id=; "
)
"""What is said of a list of jobs, with their start and how long they took."""


@dataclass(frozen=True)
class Columns:
    """Columns of a file by their role. `seconds`: of one unit of a step; `per_second`: how many units of the time are
    a second, if its name says so; `ignored`: the columns without a role."""

    roles: Mapping[str, tuple[str, ...]]
    measure: str
    seconds: float
    per_second: float | None
    ignored: tuple[str, ...]
    recorded: bool
    steps: bool
    """Whether the time is a number of steps."""

    def one(self, role: str) -> str | None:
        """The column with a role of which there is at most one column."""
        return self.roles.get(role, (None,))[0]

    def with_date(self, name: str) -> "Columns":
        """The same with a column of dates for the times of day."""
        return replace(
            self, roles={**self.roles, "date": (name,)}, ignored=tuple(one for one in self.ignored if one != name)
        )

    def without(self, role: str) -> "Columns":
        """The same without a role, whose columns are ignored."""
        roles = {name: columns for name, columns in self.roles.items() if name != role}
        return replace(self, roles=roles, ignored=(*self.ignored, *self.roles.get(role, ())))

    def with_work(self, names: Sequence[str]) -> "Columns":
        """The same with some of its columns of work; the others are ignored."""
        roles = {role: columns for role, columns in self.roles.items() if role != WORK}
        ignored = (*self.ignored, *(one for one in self.roles.get(WORK, ()) if one not in names))
        return replace(self, roles={**roles, WORK: tuple(names)} if names else roles, ignored=ignored)

    @property
    def value(self) -> str:
        """The column of the value, or the first one of two whose product is that."""
        return self.roles[self.measure][0]


class MetricOpenError(ValueError):
    """The values are those of metrics that another column names, and none is chosen."""

    def __init__(self, column: str, value: str, known: str = "") -> None:
        names = f" (there are: {known})" if known else ""
        super().__init__(
            f"the column {value} holds the metrics that the column {column} names; choose one with "
            f"--metric NAME{names}"
        )
        self.column, self.value = column, value


class WideOpenError(ValueError):
    """Nodes seem to have a column each, and nothing says what these hold."""


def recognised(
    names: Sequence[str], chosen: Mapping[str, Sequence[str]], labels: Sequence[str] = LABELS,
    metric: str | None = None, by_file: bool = False,
) -> Columns:  # fmt: skip
    """Columns by role: as `chosen` (none, if that is empty), else by name. Only these `labels` make cohorts.

    Columns of a recording have their own names. Where rows of a `metric` are chosen, its name says what the values
    are, if the name of their column does not. With `by_file`, each file is a node where no column is. `ValueError`
    says which column is missing or not certain.
    """
    recorded = RECORDED in names
    matching = _matching(names, chosen, recorded)
    roles = {role: tuple(columns) for role, columns in chosen.items() if columns}
    roles |= _place_and_time(names, chosen, matching, by_file)
    measured_by = ""
    if not any(role in roles for role in MEASURES):
        found, measured_by = _values(names, matching, metric)
        roles |= found
    if metric is not None and not matching["metric"]:
        raise ValueError(
            f"no column says which row is of the metric {metric!r}; choose it with --column metric=COLUMN"
        )
    for role in ("cluster", "rack", "gpu", "state", "metric"):
        matching[role] = [name for name in matching[role] if name not in roles["node"]]
        if role not in chosen and matching[role]:
            roles[role] = (role if role in matching[role] else matching[role][0],)
    for role in LABELS:
        if role not in chosen and matching[role] and role in labels:
            roles[role] = tuple(matching[role])
    measures = [role for role in MEASURES if role in roles]
    if len(measures) > 1:
        raise ValueError(f"exactly one of the columns {', '.join(MEASURES)} is needed; {_found(measures)}")
    used = {name for columns in roles.values() for name in columns} | {RECORDED}
    if WORK not in chosen and measures[0] == "step_seconds" and not recorded:
        roles |= _work_of(names, used)
        used |= {*roles.get(WORK, ())}
    if WORK in roles and measures[0] != "step_seconds":
        raise ValueError(
            f"work explains the time of a step, and the value is {measures[0]}: leave out --column work="
        )
    doubled = [name for name in used if names.count(name) > 1]
    if doubled:
        raise ValueError(f"the column {min(doubled)} is there twice")
    per_second, steps = (None, False) if recorded else time_column(roles["time"][0])
    return Columns(
        roles, measures[0], unit_of(measured_by or roles[measures[0]][0]) or 1.0, per_second,
        tuple(name for name in names if name and name not in used), recorded, steps,
    )  # fmt: skip


def _work_of(names: Sequence[str], used: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Columns that may hold the work of each row, such as tokens or a length; nothing where there are none."""
    found = columns_of_work([name for name in names if name not in used and names.count(name) == 1])
    return {WORK: tuple(found)} if found else {}


def _matching(names: Sequence[str], chosen: Mapping[str, Sequence[str]], recorded: bool) -> dict[str, list[str]]:
    """By role the columns, none of them `chosen`, that may have it by their names."""
    taken = {name for columns in chosen.values() for name in columns}
    for name in sorted(taken - set(names)):
        raise ValueError(f"there is no column {name!r} ({_there_are(names)})")
    labelled = [name for name in names if _LABELLED.search(name)]
    free = [name for name in names if name not in taken and not (len(labelled) > 1 and name in labelled)]
    known = any(is_named(role, name) for role in ROLES for name in names) or bool(later_times(names))
    if not taken and not known and any(map(_is_cell, names)):
        raise ValueError(
            f"the first line holds values, no names of columns ({', '.join(names)[:200]}): add such a "
            "line, as `time,node,rate` is (larger is better), or `time,node,step_seconds` (smaller is better)"
        )
    matching = {
        role: [name for name in free if name == role or (not recorded and is_named(role, name))] for role in ROLES
    }
    if "metric" in chosen:
        matching["metric"] = list(chosen["metric"])
    elif "__name__" in free:
        matching["metric"] = ["__name__"]
    elif any(words_of(name) in _POINTS for name in free):
        matching["metric"] = matching["metric"] or [name for name in free if words_of(name) == _NAME]
    if not recorded:
        for role, name in of_nvidia_smi(names).items():
            matching[role] = matching[role] or [name]
        for role, name in _nested(free, matching).items():
            matching[role] = [name]
        matching["time"] = matching["time"] or later_times(free)
        hosts = [name for name in matching["node"] if words_of(name) != _SCRAPED]
        others = [name for name in free if name not in (*matching["metric"], *matching["gpu_model"])]
        matching["node"] = hosts or matching["node"] or later_nodes(others, matching["gpu"])
    return matching


def _place_and_time(
    names: Sequence[str], chosen: Mapping[str, Sequence[str]], matching: Mapping[str, Sequence[str]], by_file: bool
) -> dict[str, tuple[str, ...]]:
    """The columns of the time and the node, as far as they are not chosen."""
    roles: dict[str, tuple[str, ...]] = {role: tuple(chosen[role]) for role in ("time", "node") if chosen.get(role)}
    values = [name for name in names if words_of(name) in _VALUES]
    if by_file and "node" not in chosen and not matching["node"]:
        named = len(values) == 1 and matching["metric"]
        if named or any(role in chosen or matching[role] for role in MEASURES):
            roles["node"] = (FILE,)
        elif len(values) == 1:
            raise ValueError(f"what the column {values[0]} of each file holds is not certain; {_say(values[0])}")
    if "node" not in roles and _is_wide(names, matching):
        raise WideOpenError(
            f"there is no column 'node' ({_there_are(names)}): where each node has a column of its own, say what "
            "these hold with --wide rate (or step_seconds, score, counter); else choose one with --column node=COLUMN"
        )
    return roles | {role: (_only(role, names, matching[role]),) for role in ("time", "node") if role not in roles}


def _values(
    names: Sequence[str], matching: Mapping[str, Sequence[str]], metric: str | None
) -> tuple[dict[str, tuple[str, ...]], str]:
    """The columns of the value by its role; and the metric whose name says what this is, "" where that of the
    column does."""
    values = [name for name in names if words_of(name) in _VALUES]
    if not any(matching[role] for role in MEASURES) and len(values) == 1 and matching["metric"]:
        return {_measure_of(metric, matching["metric"][0], values[0]): (values[0],)}, metric or ""
    return _measured(names, matching), ""


def time_of(names: Sequence[str], chosen: Mapping[str, Sequence[str]]) -> str:
    """The column of the time alone. `ValueError` if it is missing or not certain."""
    if chosen.get("time"):
        return recognised(
            [*names, "node", "rate"], {"time": chosen["time"], "node": ["node"], "rate": ["rate"]}
        ).roles["time"][0]
    return _only(
        "time", names, [name for name in names if name == "time" or is_named("time", name)] or later_times(names)
    )


def _nested(names: Sequence[str], matching: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Columns by role whose name is known behind a point, as of an object within an object of JSON, where a single
    one is, and none by its whole name. Of all measures a single one."""
    if are_queried(names):
        return {}
    taken = {name for found in matching.values() for name in found}
    found = {
        role: [
            name for name in names if name not in taken
            and any(is_named(role, name[point.end() :]) for point in re.finditer(r"\.", name))
        ]
        for role in _NESTED if not matching[role]
    }  # fmt: skip
    fitting = (
        []
        if any(matching[role] for role in MEASURES)
        else preferred([(role, name) for role in MEASURES for name in found[role]])
    )
    found = {role: of_role for role, of_role in found.items() if role not in MEASURES}
    if len(fitting) == 1:
        found[fitting[0][0]] = [fitting[0][1]]
    return {role: of_role[0] for role, of_role in found.items() if len(of_role) == 1}


def _is_wide(names: Sequence[str], matching: Mapping[str, Sequence[str]]) -> bool:
    """Whether no column but the time has a name that is known, as `run - metric` is none, and several have none."""
    known = {name for role, found in matching.items() for name in found if role != "time" and " - " not in name}
    others = [name for name in names if name and name not in matching["time"]]
    return bool(matching["time"]) and not known and len(others) > 1


def _only(role: str, names: Sequence[str], matching: Sequence[str]) -> str:
    """The column of a role: that with its very name, else the only one with a name that is known."""
    if role in matching or len(matching) == 1:
        return role if role in matching else matching[0]
    option = f"--column {role}=COLUMN"
    if matching:
        options = " or ".join(f"--column {role}={_quoted(name)}" for name in matching)
        raise ValueError(f"the columns {', '.join(matching)} could all be the {role}; choose one: {options}")
    hint = _without_times(names) if role == "time" else ""
    raise ValueError(f"there is no column {role!r} ({_there_are(names)}); {hint}choose one with {option}")


def _without_times(names: Sequence[str]) -> str:
    """What to do about a table without a time whose names tell what wrote it; "" for any other."""
    known = set(map(words_of, names))
    if {"pwr", "sm"} <= known or {"gpu", "mclk"} <= known:
        return "`nvidia-smi dmon` writes times with -o DT; "
    if are_queried(names):
        return "ask `nvidia-smi` for the timestamp too, with --query-gpu=timestamp,...; "
    if names[:1] == ["ID"] or "entity" in known:
        return (
            "`dcgmi dmon` writes no times: record with `nvidia-smi dmon -o DT`, or ask Prometheus for what DCGM's "
            "exporter measures; "
        )
    if sum(bool(_MOMENT.match(name)) for name in names) > len(names) / 2:
        return "columns are times: turn the table, so that each time has a row; "
    return ""


def _measured(names: Sequence[str], matching: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """The column of the value by its role: those with the very names of roles come first."""
    exact: dict[str, tuple[str, ...]] = {role: (role,) for role in MEASURES if role in matching[role]}
    if exact:
        return exact
    fitting = preferred([(role, name) for role in MEASURES for name in matching[role]])
    if len(fitting) == 1:
        return {fitting[0][0]: (fitting[0][1], *clock_beside(fitting[0][1], matching["rate"]))}
    options = " or ".join(f"--column {role}={_quoted(name)}" for role, name in fitting)
    if fitting:
        raise ValueError(
            f"the columns {', '.join(name for _, name in fitting)} could all be the value; choose one: {options}"
        )
    known = {name for found in matching.values() for name in found}
    unknown = [name for name in names if name and name not in known]
    values = [name for name in unknown if words_of(name) in _VALUES] or unknown
    which = values[0] if len(values) == 1 else "COLUMN"
    raise ValueError(
        f"{_of_jobs(names)}exactly one of the columns {', '.join(MEASURES)} is needed; there is "
        f"none ({_there_are(names)}); {_say(which)}"
    )


def _of_jobs(names: Sequence[str]) -> str:
    """What is said of columns of jobs, as `sacct` writes them; "" of any others."""
    known = {name.strip().lower(): name for name in names}
    if not {"jobid", "elapsed"} <= known.keys():
        return ""
    start = known.get("start") or known.get("end") or "Start"
    return _OF_JOBS.format(start, known.get("elapsedraw") or known["elapsed"])


def _say(column: str) -> str:
    """How to say what a column holds."""
    shown = _quoted(column)
    return (
        f"choose one with --column rate={shown} (larger is better) or --column step_seconds={shown} (smaller is "
        "better), or score or counter instead of these"
    )


def _quoted(column: str) -> str:
    """A column as a shell takes it."""
    return quote(column) if " " in column else column


def _measure_of(metric: str | None, column: str, value: str) -> str:
    """What the values of a metric are, by its name."""
    if metric is None:
        raise MetricOpenError(column, value)
    fitting = measures_of(metric) or ["counter"] * words_of(metric).endswith(" total")
    if len(fitting) != 1:
        raise ValueError(f"what the metric {metric!r} means is not certain; {_say(value)}")
    return fitting[0]


def _is_cell(text: str) -> bool:
    """Whether a name of a column is a number, or a time of ISO 8601."""
    try:
        return isfinite(float(text))
    except ValueError:
        return bool(_CALENDAR.match(text))


def _found(names: Sequence[str]) -> str:
    return f"there are {' and '.join(names)}"


def _there_are(names: Sequence[str]) -> str:
    return f"there are: {', '.join(names)[:200]}"
