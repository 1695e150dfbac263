"""Finds the columns of a history by their names: what they hold, and in which unit. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from shlex import quote
from typing import Final

from ingero_analyze.audit.columns import SECONDS, split_unit, words_of
from ingero_analyze.replay.work_names import columns_of_work
from ingero_fleet.recording import PARTS, RECORDED

MEASURES: Final = ("score", "rate", "step_seconds", "counter")
"""What a value can be; a history has exactly one of them."""

LABELS: Final = (*PARTS, "cohort")
"""What the nodes of a cohort share. Several columns may hold one of these."""

FILE: Final = "file"
"""Stands for the column of the node where each file is one."""

ROLES: Final = ("time", "node", *MEASURES, "cluster", "rack", "gpu", "state", "metric", *LABELS)
WORK: Final = "work"
"""The role of the work of a row whose time is judged, which is known by its name only beside such a time."""

_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "time": (
        "time", "timestamp", "time stamp", "ts", "datetime", "date time", "unix time", "epoch time", "wall time",
        "event time", "eventtime", "sample time", "created at", "timestamp utc", "time utc", "utc time", "zeit",
        "zeitstempel", "zeitpunkt", "epoch s", "epoch seconds", "epoch ms", "epoch us", "epoch ns",
        "time unix nano", "query time", "time generated",
    ),
    "node": (
        "node", "node id", "node name", "nodename", "host", "hostname", "host name", "server", "machine", "instance",
        "instance id", "kubernetes node", "k8s node", "k8s node name", "machine id", "vm", "vm name", "knoten",
        "knotenname", "rechner", "rechnername", "computer",
    ),
    "score": ("score", "health score", "node health score"),
    "rate": (
        "rate", "throughput", "goodput", "mfu", "hfu", "tgs", "qps", "rps", "tps", "wps", "fps", "durchsatz", "speed",
        "training speed", "performance", "perf", "efficiency", "throughput tokens", "throughput samples",
        "model flops utilization", "model flops utilisation", "tput",
    ),
    "step_seconds": (
        "step seconds", "time per step", "time per iteration", "time per batch", "elapsed time per iteration",
        "schrittzeit", "schrittdauer", "iterationszeit", "duration", "latency",
        "request latency", "inference latency",
    ),
    "counter": (),
    "cluster": ("cluster", "cluster id", "cluster name", "k8s cluster", "k8s cluster name"),
    "rack": ("rack", "rack id", "rack name", "cabinet", "cabinet id", "chassis", "chassis id", "enclosure"),
    "gpu": (
        "gpu", "gpu id", "gpu index", "gpu uuid", "device", "device id", "device index", "accelerator", "local rank",
        "rank", "global rank",
    ),
    "state": ("state",),
    "metric": ("metric", "metric name", "measurement", "field", "key", "tag", "variable", "counter name"),
    "workload_type": ("workload type", "workload", "workload name", "job type"),
    "job_id": ("job id", "job", "jobid", "job name", "slurm job id", "slurm jobid", "slurm job"),
    "gpu_model": (
        "gpu model", "gpu name", "gpu type", "gpu product", "model", "model name", "gpu model name",
        "accelerator type",
    ),
    "stage": ("stage", "stage id", "pipeline stage", "pp stage"),
    "cgroup_path_hash": ("cgroup path hash",),
    "measure": ("measure",),
    "cohort": ("cohort",),
}  # fmt: skip
"""Names of columns in lower case, words separated by one space. A unit may follow that of a time or a value."""

_LATER_NODES: Final = (
    ("pod", "pod name", "k8s pod name", "kubernetes pod name"),
    ("worker", "worker id", "replica", "replica id", "process", "process id"),
    ("agent", "agent id", "node ip", "host ip", "ip", "ip address", "nodelist", "node list"),
    ("run", "trial"),
    ("run id", "run uuid", "trial id"),
    ("run name",),
    ("uuid",),
    ("series", "legend"),
    ("label", "name"),
)
"""Names of what is judged where there is no node, in order."""

_SCRAPED: Final = "instance"
"""Name of the address that Prometheus asks, which is an exporter's where another column is the host."""

_RELATIVE: Final = (
    "runtime", "relative time", "relative", "elapsed time", "elapsed", "relative time process", "relative time wall",
    "t",
)  # fmt: skip
"""Names of times since a start, where there is no other time."""

_DATES: Final = ("date", "day", "calendar date", "datum")
"""Names of dates, beside a column of times of day."""

_DATES_WITH_TIMES: Final = (*_DATES, "start time", "started at")
"""Names of times where there is nothing else."""

_INDEX: Final = re.compile(r"|index|unnamed: 0|__index_level_\d+__", re.IGNORECASE)
"""Names of the index of a table of pandas, which are times where there are no others."""

_STEP_NUMBERS: Final = (
    "step", "steps", "step number", "global step", "train step", "training step", "train global step",
    "trainer global step", "iteration", "iter", "iteration number", "tick", "tick number",
)  # fmt: skip
"""Names of numbers of steps, which are the time where there is no time."""

_QUERIED: Final = re.compile(r"(?:utilization|clocks|power|temperature|memory|ecc|fan|pcie)\.[a-z]")
_SMI: Final = {"gpu": "index", "gpu_model": "name"}
"""Columns of `nvidia-smi --query-gpu`, and what two of them are."""

_VALUES: Final = ("value", "values", "metric value", "counter value", "as double", "as int")
"""Names of the column of the values of all metrics; a point of OTLP has one of the last two."""

_POINTS: Final = ("as double", "as int")
_NAME: Final = "name"
"""Values of OTLP, and the name of the column of their metrics beside one of these."""

_UNITS: Final = {name: seconds for name, seconds in SECONDS.items() if name != "min"}
"""Seconds of a unit; `min` is as often a minimum."""

_LONG: Final = {
    "min": 60.0, "mins": 60.0, "minute": 60.0, "minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hrs": 3600.0,
    "hour": 3600.0, "hours": 3600.0,
}  # fmt: skip
"""Seconds of units in the names of times since a start: time_min, t_hours, hours."""

_WORK: Final = (
    r"(?:tokens?|toks?|samples?|images?|imgs?|words?|steps?|iterations?|iters?|its?|sequences?|seqs?|examples?|batch|batches|"
    r"requests?|queries|frames|items|records|(?:cuda )?(?:ops?|operations?)|(?:kernel )?launch(?:es)?|kernels?|work)"
)
_PARTS: Final = r"per (?:gpu|device|chip|node|replica)"
_COUNTED: Final = r"(?:tok|toks|tokens|samples|images|imgs|words|sequences|seqs|examples|requests|queries)"
"""Work that is counted in a second where this follows its name, as in tokens_s; step_s is the time of a step."""

_RELATIVE_RATE: Final = re.compile(
    rf"(?:(?:normali[sz]ed|norm|relative|rel) )?(?:{_WORK} )?(?:throughput|speed|performance|perf)"
    r"|(?:compute|scaling) efficiency"
)
_PER_SECOND: Final = re.compile(
    rf"(?:(?:train(?:ing)?|generation|decode|output|curr(?:ent)?) )?(?:throughput|{_WORK} rate"
    rf"|(?:throughput )?(?:{_COUNTED} (?:s|sec)|{_WORK}(?: {_PARTS})? per (?:s|secs?|seconds?))"
    rf"|(?:(?:gemm|matmul|model|hpl) )?[kmgtp]?flops?(?: (?:per )?s| per second)?)(?: {_PARTS})?"
)
_TOTAL: Final = re.compile(rf"{_COUNTED} (?:processed |generated |consumed )?total")
"""Names of counts that only rise."""

_PER_STEP: Final = re.compile(r"(\w+) per (?:step|it|iter|iteration|batch)")
_SLASH: Final = re.compile(
    r"\s*/\s*(?=(?:s|secs?|seconds?|it|iter|iteration|step|batch|gpu|device|chip|node|replica)\b)", re.IGNORECASE
)

_STEP_TIME: Final = re.compile(
    r"(?:step|iter(?:ation)?|(?:(?:mini|micro) ?)?batch|(?:train )?loop|epoch|kernel|gpu(?: compute)?|gemm|matmul"
    r"|(?:fwd|forward) (?:bwd|backward)) "
    r"(?:time|duration|dur|latency)|(?:step|iter|batch)time"
)
"""Names of times of as much work as there is in every step."""

_STATISTIC: Final = re.compile(
    r"(?<![a-z0-9])(?:(p50|median|med)|(mean|avg|average)|(p9[059]|p999)|achieved|observed|measured|actual)"
    r"(?![a-z0-9])[ _.-]*",
    re.IGNORECASE,
)
"""What the name of a value may have beside it, where the value is the usual one."""

_NAMESPACED: Final = ("rate", "step_seconds")
"""What may stand behind the name of a group, as trackers of experiments write it: train/step_time."""

_STEPS: Final = (
    "step", "iteration", "iter", "batch", "total", "duration", "forward backward", "fwd bwd", "time this iter",
)  # fmt: skip
"""What a time is that of a step, where its name has a unit."""

_NESTED: Final = ("time", "node", *MEASURES, "cluster", "rack", "gpu", *LABELS)
"""What may be known by the part of its name behind a point."""

_COMPUTE_TIMES: Final = (
    "compute time", "computation time", "compute duration", "computation duration", "rechenzeit", "forward time",
    "forward pass time", "fwd time",
)  # fmt: skip
"""Names of times of a step without what it waits for others: in a synchronised job they alone tell who is slow."""

_LATENCIES: Final = ("latency", "request latency", "inference latency")
"""What a time is one of work, where its name has a unit, that may be of anything: other values come before it."""

_PASSES: Final = ("compute", "gpu compute", "forward", "forward pass", "fwd")
"""What a time is one of computing alone, where its name has a unit: the backward pass meets the other ranks."""

_COLLECTIVE: Final = r"(?:[nr]ccl )?(?:all ?(?:reduce|gather)|reduce ?scatter|all ?to ?all|broadcast)|[nr]ccl"
_BANDWIDTH: Final = re.compile(
    rf"(?:(?:{_COLLECTIVE}) (?:bw|algo?bw|busbw|(?:bus |algorithm )?bandwidth)"
    r"|busbw|algbw|bus bw|(?:bus |algorithm )?bandwidth)(?: [kmgt]?i?b (?:per )?s| [kmgt]bps)?"
)
_USE: Final = re.compile(
    rf"(?:mfu|hfu|(?:compute |scaling )?efficiency|model flops utili[sz]ation|[kmgtp]?flops?.*|{_BANDWIDTH.pattern})"
)
_CLOCK: Final = re.compile(
    r"(?:dcgm fi dev )?(?:(?:sm|gpu|graphics|core) clocks?|clocks? (?:current )?(?:sm|gr|graphics)|pclk)(?: mhz)?"
)
_POWER: Final = re.compile(
    r"(?:dcgm fi dev )?(?:(?:gpu(?: \d+)?|board|chip|socket|package|average|total) )*power"
    r"(?: (?:draw|usage|consumption|average|instant))*(?: (?:w|watts?|kw|mw|milliwatts))?"
)
_TENSOR: Final = re.compile(r"(?:dcgm fi prof )?(?:pipe )?tensor(?: core)? (?:active|activity)")
_SM: Final = re.compile(r"(?:dcgm fi prof )?sm (?:active|activity)")
_ENGINE: Final = re.compile(r"(?:dcgm fi prof )?(?:gr|graphics) engine (?:active|activity)")
_UTILISATION: Final = re.compile(
    r"(?:(?:dcgm fi dev|nvidia smi) )?(?:gpu(?: \d+)? ?)?(?:util|utili[sz]ation)(?: gpu)?"
    r"(?: (?:percent|pct|percentage))?|sm(?: (?:percent|pct))?"
    r"|(?:accelerator )?duty cycle"
)
_CYCLES: Final = (_TENSOR, _SM, _ENGINE, _UTILISATION)
"""Names of shares of the cycles or the time of a chip in which it works. The first says most about work: cores that
only wait for other ranks keep the others busy."""

_HARDWARE: Final = (*_CYCLES, _POWER, _CLOCK)
"""Names of rates that say less about work than others, in order: a clock runs as fast for a GPU that does nothing."""

_LABELLED: Final = re.compile(r'\{.*(?:="|\w:\S)')
"""What names of series have, of which several in one table are nodes: rate{instance="n1"}, avg:rate{host:n1}."""

_PER_NODE: Final = re.compile(
    r"[ _-](?:(?:by|per|of)[ _-](?:node|host|rank|gpu|worker)s?|wide|matrix|pivot(?:ed)?|history)$", re.IGNORECASE
)
"""What the name of a table says of its columns, behind what they hold."""

_SEVERAL: Final = re.compile(r"(?:(?<=time)|(?<=rate)|(?<=duration))s$", re.IGNORECASE)

_CALENDAR: Final = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}")
_MOMENT: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}|\d{10}")
_SHARE: Final = re.compile(r".*\b(?:util|utili[sz]ation|percent|pct|percentage)\b.*")


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
    known = any(_is(role, name) for role in ROLES for name in names) or bool(_later_times(names))
    if not taken and not known and any(map(_is_cell, names)):
        raise ValueError(
            f"the first line holds values, no names of columns ({', '.join(names)[:200]}): add such a "
            "line, as `time,node,rate` is (larger is better), or `time,node,step_seconds` (smaller is better)"
        )
    matching = {role: [name for name in free if name == role or (not recorded and _is(role, name))] for role in ROLES}
    if "metric" in chosen:
        matching["metric"] = list(chosen["metric"])
    elif "__name__" in free:
        matching["metric"] = ["__name__"]
    elif any(words_of(name) in _POINTS for name in free):
        matching["metric"] = matching["metric"] or [name for name in free if words_of(name) == _NAME]
    if not recorded:
        for role, name in _of_nvidia_smi(names).items():
            matching[role] = matching[role] or [name]
        for role, name in _nested(free, matching).items():
            matching[role] = [name]
        matching["time"] = matching["time"] or _later_times(free)
        hosts = [name for name in matching["node"] if words_of(name) != _SCRAPED]
        others = [name for name in free if name not in (*matching["metric"], *matching["gpu_model"])]
        matching["node"] = hosts or matching["node"] or _later_nodes(others, matching["gpu"])
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
        "time", names, [name for name in names if name == "time" or _is("time", name)] or _later_times(names)
    )


def is_index(name: str) -> bool:
    """Whether a column is the index of a table, which may hold times or the numbers of its rows."""
    return bool(_INDEX.fullmatch(name.strip()))


def is_node(name: str) -> bool:
    """Whether a column has the name of a node."""
    return _is("node", name)


def says_value(name: str) -> bool:
    """Whether the name of a column says what a value is, or which metric those of another column are of."""
    return any(name == role or _is(role, name) for role in (*MEASURES, "metric")) or name == "__name__"


def is_gpu(name: str) -> bool:
    """Whether a column has the name of a GPU or rank."""
    return _is("gpu", name)


def is_gpu_of_host(name: str) -> bool:
    """Whether a column has the name of the number of a GPU in its host, and not that of a rank of a job."""
    words = words_of(name)
    return words == _SMI["gpu"] or (_is("gpu", name) and words not in ("rank", "global rank"))


def date_of(names: Sequence[str], time: str) -> list[str]:
    """The column of dates, if there is one besides the time."""
    return [name for name in names if name != time and words_of(name) in _DATES][:1]


def time_column(name: str) -> tuple[float | None, bool]:
    """How many units of a time are a second, if its name says so, and whether it is a number of steps."""
    if long := _long_unit(name):
        return 1 / long, False
    unit = unit_of(name)
    return unit and float(round(1 / unit)), words_of(name) in _STEP_NUMBERS


def _long_unit(name: str) -> float | None:
    """Seconds of the minute or hour in the name of a time since a start; `None` for any other name."""
    head, _, unit = words_of(name).rpartition(" ")
    return _LONG.get(unit) if head in ("", "time", *_RELATIVE) and (head or unit.endswith("s")) else None


def _of_nvidia_smi(names: Sequence[str]) -> dict[str, str]:
    """Columns of the number and the model of a GPU, whose names say that only beside others of `nvidia-smi`."""
    if not any(_QUERIED.match(name.strip()) for name in names):
        return {}
    return {role: name for name in names for role, known in _SMI.items() if words_of(name) == known}


def _nested(names: Sequence[str], matching: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Columns by role whose name is known behind a point, as of an object within an object of JSON, where a single
    one is, and none by its whole name. Of all measures a single one."""
    if any(_QUERIED.match(name.strip()) for name in names):
        return {}
    taken = {name for found in matching.values() for name in found}
    found = {
        role: [
            name for name in names if name not in taken
            and any(_is(role, name[point.end() :]) for point in re.finditer(r"\.", name))
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


def _later_times(names: Sequence[str]) -> list[str]:
    """What stands for the time where there is none: a time since a start, else a number of steps, else a date, else
    the index."""
    kinds = (_RELATIVE, _STEP_NUMBERS, _DATES_WITH_TIMES)
    found = [[name for name in names if _head(name) in known] for known in kinds]
    found[0] += [name for name in names if name not in found[0] and _long_unit(name)]
    queried = any(_QUERIED.match(name.strip()) for name in names)
    return next(filter(None, found), [name for name in names if is_index(name) and not queried][:1])


def _later_nodes(names: Sequence[str], gpus: Sequence[str]) -> list[str]:
    """What stands for the node where there is none: a pod, worker or run, else a GPU or rank."""
    ways = (words_of, lambda name: words_of(_leaf(name)))
    found = ([name for name in names if way(name) in known] for way in ways for known in _LATER_NODES)
    return next(filter(None, (*found, list(gpus))), [])


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
    if any(_QUERIED.match(name.strip()) for name in names):
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
        return {fitting[0][0]: (fitting[0][1], *_clock_of(fitting[0][1], matching["rate"]))}
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


def _clock_of(name: str, rates: Sequence[str]) -> list[str]:
    """The clock beside a share of the cycles of a chip: both together are how much it does."""
    clocks = [one for one in rates if _matches((_CLOCK,), one)]
    return clocks[:1] if _matches(_CYCLES, name) else []


def _matches(kinds: Sequence[re.Pattern[str]], name: str) -> bool:
    """Whether a name, also without its unit, is one of these."""
    texts = words_of(_usual(name)), split_unit(_usual(name))[0]
    return any(kind.fullmatch(text) for kind in kinds for text in texts)


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
    fitting = _measures_of(metric) or ["counter"] * words_of(metric).endswith(" total")
    if len(fitting) != 1:
        raise ValueError(f"what the metric {metric!r} means is not certain; {_say(value)}")
    return fitting[0]


def metrics_with_meaning(metrics: Iterable[str]) -> list[str]:
    """Those of some metrics whose names say what their values are."""
    known = [(role, metric) for metric in metrics for role in _measures_of(metric)]
    return [metric for _, metric in preferred(known)]


def preferred(fitting: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of roles and names of values the one that says most about the work of a node: the time of computing before a
    rate, the time of a step, the use of a chip, a score, its clock. Several where only their groups differ."""
    if not fitting:
        return []
    role, name = min(fitting, key=lambda one: (_preference(*one), _statistic(one[1])))
    return [one for one in fitting if one == (role, name) or (one[0] == role and _leaf(one[1]) == _leaf(name))]


def _preference(role: str, name: str) -> int:
    """How much a value says about the work of a node: the least says most."""
    name = _usual(name)
    texts = [split_unit(text)[0] for text in (name, _leaf(name))]
    if role == "step_seconds":
        head = _head(_leaf(name))
        return 0 if head in (*_COMPUTE_TIMES, *_PASSES) else 4 if head in (*_LATENCIES, *_UNITS) else 2
    if role == "rate":
        kinds = {3: _USE, **dict(enumerate(_HARDWARE, 5))}
        return next((rank for rank, kind in kinds.items() if any(map(kind.fullmatch, texts))), 1)
    return 4


def _statistic(name: str) -> int:
    """Which of several columns of the same comes first: without statistic, the median, the mean."""
    found = _STATISTIC.search(name)
    return found.lastindex or 0 if found else 0


def is_level(name: str) -> bool:
    """Whether values with this name are clocks or shares: whole ones are rounded, and no numbers of events."""
    name = _usual(name)
    text, leaf = words_of(name), words_of(_leaf(name))
    kinds = (*_HARDWARE, _USE, _SHARE)
    return any(kind.fullmatch(one) for kind in kinds for one in (text, leaf, split_unit(name)[0]))


def _leaf(name: str) -> str:
    """A name without its group."""
    return re.split(r"[/.](?=[a-zA-Z])", _SLASH.sub(" per ", name))[-1]


def _usual(name: str) -> str:
    """A name without the word that says that its value is the usual one."""
    return _STATISTIC.sub("", name).strip(" _.-")


def _measures_of(metric: str) -> list[str]:
    """What a metric is by its name, or by that without its groups: `dcgm.sm_active`."""
    names = (metric, _leaf(metric))
    return next(filter(None, ([role for role in MEASURES if _is(role, name)] for name in names)), [])


def measure_named(text: str) -> str | None:
    """What values with this name, or several of them, are; `None` if that is not certain."""
    names = (text, _SEVERAL.sub("", _PER_NODE.sub("", text)))
    found = next(filter(None, map(_measures_of, names)), [])
    return found[0] if len(found) == 1 else None


def _is(role: str, name: str) -> bool:
    """Whether a column with this name has the role."""
    percentile = _statistic(name) > 0
    name = _SLASH.sub(" per ", _usual(name) if role in _NAMESPACED else name)
    whole = words_of(name).removeprefix("ingero ").replace(" pro sekunde", " per second")
    head, unit = split_unit(name)
    known = _NAMES[role]
    if whole in known or ("/" in name and role in _NAMESPACED and _is(role, name.rpartition("/")[2])):
        return True
    if role == "time":
        return head in known and unit in (*_UNITS, "utc")
    if role == "rate":
        patterns = (_PER_SECOND, _RELATIVE_RATE, *_HARDWARE, _BANDWIDTH)
        return head in known or any(pattern.fullmatch(text) for pattern in patterns for text in (whole, head))
    if role == "counter":
        of_steps = name.lower().endswith("_count") and _is("step_seconds", name[: -len("_count")])
        return bool(_TOTAL.fullmatch(whole)) or (of_steps and _preference("step_seconds", name[: -len("_count")]) < 4)
    if role == "step_seconds":
        whole, head = (re.sub("^train(?:ing)? ", "", text) for text in (whole, head))
        per_step = _PER_STEP.fullmatch(whole)
        return (
            whole in known
            or head in _COMPUTE_TIMES
            or bool(_STEP_TIME.fullmatch(whole) or _STEP_TIME.fullmatch(head))
            or (head in (*known, *_STEPS, *_PASSES, *_LATENCIES) and unit in _UNITS)
            or bool(per_step and per_step.group(1) in _UNITS)
            or (percentile and whole in _UNITS)
        )
    return False


def unit_of(name: str) -> float | None:
    """Seconds of the unit in a name, or of a unit; `None` if there is none."""
    name = _SLASH.sub(" per ", _usual(name))
    per_step = _PER_STEP.fullmatch(words_of(name))
    unit = split_unit(name)[1] or (per_step.group(1) if per_step else words_of(name))
    return _UNITS.get(unit)


def _head(name: str) -> str:
    """The words of a name without a unit of time."""
    head, unit = split_unit(name)
    return head if unit in _UNITS else words_of(name)


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
