"""Recognises columns of results by their names: what they hold, their unit, which direction is better. Pure."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

ROLES: Final[dict[str, tuple[str, ...]]] = {
    "gpu": (
        "gpu", "gpu id", "gpuid", "gpu uuid", "uuid", "gpu serial", "serial", "serial number", "chip", "chip id",
        "device", "device id", "gpu index", "gpu number", "card", "accelerator", "local rank", "gcd",
    ),
    "node": (
        "node", "node id", "node name", "nodename", "host", "hostname", "host name", "server", "machine",
        "instance", "instance id", "kubernetes node",
    ),
    "group": (
        "rack", "rack id", "cabinet", "group", "row", "chassis", "pod", "zone", "switch", "location", "enclosure",
        "scalable unit", "su", "cell",
    ),
    "value": (
        "value", "result", "score", "perf", "performance", "gflops", "tflops", "flops", "gflop s", "tflop s",
        "throughput", "bandwidth", "rate", "samples s", "samples per second", "tokens per second", "tokens s",
        "iterations per second", "busbw", "algbw", "gb s", "runtime", "run time", "kernel time", "kernel duration",
        "duration", "latency", "elapsed", "elapsed time", "time ms", "execution time", "exec time", "step time",
        "step seconds", "iteration time", "seconds", "median time", "mean time", "avg time", "average time",
    ),
    "run": (
        "run", "run id", "run number", "iteration", "iter", "trial", "job", "job id", "repetition", "rep", "repeat",
        "attempt", "experiment", "sample",
    ),
    "time": ("timestamp", "date", "datetime", "start time", "started", "when", "day"),
    "clock": (
        "clock", "sm clock", "gpu clock", "core clock", "graphics clock", "freq", "frequency", "sm freq", "gpu freq",
        "clocks sm", "clocks current sm", "avg freq", "median freq", "avg clock", "median frequency", "core freq",
    ),
    "power": (
        "power", "power draw", "gpu power", "avg power", "power usage", "power average", "median power",
        "board power", "watts",
    ),
    "temperature": (
        "temperature", "temp", "gpu temp", "gpu temperature", "temperature gpu", "core temp", "max temp", "avg temp",
        "median temp", "celsius",
    ),
    "model": ("model", "gpu model", "gpu name", "gpu type", "product", "product name", "sku", "name", "device name"),
    "benchmark": (
        "benchmark", "bench", "test", "workload", "kernel", "app", "application", "metric", "program", "case",
    ),
    "unit": ("unit", "units"),
    "direction": ("direction", "better", "higher is better", "lower is better"),
}  # fmt: skip
"""Names of columns by what they hold, in lower case, words separated by one space."""

PARAMETERS: Final = frozenset(
    (
        "size", "message size", "msg size", "data size", "buffer size", "problem size", "matrix size", "block size",
        "bytes", "size bytes", "batch size", "micro batch size", "global batch size", "seq len", "seqlen",
        "sequence length", "context length", "shape", "dim", "dims", "dimension", "dimensions", "mnk", "dtype",
        "data type", "datatype", "precision", "op", "operation", "collective", "redop", "algorithm", "algo",
        "protocol", "parameters", "params", "config", "configuration", "mode",
    )
)  # fmt: skip
"""Names of columns whose values are parameters of the benchmark."""

RANKS: Final = ("rank", "global rank", "process rank")
"""Names of the GPU beside a node, if nothing else names it."""

LOWER: Final = re.compile(r"\b(time|duration|latency|elapsed|runtime|seconds|ms|us|ns|sec|secs|s|msec|usec|min)\b")
HIGHER: Final = re.compile(
    r"\b([kmgtp]?flops?|[kmgtp]?flop s|[kmgt]?i?b s|throughput|bandwidth|rate|score|perf|performance|busbw|algbw|"
    r"speed|ops|ips|fps|iops|samples|tokens|images|iterations|per second|per s|mhz|hz)\b"
    r"|^(?!.*(?:time|duration|latency|elapsed|runtime)).+ (?:s|sec|second)$"
)
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
RATES: Final = re.compile(r"^(?:.+ )?(?:per (?:s|sec|second)|[kmgtp]?i?b s|[kmgtp]?flop s|samples s|tokens s|it s)$")
MEASURED: Final = re.compile(
    r"(?:.+ )?(?:[kmgtp]?flops?|[kmgtp]?flop s|[kmgt]?i?b s|[kmgt]bps|busbw|algbw|throughput|bandwidth|"
    r"per (?:s|sec|second)|"
    r"(?:tokens?|toks?|samples?|images?|its?|iter|iterations?|steps?|requests?|frames?|records?) (?:s|sec|second))"
    r"(?: (?:per )?(?:gpu|device|chip|node))?"
)
"""Names of rates, in words, whatever is measured."""

SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "usec": 1e-6, "ms": 1e-3, "msec": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0,
                  "seconds": 1.0, "min": 60.0}  # fmt: skip
PERCENT: Final = "percent"
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

_WORDS: Final = re.compile(r"[^a-z0-9]+")
_BRACKETS: Final = re.compile(r"[(\[{]([^)\]}]*)[)\]}]")
_CAMEL: Final = re.compile(r"(?<=[a-z])(?=[A-Z][a-z])")


def words_of(text: str) -> str:
    """A name as lower-case words, separated by one space."""
    return _WORDS.sub(" ", _CAMEL.sub(" ", text.replace("µ", "u").replace("°", "")).lower()).strip()


def split_unit(column: str) -> tuple[str, str]:
    """The name of a column and its unit, which may be in brackets or its last word."""
    bracketed = _BRACKETS.search(column)
    if bracketed:
        return words_of(_BRACKETS.sub(" ", column)), words_of(bracketed.group(1))
    name = words_of(column)
    head, _, tail = name.rpartition(" ")
    if head and tail in UNITS and not RATES.match(name):
        return head, tail
    return name, ""


def unit_in_name(column: str) -> str:
    """The unit in the name of a column: that of `split_unit`, or a rate at the end, such as GB/s; "" if none."""
    name, unit = split_unit(column)
    words = name.split()
    rates = (tail for tail in (" ".join(words[-2:]), *words[-1:]) if SCALES.get(tail, (0, ""))[1] in ("flops", "b s"))
    return unit or next(rates, "")


def unit_of(text: str) -> str | None:
    """The unit in the text that follows a number, as words; None if it is none that is known."""
    words = words_of(text)
    if not words:
        return PERCENT if text == "%" else None
    known = words in UNITS or words in SCALES or RATES.match(words) or HIGHER.search(words)
    return words if known else None


def recognised(columns: Sequence[str], chosen: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Columns by what they hold; `chosen` goes first. The second result has the columns that are not used.

    `ValueError` when two columns could be the value and none is chosen.
    """
    found = dict(chosen)
    names = {column: split_unit(column)[0] for column in columns}
    for role, known in ROLES.items():
        if role in found:
            continue
        fitting = [column for column in columns if names[column] in known and column not in found.values()]
        whole = [column for column in columns if words_of(column) in known and column not in found.values()]
        rank = {column: _rank(column, names[column], known) for column in (*fitting, *whole)}
        fitting = sorted(rank, key=lambda column: (rank[column], columns.index(column)))
        if role == "value":
            fitting += [
                column for column in columns
                if column not in (*fitting, *found.values()) and MEASURED.fullmatch(words_of(column))
            ]  # fmt: skip
        if role == "value" and len(fitting) > 1:
            raise ValueError(f"the columns {', '.join(fitting)} could all be the value; choose one with --value")
        if fitting:
            found[role] = fitting[0]
    if "value" not in found:
        times = [column for column in columns if names[column] in ("time", "t") and column not in found.values()]
        if len(times) == 1:
            found["value"] = times[0]
    elif "time" not in found:
        times = [column for column in columns if words_of(column) == "time" and column not in found.values()]
        found |= {"time": times[0]} if times else {}
    if "gpu" not in found and "node" in found:
        ranks = [column for name in RANKS for column in columns if words_of(column) == name]
        found |= {"gpu": ranks[0]} if ranks else {}
    used = set(found.values())
    return found, [column for column in columns if column not in used]


def parameters_of(unused: Sequence[str]) -> list[str]:
    """Columns that hold parameters of the benchmark, of those not used otherwise; m, n and k only together."""
    names = {column: words_of(column) for column in unused}
    matrix = {"m", "n", "k"} if {"m", "n", "k"} <= set(names.values()) else set[str]()
    return [
        column for column in unused if split_unit(column)[0] in PARAMETERS or names[column] in PARAMETERS | matrix
    ]


def _rank(column: str, name: str, known: tuple[str, ...]) -> int:
    return min(known.index(one) for one in (name, words_of(column)) if one in known)


def lower_is_better(*hints: str) -> bool | None:
    """Whether smaller values are better by words in the direction, the unit or the name; None if they do not say."""
    for hint in hints:
        words = words_of(hint)
        if words in ("lower", "lower is better", "smaller", "down", "min", "less"):
            return True
        if words in ("higher", "higher is better", "larger", "up", "max", "more", "greater"):
            return False
        if HIGHER.search(words):
            return False
        if LOWER.search(words):
            return True
    return None
