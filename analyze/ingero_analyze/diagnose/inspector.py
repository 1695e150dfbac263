"""Reads what NCCL Inspector writes, JSON lines or metrics in OTLP: the time of every collective on every rank.

All but `read_events` is pure.

A collective's kernel waits on the GPU for the last rank, so the late rank's kernel is the shortest.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ingero_analyze.diagnose import inspector_otlp, sources
from ingero_analyze.diagnose.collective_times import MAX_RANKS, Process, Spent
from ingero_analyze.diagnose.sources import Claims, Problems, SourceData, SourceError
from ingero_contract.json_values import number, text, whole

CLAIMS: Final = Claims(
    can=(
        "which rank the others wait for in collectives, and how much every collective loses to it",
        "on which host and process that rank ran",
    ),
    cannot=(
        "why the rank comes late: what it did before the collective is not recorded",
        "slowness inside of a collective without --topology: all ranks take as long as the slowest",
        "anything about collectives that the plugin timed on the host only, or lost",
    ),
)

SUFFIXES: Final = (".log", ".json", ".jsonl", ".txt")
MAX_LINE: Final = 1 << 20
HOST_TIMED: Final = "collective_cpu"
"""Timing source that measures the host's call only, not the wait for peers."""


@dataclass
class LineContext:
    """The header for following lines that have none."""

    header: dict[str, Any] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)


def read_events(paths: Iterable[str], problems: Problems) -> SourceData:
    """Every line of files and folders; what cannot be used is listed in `problems`; everything else is used."""
    found = SourceData()
    spent: list[Spent] = []
    for file, data in sources.contents_of(paths, SUFFIXES, problems):
        context = LineContext()
        for place, line in _lines(data):
            try:
                spent += _taken(line, context, found.left_out, f"{file}: line {place}", problems)
            except SourceError as error:
                problems.add(str(file), f"line {place}: {error}")
    placed, shared = inspector_otlp.without_shared_names(item for item in spent if item.rank is None)
    for process in shared:
        problems.add("", inspector_otlp.told_of_shared(process))
    _fill(found, [item for item in spent if item.rank is not None] + placed)
    return found


def _lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers; a request of OTLP that is written over several lines is one."""
    first, *_ = data.strip().split(b"\n", 1)
    if inspector_otlp.MARK in data[:MAX_LINE] and not first.rstrip().endswith(b"}"):
        yield 1, data
    else:
        yield from ((place, line) for place, line in enumerate(data.splitlines(), 1) if line.strip())


def _taken(line: bytes, context: LineContext, left_out: Counter[str], place: str, problems: Problems) -> list[Spent]:
    """The collectives of a line, of which a request of OTLP has many. Raises `SourceError`."""
    if inspector_otlp.MARK not in line[:MAX_LINE]:
        item = take(line, context, left_out)
        return [item] if item is not None else []
    tree, spent = sources.read_json(line), list[Spent]()
    for point in inspector_otlp.collectives_of(tree if isinstance(tree, dict) else {}, left_out):
        if isinstance(point, str):
            problems.add(place, point)
        else:
            spent.append(point)
    return spent


def take(line: bytes, context: LineContext, left_out: Counter[str]) -> Spent | None:
    """Read one line; `None` when it is not a collective. Raises `SourceError` when it cannot be used."""
    if len(line) > MAX_LINE:
        raise SourceError(f"longer than {MAX_LINE} bytes")
    tree = sources.read_json(line)
    if not isinstance(tree, dict):
        raise SourceError("an object was expected")
    for name in ("header", "metadata"):
        part = tree.get(name)
        if isinstance(part, dict):
            setattr(context, name, part)
    if isinstance(tree.get("dump_stats"), dict):
        left_out["lost by the plugin"] += max(0, whole(tree["dump_stats"].get("coll_dropped_since_last_dump")) or 0)
    perf = tree.get("coll_perf")
    if not isinstance(perf, dict):
        left_out["point to point"] += "p2p_perf" in tree
        if not {"dump_stats", "p2p_perf", "proxy_trace"} & set(tree):
            raise SourceError("no line of NCCL Inspector: coll_perf is missing")
        return None
    if perf.get("coll_timing_source") == HOST_TIMED:
        left_out["timed on the host only"] += 1
        return None
    return _spent(perf, context)


def _spent(perf: dict[str, Any], context: LineContext) -> Spent:
    header, metadata = context.header, context.metadata
    comm, rank, ranks = text(header.get("id"), 64), whole(header.get("rank")), whole(header.get("n_ranks"))
    if not comm or rank is None or ranks is None or not 0 <= rank < ranks <= MAX_RANKS:
        raise SourceError("header: id, rank and n_ranks of a communicator were expected")
    seq, micros = whole(perf.get("coll_sn")), number(perf.get("coll_exec_time_us"))
    if seq is None or seq < 0:
        raise SourceError("coll_perf.coll_sn: a count was expected")
    if micros is None or not 0 <= micros < 1e12:
        raise SourceError("coll_perf.coll_exec_time_us: microseconds were expected")
    traced = perf.get("event_trace_ts")
    start = number(traced.get("coll_start_ts")) if isinstance(traced, dict) else None
    if start is None:
        start = number(metadata.get("dump_timestamp_us")) or 0.0
    return Spent(
        process=(text(metadata.get("hostname"), 253), whole(metadata.get("pid")) or 0),
        comm=f"{comm}/{ranks}", rank=rank, ranks=ranks, op=text(perf.get("coll"), 40) or "collective", seq=seq,
        start=start / 1e6, duration=micros / 1e6,
    )  # fmt: skip


def _fill(found: SourceData, spent: list[Spent]) -> None:
    """Rows by the rank of each process in the largest communicator that it belongs to."""
    largest: dict[Process, tuple[int, int | None]] = {}
    for item in spent:
        process = _process(item)
        known = largest.get(process)
        if known is None or item.ranks > known[0]:
            largest[process] = (item.ranks, item.rank)
    taken = Counter(rank for _, rank in largest.values())
    world = max((ranks for ranks, _ in largest.values()), default=0)
    names = {
        process: str(rank) if rank is not None and taken[rank] == 1 and ranks == world else _name(process)
        for process, (ranks, rank) in largest.items()
    }
    if all(name.isdigit() for name in names.values()):
        found.world = world
    met: dict[Process, set[tuple[str, str]]] = {}
    for item in spent:
        met.setdefault(_process(item), set()).add((item.comm, item.op))
    # Numbers of several communicators are of different moments; there the order of operations tells the steps.
    numbered = all(len(series) == 1 for series in met.values())
    for item in spent:
        found.sizes[item.comm] = item.ranks
        name, step = names[_process(item)], item.seq if numbered else -1
        found.rows.add(name, item.op, item.start, item.duration, group=item.comm, seq=item.seq, step=step)
        if item.process[0]:
            found.hosts[name] = item.process[0]


def _name(process: Process) -> str:
    """What a process without a rank of its own is called: by its host and its number there, or its GPU."""
    host, own = process
    return f"{host}:{own}" if isinstance(own, int) else f"{host}/{own}"


def _process(item: Spent) -> Process:
    """The process of a line; where the line names none, the rank in the communicator stands for it."""
    return item.process if item.process != ("", 0) or item.rank is None else (item.comm, item.rank)
