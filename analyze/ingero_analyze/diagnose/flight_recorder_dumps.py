"""Reads PyTorch Flight Recorder files into one `Dump` for each rank. All but `read_dumps` is pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import prod
from operator import itemgetter
from typing import Any, Final

import orjson

from ingero_analyze.diagnose import sources
from ingero_analyze.diagnose.analyzer_reports import dumps_of_report, is_of_analyzer
from ingero_analyze.diagnose.plain_pickle import UnsafePickleError, load_plain_pickle
from ingero_analyze.diagnose.sources import OperationRows, Problems, SourceError
from ingero_analyze.tables import LATEST
from ingero_contract.identifiers import Rank
from ingero_contract.json_values import number, text, whole

MAX_ENTRIES: Final = 1_000_000
"""Most entries of one dump that are read."""

MAX_TENSORS: Final = 16
"""Most tensors, and dimensions, of one call that are compared."""

MAX_FRAMES: Final = 64
"""Most frames of one call that are looked at."""

NEEDS_ALL: Final = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|barrier")
"""Collectives that end on no rank before all members have entered them."""

PICKLED: Final = (b"\x80", b"(", b"}")
"""First bytes of pickles of dictionaries, of protocols from 2 on, 0 and 1."""

_RANKED: Final = re.compile(r"(?:.*\brank[ _:-]?|trace_)?\d{1,7}", re.IGNORECASE)
_NUMBER: Final = re.compile(r"\d+")
"""Names of the dumps of several ranks in one object, and the rank in them."""

NO_RANK: Final = "its name has no rank (a number is expected, as in trace_12)"

_PAIR: Final = re.compile(r"(send|recv)\s+(\d{1,7})\s*(?:->|<-)\s*(\d{1,7})")


@dataclass(frozen=True)
class Call:
    """An operation that was called. `order`: its place among all calls of the rank; `started`: its kernel runs.

    `sizes`: numbers of elements and types, which are compared; `place`: the line of the program that called it;
    `timeout`: seconds after which it fails, 0 if not known.
    """

    op: str
    sizes: str
    created_ns: int
    order: int = -1
    started: bool = False
    place: str = ""
    timeout: float = 0.0


@dataclass
class PeerCalls:
    """Sends to, or receives from, one peer: how many are in the ring buffer, and those that have not ended."""

    called: int = 0
    pending: list[Call] = field(default_factory=list)
    orders: list[int] = field(default_factory=list)
    """Places of these calls among all calls of the rank."""


@dataclass
class DumpPart:
    """One rank's view of one process group: last number called, last number ended, and pending operations."""

    desc: str = ""
    enqueued: int = 0
    completed: int = 0
    ended_by_all: int = 0
    """Last number of a collective that ends nowhere before all members have entered it, and that ended here."""
    retired: int = 0
    """The same of those that were retired without having been seen to end: they ended, or failed."""
    open: dict[int, Call] = field(default_factory=dict)
    peers: dict[tuple[str, int], PeerCalls] = field(default_factory=dict)
    """By operation (send or recv) and the peer's index in the group."""


@dataclass
class Dump:
    """The dump of one rank. `members` are the ranks of the groups that it knows.

    `status` holds the last number called and ended by the group's handle on this rank, `names` the groups of handles,
    as far as entries show them; `full`: the ring buffer has dropped entries; `timed`: the recorder saw kernels start;
    `ended`: how many entries have ended; `calls`: group, number (0 for a send or receive), operation, and place among
    all entries; `sizes`: those of each of `calls`; `collectives`: places of collectives among all calls; `first_ns`,
    `last_ns`: when the first and the last entry were called, by the rank's clock; `communicators`: names of those of
    NCCL, which no other run has.
    """

    rank: Rank
    parts: dict[str, DumpPart] = field(default_factory=dict)
    members: dict[str, tuple[Rank, ...]] = field(default_factory=dict)
    status: dict[str, tuple[int, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    full: bool = False
    timed: bool = False
    ended: int = 0
    calls: list[tuple[str, int, str, int]] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    collectives: dict[tuple[str, int], int] = field(default_factory=dict)
    first_ns: int = 0
    last_ns: int = 0
    active_ns: int = 0
    """When the last entry was called or seen to end, by the rank's clock; 0 if no entry says so."""
    taken_ns: int = 0
    """When the dump was taken, by the rank's clock, or earlier; 0 if no entry shows it."""
    written: float = 0.0
    """Unix seconds at which the file was last written; 0 if not known. A copy may be younger than the dump."""
    retired: int = 0
    fresh: int = 0
    """How many entries the watchdog has retired, and how many have ended since it looked last."""
    communicators: frozenset[str] = frozenset()
    nameless: frozenset[Rank] = frozenset()
    """Ranks of groups that the configuration gives no name."""
    unsure: bool = False
    """Whether the last call was retired without having been seen to end: it ended, or failed."""
    unrecorded: bool = False
    """Whether operations were counted that are not recorded, as gloo counts sends and receives."""
    last: Call | None = None
    """The last call."""
    told: bool = True
    """Whether groups have names that are the same on all ranks: handles are counted on each rank."""

    @property
    def waits(self) -> bool:
        """Whether any call has not ended."""
        peers = (pair for part in self.parts.values() for pair in part.peers.values())
        return any(part.open for part in self.parts.values()) or any(pair.pending for pair in peers)


@dataclass(frozen=True)
class _PeerEntry:
    group: str
    what: str
    peer: int
    seq: int
    ended: bool
    call: Call


@dataclass(frozen=True)
class DumpFiles:
    """The dumps in order of their ranks, the collectives that were timed, and files of ranks that cannot be read."""

    dumps: list[Dump]
    rows: OperationRows
    unreadable: dict[Rank, str]


def read_dumps(paths: Iterable[str], problems: Problems) -> DumpFiles:
    """Every dump in files and folders. What cannot be used is listed in `problems`; everything else is used."""
    rows = OperationRows()
    dumps: dict[Rank, tuple[Dump, str]] = {}
    unreadable: dict[Rank, str] = {}
    for file in sources.files_of(paths, (), problems):
        place, named = str(file), sources.rank_of(file)
        try:
            values = values_by_rank(parse(sources.read_content(file)), named)
            written = file.stat().st_mtime
        except (SourceError, UnsafePickleError, OSError) as error:
            problems.add(place, "; ".join(dict.fromkeys([*([NO_RANK] if named is None else []), str(error)])))
            unreadable |= {} if named is None else {named: place}
            continue
        for rank, value in values.items():
            if rank in dumps:
                problems.add(
                    place,
                    f"rank {rank} was read from {dumps[rank][1]} already; if these are two jobs, judge the dumps of "
                    "each by themselves",
                )
                continue
            try:
                dumps[rank] = replace(dump_of(value, rank, place, problems, rows), written=written), place
            except SourceError as error:
                problems.add(place, str(error))
                unreadable[rank] = place
    lost = {rank: place for rank, place in unreadable.items() if rank not in dumps}
    return DumpFiles([dumps[rank][0] for rank in sorted(dumps)], rows, lost)


def parse(data: bytes) -> Any:
    """The value of a file, pickle, JSON or a report of the analyzer.

    Raises `UnsafePickleError` or `SourceError` naming the byte.
    """
    if data[:1] in PICKLED:
        return load_plain_pickle(data)
    if data.lstrip()[:1] in (b"{", b"["):
        try:
            return sources.read_json(data)
        except SourceError:
            lines = data.splitlines()
            if len(lines) < 2:
                raise
            return [sources.read_json(line) for line in lines if line.strip()]
    if is_of_analyzer(data):
        return dumps_of_report(data.decode(errors="replace"))
    raise SourceError("neither a pickle nor JSON" if data else "the file is empty")


def values_by_rank(value: Any, named: Rank | None) -> dict[Rank, Any]:
    """The dumps in a file: that of the rank in its name, or those of several ranks.

    These are in an object by rank, or in a list of dumps that say their rank or are in order. Raises `SourceError`.
    """
    several: dict[Rank, Any] = {}
    if isinstance(value, dict) and not _is_dump(value):
        [inner, *others] = value.values() or [None]
        value = inner if not others and (isinstance(inner, list) or _are_by_rank(inner)) else value
    if _are_by_rank(value):
        several = {Rank(int(_NUMBER.findall(str(key))[-1])): one for key, one in value.items()}
    elif isinstance(value, list) and value and all(map(_is_dump, value)):
        ranks = [whole(one.get("rank")) for one in value]
        several = {
            Rank(place if rank is None else rank): one
            for place, (rank, one) in enumerate(zip(ranks, value, strict=True))
        }
    if several:
        return several
    if named is None:
        raise SourceError(NO_RANK)
    return {named: value}


def _is_dump(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("entries"), list)


def _are_by_rank(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(
            _RANKED.fullmatch(str(key)) and (_is_dump(one) or isinstance(one, list)) for key, one in value.items()
        )
    )


def dump_of(value: Any, rank: Rank, file: str, problems: Problems, rows: OperationRows) -> Dump:
    """One rank's dump from its plain value; timed collectives are added to `rows`.

    Raises `SourceError` for anything that is not a dump; counts invalid entries.
    """
    if isinstance(value, list) and value and all(isinstance(entry, dict) and "seq_id" in entry for entry in value):
        value = {"entries": value}  # of PyTorch 2.2
    if isinstance(value, dict) and isinstance(value.get("pg_config"), dict):
        value = {"entries": []} | value  # JSON leaves out an empty list
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise SourceError("no Flight Recorder dump: there is no list of entries")
    entries = _in_order_of_calls(value["entries"])
    dump = Dump(rank)
    config = value.get("pg_config")
    for key, item in config.items() if isinstance(config, dict) else ():
        # What else is there, such as settings of a vendor, tells no members.
        if isinstance(item, dict) and key == item.get("name") and item.get("ranks") is not None:
            members = _ranks(item["ranks"])
            if members is None:
                problems.add(file, f"pg_config[{text(key, 40)!r}].ranks: a list of ranks was expected")
            elif members and key:
                dump.members[text(key)] = members
            elif members:
                dump.nameless = frozenset(members)
    dump.status = _status(value.get("pg_status"))
    state = value.get("nccl_comm_state")
    dump.communicators = frozenset(text(name) for name in state if name) if isinstance(state, dict) else frozenset()
    between: list[_PeerEntry] = []
    batches: dict[tuple[str, int], tuple[bool, bool]] = {}
    for place, entry in enumerate(entries[:MAX_ENTRIES]):
        try:
            _take(dump, entry, place, rows, between, batches)
        except SourceError as error:
            problems.add(file, f"entries[{place}]: {error}")
    _add_between(dump, between, batches)
    for part in dump.parts.values():
        part.open = {seq: call for seq, call in part.open.items() if seq > part.completed}
    if len(entries) > MAX_ENTRIES:
        problems.add(file, f"only the first {MAX_ENTRIES} entries were looked at", len(entries) - MAX_ENTRIES)
    dump.told = bool(dump.members) or len(dump.names) < 2 or any(name != key for key, name in dump.names.items())
    first = entries[0].get("record_id") if entries and isinstance(entries[0], dict) else None
    dump.full = (whole(first) or 0) > 0
    return dump


def _in_order_of_calls(entries: list[Any]) -> list[Any]:
    """Entries by their numbers. The recorder writes them so; tools that sort or merge them may not."""
    numbers = [whole(entry.get("record_id")) if isinstance(entry, dict) else None for entry in entries]
    known = [number for number in numbers if number is not None]
    if len(known) < len(entries) or known == sorted(known):
        return entries
    return [entry for _, entry in sorted(zip(known, entries, strict=True), key=itemgetter(0))]


def _take(
    dump: Dump, entry: Any, order: int, rows: OperationRows, between: list[_PeerEntry],
    batches: dict[tuple[str, int], tuple[bool, bool]],
) -> None:  # fmt: skip
    """Add one entry; sends and receives to `between`, the state of those that were called together to `batches`."""
    if not isinstance(entry, dict):
        raise SourceError("a dictionary was expected")
    handle, pair = str(whole(entry.get("pg_id"))), entry.get("process_group")
    name, desc = handle, ""
    if isinstance(pair, list | tuple) and len(pair) == 2 and text(pair[0]):
        name, desc = text(pair[0]), text(pair[1])
    op = text(entry.get("profiling_name"))
    two = _PAIR.search(op)
    seq = whole(entry.get("collective_seq_id", entry.get("seq_id")))
    if seq is None or seq < 0:
        raise SourceError("collective_seq_id: a count was expected")
    part = dump.parts.setdefault(name, DumpPart(desc))
    dump.names.setdefault(handle, name)
    seen = entry.get("state") == "completed"
    ended = seen or entry.get("retired") is True
    started = entry.get("state") == "started" or (whole(entry.get("time_discovered_started_ns")) or 0) > 0
    # Only a recorded start gives a duration.
    dump.timed |= started or number(entry.get("duration_ms")) is not None
    backend, colon, called = op.partition(":")
    op = called if colon else op
    sizes = f"{_elements(entry.get('input_sizes'))} {_words(entry.get('input_dtypes'))}"
    created = whole(entry.get("time_created_ns")) or 1000 * (whole(entry.get("time_created_us")) or 0)
    timeout = (whole(entry.get("timeout_ms")) or 0) / 1e3
    call = dump.last = Call(op, sizes, created, order, started, _place(entry.get("frames")), timeout)
    if created > 0:
        dump.first_ns = min(created, dump.first_ns or created)
        dump.last_ns = max(created, dump.last_ns)
    began, done = (whole(entry.get(f"time_discovered_{what}_ns")) or 0 for what in ("started", "completed"))
    dump.active_ns = max(created, done, dump.active_ns)
    dump.retired += entry.get("retired") is True
    dump.fresh += entry.get("retired") is False and entry.get("state") == "completed"
    if entry.get("retired") is not True:
        dump.taken_ns = max(done, 0 if ended else began, dump.taken_ns)
    if two or entry.get("is_p2p") is True:
        number_of_pair = whole(entry.get("p2p_seq_id")) or 0
        if two:
            dump.calls.append((name, 0, two[1], order))
            dump.sizes.append(sizes)
            between.append(_PeerEntry(name, two[1], int(two[3]), number_of_pair, ended, call))
        else:
            batches[name, number_of_pair] = ended, started
        return
    part.enqueued = max(part.enqueued, seq)
    counted = whole(entry.get("op_id"))
    dump.unrecorded |= backend == "gloo" and counted is not None and counted > seq
    dump.calls.append((name, seq, op, order))
    dump.sizes.append(sizes)
    dump.unsure = ended and not seen
    dump.collectives.setdefault((name, seq), order)
    if ended:
        dump.ended += 1
        part.completed = max(part.completed, seq)
        if NEEDS_ALL.search(op) and seen:
            part.ended_by_all = max(part.ended_by_all, seq)
        elif NEEDS_ALL.search(op):
            part.retired = max(part.retired, seq)
        spent = number(entry.get("duration_ms"))
        if created > 0 and spent is not None and 0 < spent <= LATEST * 1e3:
            rows.add(str(dump.rank), op, created / 1e9, spent / 1e3, group=name, seq=seq)
    elif seq not in part.open:
        part.open[seq] = call


def _add_between(
    dump: Dump, between: list[_PeerEntry], batches: dict[tuple[str, int], tuple[bool, bool]]
) -> None:  # fmt: skip
    """Add sends and receives. Those called together have no state of their own: that of the batch counts."""
    for item in between:
        ended, started = batches.get((item.group, item.seq), (False, False)) if item.seq else (False, False)
        peers = dump.parts[item.group].peers.setdefault((item.what, item.peer), PeerCalls())
        peers.called += 1
        peers.orders.append(item.call.order)
        if ended or item.ended:
            # One peer's sends, and its receives, end in the order of the calls.
            peers.pending.clear()
            dump.ended += 1
        else:
            peers.pending.append(replace(item.call, started=item.call.started or started))


def _place(frames: Any) -> str:
    """File, line and function of the innermost frame outside of PyTorch, or else of the innermost one."""
    known = [
        (text(frame.get("filename"), 200), whole(frame.get("line")) or 0, text(frame.get("name"), 80))
        for frame in (frames[:MAX_FRAMES] if isinstance(frames, list | tuple) else ())
        if isinstance(frame, dict) and text(frame.get("filename"), 200)
    ]
    own = [frame for frame in known if "/torch/" not in frame[0]] or known
    return f"{own[0][0]}:{own[0][1]}" + (f" in {own[0][2]}" if own[0][2] else "") if own else ""


def _elements(value: Any) -> str:
    """Numbers of elements of the first tensors as text; the transport does not see their shapes."""
    found = []
    for item in value[:MAX_TENSORS] if isinstance(value, list | tuple) else ():
        sides = [whole(side) for side in (item[:MAX_TENSORS] if isinstance(item, list | tuple) else (item,))]
        found.append(prod(side for side in sides if side is not None) if None not in sides else None)
    return f"{found}"


def _words(value: Any) -> str:
    """Types of the first tensors as text."""
    return ", ".join(text(item) for item in value[:MAX_TENSORS]) if isinstance(value, list | tuple) else ""


def _ranks(value: Any) -> tuple[Rank, ...] | None:
    """Ranks given as a list, or as the text of one."""
    if isinstance(value, str) and len(value) < 1 << 24:
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    if not isinstance(value, list | tuple) or any(type(item) is not int or not 0 <= item < 1 << 24 for item in value):
        return None
    return tuple(sorted(set(value)))


def _status(value: Any) -> dict[str, tuple[int, int]]:
    """Last number called and last number ended by the group's handle."""
    found = {}
    for handle, item in value.items() if isinstance(value, dict) else ():
        if isinstance(item, dict):
            enqueued, completed = (whole(item.get(f"last_{what}_collective")) for what in ("enqueued", "completed"))
            found[str(handle)] = (enqueued or 0, completed or 0)
    return found
