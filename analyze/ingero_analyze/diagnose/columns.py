"""Finds the columns of a timeline by their names, and the units of its times. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ingero_analyze.audit.columns import SECONDS, split_unit, words_of
from ingero_analyze.diagnose.step_times import is_of_whole_steps, operation_columns

TIMES: Final = ("start", "duration", "end")
"""Roles of columns with times; of `duration` and `end`, one is used."""

PARTS: Final = ("node", "local_rank", "data_parallel", "stage", "tensor_parallel")
"""Roles of columns that name a rank together where no column does by itself."""

_PLACES: Final = ("rank", "step", "group", "seq", "job", *PARTS)
"""Roles whose columns may be those of objects within rows."""

ROLES: Final = ("rank", "op", "kind", *TIMES, "step", "group", "seq", *PARTS, "work", "size", "job")

_STARTS: Final = ("start", "begin", "started", "begun")
_ENDS: Final = ("end", "stop", "finish", "ended", "finished")


def _instants(words: Sequence[str]) -> tuple[str, ...]:
    """Names of an instant: `start`, `start time`, `time start`, and so on."""
    marks = ("time", "ts", "timestamp", "at", "t")
    both = ((f"{word} {mark}", f"{mark} {word}") for word in words for mark in marks)
    return (*words, *(name for pair in both for name in pair))


_NAMES: Final[dict[str, tuple[str, ...]]] = {
    "rank": ("rank", "global rank", "rank id", "process rank", "world rank", "mpi rank", "worker", "worker id"),
    "op": (
        "op", "operation", "optype", "op type", "op name", "operation name", "operation type", "name", "event",
        "event name", "kernel", "kernel name", "phase", "activity", "task", "function", "collective",
        "collective name", "coll", "coll name", "coll type", "collective type", "collective op", "nccl op", "span",
        "span name",
    ),
    "kind": ("kind", "type", "category", "cat", "event type", "op kind", "class"),
    "start": (*_instants(_STARTS), "timestamp", "time", "ts", "t0"),
    "duration": (
        "duration", "dur", "elapsed", "elapsed time", "duration time", "time taken", "latency", "length", "runtime",
        "exec time", "execution time", "wait", "wait time", "waiting time", "blocked", "blocked time",
        "ms", "us", "ns", "seconds", "milliseconds", "microseconds",
    ),
    "end": (*_instants(_ENDS), "t1"),
    "step": (
        "step", "step id", "step number", "iteration", "iteration id", "iter", "iter id", "global step", "train step",
        "training step", "step idx", "step index", "iteration index", "iter idx", "batch", "batch id", "batch idx",
        "batch index",
    ),
    "group": (
        "group", "group id", "group name", "communicator", "communicator id", "comm", "comm id", "comm name",
        "comm hash", "process group", "process group id", "process group name", "pg", "pg id", "pg name",
    ),
    "seq": (
        "seq", "seq id", "seq number", "sequence", "sequence number", "sequence id", "seqno", "seq no", "coll sn",
        "collective id", "collective seq id", "coll id", "coll seq", "op count", "opcount",
    ),
    "stage": (
        "stage", "stage id", "pp rank", "pp stage", "pipeline rank", "pipeline stage", "pipeline parallel rank", "pp",
    ),
    "data_parallel": (
        "data parallel", "data parallel rank", "dp rank", "dp", "dp id", "replica", "replica id",
    ),
    "tensor_parallel": ("tensor parallel", "tensor parallel rank", "tp rank", "tp", "tp id"),
    "node": ("node", "node id", "node name", "host", "hostname", "host name", "machine", "server"),
    "local_rank": ("local rank", "gpu", "gpu id", "gpu index", "device", "device id"),
    "work": (
        "work", "tokens", "num tokens", "n tokens", "token count", "total tokens", "seqlen", "seq len",
        "sequence length", "seq length", "avg seq len", "mean seq len", "step tokens", "input tokens",
        "prompt tokens", "expert tokens", "routed tokens", "tokens routed", "num tokens routed", "received tokens",
        "tokens received", "recv tokens", "tokens recv", "local tokens", "tokens per rank", "processed tokens",
        "tokens processed",
    ),
    "size": (
        "size", "bytes", "size bytes", "nbytes", "num bytes", "message size", "message bytes", "msg size",
        "msg size bytes", "data size", "data bytes", "all to all bytes", "alltoall bytes", "a2a bytes",
        "all to all size", "alltoall size", "a2a size", "comm bytes",
    ),
    "job": (
        "job", "job id", "jobid", "job name", "slurm job id", "slurm jobid", "run", "run id", "run name",
        "experiment", "experiment id", "experiment name", "training job", "workload", "pytorchjob",
    ),
}  # fmt: skip
"""Names of columns in lower case, words separated by one space. A unit may follow that of a time."""

_PROCESSES: Final = ("pid", "process", "process id")
"""Names of columns of processes. Each is a rank, where no column tells ranks."""

OPERATION_TYPES: Final = frozenset(("optype", "op type", "operation type"))
"""Names of an operation's column that say what kind it is, where another column has its name."""

_OPERATION_NAMES: Final = ("op name", "operation name", "kernel name", "kernel", "event name")

SECONDS_OF: Final = {unit: SECONDS[unit] for unit in ("s", "ms", "us", "ns")}
"""Seconds of the units that times may be in."""

_SINCE_1970: Final = {"s": (1e9, 1e10), "ms": (1e12, 1e13), "us": (1e15, 1e16), "ns": (1e18, 1e19)}
"""From 2001 to 2286, in each unit."""

BUSIEST: Final = 8.0
"""Time in operations of a rank over the time that its recording spans: more needs more streams than programs use."""

IDLEST: Final = BUSIEST / 1000
"""The same where a unit a thousand times smaller could be as well, and is likelier."""

_COMPUTE: Final = frozenset(("compute", "computation", "comp", "calc", "calculation", "kernel", "gpu", "cuda"))
_COLLECTIVE: Final = frozenset(
    ("collective", "coll", "communication", "comm", "comms", "network", "nccl", "rccl", "p2p", "sync")
)
_OPERATIONS: Final = frozenset(("op", "ops", "operation", "kernel", "call"))
"""Words that say nothing more beside one for a collective or for computing."""

_EXCHANGES: Final = re.compile(
    r"\b(?:all ?(?:reduce|gather|to ?all)\w*|reduce ?scatter\w*|alltoall\w*|broadcast|bcast|barrier|i?send|i?recv|"
    r"receive|sendrecv|p2p|a2a|sync|comm|collective|allgather\w*|nccl\w*|rccl\w*|"
    r"clip main grad|unscale and check inf)\b"
)
"""Names of collectives; the last two are timers of Megatron-LM around a norm and a flag of all ranks."""

_WHOLE: Final = frozenset(("gather", "scatter", "reduce", "wait", "waiting", "blocked", "idle"))
"""Names of collectives, or of waiting in them, that within a longer name are those of kernels or of other waits."""


@dataclass(frozen=True)
class TimelineColumns:
    """Columns of a file by role. `units`: of times, as far as names say them; `traced`: named as in Chrome's traces,
    whose times are microseconds; `operations`: columns with the times of operations, where a row is a step."""

    roles: Mapping[str, str]
    units: Mapping[str, str]
    traced: bool
    operations: Mapping[str, str] = field(default_factory=dict)

    @property
    def of_rank(self) -> str:
        """The column that names a rank, or all of them."""
        return self.roles.get("rank") or ", ".join(self.roles[role] for role in self.rank_parts())

    @property
    def length(self) -> str:
        """The column of durations, or that of ends, or those of operations."""
        return self.roles.get("duration") or self.roles.get("end") or ", ".join(self.operations)

    @property
    def ends_per_start(self) -> float:
        """By what an end is multiplied to have the unit of starts."""
        begin, end = (SECONDS_OF.get(self.units.get(role, ""), 0.0) for role in ("start", "end"))
        return end / begin if begin and end else 1.0

    def numbers(self) -> tuple[str, ...]:
        """The columns with numbers."""
        return (*(self.roles[role] for role in (*TIMES, "work", "size") if role in self.roles), *self.operations)

    def tells_unit(self) -> bool:
        """Whether names of columns say in which unit times are, as far as names do."""
        return bool(self.units or self.traced or any(split_unit(name)[1] in SECONDS for name in self.operations))

    def rank_parts(self) -> tuple[str, ...]:
        """The roles whose values name a rank together, if no column does."""
        if "rank" in self.roles:
            return ()
        by_place = tuple(role for role in ("node", "local_rank") if role in self.roles)
        return by_place or tuple(role for role in PARTS if role in self.roles)

    def used(self, by_file: bool) -> tuple[str, ...]:
        """The columns to read, each once."""
        parts = () if by_file else self.rank_parts()
        roles = [role for role in self.roles if role not in ("local_rank", "tensor_parallel") or role in parts]
        return tuple(dict.fromkeys((*(self.roles[role] for role in roles), *self.operations)))


def recognised(names: Sequence[str], chosen: Mapping[str, str], by_file: bool = False) -> TimelineColumns:
    """Columns by role: as `chosen`, else with the very name of the role, else by a usual name.

    `by_file`: files without a column of ranks are of one rank each. `ValueError` says which column is missing or not
    certain.
    """
    for name in chosen.values():
        if name not in names:
            raise ValueError(f"there is no column {name!r} (there are: {', '.join(names)[:200]})")
    roles: dict[str, str] = dict(chosen)
    for role in ROLES:
        if role not in roles:
            fitting = _fitting(role, [name for name in names if name not in roles.values()])
            roles |= {role: fitting} if fitting else {}
    named = next((name for name in names if words_of(name) in _OPERATION_NAMES), None)
    if named and not {"op", "kind"} & set(chosen) and words_of(roles.get("op", "")) in OPERATION_TYPES:
        roles = {"kind": roles["op"], **roles, "op": named}
    length = _called_time(names, roles) if "start" not in chosen else None
    if length:
        roles = {role: name for role, name in roles.items() if name != length} | {"duration": length}
    if "duration" in roles and "end" not in chosen:
        roles.pop("end", None)
    if "op" not in roles and "kind" in roles and "kind" not in chosen:
        roles["op"] = roles.pop("kind")
    if not {"op", "start"} & set(chosen) and ("op" not in roles or not {"duration", "end"} & set(roles)):
        operations = operation_columns([name for name in names if name not in chosen.values()])
        if operations:
            return _with_operations(names, roles, operations, by_file)
    if not by_file and {"rank", *PARTS} & set(roles) <= {"stage"}:
        process = _best(_PROCESSES, [name for name in names if name not in roles.values()], "rank")
        roles |= {"rank": process} if process else {}
    found = TimelineColumns(roles, _units(roles), roles.get("start") == "ts" and roles.get("duration") == "dur")
    in_order = {"op", "step", "duration"} <= set(roles)
    missing = [role for role in ("op", "start") if role not in roles and not (role == "start" and in_order)]
    missing += [] if "duration" in roles or "end" in roles else ["duration"]
    _refuse(names, found, missing, by_file)
    return found


def _called_time(names: Sequence[str], roles: Mapping[str, str]) -> str | None:
    """The only column that says how long operations of steps took, where it is called a time, as `time_ms`."""
    used = {name for role, name in roles.items() if role != "start"}
    times = [name for name in names if name not in used and split_unit(name)[0] == "time"]
    certain = {"op", "step"} <= set(roles) and not {"duration", "end"} & set(roles) and len(times) == 1
    return times[0] if certain and split_unit(times[0])[1] in SECONDS else None


def _with_operations(
    names: Sequence[str], roles: Mapping[str, str], operations: Mapping[str, str], by_file: bool
) -> TimelineColumns:
    """Columns of a table in which a row is a step of a rank."""
    kept = {
        role: name for role, name in roles.items() if role not in ("op", "kind", *TIMES) and name not in operations
    }
    found = TimelineColumns(kept, {}, traced=False, operations=operations)
    _refuse(names, found, [], by_file)
    return found


RECORD: Final = (
    "record what tells ranks apart: PyTorch's profiler on every rank (--kineto), timers of all ranks of Megatron-LM "
    "(--timing-log-level 2 --timing-log-option all) or DeepSpeed (wall_clock_breakdown), or a row for every operation"
)


WHOLE_STEPS: Final = (
    "the time of whole steps tells no rank: in a synchronised job it is the same for all. Give the times of "
    "computing and of collectives (as forward_ms and allreduce_ms) or traces of PyTorch's profiler (--kineto), or "
    "audit ranks that do not wait for each other (ingero-fleet audit)"
)


def _refuse(names: Sequence[str], found: TimelineColumns, missing: Sequence[str], by_file: bool) -> None:
    """`ValueError` for columns that are missing or there twice."""
    ranked = "rank" in found.roles or found.rank_parts() or by_file
    missing = [*missing, *(() if ranked else ("rank",))]
    if missing:
        if not {"op", "duration", "end"} & set(found.roles) and any(map(is_of_whole_steps, names)):
            raise ValueError(WHOLE_STEPS)
        which = " and ".join(f"{role!r}" for role in missing)
        instead = f". If these are no times of operations, {RECORD}" if {"op", "duration"} <= set(missing) else ""
        raise ValueError(
            f"there is no column {which} (there are: {', '.join(names)[:200]}); "
            f"choose it with --column {missing[0]}=COLUMN{instead}"
        )
    doubled = [name for name in (*found.roles.values(), *found.operations) if list(names).count(name) > 1]
    if doubled:
        raise ValueError(f"the column {doubled[0]} is there twice")


def _fitting(role: str, names: Sequence[str]) -> str | None:
    """The column with the best name for a role; `ValueError` where several are written differently only."""
    if role in names:
        return role
    return _best(_NAMES[role], names, role) or (_within(role, names) if role in _PLACES else None)


def _within(role: str, names: Sequence[str]) -> str | None:
    """The only column of an object within rows, as `meta.rank`, that is called so there."""
    found = [name for name in names if "." in name and words_of(name.rpartition(".")[2]) in _NAMES[role]]
    return found[0] if len(found) == 1 else None


def _best(known: Sequence[str], names: Sequence[str], role: str) -> str | None:
    """The column whose name comes first in `known`."""
    places: dict[int, list[str]] = {}
    for name in names:
        words = words_of(name)
        head, unit = split_unit(name)
        if words in known:
            places.setdefault(known.index(words), []).append(name)
        elif role in TIMES and unit in SECONDS and head in known:
            places.setdefault(known.index(head), []).append(name)
    if not places:
        return None
    best = places[min(places)]
    if len(best) > 1:
        raise ValueError(
            f"the columns {', '.join(best)} could all be the {role}; choose one with --column {role}=COLUMN"
        )
    return best[0]


def _units(roles: Mapping[str, str]) -> dict[str, str]:
    """Units that the names of times say; a name that is that of the role says none."""
    lasting = {"start": roles["duration"]} if "start" not in roles and "duration" in roles else {}
    units = {role: split_unit(name)[1] for role, name in {**roles, **lasting}.items() if role in TIMES}
    return {role: _SHORT[SECONDS[unit]] for role, unit in units.items() if SECONDS.get(unit, 0.0) in _SHORT}


_SHORT: Final = {seconds: unit for unit, seconds in SECONDS_OF.items()}


def units_of_times(
    columns: TimelineColumns, unit: str | None, start: float, span: float, busy: float
) -> tuple[str, str]:
    """The units of starts (and ends) and of durations.

    Names go first, then `unit`; then starts that are times since 1970 in one unit only; then seconds. `start` is a
    usual one, `span` how long a usual rank was recorded and `busy` how long its operations last in all, as the file
    has them. Two units of which one is not said are not the right ones if the rank would be busy for longer than it
    was recorded, or if starts are seconds only because nothing says so and it would be hardly ever busy.
    """
    starts = columns.units.get("start") or columns.units.get("end") or unit
    starts = starts or next((one for one, (low, high) in _SINCE_1970.items() if low <= start < high), None)
    starts = starts or ("us" if columns.traced else None)
    lengths = columns.units.get("duration") or unit
    if "duration" not in columns.roles:
        return starts or "s", starts or "s"
    if lengths:
        pairs = [(starts, lengths)] if starts else [("s", lengths), (lengths, lengths)]
    else:
        pairs = [(starts or "s", one) for one in (starts or "s", *SECONDS_OF)]
    shares = [busy * SECONDS_OF[length] / max(span * SECONDS_OF[begin], 1e-300) for begin, length in pairs]
    if span <= 0 or (shares[0] <= BUSIEST and (not columns.units.get("duration") or shares[0] >= IDLEST)):
        return pairs[0]
    return next((pair for pair, share in zip(pairs, shares, strict=True) if IDLEST <= share <= BUSIEST), pairs[0])


def kind_of(text: str) -> int:
    """1 for a word that means a collective, 0 for one that means computing, -1 for any other."""
    words = words_of(text)
    parts = set(words.split())
    exchanges = parts & _COLLECTIVE and parts <= _COLLECTIVE | _OPERATIONS
    computes = parts & _COMPUTE and parts <= _COMPUTE | _OPERATIONS
    return 1 if exchanges else 0 if computes else -1


def kind_of_type(name: str) -> int:
    """The same for what the type of an operation is called: a kind, or an operation."""
    kind = kind_of(name)
    return kind if kind >= 0 else kind_of_operation(name)


def kind_of_operation(name: str) -> int:
    """1 where the name of an operation is that of a collective, send or receive, else 0."""
    words = words_of(name)
    return int(words in _WHOLE or bool(_EXCHANGES.search(words)))
