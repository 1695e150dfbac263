"""Recognises columns of results by their names: what they hold, their unit, which direction is better. Pure."""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Final

CHIP_NAMES: Final = (
    "gpu uuid", "uuid", "gpu serial", "serial", "serial number", "gpu serial number", "device uuid", "chip uuid",
)  # fmt: skip
"""Names of columns that tell a GPU from all others; beside one of them, a number of the GPU is its place."""

RACKS: Final = ("rack", "rack id", "cabinet", "chassis", "row", "enclosure", "cell", "scalable unit", "su")
"""Names of columns that tell where a node stands."""

ROLES: Final[dict[str, tuple[str, ...]]] = {
    "gpu": (
        "gpu", "gpu id", "gpuid", *CHIP_NAMES, "chip", "chip id",
        "device", "device id", "gpu index", "gpu number", "card", "accelerator", "local rank", "gcd",
        "node gpu", "host gpu", "slurm localid",
    ),
    "part": (
        "gcd", "gcd id", "gcd index", "tile", "tile id", "die", "die id", "mig", "mig id", "mig instance", "gi id",
    ),
    "node": (
        "node", "node id", "node name", "nodename", "host", "hostname", "host name", "server", "machine",
        "instance", "instance id", "kubernetes node", "node ip", "host ip", "ip", "ip address",
        "node rank", "node index", "node number", "slurmd nodename",
        "xname",
    ),
    "group": (
        *RACKS[:3], "group", *RACKS[3:], "pod", "zone", "switch", "location",
    ),
    "cluster": (
        "cluster", "cluster name", "cluster id", "system", "site", "datacenter", "data center", "dc", "region",
        "partition", "machine",
    ),
    "value": (
        "value", "result", "score", "perf", "performance", "gflops", "tflops", "flops", "gflop s", "tflop s",
        "throughput", "bandwidth", "rate", "samples s", "samples per second", "tokens per second", "tokens s",
        "iterations per second", "busbw", "algbw", "gb s", "runtime", "run time", "kernel time", "kernel duration",
        "duration", "latency", "elapsed", "elapsed time", "time ms", "execution time", "exec time", "step time",
        "step seconds", "step duration", "iteration time", "iteration duration", "iter time", "iter duration",
        "iter dur", "step dur", "kernel dur", "dur", "kernel runtime", "wall time", "seconds", "median time",
        "mean time", "avg time", "average time", "slowdown",
        "bw", "bus bandwidth", "fom", "figure of merit", "mfu", "teps", "mteps", "gteps", "ns day", "steps hour",
        "efficiency",
        "normalized perf", "normalized performance", "relative perf", "rel perf", "relative performance",
    ),
    "run": (
        "run", "run id", "run number", "iteration", "iter", "trial", "job", "job id", "repetition", "rep", "reps",
        "repeat", "attempt", "experiment", "sample", "step", "global step", "training step", "train step",
        "slurm job id", "slurm jobid", "epoch",
    ),
    "time": ("timestamp", "ts", "date", "datetime", "start time", "started", "when", "day", "epoch"),
    "clock": (
        *(
            f"{of}{clock}"
            for of in ("", "sm ", "gpu ", "core ", "graphics ", "gfx ", "shader ")
            for clock in ("clock", "clk", "freq", "frequency", "clock speed", "gfxclk")
        ),
        "current gfxclk",
        "clocks sm", "clocks current sm", "clocks gr", "clocks current graphics", "sclk", "gfxclk",
    ),
    "power": (
        *(
            f"{of}{power}"
            for of in ("", "gpu ", "board ", "socket ", "chip ", "device ", "package ", "graphics package ")
            for power in ("power", "power draw", "power usage", "power consumption", "pwr")
        ),
        "watts",
    ),
    "temperature": (
        *(
            f"{of}{temperature}"
            for of in ("", "gpu ", "core ", "chip ", "die ", "junction ", "hotspot ", "hot spot ", "edge ")
            for temperature in ("temperature", "temp", "tmp")
        ),
        "temperature gpu", "temp gpu", "temperature hotspot", "temperature junction", "temperature edge", "celsius",
    ),
    "model": ("model", "gpu model", "gpu name", "gpu type", "product", "product name", "sku", "name", "device name"),
    "benchmark": (
        "benchmark", "bench", "test", "workload", "kernel", "app", "application", "metric", "program", "case",
        "benchmark name", "bench name", "test name", "testname", "test case", "testcase", "kernel name",
        "metric name",
    ),
    "unit": ("unit", "units"),
    "status": (
        "status", "state", "outcome", "verdict", "test status", "test result", "pass", "passed", "pass fail",
        "exit status", "job status", "job state",
    ),
    "direction": ("direction", "better", "higher is better", "lower is better"),
}  # fmt: skip
"""Names of columns by what they hold, in lower case, words separated by one space."""

IDENTIFIED: Final = ("job", "job id", "run id", "experiment", "slurm job id", "slurm jobid")
"""Names of runs that are numbered once for all, and do not count from 1 again on another day."""

MEASURED_ROLES: Final = ("value", "clock", "power", "temperature")
"""Roles whose names may have a statistic at the start or the end: `med_freq`, `power_avg`."""

STATISTICS: Final = (
    "median", "med", "p50", "mean", "avg", "average", "max", "maximum", "peak", "min", "minimum", "p90", "p95", "p99",
)  # fmt: skip
"""Of several statistics of the same, the first one here is used."""

PLACES: Final = (
    "gpu", "gpu id", "gpuid", "gpu index", "gpu number", "device", "device id", "card", "local rank", "gcd", "slot",
    "gpu slot", "pci bus id", "bus id", "rank", "global rank", "process rank",
)  # fmt: skip
"""Names of the place of a GPU in its node, where another column names the GPU."""

HOST_WORDS: Final = (" hostname", " host name", " nodename", " node name", " node id", " nodeid")
"""Ends of the name of the only column of hosts, such as `system.hostname`, where no other is known."""

RANKS: Final = ("rank", "global rank", "process rank")
"""Names of the number of a process in its job, which is that of its GPU where no other column names one."""

NO_VALUES: Final = re.compile(
    r"\b(?:timestamp|start|started|end|ended|uptime|epoch|created|age|date|timeout|when|"
    r"std|stddev|stdev|sd|variance|var|cv|stderr)\b"
)
"""Times that are no results, and how much these scatter."""

CENTRES: Final = STATISTICS[:6]
"""Statistics of what is usual: of several columns of times that are called by nothing else, the first of them."""

SUMMARIES: Final = frozenset((*STATISTICS, "total", "sum", "std", "stdev", "stddev", "overall", "all"))
"""What stands in place of a GPU or node in a row about all of them."""

_SIZED: Final = re.compile(r"(.+?) (?:[kmg]?i?b|bytes)")
_NUMBER_OF_GPU: Final = re.compile(
    r"(?:gpu|gcd|cuda|hip|device|dev|card|accelerator)[ :_#-]*(\d{1,3})", re.IGNORECASE
)


PARAMETERS: Final = frozenset(
    (
        "size", "message size", "msg size", "data size", "buffer size", "problem size", "matrix size", "block size",
        "bytes", "size bytes", "batch size", "micro batch size", "global batch size", "seq len", "seqlen",
        "sequence length", "context length", "shape", "dim", "dims", "dimension", "dimensions", "mnk", "dtype",
        "data type", "datatype", "precision", "op", "operation", "collective", "redop", "algorithm", "algo",
        "protocol", "parameters", "params", "config", "configuration", "mode", "power cap", "power limit", "cap",
        "power mode", "tdp", "clock limit", "clock cap", "frequency limit", "frequency cap", "locked clock",
        "hca", "hca id", "rail", "ib device", "ib dev",
    )
)  # fmt: skip
"""Names of columns whose values are parameters of the benchmark, such as the adapter that is measured."""

ONE: Final = "step|iter|iteration|it|batch|token|sample|image|call"
"""What the time of one is told of."""

OF_TIME: Final = re.compile(r"\b(?:time|duration|dur|latency|elapsed|runtime|wall|walltime)\b")
"""What is a time; the last word `min` behind it is minutes, and behind anything else the least value."""

HIGHER: Final = re.compile(
    r"\b(bw|mfu|fom|figure of merit|[mg]?teps|ns day|steps hour|efficiency|normali[sz]ed perf\w*|"
    r"rel(?:ative)? perf\w*)\b|.+ [gt]i?bs$|"
    r"\b([kmgtp]?flops?|[kmgtp]?(?:fl)?op s|[kmgt]?i?b s|[kmgt]bps|throughput|bandwidth|rate|score|busbw|algbw|speed|"
    r"ips|fps|iops|per second|per s|mhz|hz)\b"
    r"|^(?!.*(?:time|duration|\bdur\b|latency|elapsed|runtime))"
    r"(?:.*\b(?:ops|samples|tokens|images|iterations)\b|.+ (?:s|sec|second)$)"
)
LOSSES: Final = re.compile(r"\b(?:loss|deficit|degradation|drop|reduction|shortfall)\b")
"""Names of losses, which in percent are what is missing to 100."""

UNITS: Final = frozenset(
    (
        *(
            "ns",
            "us",
            "ms",
            "s",
            "sec",
            "msec",
            "usec",
            "seconds",
            "min",
            "w",
            "mw",
            "watts",
            "c",
            "k",
            "f",
            "celsius",
        ),
        *("mhz", "ghz", "khz", "hz", "gb", "gib", "mb", "flops", "gflops", "tflops", "pct", "percent"),
    )
)
_COUNTED: Final = "tokens|toks|samples|images|its|iterations|steps|requests|frames|records"
_TIME_OF_ONE: Final = re.compile(rf" (?:per )?(?:{ONE})$")
RATES: Final = re.compile(
    rf"^(?:.+ )?(?:per (?:s|sec|second)|[kmgtp]?i?b s|[kmgtp]?flop s|it s|(?:{_COUNTED}) (?:s|sec|second))$"
)
_PER_SECOND: Final = re.compile(r"/\s*(?:s|sec|second)\b", re.IGNORECASE)
MEASURED: Final = re.compile(
    r"(?:.+ )?(?:[kmgtp]?flops?|[kmgtp]?flop s|[kmgt]?i?b s|[kmgt]bps|busbw|algbw|throughput|bandwidth|"
    r"per (?:s|sec|second)|.+ [gt]i?bs|"
    r"(?:tokens?|toks?|samples?|images?|its?|iter|iterations?|steps?|requests?|frames?|records?) (?:s|sec|second))"
    r"(?: (?:per )?(?:gpu|device|chip|node))?"
)
"""Names of rates, in words, whatever is measured."""

PERFORMANCE: Final = re.compile(r".+ (?:perf|performance|bw|fom|score)")
"""Names of values where there is no other."""

SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0,
                  "seconds": 1.0, "min": 60.0}  # fmt: skip
PERCENT: Final = "percent"
PERCENTS: Final = (PERCENT, "pct")
EXCESS: Final = re.compile(r"\b(?:slowdown|overhead|slower)\b")
"""Names of what something takes longer, which in percent comes on top of 100."""

SCALES: Final[dict[str, tuple[float, str]]] = {
    **{unit: (seconds, "s") for unit, seconds in SECONDS.items()},
    **dict.fromkeys(("minute", "minutes", "mins"), (60.0, "s")),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), (3600.0, "s")),
    **{
        f"{prefix}{unit}": (1000.0**power, "flops")
        for power, prefix in enumerate(("", "k", "m", "g", "t", "p"))
        for unit in ("flops", "flop s")
    },
    **{f"{prefix}b s": (1000.0**power, "b s") for power, prefix in enumerate(("", "k", "m", "g", "t"))},
    **{f"{prefix}ib s": (1024.0**power, "b s") for power, prefix in enumerate(("k", "m", "g", "t"), 1)},
    **{f"{prefix}hz": (1000.0 ** (power - 2), "mhz") for power, prefix in enumerate(("", "k", "m", "g"))},
    **{unit: (watts, "w") for unit, watts in (("mw", 1e-3), ("w", 1.0), ("watts", 1.0), ("kw", 1e3))},
}  # fmt: skip
"""Units that are converted: by how much, into which one."""

SHOWN: Final = {"s": "time", "flops": "FLOP/s", "b s": "B/s"}
"""Units of results as people write them; values of time may be of any unit."""

KEPT: Final = 4096
"""Names and words of cells whose meaning is kept: they come again in every row."""

_WORDS: Final = re.compile(r"[^a-z0-9]+")
_BRACKETS: Final = re.compile(r"[(\[{]([^)\]}]*)[)\]}]")
_LAST_PERCENT: Final = re.compile(r"%(?=\s*(?:[)\]}]|$))")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")


@lru_cache(KEPT)
def words_of(text: str) -> str:
    """A name as lower-case words, separated by one space."""
    return _WORDS.sub(" ", _CAMEL.sub(" ", text.replace("µ", "u").replace("°", "")).lower()).strip()


@lru_cache(KEPT)
def _of_rate(column: str) -> str:
    """The name of a rate without what is in brackets behind it and no unit, such as a type of data."""
    bracketed = _BRACKETS.search(column)
    rest = _BRACKETS.sub(" ", column)
    is_remark = bracketed and unit_of(bracketed.group(1)) is None and MEASURED.fullmatch(words_of(rest))
    return rest if is_remark else column


@lru_cache(KEPT)
def split_unit(column: str) -> tuple[str, str]:
    """The name of a column and its unit, which may be in brackets or its last word; `min` only behind a time."""
    column = _LAST_PERCENT.sub(" percent", _of_rate(column))
    bracketed = _BRACKETS.search(column)
    if bracketed:
        return words_of(_BRACKETS.sub(" ", column)), words_of(bracketed.group(1))
    name = words_of(column)
    head, _, tail = name.rpartition(" ")
    is_unit = tail in UNITS and (tail != "min" or OF_TIME.search(head))
    if head and is_unit and not RATES.match(name) and not _PER_SECOND.search(column):
        return head, tail
    return name, ""


@lru_cache(KEPT)
def unit_in_name(column: str) -> str:
    """The unit in the name of a column: that of `split_unit`, or a rate at the end, such as GB/s; "" if none."""
    name, unit = split_unit(column)
    words = name.split()
    rates = (tail for tail in (" ".join(words[-2:]), *words[-1:]) if SCALES.get(tail, (0, ""))[1] in ("flops", "b s"))
    return unit or _lone_unit(name) or next(rates, "")


def unit_of_result(benchmark: str) -> str:
    """The unit in the name of a benchmark or metric, such as `gemm_tflops`; "" if it is none of time or rate."""
    unit = unit_in_name(benchmark)
    return unit if SCALES.get(unit, (0, ""))[1] in SHOWN else ""


@lru_cache(KEPT)
def unit_of(text: str) -> str | None:
    """The unit in the text that follows a number, as words; None if it is none that is known."""
    words = words_of(text)
    if not words:
        return PERCENT if text == "%" else None
    known = words in UNITS or words in SCALES or RATES.match(words) or HIGHER.search(words)
    return words if known else None


def recognised(
    columns: Sequence[str], chosen: Mapping[str, str], moments: Collection[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Columns by what they hold; `chosen` goes first. The second result has the columns that are not used.

    `moments`: columns that by what they hold say when something was, and not how long it took. `ValueError` when two
    columns could be the value and none is chosen.
    """
    found = dict(chosen)
    for role in ROLES:
        if role not in found:
            other = {column for column in columns if words_of(column) == "epoch" and _is_no(role, column in moments)}
            fitting = _fitting(role, [column for column in columns if column not in {*found.values(), *other}])
            if role == "value" and len(fitting) > 1:
                raise ValueError(_several(fitting))
            found |= {role: fitting[0]} if fitting else {}
    free = [column for column in columns if column not in found.values()]
    if "value" not in found:
        times = [column for column in free if split_unit(column)[0] in ("time", "t")]
        if all(words_of(column) in ("time", "t") for column in times):  # which may say when a row was written
            known = (column for column in free if _is_duration(column) or (times and _is_time(column)))
            times = list(dict.fromkeys((*times, *known)))
        times = times or [column for column in free if _may_be_value(column) and column not in moments]
        if all(split_unit(column)[0] in STATISTICS for column in times):
            usual = sorted(times, key=lambda column: STATISTICS.index(split_unit(column)[0]))[:1]
            times = usual if usual and split_unit(usual[0])[0] in CENTRES else times
        if len(times) > 1:
            raise ValueError(_several(times))
        found |= {"value": times[0]} if times else {}
    elif "time" not in found:
        times = [column for column in free if words_of(column) == "time"]
        found |= {"time": times[0]} if times else {}
    if not {"gpu", "node"} & set(found):
        ranks = [column for column in free if words_of(column) in RANKS]
        found |= {"gpu": ranks[0]} if ranks else {}
    if "node" not in found:
        hosts = [
            column for column in columns if words_of(column).endswith(HOST_WORDS) and column not in found.values()
        ]
        found |= {"node": hosts[0]} if len(hosts) == 1 else {}
    if words_of(found.get("gpu", "")) in (*CHIP_NAMES, ""):
        found.pop("part", None)
    if "gpu" not in chosen:
        _name_by_chip(found, columns)
    elif "slot" not in chosen and words_of(chosen["gpu"]) in CHIP_NAMES:
        _add_place(found, columns)
    used = set(found.values())
    return found, [column for column in columns if column not in used]


def _is_no(role: str, is_moment: bool) -> bool:
    """Whether a column `epoch` is not of this role: a moment is no run, and a pass over the data no time."""
    return role == ("run" if is_moment else "time")


def _several(columns: Sequence[str]) -> str:
    return (
        f"the columns {', '.join(columns)} could all be the value; choose one with --value, or several, each with a "
        "--value of its own: these are judged apart"
    )


def is_value(column: str) -> bool:
    """Whether a column has the name of a value."""
    return (
        _rank(column, "value") is not None
        or bool(MEASURED.fullmatch(words_of(_of_rate(column))))
        or _is_duration(column)
    )


def _fitting(role: str, columns: Sequence[str]) -> list[str]:
    """The columns that have a name of this role, the best one first; of several statistics of one value, one."""
    if any(_is_bandwidth("busbw", column) for column in columns):  # nccl-tests write both of one result
        columns = [column for column in columns if not _is_bandwidth("algbw", column)]
    ranks = {column: rank for column in columns if (rank := _rank(column, role)) is not None}
    fitting = sorted(ranks, key=lambda column: (ranks[column], columns.index(column)))
    if role != "value":
        return fitting
    best: dict[int, str] = {}
    for column in fitting:
        best.setdefault(ranks[column][1], column)
    rates = [column for column in columns if column not in fitting and MEASURED.fullmatch(words_of(_of_rate(column)))]
    return [*best.values(), *rates]


def _is_bandwidth(kind: str, column: str) -> bool:
    return kind in words_of(column).split()


def _rank(column: str, role: str) -> tuple[int, int] | None:
    """How well a name fits: place of its statistic (0: none), and place in the list; None if it does not."""
    known, whole = ROLES[role], words_of(column)
    name, unit = split_unit(column)
    names = [(0, whole)]
    if role in (*MEASURED_ROLES, "time") or unit not in SECONDS:
        names.append((0, name))
    if role in MEASURED_ROLES:
        names.append(_without_statistic(name.removeprefix("dcgm fi dev ")))
    return min(((place, known.index(text)) for place, text in names if text in known), default=None)


def _without_statistic(name: str) -> tuple[int, str]:
    """The place of the statistic in a name, from 1, and the name without it."""
    first, _, rest = name.partition(" ")
    before, _, last = name.rpartition(" ")
    if rest and first in STATISTICS:
        return 1 + STATISTICS.index(first), rest
    if before and last in STATISTICS:
        return 1 + STATISTICS.index(last), before
    return 0, name


def _is_duration(column: str) -> bool:
    """Whether a column whose name is not known has a unit of time, such as `sgemm_ms` and `ms_per_step`."""
    name, unit = split_unit(column)
    return (unit or _lone_unit(name)) in SECONDS and not NO_VALUES.search(name) and name not in PARAMETERS


def _is_time(column: str) -> bool:
    """Whether a column is named after a time, and not after a statistic of what is only called time."""
    name = split_unit(column)[0]
    return bool(OF_TIME.search(name)) and not NO_VALUES.search(name) and _without_statistic(name)[1] != "time"


def _may_be_value(column: str) -> bool:
    """Whether a column is a value where there is no other: a time without a unit, also of an epoch of training."""
    name = split_unit(column)[0]
    return bool(PERFORMANCE.fullmatch(name)) or _is_time(name.replace("epoch", "training"))


def _lone_unit(name: str) -> str:
    """The unit of time that a name consists of, but for what it is the time of; "" for any other name."""
    unit = _TIME_OF_ONE.sub("", name)
    return unit if unit in SECONDS and unit not in STATISTICS else ""


def _name_by_chip(found: dict[str, str], columns: Sequence[str]) -> None:
    """Where a column names every GPU (a UUID), it is the GPU, and a number of the GPU its place in the node."""
    names = [column for name in CHIP_NAMES for column in columns if words_of(column) == name]
    if "gpu" in found and names:
        found["gpu"] = names[0]
        _add_place(found, columns)
    elif "gpu" not in found and "node" in found:
        _add_place(found, columns, "gpu")


def _add_place(found: dict[str, str], columns: Sequence[str], role: str = "slot") -> None:
    used = found.values()
    places = (column for name in PLACES for column in columns if words_of(column) == name and column not in used)
    place = next(places, None)
    if place is not None:
        found[role] = place


MATRICES: Final = (frozenset("mnk"), frozenset(("n", "nb", "p", "q")))
"""Names of the sizes of a product of matrices, and of the problem, blocks and grid of HPL."""


def is_lost_share(column: str, unit: str) -> bool:
    """Whether values are losses in percent; `unit`: that of the value."""
    return bool(LOSSES.search(words_of(column))) and unit in PERCENTS


def is_excess(column: str, unit: str) -> bool:
    """Whether values are percents by which something takes longer, or is; `unit`: that of the value."""
    return bool(EXCESS.search(words_of(column))) and unit in PERCENTS


def parameters_of(unused: Sequence[str]) -> list[str]:
    """Columns that hold parameters of the benchmark, of those not used otherwise; those of matrices only together."""
    names = {column: words_of(column) for column in unused}
    matrix = {name for one in MATRICES if one <= set(names.values()) for name in one}
    sized = {column: found.group(1) for column, name in names.items() if (found := _SIZED.fullmatch(name))}
    return [
        column
        for column in unused
        if {split_unit(column)[0], sized.get(column, "")} & PARAMETERS or names[column] in PARAMETERS | matrix
    ]


@lru_cache(KEPT)
def number_of_gpu(text: str) -> str:
    """The number in a name such as GPU 3 or cuda:3; any other text as it is."""
    found = _NUMBER_OF_GPU.fullmatch(text)
    return found.group(1) if found else text
