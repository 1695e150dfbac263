"""Timelines of operations from columns of codes, and the verdict on them in the names of the files."""

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_analyze.audit.columns import SECONDS as SECONDS_OF
from ingero_analyze.audit.columns import words_of
from ingero_analyze.diagnose.columns import RECORD
from ingero_analyze.diagnose.hidden_waits import HIDDEN_WAITS, waiting_operation
from ingero_analyze.diagnose.step_times import NOT_COMPUTING, REST
from ingero_analyze.diagnose.untold_stages import doubted_as_stage, stage_width
from ingero_detect.grouped import Bools, Floats, Ints, connected, extremes
from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.timeline import FEWEST_STEPS, Timeline, step_period

REQUIRED: Final = ("rank", "op", "kind", "start", "duration")
OPTIONAL: Final = ("step", "group", "seq", "stage", "data_parallel")
WORK: Final = "work"
SIZE: Final = "size"


@dataclass(frozen=True)
class RecordedTimeline:
    """A timeline and the names of its ranks, stages, operations and groups as the file has them."""

    line: Timeline
    ranks: list[int | str]
    stages: list[int | str]
    rows: int
    ops: list[str]
    groups: list[str]
    read: Mapping[str, Any] = field(default_factory=dict)
    """How a file was read: its columns by role, and the units of its times."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """By the name of a rank, its host, where a column says it."""
    likely_unit: str = ""
    """The unit of times that nothing says, and that are no seconds."""
    other_units: Mapping[str, float] = field(default_factory=dict)
    """By the name of a rank, by what its times were multiplied, if they were in another unit than those of most."""
    waits_in: str | None = None
    """The operation that contains the waits of ranks for each other, where no collective was recorded."""
    stage_width: int | None = None
    """Ranks of a pipeline stage, where sends show a pipeline and nothing says which ranks are a stage."""


def assemble(
    vocabulary: dict[str, dict[str, int]],
    columns: dict[str, npt.NDArray[Any]],
    rows: int,
    counted: Ints | None = None,
) -> RecordedTimeline:
    """A timeline from columns of codes into `vocabulary` (-1: not known); `start` and `duration` are seconds.

    The columns `work` and `size` need not be there. `counted`: steps that were counted while all rows were there.
    While the garbage of a program is collected its rank does nothing, so rows of that are left out.
    """
    working = ~_called(columns["op"], list(vocabulary["op"]), _PAUSES)
    if working.any():
        columns = {name: column[working] for name, column in columns.items()}
        counted = counted[working] if counted is not None else None
    ranks, rank = ordered(vocabulary["rank"], columns["rank"])
    collective = columns["kind"] == 1
    stages, stage = ordered(vocabulary["stage"], columns["stage"])
    width: int | None = None
    sends = _sends(columns["op"], list(vocabulary["op"]), collective)
    if not stages:
        stage = stages_of(rank, columns["op"], list(vocabulary["op"]), columns["group"], collective)
        width = stage_width(rank, sends) if (columns["group"][sends] < 0).any() else None
        stages = [f"that of rank {name}" for name in ranks]
    _, replica = ordered(vocabulary["data_parallel"], columns["data_parallel"])
    if (columns["step"] >= 0).all():
        names, step = ordered(vocabulary["step"], columns["step"])
        steps = len(names)
    else:
        if counted is None:
            counted = counted_steps(rank, columns["op"], columns["group"], columns["start"], collective)
        step = counted
        steps = int(step.max()) + 1
    waits_in = None
    if not collective.any() and len(stages) == len(ranks) and (stage < 0).all():
        waits_in = waiting_operation(rank, step, columns["op"], columns["duration"], list(vocabulary["op"]))
        collective = columns["op"] == waits_in if waits_in is not None else collective
    instance = _instances(rank, step, columns, collective)
    if width is not None:
        # How long a rank of a pipeline waits depends on its stage, and who meets whom is not known.
        instance = np.full_like(instance, -1)
    work = _work_of(rank, step, columns, list(vocabulary["op"]), collective)
    line = Timeline(
        ranks=len(ranks), steps=steps, rank=rank, step=step, op=columns["op"], collective=collective,
        start=columns["start"], duration=columns["duration"],
        instance=instance, stage=stage, data_parallel=replica, work=work,
        group=np.where(collective, columns["group"], -1),
        sends=sends & (columns["group"] < 0), chores=_called(columns["op"], list(vocabulary["op"]), _CHORES),
        routed=_routed(columns["op"], list(vocabulary["op"]), collective, work),
    )  # fmt: skip
    return RecordedTimeline(
        line, ranks, stages, rows, list(vocabulary["op"]), list(vocabulary["group"]), stage_width=width,
        waits_in=None if waits_in is None else list(vocabulary["op"])[waits_in],
    )  # fmt: skip


def verdict(recorded: RecordedTimeline) -> dict[str, Any]:
    """The verdict on a timeline as the command prints it, with the names of the file."""
    with warnings.catch_warnings():
        # Ranks that lack steps leave slices without any number, which NumPy warns of.
        warnings.simplefilter("ignore", RuntimeWarning)
        found = diagnose(recorded.line)
        if recorded.stage_width is not None:
            found = doubted_as_stage(found, recorded.line, recorded.stage_width)
    if found.cause is Cause.NONE and REST in recorded.ops:
        found = Diagnosis(Cause.UNKNOWN, evidence={**found.evidence, "reason": f"{NOT_COMPUTING}; {RECORD}"})
    elif found.cause is Cause.NONE and recorded.waits_in is not None:
        reason = HIDDEN_WAITS.format(op=recorded.waits_in)
        found = Diagnosis(Cause.UNKNOWN, evidence={**found.evidence, "reason": reason})
    evidence: dict[str, Any] = dict(found.evidence)
    if recorded.waits_in is not None:
        evidence["waits_in"] = recorded.waits_in
    for finding in (evidence, *evidence.get("also", ())):
        _name_ranks_and_operations(finding, recorded)
    if "chores" in evidence:
        evidence["chores"]["ranks"] = [recorded.ranks[rank] for rank in evidence["chores"]["ranks"]]
    notes = (_unit_note(recorded, evidence.get("step_seconds")), _other_units_note(recorded.other_units))
    if any(notes):
        evidence["note"] = "; ".join(filter(None, notes))
    if "stage" in evidence:
        evidence["stage"] = recorded.stages[evidence["stage"]]
    if "stages" in evidence:
        evidence["stages"] = [recorded.stages[stage] for stage in evidence["stages"]]
    judged = "reason" not in evidence
    return {
        "kind": str(found.cause),
        "ranks": [recorded.ranks[rank] for rank in found.ranks],
        "slowdown": round(found.slowdown, 6) if judged else None,
        "seconds_lost_per_step": round(found.seconds_lost_per_step, 9) if judged else None,
        "evidence": evidence,
    }


LONGEST_STEP: Final = 120.0
"""Seconds of a step from which times may be in another unit."""

ONE_DAY: Final = 86400.0
"""Seconds of a step from which times are hardly seconds."""

SHORTEST_OPERATION: Final = 0.1
"""Seconds that no operation falls below where times may be in another unit: some of every step take less."""


def in_likely_unit(recorded: RecordedTimeline, units: tuple[str, str]) -> tuple[RecordedTimeline, tuple[str, str]]:
    """The timeline, and the units of starts and durations, where nothing says any and they can hardly be seconds.

    Programs write fractions of seconds, and whole numbers of milliseconds, micro- or nanoseconds. Of these, times are
    in that in which a step takes closest to a second.
    """
    line, period = recorded.line, step_period(recorded.line)
    whole = bool((line.start % 1 == 0).all() and (line.duration % 1 == 0).all())
    if units != ("s", "s") or not _too_long(line, period) or not (whole or period > ONE_DAY):
        return recorded, units
    unit = min(("ms", "us", "ns"), key=lambda one: abs(float(np.log(period * SECONDS_OF[one]))))
    seconds = SECONDS_OF[unit]
    line = replace(line, start=line.start * seconds, duration=line.duration * seconds)
    return replace(recorded, line=line, likely_unit=unit), (unit, unit)


def _too_long(line: Timeline, period: float) -> bool:
    """Whether steps and all operations last so long that the times are hardly seconds."""
    return period >= LONGEST_STEP and float(np.quantile(line.duration, 0.05)) >= SHORTEST_OPERATION


def _unit_note(recorded: RecordedTimeline, period: float | None) -> str:
    """What to say of the unit of times that is not told, or hardly the one that is."""
    if period is None:
        return ""
    if recorded.likely_unit:
        unit = UNITS[recorded.likely_unit]
        return f"nothing says the unit of times; they are read as {unit}: steps of {period:.4g} s (else say --unit)"
    if not _too_long(recorded.line, period):
        return ""
    unit = recorded.read.get("units", {}).get("duration", "s")
    flag = "; if these are milliseconds, say --unit ms" if recorded.read else "; are these milliseconds?"
    return f"steps of {period:.4g} s: start and duration are read as {UNITS[unit]}{flag if unit == 's' else ''}"


def _other_units_note(ranks: Mapping[str, float]) -> str:
    """What to say of ranks whose times are in another unit than those of most."""
    by_factor: dict[float, list[str]] = {}
    for rank, factor in ranks.items():
        by_factor.setdefault(factor, []).append(rank)
    return "; ".join(
        f"times of rank {', '.join(own)} were multiplied by {factor:g}: all are by about so much "
        f"{'smaller' if factor > 1 else 'larger'} than those of other ranks, as in another unit"
        for factor, own in by_factor.items()
    )


UNITS: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _name_ranks_and_operations(finding: dict[str, Any], recorded: RecordedTimeline) -> None:
    """Put the names of the file for the numbers of ranks and operations in a finding."""
    for name in ("excess_share_of_step", "lag_seconds", "longer_in", "as_fast_as_peers_in"):
        if name in finding:
            finding[name] = {str(recorded.ranks[int(rank)]): value for rank, value in finding[name].items()}
    for name in ("ranks", "possible", "stage_ranks"):
        if isinstance(finding.get(name), list):
            finding[name] = [recorded.ranks[rank] for rank in finding[name]]
    for rank, seconds in finding.get("longer_in", {}).items():
        finding["longer_in"][rank] = {recorded.ops[op]: value for op, value in seconds.items()}
    for rank, ops in finding.get("as_fast_as_peers_in", {}).items():
        finding["as_fast_as_peers_in"][rank] = [recorded.ops[op] for op in ops]


def ordered(vocabulary: dict[str, int], codes: Ints) -> tuple[list[int | str], Ints]:
    """Names in their natural order, and the codes renumbered by it; -1 stays."""
    names = [name for name in vocabulary if name != ""]
    order = sorted(names, key=_natural)
    number_of = np.full(len(vocabulary) + 1, -1, np.int64)
    for place, name in enumerate(order):
        number_of[vocabulary[name]] = place
    return [plain_name(name) for name in order], number_of[codes]


_RANK: Final = re.compile(r"(?:(?:global|world|process)[ _-])?rank[ _:=#-]*(\d{1,7})", re.IGNORECASE)


def plain_name(name: str) -> int | str:
    """The name of a rank or stage as answers have it: a whole number is one, also behind the word `rank`."""
    if ranked := _RANK.fullmatch(name.strip()):
        return int(ranked[1])
    try:
        value = float(name)
    except ValueError:
        return name
    return int(value) if value.is_integer() and abs(value) < 1e15 else name


def _natural(name: str) -> tuple[int, float, str]:
    plain = plain_name(name)
    try:
        return 0, float(plain), ""
    except ValueError:
        return 1, 0.0, name


def _instances(rank: Ints, step: Ints, columns: dict[str, Any], collective: npt.NDArray[np.bool_]) -> Ints:
    """One number for the rows of one collective: same group and sequence number, or same place in the same step.

    A restarted job numbers its collectives anew: where a rank has a number twice, the step tells them apart as well.
    """
    given = bool((columns["seq"][collective] >= 0).all()) if collective.any() else False
    keys = [columns["group"], columns["op"]]
    if given:
        keys.append(columns["seq"])
    else:
        keys += [step, occurrence(rank, columns["op"], columns["group"], step, start=columns["start"])]
    stepped = bool((columns["step"] >= 0).all())
    again = given and stepped and len(np.unique(numbered(rank, *keys)[collective])) < collective.sum()
    if given and stepped and (again or (columns["group"][collective] < 0).any()):
        keys.append(step)
    return np.where(collective, numbered(*keys), -1)


def numbered(*keys: Ints) -> Ints:
    """One number for every combination of keys, in their order; -1 is a value like others."""
    found = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        found = np.unique(found * (int(key.max(initial=-1)) + 2) + key + 1, return_inverse=True)[1].astype(np.int64)
    return found


def _work_of(rank: Ints, step: Ints, columns: dict[str, Any], ops: list[str], collective: Bools) -> Floats | None:
    """The work of operations as the file tells it; else of compute the size of what its rank exchanges with all in
    the step, as far as that is known: that is what is routed to its experts."""
    work: Floats | None = columns.get(WORK)
    size = columns.get(SIZE)
    if size is None or (work is not None and np.isfinite(work).any()):
        return work
    exchanged = collective & _called(columns["op"], ops, _TO_ALL) & np.isfinite(size)
    if not exchanged.any():
        return work
    steps = int(step.max()) + 1
    place = rank * steps + step
    count = np.bincount(place[exchanged], minlength=len(rank) and int(place.max()) + 1)
    total = np.bincount(place[exchanged], size[exchanged], len(count))
    return np.where(~collective & (count[place] > 0), total[place], np.nan)


def _routed(op: Ints, ops: list[str], collective: Bools, work: Floats | None) -> Bools | None:
    """Compute that may be more for ranks to which more tokens are routed, of which no amount is known.

    None of it where operations do not say which of them that is; `None` where no tokens are routed.
    """
    if work is not None and np.isfinite(work[~collective]).any():
        return None
    experts = ~collective & _called(op, ops, _OF_EXPERTS)
    if experts.any():
        return experts
    if not (collective & _called(op, ops, _TO_ALL)).any():
        return None
    of_all = ~collective & _called(op, ops, _OF_ALL_WORK)
    return ~collective if len(np.unique(op[~collective])) == 1 else of_all


_BETWEEN_STAGES: Final = re.compile(r"send|recv|receive|p2p", re.IGNORECASE)

_CHORES: Final = re.compile(
    r"\b(?:(?:save|write|upload|dump)\w*|checkpoint\w*|ckpt|snapshot|log|logs|logging|logger|print|tensorboard|wandb|"
    r"mlflow|metrics|eval|evaluate|evaluation|validate|validation)\b"
)
"""What few ranks do for all in some steps."""

_TO_ALL: Final = re.compile(r"\ball ?to ?all\w*|\ba2a\b")
_OF_EXPERTS: Final = re.compile(r"\b(?:experts?|moe|ffn moe|grouped ?gemm|group gemm)\b")
_OF_ALL_WORK: Final = re.compile(
    r"(?:forward|fwd|backward|bwd|compute|computation|comp|calc)(?: (?:pass|compute|time))?"
)
"""Exchanges that route tokens to experts, compute of these, and compute of whatever ranks do."""

_PAUSES: Final = re.compile(r"\b(?:gc|garbage collect\w*)\b")
"""What is no work of a rank."""

SMALLEST_RING: Final = 3
RING_SPREAD: Final = 0.02
"""Ranks that a ring of sends has at least, and by which share some may have more sends than others."""


FEWEST_REPEATED: Final = 3
"""How often a rank does what ends steps, at least, in a recording of few steps."""

MOST_UNEVEN: Final = 1.25
"""Rows of compute of one rank over those of another from which a row of one is no row of the other."""

MOST_PARTS: Final = 64
REPEATED: Final = 0.9
"""Parts of a step at most, and which share of them must repeat."""


OFTENER: Final = 1.5
"""How many times as often as in another group a rank does something in one with another rhythm."""


def occurrence(*keys: Ints, start: Floats) -> Ints:
    """For every row, how many rows with the same keys came before it on its rank's own clock."""
    order = np.lexsort((np.arange(len(start)), start, *reversed(keys)))
    same = np.ones(len(order), np.bool_)
    same[:1] = False
    for key in keys:
        same[1:] &= key[order][1:] == key[order][:-1]
    place = np.arange(len(order))
    first = np.maximum.accumulate(np.where(same, 0, place))
    found = np.empty(len(order), np.int64)
    found[order] = place - first
    return found


def counted_steps(rank: Ints, op: Ints, group: Ints, start: Floats, collective: Bools) -> Ints:
    """Number the steps of a timeline without steps.

    A step ends with the operation that all ranks do equally often and least often, if there is one. Otherwise the
    n-th time that a rank performs an operation is step n, or all is one step where some ranks have far more rows of
    compute than others, which are then no parts of a step that compare. Groups of other sizes make other operations,
    and so do those in which a rank does something far less often than in others. In a recording of few steps only the
    layers of a step are many: where the groups that meet often enough do not connect all ranks, or nothing else ends
    steps, an operation may end steps that all ranks do only a few times.
    """
    groups = np.where(collective, group, -1)
    joined = _often_connected(rank, groups)
    op = numbered(op, _group_sizes(rank, groups))
    op = numbered(op, _rhythms(rank, op, groups))
    order = np.lexsort((np.arange(len(start)), start, rank))
    own, name, computes = rank[order], op[order], ~collective[order]
    # Several in a row, such as the buckets of one gradient or the layers of a model, end one step. Collectives that
    # run beside computing change nothing in the order of what is computed.
    ends = _ends_of_runs(own, name)
    ends[computes] = _ends_of_runs(own[computes], name[computes])
    fewest = (FEWEST_STEPS, FEWEST_REPEATED) if joined else (FEWEST_REPEATED,)
    tried = (_last_of_step(own, name, ends, ~computes, least) for least in fewest)
    last = next((op for op in tried if op is not None), None)
    if last is None:
        of_rank = np.bincount(rank[~collective], minlength=int(rank.max()) + 1)
        if of_rank.max() > MOST_UNEVEN * of_rank.min() > 0:
            return np.zeros(len(start), np.int64)
        return occurrence(rank, op, np.where(collective, group, -1), start=start)
    ends &= name == last
    before: Ints = np.cumsum(ends) - ends
    first = np.searchsorted(own, np.arange(int(own[-1]) + 1))
    part = before - before[first][own]
    if not joined:
        part = _with_rest(own, part)
    found = np.empty(len(start), np.int64)
    found[order] = part // _parts_of_step(own, part)
    return found


def _with_rest(rank: Ints, part: Ints) -> Ints:
    """Parts of a few steps; what follows the last end belongs to the last part, if it is less than half of it."""
    ranks, parts = int(rank.max()) + 1, int(part.max()) + 1
    rows = np.median(np.bincount(rank * parts + part, minlength=ranks * parts).reshape(ranks, parts), axis=0)
    return np.minimum(part, parts - 2) if parts > 2 and 2 * rows[-1] < np.median(rows[:-1]) else part


def _often_connected(rank: Ints, group: Ints) -> bool:
    """Whether groups in which each of their ranks has as many rows as steps are needed connect all ranks.

    So they seem to where groups are not known.
    """
    if (group < 0).all():
        return True
    pairs, rows = np.unique(np.stack([group, rank]), axis=1, return_counts=True)
    often = pairs[:, (rows >= FEWEST_STEPS) & (pairs[0] >= 0)]
    return len(np.unique(connected(often, int(rank.max()) + 1))) == 1


def _group_sizes(rank: Ints, group: Ints) -> Ints:
    """By row, how many ranks its group has; 0 where none is known."""
    pairs = np.unique(np.stack([group, rank]), axis=1)
    sizes = np.bincount(pairs[0] + 1, minlength=int(group.max(initial=-1)) + 2)
    sizes[0] = 0
    return sizes[group + 1].astype(np.int64)


def _rhythms(rank: Ints, op: Ints, group: Ints) -> Ints:
    """By row, in how many groups of other rhythms its rank does the same less often; 0 where no group is known.

    A tensor and a data group may have the same size, and differ by how often they meet.
    """
    triples, row, times = np.unique(np.stack([op, rank, group]), axis=1, return_inverse=True, return_counts=True)
    order = np.lexsort((times, triples[1], triples[0]))
    others = (np.diff(triples[:2, order], axis=1) != 0).any(axis=0)
    oftener = np.append(False, ~others & (times[order][1:] > OFTENER * times[order][:-1]))
    before = np.cumsum(oftener)
    first = np.maximum.accumulate(np.where(np.append(True, others), before - oftener, 0))
    found = np.empty(len(order), np.int64)
    found[order] = before - first
    return found[row.ravel()]


def _parts_of_step(rank: Ints, part: Ints) -> int:
    """How many parts repeat together: computing may divide the run of operations that ends a step.

    The parts of most ranks have the same numbers of rows again after so many.
    """
    ranks, parts = int(rank.max()) + 1, int(part.max()) + 1
    rows = np.bincount(rank * parts + part, minlength=ranks * parts).reshape(ranks, parts)
    usual = np.median(rows, axis=0)[1:-1]
    for count in range(1, min(MOST_PARTS, parts // FEWEST_STEPS) + 1):
        if (usual[count:] == usual[:-count]).mean() >= REPEATED:
            return count
    return 1


def _ends_of_runs(rank: Ints, op: Ints) -> Bools:
    """By row, whether the next one is of another operation or rank."""
    return np.append((op[1:] != op[:-1]) | (rank[1:] != rank[:-1]), True)[: len(op)]


def _last_of_step(rank: Ints, op: Ints, ends: Bools, collective: Bools, least_often: int) -> int | None:
    """The operation that ends steps, for rows in order; `None` where every one is done about as often as any other.

    It is done `least_often` times or more. Of several, a collective, and the one that is done for the first time
    after the others.
    """
    ranks = int(rank.max()) + 1
    pairs, begins, times = np.unique(op * ranks + rank, return_index=True, return_counts=True)
    runs = np.bincount(np.searchsorted(pairs, (op * ranks + rank)[ends]), minlength=len(pairs))
    ops, first = np.unique(pairs // ranks, return_index=True)
    fewest, most = np.minimum.reduceat(runs, first), np.maximum.reduceat(runs, first)
    by_all = np.diff(np.append(first, len(pairs))) == ranks
    regular = by_all & (fewest >= least_often) & (most - fewest <= 0.1 * most)
    if not regular.any():
        return None
    latest = np.maximum.reduceat(begins - np.searchsorted(rank, np.arange(ranks))[pairs % ranks], first)
    joins = np.isin(ops, op[collective])
    least = most[regular].min()
    last = int(np.lexsort((latest, joins, regular & (most <= 1.1 * least)))[-1])
    return int(ops[last]) if times.max() >= OFTENER * most[last] else None


def _across_stages(pairs: Ints, sending: Ints) -> Ints:
    """Groups with two members that send to each other; each column of both tables is a group and one of its ranks.

    A group that all ranks send in does not tell who sends to whom.
    """
    width = int(max(pairs[1].max(initial=0), sending[1].max(initial=0))) + 1
    senders = [sending[1][sending[0] == one] for one in np.unique(sending[0]).tolist()]
    found = []
    for one in np.unique(pairs[0]).tolist():
        inside = np.zeros(width, np.bool_)
        inside[pairs[1][pairs[0] == one]] = True
        if any(len(ranks) < width and inside[ranks].sum() >= 2 for ranks in senders):
            found.append(one)
    return np.array(found, np.int64)


def stages_of(rank: Ints, op: Ints, names: list[str], group: Ints, collective: Bools) -> Ints:
    """Pipeline stages by row, from which ranks communicate; -1 without a pipeline. Numbered by first rank.

    Stages exchange tensors by sends and receives. All other operations connect ranks of one stage, and so do sends in
    a ring (of a long sequence's attention), except operations in which ranks take part that also send to each other
    from stage to stage, such as a norm over the whole job. A ring of two looks like two stages, but several of them
    have nothing else in common.
    """
    unknown = np.full(len(rank), -1, np.int64)
    sends = _sends(op, names, collective)
    if not sends.any() or (group[sends] < 0).any():
        return unknown
    between = sends & ~np.isin(op, _ring_operations(rank[sends], op[sends], group[sends]))
    inside = collective & ~between & (group >= 0)
    ranks = int(rank.max()) + 1
    pairs = np.unique(np.stack([group[inside], rank[inside]]), axis=1)
    sending = np.unique([group[between], rank[between]], axis=1)
    across = np.isin(pairs[0], _across_stages(pairs, sending))
    stage = connected(pairs[:, ~across], ranks)
    if not between.any() or len(np.unique(stage)) < 2:
        return unknown
    # Replicas of a pipeline sum gradients stage by stage. Those that only meet as a whole are no pipelines.
    replica = connected(np.concatenate([pairs[:, ~across], sending], axis=1), ranks)
    met = replica[pairs[1, across]]
    if any(len(np.unique(met[pairs[0, across] == one])) > 1 for one in np.unique(pairs[0, across]).tolist()):
        return unknown
    return stage[rank]


def _sends(op: Ints, names: list[str], collective: Bools) -> Bools:
    """Rows of sends and receives, by their names."""
    return np.array([bool(_BETWEEN_STAGES.search(name)) for name in names], np.bool_)[op] & collective


def _called(op: Ints, names: list[str], words: re.Pattern[str]) -> Bools:
    """Rows whose operation has one of these words in its name."""
    return np.array([bool(words.search(words_of(name))) for name in names], np.bool_)[op]


def _ring_operations(rank: Ints, op: Ints, group: Ints) -> Ints:
    """Sends that go round: all ranks that they connect, three or more each, have equally many.

    The first and the last stage of a pipeline have fewer than those in between. Two ranks look like two stages.
    """
    found = []
    for one in np.unique(op).tolist():
        rows = op == one
        ranks, index, times = np.unique(rank[rows], return_inverse=True, return_counts=True)
        ring = connected(np.stack([group[rows], index]), len(ranks))
        size, first = np.bincount(ring), np.unique(ring)
        fewest, most = extremes(times, ring, len(ranks))
        if (size[first] >= SMALLEST_RING).all() and (most[first] <= (1 + RING_SPREAD) * fewest[first]).all():
            found.append(one)
    return np.array(found, np.int64)
