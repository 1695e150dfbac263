"""Finds where a job hangs, from the dumps of all its ranks. Pure.

A rank that entered a collective which has not ended waits for the members that have not come. The job hangs at a rank
that others wait for and that waits for no other; one that is missing because it waits elsewhere is a victim.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from ingero_analyze.diagnose.flight_recorder_dumps import Call, Dump, DumpPart
from ingero_analyze.diagnose.sources import Claims
from ingero_kit.clock import rfc3339

SHOWN: Final = 20
SHOWN_RANKS: Final = 64
SAME_SIZES: Final = frozenset({"all_reduce", "reduce", "broadcast", "_all_gather_base", "_reduce_scatter_base"})
"""Collectives whose input sizes must agree on all ranks."""

_DEFAULT: Final = "default_pg"

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

HANGS: Final = {
    "hang": "the job waits for rank {ranks}, which came to no collective that others are in",
    "no_dump": "everybody who left a dump waits; rank {ranks} left none",
    "unknown": "the dumps do not tell: too much is missing, unreadable, or gone from the rings",
    "mismatch": "ranks call different collectives under one number; differing from most: {ranks}",
    "order": "ranks wait for each other: they call collectives in different orders, or one waits elsewhere",
    "stuck": "everybody has come and nobody goes on: the transport or a GPU, not a rank's program",
    "none": "no collective is under way in these dumps",
}
"""The verdicts as sentences."""


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
    """Ranks whose dump no longer holds anything about the group."""
    odd: tuple[int, ...] = ()
    """Ranks that called another operation under this number than most."""
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
    """The verdict: `ranks` are those to inspect, empty where the dumps do not single any out."""

    kind: HangKind
    ranks: tuple[int, ...] = ()
    fronts: tuple[Front, ...] = ()
    pairs: tuple[tuple[int, int], ...] = ()
    """Who waits for whom in a send or receive."""
    dumps: int = 0

    def answer(self) -> dict[str, Any]:
        """As the command prints it."""
        return {
            "kind": str(self.kind),
            "ranks": list(self.ranks[:SHOWN_RANKS]),
            "slowdown": None,
            "seconds_lost_per_step": None,
            "evidence": {
                "by": "flight_recorder",
                "dumps": self.dumps,
                "ranks_count": len(self.ranks),
                "collectives": [front.answer() for front in self.fronts[:SHOWN]],
                "collectives_count": len(self.fronts),
                "waiting_pairs": [list(pair) for pair in self.pairs[:SHOWN]],
            },
        }


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
    none = Hang(HangKind.NONE, (), fronts, tuple(pairs), len(dumps))
    odd = sorted({rank for front in fronts for rank in front.odd})
    if roots:
        return replace(none, kind=HangKind.HANG, ranks=tuple(roots))
    if silent and len(silent) <= len(dumps):
        return replace(none, kind=HangKind.NO_DUMP, ranks=tuple(sorted(silent)))
    if silent or any(front.unknown for front in fronts):
        # Where most ranks left no dump, the dumps were probably not collected: a missing dump is no evidence then.
        return replace(none, kind=HangKind.UNKNOWN)
    if any(len(front.ops) > 1 for front in fronts):
        return replace(none, kind=HangKind.MISMATCH, ranks=tuple(odd))
    if wanted & set(by_rank):
        return replace(none, kind=HangKind.ORDER)
    return replace(none, kind=HangKind.STUCK) if fronts or pairs else none


def _apply_status(dumps: list[Dump]) -> None:
    """Use each rank's status for the groups whose entries its ring buffer has dropped.

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
            part = dump.parts.setdefault(group, DumpPart())
            part.enqueued, part.completed = max(part.enqueued, enqueued), max(part.completed, completed)


def _members(dumps: list[Dump]) -> dict[str, tuple[int, ...]]:
    """The ranks of every group in use: as its members report them, otherwise the ranks that used it."""
    reported: dict[str, Counter[tuple[int, ...]]] = {}
    used: dict[str, set[int]] = {}
    everybody: set[int] = {dump.rank for dump in dumps}
    defaults: set[str] = set()
    for dump in dumps:
        for group, ranks in dump.members.items():
            reported.setdefault(group, Counter())[ranks] += 1
            everybody.update(ranks)
        for group, part in dump.parts.items():
            used.setdefault(group, set()).add(dump.rank)
            if part.desc == _DEFAULT:
                defaults.add(group)
    found: dict[str, tuple[int, ...]] = {}
    for group, users in used.items():
        most = reported[group].most_common(1)[0][0] if group in reported else ()
        if not users <= set(most):
            # The reported members lack ranks that used the group.
            most = tuple(sorted(everybody if group in defaults else users | set(most)))
        found[group] = most
    return found


def _front(group: str, members: tuple[int, ...], by_rank: Mapping[int, Dump]) -> Front | None:
    unknown = tuple(
        rank for rank in members if rank in by_rank and by_rank[rank].full and group not in by_rank[rank].parts
    )
    known = [rank for rank in members if rank in by_rank and rank not in unknown]
    parts = {rank: by_rank[rank].parts.get(group, DumpPart()) for rank in known}
    seqs = [min(part.open) for part in parts.values() if part.open]
    if not seqs:
        return None
    seq = min(seqs)
    calls = {rank: part.open[seq] for rank, part in parts.items() if seq in part.open}
    entered = tuple(sorted(rank for rank, part in parts.items() if part.enqueued >= seq > part.completed))
    ops, odd = _operations(calls)
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


def _operations(calls: Mapping[int, Call]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What was called under one number, the most frequent first, and which ranks called another one."""
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
    return ops, odd


def _waiting_pairs(by_rank: Mapping[int, Dump], members: Mapping[str, tuple[int, ...]]) -> list[tuple[int, int]]:
    """Pairs of ranks that wait in a send or receive of which the peer has not called the counterpart."""
    found = []
    for rank, dump in sorted(by_rank.items()):
        for group, part in dump.parts.items():
            ranks = members[group]
            for what, place in sorted(part.pairs):
                peer = ranks[place] if place < len(ranks) else place
                other = by_rank[peer].parts.get(group, DumpPart()) if peer in by_rank else DumpPart()
                answers = {
                    ranks[place] if place < len(ranks) else place for kind, place in other.pairs if kind != what
                }
                if rank not in answers:
                    found.append((rank, peer))
    return found
