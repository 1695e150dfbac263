"""PyTorch Flight Recorder dumps: who is missing from which collective. All but `read` is pure.

A dump holds one rank's latest collectives by process group and number. Whoever entered a collective that has not
ended waits for the members that have not come. A rank that others wait for, and that waits for nobody itself, is
where the job hangs; a rank that is missing because it waits elsewhere is a victim.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import orjson

from ingero_fleet.diagnose.plain import PlainError, load_plain
from ingero_fleet.diagnose.sources import (
    Claims,
    Problems,
    Rows,
    SourceError,
    content,
    files_of,
    number,
    rank_of,
    text,
    whole,
)
from ingero_kit.clock import rfc3339

CLAIMS: Final = Claims(
    can=(
        "which ranks are missing from which collective, and who waits for them",
        "that ranks call different collectives, or with different sizes, under one number",
        "who is late, where timing was recorded (TORCH_NCCL_ENABLE_TIMING)",
    ),
    cannot=(
        "why a missing rank is missing: its stack, its host and its log say that",
        "whether a rank that left no dump is dead or only did not write one",
        "whether a collective that is under way would still have ended: a dump is one moment",
    ),
)

MAX_ENTRIES: Final = 1_000_000
"""Entries of one dump that are looked at."""

MAX_TENSORS: Final = 16
"""Tensors, and dimensions, of one call that are compared."""

SHOWN: Final = 20
SHOWN_RANKS: Final = 64
SAME_SIZES: Final = frozenset({"all_reduce", "reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base"})
"""Collectives whose input sizes must agree on all ranks."""

HANGS: Final = {
    "hang": "the job waits for rank {ranks}, which came to no collective that others are in",
    "no_dump": "everybody who left a dump waits; rank {ranks} left none",
    "unknown": "the dumps do not tell: too much is missing, unreadable, or gone from the rings",
    "mismatch": "ranks call different collectives under one number; differing from most: {ranks}",
    "order": "ranks wait for each other: they call collectives in different orders, or one is held up elsewhere",
    "stuck": "everybody has come and nobody goes on: the transport or a GPU, not a rank's program",
    "none": "no collective is under way in these dumps",
}
"""The verdicts in words."""

_PAIR: Final = re.compile(r"(send|recv)\s+(\d{1,7})\s*(?:->|<-)\s*(\d{1,7})")
_DEFAULT: Final = "default_pg"


class HangKind(StrEnum):
    """What the dumps show."""

    HANG = "hang"
    NO_DUMP = "no_dump"
    MISMATCH = "mismatch"
    ORDER = "order"
    STUCK = "stuck"
    UNKNOWN = "unknown"
    NONE = "none"


@dataclass(frozen=True)
class Call:
    """An operation that has not ended."""

    op: str
    sizes: str
    created_ns: int


@dataclass
class Part:
    """One rank's view of one process group: last number called, last number ended, and what is under way."""

    desc: str = ""
    enqueued: int = 0
    completed: int = 0
    open: dict[int, Call] = field(default_factory=dict)
    pairs: set[tuple[str, int]] = field(default_factory=set)
    """Sends and receives under way: what, and the peer's place in the group."""


@dataclass
class Dump:
    """What one rank left. `members` are the ranks of the groups that it was told of.

    `status` holds the last number called and ended by the group's handle on this rank, `names` the groups of handles,
    as far as entries tell; `full`: the ring has let entries go.
    """

    rank: int
    parts: dict[str, Part] = field(default_factory=dict)
    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    status: dict[str, tuple[int, int]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    full: bool = False


@dataclass(frozen=True)
class Front:
    """The first collective of a group that did not end everywhere."""

    group: str
    desc: str
    seq: int
    ops: tuple[str, ...]
    entered: tuple[int, ...]
    missing: tuple[int, ...]
    without_dump: tuple[int, ...]
    ended: tuple[int, ...]
    unknown: tuple[int, ...] = ()
    """Ranks whose dump has let go of everything about the group."""
    odd: tuple[int, ...] = ()
    """Ranks that called something else than most under this number."""
    since: float | None = None
    """When the first of them entered, by its clock."""

    def answer(self) -> dict[str, Any]:
        """As the command prints it."""
        return {
            "group": self.group, "description": self.desc, "seq": self.seq, "op": "/".join(self.ops),
            **{
                name: list(ranks[:SHOWN_RANKS])
                for name in ("entered", "missing", "without_dump", "ended", "unknown", "odd")
                if (ranks := getattr(self, name)) or name in ("entered", "missing")
            },
            "entered_count": len(self.entered), "missing_count": len(self.missing),
            "since": rfc3339(self.since) if self.since else None,
        }  # fmt: skip


@dataclass(frozen=True)
class Hang:
    """The verdict: `ranks` are those to look at, empty where the dumps do not single anybody out."""

    kind: HangKind
    ranks: tuple[int, ...] = ()
    fronts: tuple[Front, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    """Who waits for whom in a send or receive."""
    dumps: int = 0


def read(paths: Iterable[str], problems: Problems) -> tuple[list[Dump], Rows]:
    """Every dump in files and folders, and the collectives that were timed.

    What cannot be used is told in `problems`, and nothing else is lost.
    """
    rows = Rows()
    dumps: dict[int, tuple[Dump, str]] = {}
    for file in files_of(paths, (), problems):
        place = str(file)
        rank = rank_of(file)
        if rank is None:
            problems.add(place, "its name tells no rank (a number is expected, as in trace_12)")
            continue
        if rank in dumps:
            problems.add(place, f"rank {rank} was read from {dumps[rank][1]} already")
            continue
        try:
            value = parse(content(file))
            dump = dump_of(value, rank, place, problems, rows)
        except (SourceError, PlainError) as error:
            problems.add(place, str(error))
            continue
        dumps[rank] = (dump, place)
    return [dumps[rank][0] for rank in sorted(dumps)], rows


def parse(data: bytes) -> Any:
    """The value of a dump, pickle or JSON. Raises `PlainError` or `SourceError` naming the byte."""
    if data[:1] == b"\x80":
        return load_plain(data)
    if data.lstrip()[:1] == b"{":
        try:
            return orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise SourceError(f"not JSON: {error}") from None
    raise SourceError("neither a pickle nor JSON" if data else "the file is empty")


def dump_of(value: Any, rank: int, file: str, problems: Problems, rows: Rows) -> Dump:
    """One rank's dump from its plain value; timed collectives are added to `rows`.

    Raises `SourceError` for what is no dump; counts entries that are bad.
    """
    if not isinstance(value, dict) or not isinstance(value.get("entries"), list):
        raise SourceError("no Flight Recorder dump: there is no list of entries")
    entries = value["entries"]
    dump = Dump(rank)
    config = value.get("pg_config")
    for key, item in config.items() if isinstance(config, dict) else ():
        if isinstance(item, dict) and key == item.get("name") and key:
            ranks = item.get("ranks")
            members = _ranks(ranks)
            if members is None:
                problems.add(file, f"pg_config[{text(key, 40)!r}].ranks: a list of ranks was expected")
            elif members:
                dump.members[text(key)] = members
    dump.status = _status(value.get("pg_status"))
    for place, entry in enumerate(entries[:MAX_ENTRIES]):
        try:
            _take(dump, entry, rows)
        except SourceError as error:
            problems.add(file, f"entries[{place}]: {error}")
    if len(entries) > MAX_ENTRIES:
        problems.add(file, f"only the first {MAX_ENTRIES} entries were looked at", len(entries) - MAX_ENTRIES)
    first = entries[0].get("record_id") if entries and isinstance(entries[0], dict) else None
    dump.full = (whole(first) or 0) > 0
    return dump


def _take(dump: Dump, entry: Any, rows: Rows) -> None:
    """Take in one entry."""
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
    part = dump.parts.setdefault(name, Part(desc))
    dump.names.setdefault(handle, name)
    ended = entry.get("state") == "completed" or entry.get("retired") is True
    if two or entry.get("is_p2p") is True:
        if two and not ended:
            part.pairs.add((two[1], int(two[3])))
        return
    part.enqueued = max(part.enqueued, seq)
    op = op.split(":", 1)[-1]
    if ended or seq <= dump.status.get(handle, (0, 0))[1]:
        part.completed = max(part.completed, seq)
        created, spent = whole(entry.get("time_created_ns")), number(entry.get("duration_ms"))
        if created and created > 0 and spent is not None and spent > 0:
            rows.add(str(dump.rank), op, created / 1e9, spent / 1e3, group=name, seq=seq)
    elif seq not in part.open:
        sizes = _shape(entry.get("input_sizes")) + _shape(entry.get("input_dtypes"))
        part.open[seq] = Call(op, sizes, whole(entry.get("time_created_ns")) or 0)


def _shape(value: Any) -> str:
    """Sizes or types of tensors as text, the first ones."""
    found = []
    for item in value[:MAX_TENSORS] if isinstance(value, list | tuple) else ():
        inner = item[:MAX_TENSORS] if isinstance(item, list | tuple) else (item,)
        found.append("x".join(text(part) or str(whole(part)) for part in inner))
    return f"{found}"


def _ranks(value: Any) -> tuple[int, ...] | None:
    """Ranks told as a list, or as the text of one."""
    if isinstance(value, str) and len(value) < 1 << 24:
        try:
            value = orjson.loads(value)
        except orjson.JSONDecodeError:
            return None
    if not isinstance(value, list) or any(type(item) is not int or not 0 <= item < 1 << 24 for item in value):
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


def find_hang(dumps: list[Dump]) -> Hang:
    """Where the job hangs, from all dumps together."""
    _apply_status(dumps)
    by_rank = {dump.rank: dump for dump in dumps}
    members = _members(dumps)
    fronts = tuple(
        front for group in sorted(members) if (front := _front(group, members[group], by_rank)) is not None
    )
    pairs = _waiting_pairs(by_rank, members)
    waiting = {rank for front in fronts for rank in front.entered} | {one for one, _ in pairs}
    wanted = {rank for front in fronts for rank in front.missing} | {other for _, other in pairs}
    silent = {rank for front in fronts for rank in front.without_dump} | (wanted - set(by_rank))
    roots = sorted(wanted & set(by_rank) - waiting)
    told = Hang(HangKind.NONE, (), fronts, tuple(pairs), len(dumps))
    odd = sorted({rank for front in fronts for rank in front.odd})
    if roots:
        return _with(told, HangKind.HANG, roots)
    if silent and len(silent) <= len(dumps):
        return _with(told, HangKind.NO_DUMP, sorted(silent))
    if silent or any(front.unknown for front in fronts):
        # Where most ranks left no dump the dumps were not gathered, and nobody is to be suspected for it.
        return _with(told, HangKind.UNKNOWN, [])
    if any(len(front.ops) > 1 for front in fronts):
        return _with(told, HangKind.MISMATCH, odd)
    if wanted & set(by_rank):
        return _with(told, HangKind.ORDER, [])
    return _with(told, HangKind.STUCK, []) if fronts or pairs else told


def _apply_status(dumps: list[Dump]) -> None:
    """Let each rank's status speak for the groups whose entries its ring has let go.

    A handle that the rank's own entries do not name is the group that all other ranks know by it, if they agree.
    """
    known: dict[str, set[str]] = {}
    for dump in dumps:
        for handle, name in dump.names.items():
            known.setdefault(handle, set()).add(name)
    for dump in dumps:
        for handle, (enqueued, completed) in dump.status.items():
            agreed = known.get(handle, set())
            group = dump.names.get(handle) or (next(iter(agreed)) if len(agreed) == 1 else "")
            if not group:
                continue
            part = dump.parts.setdefault(group, Part())
            part.enqueued, part.completed = max(part.enqueued, enqueued), max(part.completed, completed)


def _with(told: Hang, kind: HangKind, ranks: list[int]) -> Hang:
    return Hang(kind, tuple(ranks), told.fronts, told.pairs, told.dumps)


def _members(dumps: list[Dump]) -> dict[str, tuple[int, ...]]:
    """The ranks of every group that anybody used: as told by its members, else those who used it."""
    told: dict[str, Counter[tuple[int, ...]]] = {}
    used: dict[str, set[int]] = {}
    everybody: set[int] = {dump.rank for dump in dumps}
    defaults: set[str] = set()
    for dump in dumps:
        for group, ranks in dump.members.items():
            told.setdefault(group, Counter())[ranks] += 1
            everybody.update(ranks)
        for group, part in dump.parts.items():
            used.setdefault(group, set()).add(dump.rank)
            if part.desc == _DEFAULT:
                defaults.add(group)
    found: dict[str, tuple[int, ...]] = {}
    for group, users in used.items():
        most = told[group].most_common(1)[0][0] if group in told else ()
        if not users <= set(most):
            # The dump tells members that do not even hold those who used the group.
            most = tuple(sorted(everybody if group in defaults else users | set(most)))
        found[group] = most
    return found


def _front(group: str, members: tuple[int, ...], by_rank: Mapping[int, Dump]) -> Front | None:
    unknown = tuple(
        rank for rank in members if rank in by_rank and by_rank[rank].full and group not in by_rank[rank].parts
    )
    known = [rank for rank in members if rank in by_rank and rank not in unknown]
    parts = {rank: by_rank[rank].parts.get(group, Part()) for rank in known}
    seqs = [min(part.open) for part in parts.values() if part.open]
    if not seqs:
        return None
    seq = min(seqs)
    calls = {rank: part.open[seq] for rank, part in parts.items() if seq in part.open}
    entered = tuple(sorted(rank for rank, part in parts.items() if part.enqueued >= seq > part.completed))
    most = Counter(call.op for call in calls.values()).most_common(2)
    sizes = Counter(call.sizes for call in calls.values()).most_common(2)
    ops = tuple(op for op, _ in most)
    odd: tuple[int, ...] = ()
    if len(most) > 1 and most[0][1] > most[1][1]:
        odd = tuple(sorted(rank for rank, call in calls.items() if call.op != most[0][0]))
    elif len(most) == 1 and most[0][0] in SAME_SIZES and len(sizes) > 1:
        ops = (ops[0], f"{ops[0]} of another size")
        if sizes[0][1] > sizes[1][1]:
            odd = tuple(sorted(rank for rank, call in calls.items() if call.sizes != sizes[0][0]))
    return Front(
        group=group,
        desc=next((part.desc for part in parts.values() if part.desc), ""),
        seq=seq,
        ops=ops,
        entered=entered,
        missing=tuple(sorted(rank for rank, part in parts.items() if part.enqueued < seq)),
        without_dump=tuple(rank for rank in members if rank not in by_rank),
        ended=tuple(sorted(rank for rank, part in parts.items() if part.completed >= seq)),
        unknown=unknown,
        odd=odd,
        since=min((call.created_ns for call in calls.values() if call.created_ns > 0), default=0) / 1e9 or None,
    )


def _waiting_pairs(by_rank: Mapping[int, Dump], members: Mapping[str, tuple[int, ...]]) -> list[tuple[int, int]]:
    """Who waits for whom in sends and receives: the peer has not come to the same group's other end."""
    found = []
    for rank, dump in sorted(by_rank.items()):
        for group, part in dump.parts.items():
            ranks = members[group]
            for what, place in sorted(part.pairs):
                peer = ranks[place] if place < len(ranks) else place
                other = by_rank[peer].parts.get(group, Part()) if peer in by_rank else Part()
                answers = {
                    ranks[place] if place < len(ranks) else place for kind, place in other.pairs if kind != what
                }
                if rank not in answers:
                    found.append((rank, peer))
    return found


def answer(hang: Hang) -> dict[str, Any]:
    """The verdict as the command prints it."""
    return {
        "kind": str(hang.kind),
        "ranks": list(hang.ranks[:SHOWN_RANKS]),
        "slowdown": None,
        "seconds_lost_per_step": None,
        "evidence": {
            "by": "flight_recorder",
            "dumps": hang.dumps,
            "ranks_count": len(hang.ranks),
            "collectives": [front.answer() for front in hang.fronts[:SHOWN]],
            "collectives_count": len(hang.fronts),
            "waiting_pairs": [list(pair) for pair in hang.pairs[:SHOWN]],
        },
    }
