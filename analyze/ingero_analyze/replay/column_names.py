"""What the name of a column says: what it holds, in which unit, and how much of the work of a node. Pure."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from ingero_analyze.audit.columns import SECONDS, split_unit, words_of
from ingero_fleet.recording import PARTS

MEASURES: Final = ("score", "rate", "step_seconds", "counter")
"""What a value can be; a history has exactly one of them."""

LABELS: Final = (*PARTS, "cohort")
"""What the nodes of a cohort share. Several columns may hold one of these."""

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

_PER_NODE: Final = re.compile(
    r"[ _-](?:(?:by|per|of)[ _-](?:node|host|rank|gpu|worker)s?|wide|matrix|pivot(?:ed)?|history)$", re.IGNORECASE
)
"""What the name of a table says of its columns, behind what they hold."""

_SEVERAL: Final = re.compile(r"(?:(?<=time)|(?<=rate)|(?<=duration))s$", re.IGNORECASE)
_SHARE: Final = re.compile(r".*\b(?:util|utili[sz]ation|percent|pct|percentage)\b.*")


def is_index(name: str) -> bool:
    """Whether a column is the index of a table, which may hold times or the numbers of its rows."""
    return bool(_INDEX.fullmatch(name.strip()))


def is_node(name: str) -> bool:
    """Whether a column has the name of a node."""
    return is_named("node", name)


def says_value(name: str) -> bool:
    """Whether the name of a column says what a value is, or which metric those of another column are of."""
    return any(name == role or is_named(role, name) for role in (*MEASURES, "metric")) or name == "__name__"


def is_gpu(name: str) -> bool:
    """Whether a column has the name of a GPU or rank."""
    return is_named("gpu", name)


def is_gpu_of_host(name: str) -> bool:
    """Whether a column has the name of the number of a GPU in its host, and not that of a rank of a job."""
    words = words_of(name)
    return words == _SMI["gpu"] or (is_named("gpu", name) and words not in ("rank", "global rank"))


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


def are_queried(names: Sequence[str]) -> bool:
    """Whether columns are those of `nvidia-smi --query-gpu`."""
    return any(_QUERIED.match(name.strip()) for name in names)


def of_nvidia_smi(names: Sequence[str]) -> dict[str, str]:
    """Columns of the number and the model of a GPU, whose names say that only beside others of `nvidia-smi`."""
    if not are_queried(names):
        return {}
    return {role: name for name in names for role, known in _SMI.items() if words_of(name) == known}


def later_times(names: Sequence[str]) -> list[str]:
    """What stands for the time where there is none: a time since a start, else a number of steps, else a date, else
    the index."""
    kinds = (_RELATIVE, _STEP_NUMBERS, _DATES_WITH_TIMES)
    found = [[name for name in names if _head(name) in known] for known in kinds]
    found[0] += [name for name in names if name not in found[0] and _long_unit(name)]
    index = [] if are_queried(names) else [name for name in names if is_index(name)]
    return next(filter(None, found), index[:1])


def later_nodes(names: Sequence[str], gpus: Sequence[str]) -> list[str]:
    """What stands for the node where there is none: a pod, worker or run, else a GPU or rank."""
    ways = (words_of, lambda name: words_of(leaf_of(name)))
    found = ([name for name in names if way(name) in known] for way in ways for known in _LATER_NODES)
    return next(filter(None, (*found, list(gpus))), [])


def clock_beside(name: str, rates: Sequence[str]) -> list[str]:
    """The clock beside a share of the cycles of a chip: both together are how much it does."""
    clocks = [one for one in rates if _matches((_CLOCK,), one)]
    return clocks[:1] if _matches(_CYCLES, name) else []


def _matches(kinds: Sequence[re.Pattern[str]], name: str) -> bool:
    """Whether a name, also without its unit, is one of these."""
    texts = words_of(_usual(name)), split_unit(_usual(name))[0]
    return any(kind.fullmatch(text) for kind in kinds for text in texts)


def metrics_with_meaning(metrics: Iterable[str]) -> list[str]:
    """Those of some metrics whose names say what their values are."""
    known = [(role, metric) for metric in metrics for role in measures_of(metric)]
    return [metric for _, metric in preferred(known)]


def preferred(fitting: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Of roles and names of values the one that says most about the work of a node: the time of computing before a
    rate, the time of a step, the use of a chip, a score, its clock. Several where only their groups differ."""
    if not fitting:
        return []
    role, name = min(fitting, key=lambda one: (_preference(*one), _statistic(one[1])))
    return [one for one in fitting if one == (role, name) or (one[0] == role and leaf_of(one[1]) == leaf_of(name))]


def _preference(role: str, name: str) -> int:
    """How much a value says about the work of a node: the least says most."""
    name = _usual(name)
    texts = [split_unit(text)[0] for text in (name, leaf_of(name))]
    if role == "step_seconds":
        head = _head(leaf_of(name))
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
    text, leaf = words_of(name), words_of(leaf_of(name))
    kinds = (*_HARDWARE, _USE, _SHARE)
    return any(kind.fullmatch(one) for kind in kinds for one in (text, leaf, split_unit(name)[0]))


def leaf_of(name: str) -> str:
    """A name without its group."""
    return re.split(r"[/.](?=[a-zA-Z])", _SLASH.sub(" per ", name))[-1]


def _usual(name: str) -> str:
    """A name without the word that says that its value is the usual one."""
    return _STATISTIC.sub("", name).strip(" _.-")


def measures_of(metric: str) -> list[str]:
    """What a metric is by its name, or by that without its groups: `dcgm.sm_active`."""
    names = (metric, leaf_of(metric))
    return next(filter(None, ([role for role in MEASURES if is_named(role, name)] for name in names)), [])


def measure_named(text: str) -> str | None:
    """What values with this name, or several of them, are; `None` if that is not certain."""
    names = (text, _SEVERAL.sub("", _PER_NODE.sub("", text)))
    found = next(filter(None, map(measures_of, names)), [])
    return found[0] if len(found) == 1 else None


def is_named(role: str, name: str) -> bool:
    """Whether a column with this name has the role."""
    percentile = _statistic(name) > 0
    name = _SLASH.sub(" per ", _usual(name) if role in _NAMESPACED else name)
    whole = words_of(name).removeprefix("ingero ").replace(" pro sekunde", " per second")
    head, unit = split_unit(name)
    known = _NAMES[role]
    if whole in known or ("/" in name and role in _NAMESPACED and is_named(role, name.rpartition("/")[2])):
        return True
    if role == "time":
        return head in known and unit in (*_UNITS, "utc")
    if role == "rate":
        patterns = (_PER_SECOND, _RELATIVE_RATE, *_HARDWARE, _BANDWIDTH)
        return head in known or any(pattern.fullmatch(text) for pattern in patterns for text in (whole, head))
    if role == "counter":
        of_steps = name.lower().endswith("_count") and is_named("step_seconds", name[: -len("_count")])
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
