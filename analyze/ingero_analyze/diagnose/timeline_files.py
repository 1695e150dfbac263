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
from ingero_analyze.diagnose.counted_steps import counted_steps, numbered, occurrence
from ingero_analyze.diagnose.hidden_waits import HIDDEN_WAITS, waiting_operation
from ingero_analyze.diagnose.recorded_stages import sends_of, stages_of
from ingero_analyze.diagnose.step_times import NOT_COMPUTING, REST
from ingero_analyze.diagnose.untold_stages import doubted_as_stage, stage_width
from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.diagnosis import diagnose
from ingero_detect.ranks.imbalance import Cause, Diagnosis
from ingero_detect.ranks.timeline import Timeline, step_period

REQUIRED: Final = ("rank", "op", "kind", "start", "duration")
OPTIONAL: Final = ("step", "group", "seq", "stage", "data_parallel")
WORK: Final = "work"
SIZE: Final = "size"

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
    told, width = bool(stages), None
    sends = sends_of(columns["op"], list(vocabulary["op"]), collective)
    chores = chores_of(columns["op"], list(vocabulary["op"]))
    if not told:
        stage = stages_of(rank, columns["op"], list(vocabulary["op"]), columns["group"], collective)
        stages = [f"that of rank {name}" for name in ranks]
    _, replica = ordered(vocabulary["data_parallel"], columns["data_parallel"])
    if (columns["step"] >= 0).all():
        names, step = ordered(vocabulary["step"], columns["step"])
        steps = len(names)
    else:
        if counted is None:
            counted = counted_steps(rank, columns["op"], columns["group"], columns["start"], collective, chores)
        step = counted
        steps = int(step.max()) + 1
    if not told and (columns["group"][sends] < 0).any():
        width = stage_width(rank, step, columns["op"], sends)
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
        sends=sends & (columns["group"] < 0), chores=chores,
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


def chores_of(op: Ints, names: list[str]) -> Bools:
    """Rows of operations that are called checkpoints, logs or evaluations, which few steps have."""
    return _called(op, names, _CHORES)


def _called(op: Ints, names: list[str], words: re.Pattern[str]) -> Bools:
    """Rows whose operation has one of these words in its name."""
    return np.array([bool(words.search(words_of(name))) for name in names], np.bool_)[op]
