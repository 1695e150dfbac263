"""Finds where a job hangs, from the dumps of all its ranks, and says it. Pure.

`pending_operations` joins the dumps into operations that have not ended, `hang_causes` finds who causes that.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from ingero_analyze.diagnose.dump_ages import quiet_seconds
from ingero_analyze.diagnose.dump_groups import job_sizes, with_distinct_groups
from ingero_analyze.diagnose.dump_runs import separate_runs
from ingero_analyze.diagnose.flight_recorder_dumps import Call, Dump, DumpPart
from ingero_analyze.diagnose.hang_causes import find_causes, operations_called, uncounted
from ingero_analyze.diagnose.hang_reasons import TRACELESS, Causes, Why
from ingero_analyze.diagnose.pending_operations import JobState, join_dumps
from ingero_analyze.diagnose.sources import Claims, Problems
from ingero_contract.identifiers import Rank
from ingero_kit.clock import rfc3339

SHOWN: Final = 20
SHOWN_RANKS: Final = 64
CLAIMS: Final = Claims(
    can=(
        "which ranks are missing from which collective, and who waits for them",
        "that the GPU of a rank does not end what all others have ended",
        "that a dump was written before those of others, because others have ended since what needed the rank",
        "that a dump is of an earlier run of the job: minutes lie between its calls and those of most others",
        "that ranks call different collectives, or with different sizes, under one number",
        "who is late, where timing was recorded (TORCH_NCCL_ENABLE_TIMING)",
    ),
    cannot=(
        "why a missing rank is missing: its stack, its host and its log say that",
        "whether a rank that left no dump is dead or only did not write one",
        "in dumps of gloo: sends, receives and all-to-all, and whether an operation ended or failed",
        "whether a job hangs whose dumps were written just after its last call, or copied so that they look younger",
        "whether a collective that is under way would still have ended: a dump is one moment",
    ),
)

HANGS: Final = {
    "hang": "the job waits for rank {ranks}, which waits for no other",
    "no_dump": "everybody who left a dump waits; rank {ranks} left none that can be read",
    "unknown": "the dumps do not show every cause; certain: {ranks}; the others that are possible are listed",
    "mismatch": "ranks call different collectives under one number; differing from most: {ranks}",
    "order": "ranks wait for each other: they call collectives in different orders; against all others: {ranks}",
    "stuck": "all members have entered an operation that does not end: the transport or the GPU of one of them",
    "none": "no collective is under way in these dumps",
}
"""The verdicts as sentences."""

MIXED: Final = (
    "these are dumps of several runs: minutes lie between the calls of some and those of others, and no more than "
    "half are of the last run; judge the dumps of each run by themselves"
)

RUNNING: Final = (
    "the dumps were written {quiet:.3g} s after the last call or end of a call, so the job may be running; take them "
    "again when nothing has moved for half a minute, and keep the times of the files; where it is known to hang, ask "
    "with --hung"
)

EMPTY: Final = (
    "the dumps hold no call: the recorder was off (TORCH_FR_BUFFER_SIZE, TORCH_NCCL_TRACE_BUFFER_SIZE), nothing was "
    "called, or nothing that it records (gloo leaves out sends, receives and all-to-all)"
)

UNTOLD: Final = (
    "the dumps do not say which ranks form a group (PyTorch 2.3 and later do), "
    "so calls of one number may be of several groups"
)

OTHER_JOBS: Final = "these are dumps of jobs of {sizes} ranks; judge the dumps of each job by themselves"

WAITED_FOR: Final = frozenset(map(str, (
    Why.HOST, Why.GPU, Why.GPU_BEFORE, Why.NO_DUMP, Why.UNREADABLE, Why.EARLIER_RUN, Why.EARLY_DUMP,
)))  # fmt: skip
"""What also shows a rank for which a running job waits a moment."""


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
    entered: tuple[Rank, ...]
    missing: tuple[Rank, ...]
    without_dump: tuple[Rank, ...]
    ended: tuple[Rank, ...]
    unknown: tuple[Rank, ...] = ()
    """Ranks whose dump does not show how far they came: it is too old, or its ring buffer has dropped the group."""
    odd: tuple[Rank, ...] = ()
    """Ranks that called another operation under this number than most."""
    since: float | None = None
    """When the first of them entered, by its clock."""
    calls: tuple[tuple[Call, tuple[Rank, ...]], ...] = ()
    """What was called under this number, where that differs, and by whom; the most frequent first."""

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
            **({"calls": [_shown(call, ranks) for call, ranks in self.calls[:SHOWN]]} if self.calls else {}),
        }  # fmt: skip


def _shown(call: Call, ranks: tuple[Rank, ...] = ()) -> dict[str, Any]:
    """A call as the command prints it: `elements` of the first tensors, and their types."""
    elements, _, types = call.sizes.partition("] ")
    return {
        "op": call.op, "elements": f"{elements}]", "types": types, "place": call.place or None,
        **({"ranks": list(ranks[:SHOWN_RANKS]), "ranks_count": len(ranks)} if ranks else {}),
    }  # fmt: skip


@dataclass(frozen=True)
class Hang:
    """The verdict: `ranks` are those to inspect, empty where the dumps do not single any out."""

    kind: HangKind
    ranks: tuple[Rank, ...] = ()
    fronts: tuple[Front, ...] = ()
    pairs: tuple[tuple[Rank, Rank], ...] = ()
    """Who waits for whom in a send or receive."""
    dumps: int = 0
    possible: tuple[Rank, ...] = ()
    """Ranks that may be causes too, or instead: the dumps do not exclude them."""
    cycle: tuple[Rank, ...] = ()
    """Ranks that wait for each other and for no other rank."""
    why: dict[Rank, str] = field(default_factory=dict)
    """Why each of `ranks` and `possible` is listed."""
    early: tuple[Rank, ...] = ()
    """Ranks whose dumps were written before those of others: others have ended since what needed them."""
    reason: str = ""
    """Of an `unknown`: why the possible ranks are neither named nor excluded."""
    likely: tuple[Rank, ...] = ()
    """Of the possible ranks, those that together are the simplest cause."""
    last_calls: dict[Rank, Call] = field(default_factory=dict)
    """The last call of each of `ranks` and `possible` that left a dump."""
    earlier: dict[Rank, float] = field(default_factory=dict)
    """Ranks whose dumps are of an earlier run, and when they called last, by their clocks."""
    unreadable: dict[Rank, str] = field(default_factory=dict)
    """Files of ranks that cannot be read."""
    quiet: float | None = None
    """Seconds between the job's last sign of life and its dumps, where these are so few that it may be running."""

    def answer(self) -> dict[str, Any]:
        """As the command prints it."""
        return {
            "kind": str(self.kind),
            "ranks": list(self.ranks[:SHOWN_RANKS]),
            "slowdown": None,
            "seconds_lost_per_step": None,
            "evidence": {
                "by": "flight_recorder",
                "reason": self.reason or None,
                "dumps": self.dumps,
                "ranks_count": len(self.ranks),
                "collectives": [front.answer() for front in self.fronts[:SHOWN]],
                "collectives_count": len(self.fronts),
                "waiting_pairs": [list(pair) for pair in self.pairs[:SHOWN]],
                "why": {str(rank): self.why[rank] for rank in self.ranks[:SHOWN_RANKS]},
                "possible": {str(rank): self.why[rank] for rank in self.possible[:SHOWN_RANKS]},
                "possible_count": len(self.possible),
                "most_likely": list(self.likely[:SHOWN_RANKS]),
                "last_calls": {
                    str(rank): _shown(self.last_calls[rank])
                    for rank in (*self.ranks, *self.possible)[:SHOWN_RANKS]
                    if rank in self.last_calls
                },
                "cycle": list(self.cycle[:SHOWN_RANKS]),
                "early_dumps": list(self.early[:SHOWN_RANKS]),
                "earlier_run": {
                    str(rank): rfc3339(self.earlier[rank]) for rank in sorted(self.earlier)[:SHOWN_RANKS]
                },
                "unreadable_dumps": {
                    str(rank): self.unreadable[rank] for rank in sorted(self.unreadable)[:SHOWN_RANKS]
                },
                "quiet_seconds": None if self.quiet is None else round(self.quiet, 3),
            },
        }


def find_hang(dumps: list[Dump], unreadable: Mapping[Rank, str] | None = None, hung: bool = False) -> Hang:
    """Where the job hangs, from all dumps of its last run together.

    `unreadable`: files of ranks without a dump; `hung`: it is known that the job hangs, and is not only running.
    """
    found = _of_last_run(dumps, unreadable or {}, hung)
    return replace(found, unreadable=dict(unreadable or {}))


def _of_last_run(dumps: list[Dump], unreadable: Mapping[Rank, str], hung: bool) -> Hang:
    runs = separate_runs(dumps)
    earlier = {dump.rank: dump.last_ns / 1e9 for dump in runs.earlier}
    if runs.unclear:
        possible = tuple(dump.rank for dump in runs.judged)
        return Hang(
            HangKind.UNKNOWN, dumps=len(dumps), possible=possible, why=dict.fromkeys(possible, MIXED), reason=MIXED,
            earlier=earlier,
        )  # fmt: skip
    sizes = job_sizes(runs.judged)
    if len(sizes) > 1:
        possible = tuple(dump.rank for dump in runs.judged)
        reason = OTHER_JOBS.format(sizes=" and ".join(map(str, sizes)))
        return Hang(HangKind.UNKNOWN, dumps=len(dumps), possible=possible, why=dict.fromkeys(possible, reason),
                    reason=reason, earlier=earlier)  # fmt: skip
    absent = {**dict.fromkeys(unreadable, Why.UNREADABLE), **dict.fromkeys(earlier, Why.EARLIER_RUN)}
    found = replace(_find_hang(with_distinct_groups(runs.judged), absent), earlier=earlier)
    found = found if all(dump.told for dump in runs.judged) else _of_untold_groups(found, runs.judged)
    return _unless_running(found, None if hung else quiet_seconds(runs.judged))


def _of_untold_groups(hang: Hang, dumps: Sequence[Dump]) -> Hang:
    """Who is certain although nothing tells which ranks form a group, as in dumps of PyTorch 2.2.

    A rank that waits for nothing while most others wait is, whatever the groups; so is the only one without a dump,
    where all others wait. All else follows from calls under one number, which may be of several groups.
    """
    if hang.kind == HangKind.NONE:
        return hang
    idle = tuple(dump.rank for dump in dumps if dump.calls and not dump.waits)
    known = {dump.rank for dump in dumps}
    absent = tuple(Rank(rank) for rank in range(max(known)) if rank not in known)
    clear = replace(hang, possible=(), reason="", likely=(), cycle=(), last_calls={})
    if 0 < len(idle) < len(dumps) / 2:
        last = {dump.rank: dump.last for dump in dumps if dump.rank in idle and dump.last is not None}
        why = dict.fromkeys(idle, str(Why.HOST))
        return replace(clear, kind=HangKind.HANG, ranks=idle, why=why, last_calls=last)
    if not idle and len(absent) == 1 and len(dumps) > 1:
        return replace(clear, kind=HangKind.NO_DUMP, ranks=absent, why={absent[0]: str(Why.NO_DUMP)})
    possible = tuple(sorted({*hang.possible, *hang.ranks}))
    return replace(hang, kind=HangKind.UNKNOWN, ranks=(), possible=possible, likely=(), cycle=(), reason=UNTOLD)


def _unless_running(hang: Hang, quiet: float | None) -> Hang:
    """Nobody is certain to be waited for in vain where the dumps were written just after the last sign of life."""
    if quiet is None or hang.kind not in (HangKind.HANG, HangKind.NO_DUMP, HangKind.STUCK, HangKind.UNKNOWN):
        return hang
    doubtful = tuple(rank for rank in hang.ranks if hang.why[rank] in WAITED_FOR)
    reason = RUNNING.format(quiet=quiet) + (f"; {hang.reason}" if hang.reason else "")
    return replace(
        hang, kind=HangKind.UNKNOWN, ranks=tuple(rank for rank in hang.ranks if rank not in doubtful),
        possible=tuple(sorted((*hang.possible, *doubtful))), likely=hang.likely or doubtful, reason=reason,
        quiet=quiet,
    )  # fmt: skip


def _find_hang(dumps: list[Dump], absent: Mapping[Rank, Why]) -> Hang:
    """Where the job hangs, from the dumps of one run. `absent`: why ranks that left a file have none of this run."""
    state = join_dumps(dumps)
    state.damaged = frozenset(rank for rank, why in absent.items() if why is Why.UNREADABLE)
    causes = find_causes(state)
    fronts = tuple(
        front for group in sorted(state.members) if (front := _front(group, state.members[group], state)) is not None
    )
    pairs = tuple(sorted(_waiting_pairs(state)))
    hang = Hang(
        HangKind.NONE, tuple(sorted(causes.certain)), fronts, pairs, len(dumps), tuple(sorted(causes.possible)),
        causes.cycle, {}, tuple(sorted(state.early)),
    )  # fmt: skip
    for rank, why in sorted((causes.possible | causes.certain).items()):
        hang.why[rank] = str(absent.get(rank, why) if why is Why.NO_DUMP else why)
    if dumps and not hang.why and not any(dump.calls for dump in dumps):
        return replace(hang, kind=HangKind.UNKNOWN, reason=EMPTY)
    hang = replace(hang, kind=_kind(hang, causes, state))
    hang = _with_reason(hang, state) if hang.kind == HangKind.UNKNOWN else hang
    last = {rank: dump.last for rank in hang.why if (dump := state.by_rank.get(rank)) is not None}
    likely = _likely(causes) if hang.kind == HangKind.UNKNOWN else ()
    return replace(hang, likely=likely, last_calls={rank: call for rank, call in last.items() if call is not None})


def report_earlier_runs(hang: Hang, problems: Problems) -> None:
    """Count the dumps of earlier runs among what could not be used."""
    for rank, last in sorted(hang.earlier.items()):
        problems.add(
            "", f"the dump of rank {rank} is of an earlier run: its last call was at {rfc3339(last)}, long before "
            "all of the last run",
        )  # fmt: skip


def _with_reason(hang: Hang, state: JobState) -> Hang:
    """An `unknown` with every rank that may be a cause, and with what the dumps lack."""
    added = sorted(uncounted(state) - set(hang.why))
    why = hang.why | dict.fromkeys(added, str(Why.UNCOUNTED))
    possible = tuple(sorted((*hang.possible, *added)))
    counts = Counter(why[rank] for rank in possible)
    reasons = [f"{count} {'rank' if count == 1 else 'ranks'}: {text}" for text, count in counts.most_common()]
    if not reasons:
        reasons = ["no rank is known that lets others wait"]
    return replace(hang, possible=possible, why=why, reason="; ".join(reasons))


def _kind(hang: Hang, causes: Causes, state: JobState) -> HangKind:
    """The kind of the verdict."""
    silent = {rank for rank in hang.ranks + hang.possible if rank not in state.by_rank}
    if len(silent) > len(state.by_rank):
        # The dumps were probably not collected: a missing dump is no evidence then.
        return HangKind.UNKNOWN
    if causes.cycle:
        return HangKind.ORDER
    # A missing dump is no doubt of a cause that explains all waits: one that is lost has another reason.
    reasons = set(causes.possible.values()) - (TRACELESS if causes.certain and causes.explained else set())
    if reasons:
        if causes.certain or reasons > {Why.STUCK}:
            return HangKind.UNKNOWN
        if reasons == {Why.STUCK}:
            return HangKind.STUCK
        return HangKind.MISMATCH if reasons == {Why.DIFFERS} else HangKind.UNKNOWN
    if causes.certain:
        found = set(causes.certain.values())
        if found & {Why.ALONE, Why.OUT_OF_ORDER, Why.CHANGED, Why.UNLIKE}:
            return HangKind.ORDER
        if found == {Why.NO_DUMP}:
            return HangKind.NO_DUMP
        return HangKind.MISMATCH if found == {Why.DIFFERS} else HangKind.HANG
    return HangKind.NONE if not state.operations else HangKind.UNKNOWN


def _waiting_pairs(state: JobState) -> set[tuple[Rank, Rank]]:
    """Pairs of ranks that wait in a send or receive of which the peer has not called the counterpart."""
    return {
        (rank, other)
        for key, operation in state.operations.items() if key.source >= 0
        for rank in operation.inside | operation.behind
        for other in operation.missing | operation.unseen
    }  # fmt: skip


def _likely(causes: Causes) -> tuple[Rank, ...]:
    """One against all others that stopped at the same call; or ranks without a dump, against GPUs that stopped.

    A process that is gone leaves no dump; one whose GPU has stopped writes it, and the other one's must be lost too.
    """
    more = tuple(rank for rank, why in causes.possible.items() if why is Why.ONE_MORE)
    if more:
        return more
    absent = {Why.NO_DUMP, Why.UNREADABLE, Why.NOT_CALLED}
    silent = tuple(sorted(rank for rank, why in causes.possible.items() if why in absent))
    others = set(causes.possible.values()) - absent
    instead = {Why.GPU_INSTEAD, Why.STUCK_INSTEAD, Why.ENDED_OR_FAILED}
    known = others or Why.NOT_CALLED in causes.possible.values()
    return silent if known and others <= instead and not causes.certain else ()


def _variants(calls: dict[Rank, Call]) -> tuple[tuple[Call, tuple[Rank, ...]], ...]:
    """The different calls under one number, and the ranks of each; the most frequent first."""
    found: dict[tuple[str, str], list[Rank]] = {}
    for rank in sorted(calls):
        found.setdefault((calls[rank].op, calls[rank].sizes), []).append(rank)
    alike = sorted(found.values(), key=lambda ranks: (-len(ranks), ranks))
    return tuple((calls[ranks[0]], tuple(ranks)) for ranks in alike)


def _front(group: str, members: tuple[Rank, ...], state: JobState) -> Front | None:
    by_rank = state.by_rank
    unknown = tuple(
        rank
        for rank in members
        if rank in state.early or (rank in by_rank and by_rank[rank].full and group not in by_rank[rank].parts)
    )
    known = [rank for rank in members if rank in by_rank and rank not in unknown]
    parts = {rank: by_rank[rank].parts.get(group, DumpPart()) for rank in known}
    seqs = [min(part.open) for part in parts.values() if part.open]
    if not seqs:
        return None
    seq = min(seqs)
    calls = {rank: part.open[seq] for rank, part in parts.items() if seq in part.open}
    entered = tuple(sorted(rank for rank, part in parts.items() if part.enqueued >= seq > part.completed))
    ops, odd = operations_called(calls)
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
        calls=_variants(calls) if len(ops) > 1 else (),
        since=min((call.created_ns for call in calls.values() if call.created_ns > 0), default=0) / 1e9 or None,
    )
