"""Finds the straggler rank of a synchronised job from a timeline of operations, without comparing clocks. Pure.

Only durations, and differences on one rank's own clock, are used. Three kinds of evidence:

- compute: time that a rank spends computing in a step, compared with ranks that do the same (its pipeline stage);
- lag: in a collective all ranks wait for the last one, so the late rank is the one that blocks least
  (`lag = median(blocked) - blocked`); a victim blocks longest and is never named;
- if the excess belongs to a stage, or to a step and not to a rank, the cause is the job's partition or its data, not
  a node. Where the work of operations is known, what it explains is removed before ranks are compared. A rank that
  needs longer in some of its operations only may have more to do there, and is not named.

A rank is named when its excess is significant, exceeds the usual spread between ranks, and costs time.
"""

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.calm_compute import data_peers, slower_in_all, steady_compute
from ingero_detect.ranks.chores import without_chores
from ingero_detect.ranks.doubts import Doubts, doubted
from ingero_detect.ranks.idle_together import idle_ranks
from ingero_detect.ranks.imbalance import (
    SMALLEST_IMBALANCE,
    Cause,
    Diagnosis,
    sequence_imbalance,
    stage_imbalance,
    usual_steps,
)
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.lost_compute import with_lost_compute
from ingero_detect.ranks.operation_excess import EXPLAINED, operation_excess
from ingero_detect.ranks.pipeline_slack import with_slack
from ingero_detect.ranks.rank_outliers import (
    CHIP_SPREAD,
    SIGNIFICANCE,
    SMALLEST_EFFECT,
    possible_stragglers,
    straggler_ranks,
    trimmed_mean,
    usual_excess,
)
from ingero_detect.ranks.recorded_parts import (
    late_in_parts,
    recorded_parts,
    some_meet,
    with_those_that_act_alike,
    within_parts,
)
from ingero_detect.ranks.sequence_parts import without_unequal_parts
from ingero_detect.ranks.shared_data import DataGroups, data_groups
from ingero_detect.ranks.slower_part import LATE_PART, idle_part, slower_part, slower_ranks
from ingero_detect.ranks.stalls import FEW_STALLS, late_together, stalling_rank
from ingero_detect.ranks.student import upper_quantile
from ingero_detect.ranks.timeline import (
    FEWEST_PROVEN,
    FEWEST_STEPS,
    Timeline,
    most_common_by_rank,
    step_period,
    sum_by_rank_and_step,
    well_covered_steps,
)
from ingero_detect.ranks.wait_attribution import WaitAttribution, blocked_seconds, compute_lags, with_exposed_waits
from ingero_detect.ranks.work import with_equal_work, work_differs

ONE_RANK: Final = "there is one rank, and none to compare it with"

MOST_TIMES: Final = 100.0
"""How many times as long as it could a job takes at most: stalls may be longer than the usual step."""

FEW_STEPS: Final = "few_steps"
"""What shows a rank that is last in nearly all steps, which are too few to prove that it is the cause."""

LIKE_COST: Final = 1 / 3
"""Share of the largest cost from which ranks that are late for another reason are named beside the worst."""

LISTED: Final = ("by", "possible", "longer_in", "as_fast_as_peers_in")
"""Evidence that is also given of findings that are not the verdict."""

THROUGHOUT: Final = 0.75
"""Share of its lateness that a rank has in the mean of all steps, from which its chip may explain it: that stays."""


@dataclass(frozen=True)
class _Case:
    """A timeline made ready for judgement, and what all judgements share. Tables have the shape (rank, step)."""

    recorded: Timeline
    """As recorded, without chores."""
    line: Timeline
    """As ranks waited for each other, with equal work or equal parts where these differ."""
    period: float
    """Usual length of a step, seconds."""
    stage: Ints
    """By rank its pipeline stage, as recorded."""
    like: Ints
    """By rank the number of those that do the same."""
    replica: Ints
    """By rank its data-parallel group, as recorded."""
    single: Bools
    """Ranks alone in their stage."""
    compute: Floats
    """Seconds of computing."""
    known: Bools
    """Steps of whose computing most ranks have all rows."""
    lags: Floats | None
    """Seconds by which a rank blocked less than usual, where waits are recorded."""
    blame: WaitAttribution | None
    free: Floats | None
    """Steps by which a rank was blocked less in all of its groups."""
    late: Floats
    """Seconds by which a rank was late, by its waits; without a step where these are not recorded."""
    part: Ints
    """By rank the number of the part of the job that recorded groups connect."""
    doubts: Doubts
    facts: dict[str, Any]

    @property
    def waits_compare(self) -> bool:
        """Whether waits are recorded, of ranks that can be compared."""
        return self.lags is not None and not self.single.all()

    @property
    def only_waits_of_parts(self) -> bool:
        """Whether nothing but waits was recorded, and of several parts of the job that no group connects."""
        return bool(self.line.collective.all() and self.part.any())

    @property
    def relative(self) -> Floats | None:
        """Computing in the known steps, as shares of a step."""
        return _relative(self.compute[:, self.known], self.period) if self.known.any() else None

    @property
    def staged(self) -> bool:
        """Whether there are several pipeline stages."""
        return len(np.unique(self.like)) > 1


def diagnose(line: Timeline) -> Diagnosis:
    """Judge a timeline."""
    period = step_period(line)
    if line.ranks < 2 or not period > 0:
        reason = ONE_RANK if line.ranks < 2 else "the steps take no time"
        return Diagnosis(Cause.UNKNOWN, evidence={"reason": reason, "steps": line.steps})
    chores = without_chores(line, _like(most_common_by_rank(line, line.stage)), period)
    recorded = chores.line if chores is not None else line
    line = with_exposed_waits(recorded)
    equal = with_equal_work(line)
    if equal is None and line.steps < FEWEST_STEPS and work_differs(line):
        return _nobody(line.steps, {"ranks": line.ranks, "steps": line.steps})
    part = recorded_parts(recorded, period)
    line, stage = within_parts(line, most_common_by_rank(line, line.stage), part)
    replica = most_common_by_rank(line, line.data_parallel)
    shared, uneven_by = _shared_data(line, stage, replica), "work"
    if equal is None:
        equal, uneven_by = without_unequal_parts(line, shared, _like(stage)), "place_in_ring"
    case = _prepared(recorded, equal.line if equal is not None else line, stage, replica, part, shared, period)
    if chores is not None:
        case.facts["chores"] = chores.answer()
    found = _late_by_computing(case)
    found += _late_by_waits(case, found)
    found = _with_idle_or_stalling(case, found)
    if equal is not None and equal.seconds_lost_per_step >= SMALLEST_IMBALANCE * period:
        cost = equal.seconds_lost_per_step
        found.append(Diagnosis(Cause.SEQUENCE, seconds_lost_per_step=cost, evidence={"by": uneven_by}))
    found = [item for item in found if item.cause is not Cause.NONE]
    if all(item.evidence.get("by") == FEW_STALLS for item in found):
        found += _slower_half(case, nobody_else=not found)
    return _verdict(case, [case.doubts.with_operations(item) for item in found])


def _prepared(
    recorded: Timeline, line: Timeline, stage: Ints, replica: Ints, part: Ints, shared: DataGroups, period: float
) -> _Case:
    """What the judgements share. `recorded`: without chores; `line`: as ranks waited, with equal work."""
    like, single = _like(stage), _alone(stage)
    line = with_lost_compute(line, like)
    compute = sum_by_rank_and_step(line, ~line.collective, line.duration)
    lags, blame = compute_lags(line) or (None, None)
    known = well_covered_steps(compute)
    peers = data_peers(shared, compute[:, known], like) if known.any() else None
    doubts = Doubts(shared, operation_excess(line, like if peers is None else peers), float(period))
    free = _free(line, stage, period) if lags is not None and not single.all() else None
    late = free * period if free is not None else lags if lags is not None else np.zeros((line.ranks, 0))
    facts: dict[str, Any] = {"ranks": line.ranks, "steps": line.steps, "step_seconds": float(period)}
    return _Case(
        recorded, line, period, stage, like, replica, single, compute, known, lags, blame, free, late,
        part, doubts, facts,
    )  # fmt: skip


def _late_by_computing(case: _Case) -> list[Diagnosis]:
    """Ranks, stages and sequences that compute longer."""
    if not case.known.any():
        return []
    return _from_compute(
        case.line, case.compute, case.known, case.stage, case.replica, case.doubts, case.period, case.facts
    )


def _late_by_waits(case: _Case, found: list[Diagnosis]) -> list[Diagnosis]:
    """Ranks that others wait for, where their computing proves none late."""
    if case.lags is None or not case.waits_compare or any(item.cause is Cause.NODE for item in found):
        return []
    suspects: list[Diagnosis] = []
    in_all = case.free if case.blame is not None else None
    if in_all is not None:
        suspects = _from_freedom(in_all, case.stage, case.doubts, case.period)
    if not suspects:
        suspects = _from_lags(case.lags, in_all, case.blame, case.stage, case.doubts, case.period, case.facts)
    if suspects:
        suspects = without_usual_chips(suspects, *_chips_explain(case, in_all))
    suspects = [with_those_that_act_alike(item, case.late, case.part) for item in suspects]
    if any(item.cause is Cause.STAGE for item in found):
        return []
    doubted = any(item.cause is Cause.UNKNOWN for item in found)
    return [item for item in suspects if not (doubted and item.cause is Cause.UNKNOWN)]


def _chips_explain(case: _Case, in_all: Floats | None) -> tuple[Floats, Bools, float]:
    """By which share of a step each rank computes longer, whether healthy chips differ by as much, and which share of
    its lateness that has to be.

    Where computing was not recorded, a rank that comes later may compute longer by so much.
    """
    if case.known.any():
        relative = case.compute[:, case.known] / case.period
        return *usual_excess(relative, case.like, CHIP_SPREAD * _share(relative)), EXPLAINED
    assert case.lags is not None
    blocked = blocked_seconds(case.line, case.like)
    busy = 1 - _share(blocked / case.period) if blocked is not None else 1.0
    late = in_all if in_all is not None else case.lags / case.period
    return *usual_excess(late, case.like, CHIP_SPREAD * busy), THROUGHOUT


def _with_idle_or_stalling(case: _Case, found: list[Diagnosis]) -> list[Diagnosis]:
    """The findings as waits support them, with ranks that do nothing together, or stand still now and then."""
    if case.waits_compare:
        found = [_supported(item, case.late) for item in found]
    together = _idle_together(case)
    idle = set(together.ranks) if together is not None else set()
    if together is not None and idle and all(set(item.ranks) <= idle for item in found):
        # What waits show of some of them, they show of all; and no data makes ranks do nothing.
        found = [item for item in found if not _is_about(item, together.ranks)]
        return [*found, with_those_that_act_alike(together, case.late, case.part)]
    if together is not None and idle and _is_beside(together, found, case.part):
        return [*found, with_those_that_act_alike(together, case.late, case.part)]
    if any(item.cause in (Cause.SEQUENCE, Cause.UNKNOWN) for item in found):
        late = late_together(case.late, case.period) if case.waits_compare and _only_seems_data(found) else None
        return found if late is None else [with_those_that_act_alike(late, case.late, case.part)]
    stalls = _stalling(case, {rank for item in found for rank in item.ranks})
    if stalls is None and not found:
        # Otherwise they may be those that wait for a rank that is known.
        stalls = together or (late_together(case.late, case.period) if case.waits_compare else None)
    return [*found, with_those_that_act_alike(stalls, case.late, case.part)] if stalls is not None else found


def _idle_together(case: _Case) -> Diagnosis | None:
    """Ranks that do nothing together while the others wait for them."""
    # Stages hand each other tensors: where no row shows that, a rank that does nothing may wait for another stage.
    if case.staged and not some_meet(case.recorded):
        return None
    longer = np.zeros(case.line.ranks)
    if case.known.any():
        longer = np.nan_to_num(np.nanmean(residuals_by_step(case.compute[:, case.known], case.like), axis=1))
    return idle_ranks(case.recorded, case.line, case.late, longer, case.like, case.period)


def _stalling(case: _Case, known: set[int]) -> Diagnosis | None:
    """A rank beside the known ones that stands still in single steps."""
    if not case.waits_compare:
        return None
    waits = None if case.free is None else blocked_seconds(case.line, case.like)
    return stalling_rank(case.late, case.period, known, waits)


def _slower_half(case: _Case, nobody_else: bool) -> list[Diagnosis]:
    """Many ranks that are slow alike, or do nothing in turn; where nobody else is late, also who is possibly late."""
    half = None
    computing, late = case.relative, case.late
    if not case.single.any():
        chips = CHIP_SPREAD * _share(computing) if computing is not None else 0.0
        # Of several groups the waits of single ones show who sends and who receives.
        told = case.waits_compare and (case.free is not None or case.blame is None)
        half = slower_part(computing, late if told else late[:, :0], case.like, chips, case.period)
    if half is None and case.staged and some_meet(case.recorded):
        half = idle_part(case.recorded, case.line, case.period)
    if half is None and nobody_else and case.staged and not case.known.any() and some_meet(case.recorded):
        half = _busy_stage(case)
    if half is None and nobody_else and case.only_waits_of_parts:
        blocked = blocked_seconds(case.line, case.part)
        half = late_in_parts(blocked, case.part, case.period) if blocked is not None else None
    if half is None and nobody_else:
        compute = case.compute[:, case.known] if case.known.any() else None
        half = _unproven(compute, late if case.waits_compare else None, case.stage, case.period)
    return [with_those_that_act_alike(half, late, case.part)] if half is not None else []


def _busy_stage(case: _Case) -> Diagnosis | None:
    """The ranks of stages that wait less than all others, where all waits and nothing else were recorded.

    They compute longer or do nothing, and others wait for them, as far as exchanges between stages were recorded.
    """
    blocked = None if case.part.any() else blocked_seconds(case.line, case.like)
    busy = stage_imbalance(case.period - blocked, case.like, case.period, set()) if blocked is not None else None
    if busy is None:
        return None
    stages = busy.evidence.get("stages", [busy.evidence["stage"]])
    evidence = {"by": LATE_PART, "possible": np.flatnonzero(np.isin(case.like, stages)).tolist()}
    return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=busy.seconds_lost_per_step, evidence=evidence)


def _verdict(case: _Case, found: list[Diagnosis]) -> Diagnosis:
    """The worst finding, with the others in its evidence, and what it costs the job."""
    worst = _worst(found)
    if worst is None:
        complete = max(int(case.known.sum()), case.lags.shape[1] if case.lags is not None else 0)
        return _nobody(complete if case.line.steps >= FEWEST_STEPS else case.line.steps, case.facts)
    others: list[dict[str, Any]] = [
        {
            "kind": str(item.cause), "ranks": list(item.ranks), "seconds_lost_per_step": item.seconds_lost_per_step,
            **{name: item.evidence[name] for name in LISTED if name in item.evidence},
        }
        for item in found
        if item is not worst
    ]  # fmt: skip
    evidence = {**case.facts, **worst.evidence, **({"also": others} if others else {})}
    if case.line.steps < FEWEST_PROVEN and worst.evidence.get("by") == FEW_STEPS:
        evidence |= _too_few(case.line.steps)
    verdict = replace(worst, ranks=_of_like_cost(worst, found), evidence=evidence)
    verdict = with_slack(verdict, case.line, case.like)
    ideal = max(case.period - verdict.seconds_lost_per_step, case.period / MOST_TIMES)
    return replace(verdict, slowdown=float(case.period / ideal))


def _unproven(compute: Floats | None, late: Floats | None, stage: Ints, period: float) -> Diagnosis | None:
    """The rank that computes longest, or is waited for, in so many of few steps that it is hardly chance.

    `compute` and `late`: seconds by (rank, step), `None` where they cannot be compared; a rank alone in its stage is
    compared with none.
    """
    judged = ~_alone(stage)
    for seconds, computes in ((compute, True), (late, False)):
        if seconds is None or not seconds.shape[1] or not judged.any():
            continue
        relative = _relative(seconds, period) if computes else seconds / period
        chips = CHIP_SPREAD * _share(relative) if computes else 0.0
        often, cost = possible_stragglers(relative[judged], _like(stage)[judged], chips)
        if not often.any():
            # Who may only have wandered so far is possible, unless others do not wait for that rank.
            often, cost = straggler_ranks(relative[judged], _like(stage)[judged], chips=chips, sure=False)
            often &= np.nanmean(late[judged], axis=1) > 0 if late is not None and late.shape[1] else often
        if often.any():
            ranks = np.flatnonzero(judged)[often].tolist()
            lost = float(cost[often].max()) * period
            return Diagnosis(Cause.UNKNOWN, seconds_lost_per_step=lost, evidence={"by": FEW_STEPS, "possible": ranks})
    return None


def _worst(found: list[Diagnosis]) -> Diagnosis | None:
    """The finding that costs most; a rank that is proven late goes before what others cost."""
    proven = [item for item in found if item.cause is Cause.NODE]
    return max(proven or found, key=lambda item: item.seconds_lost_per_step, default=None)


def _of_like_cost(worst: Diagnosis, found: list[Diagnosis]) -> tuple[int, ...]:
    """The ranks of a finding and, if they are proven late, of those of its kind that cost at least a third of it."""
    least = LIKE_COST * worst.seconds_lost_per_step
    alike = [
        item for item in found if item.cause is worst.cause is Cause.NODE and item.seconds_lost_per_step >= least
    ]
    return tuple(dict.fromkeys(rank for item in (worst, *alike) for rank in item.ranks))


def _is_beside(idle: Diagnosis, found: list[Diagnosis], part: Ints) -> bool:
    """Whether ranks that do nothing delay the job besides others that are proven late because they compute longer.

    Where no recorded group connects them with those, they may wait for them.
    """
    others = {rank for item in found for rank in item.ranks}
    by_computing = all(item.cause is Cause.NODE and item.evidence["by"] == "compute" for item in found)
    connected = len({int(part[rank]) for rank in (*idle.ranks, *others)}) == 1
    return bool(others) and by_computing and connected and others.isdisjoint(idle.ranks)


def _only_seems_data(found: list[Diagnosis]) -> bool:
    """Whether all that was found is that steps differ by their data, which falls on any rank."""
    return all(item.cause is Cause.SEQUENCE for item in found)


def _is_about(item: Diagnosis, ranks: tuple[int, ...]) -> bool:
    """Whether a finding names any of these ranks, or calls it possible."""
    return not {*item.ranks, *item.evidence.get("possible", ())}.isdisjoint(ranks)


def _nobody(complete: int, facts: dict[str, Any]) -> Diagnosis:
    """No rank is proven late; that none is, is known only from enough steps of which most ranks have all rows."""
    if complete >= FEWEST_STEPS:
        return Diagnosis(Cause.NONE, evidence=facts)
    return Diagnosis(Cause.UNKNOWN, evidence={**facts, **_too_few(complete)})


def _too_few(complete: int) -> dict[str, Any]:
    """Why so few steps prove nothing."""
    reason = f"complete steps: {complete}; they prove no rank late, and {FEWEST_STEPS} are needed to say that none is"
    return {"reason": reason, "steps_needed": FEWEST_STEPS}


# Compute times


def _from_compute(
    line: Timeline,
    table: Floats,
    known: Bools,
    stage: Ints,
    replica: Ints,
    doubts: Doubts,
    period: float,
    facts: dict[str, Any],
) -> list[Diagnosis]:
    compute = table[:, known]
    usual = np.nanmedian(compute, axis=0)
    weight = float(np.nanmedian(usual)) / period
    if not weight > 0:
        return []
    relative = _relative(compute, period)
    facts["compute_share"] = round(weight, 6)
    alike = _like(stage)
    staged = len(np.unique(alike)) > 1
    found: list[Diagnosis] = []
    alone = staged and bool(np.bincount(alike).max() == 1)
    if not alone:
        # In few steps the chance is that of normal values, to which logarithms are closer.
        few = compute.shape[1] < FEWEST_STEPS
        chips = CHIP_SPREAD * min(weight, 1.0)
        flagged, excess = straggler_ranks(weight * np.log(compute / usual) if few else relative, alike, chips=chips)
        seconds, peers = compute, alike
        if not flagged.any() and not few:
            seconds, peers, flagged, excess = _in_calm_compute(line, compute, relative, known, alike, doubts.shared)
        if flagged.any() and not _is_made_of(flagged, stage):
            longer = np.nanmean(residuals_by_step(np.log(np.maximum(seconds, 1e-12)), peers), axis=1)
            for flags, by in doubts.apart(flagged, longer, "compute"):
                found.append(doubted(_node(flags, excess, seconds, peers, by)))
    else:
        late = _late_onset(relative)
        if late.any():
            found.append(_node(late, relative[:, -1], compute, np.zeros(line.ranks, np.int64), "compute_change"))
    if staged:
        changed = _changed_stage(relative, alike) if not alone and not found else np.zeros(line.ranks, np.bool_)
        if changed.any():
            found.append(_node(changed, relative[:, -1], compute, np.zeros(line.ranks, np.int64), "compute_change"))
        apart = {rank for item in found for rank in item.ranks}
        if not alone and not apart:
            # Half of a stage that is slow makes no stage uneven.
            half = slower_ranks(relative, alike, CHIP_SPREAD * min(weight, 1.0))
            apart = set(np.flatnonzero(half).tolist()) if half is not None else apart
        balance = stage_imbalance(compute, alike, period, apart)
        if balance is not None and not ((alone or changed.any()) and found):
            found.append(_with_calls(balance, line, alike))
    if compute.shape[1] < FEWEST_STEPS:
        return found
    steps = usual_steps(line, table, known)
    stragglers = {rank for item in found for rank in item.ranks}
    sequence = sequence_imbalance(line, table[:, steps], steps, alike, replica, period, stragglers)
    if sequence is not None:
        found.append(sequence)
    return found


def _relative(compute: Floats, period: float) -> Floats:
    """Seconds of computing relative to the step's median, as a share of a step of usual length."""
    usual = np.nanmedian(compute, axis=0)
    weight = float(np.nanmedian(usual)) / period
    return np.asarray(compute / np.maximum(usual, 1e-12) * min(weight, 1.0))


def _in_calm_compute(
    line: Timeline, compute: Floats, relative: Floats, known: Bools, alike: Ints, shared: DataGroups
) -> tuple[Floats, Ints, Bools, Floats]:  # fmt: skip
    """The seconds and peers by which ranks stand out where data does not hide it, these ranks, and their excess."""
    steady = steady_compute(line, known, alike)
    if steady:
        seconds = np.sum(steady, axis=0)
        # What is slow in all of them is a chip, which is as slow in what data hides.
        share = float(np.nanmedian(relative))
        likewise = share * seconds / np.maximum(np.nanmedian(seconds, axis=0), 1e-12)
        flagged, excess = straggler_ranks(likewise, alike, chips=CHIP_SPREAD * min(share, 1.0))
        flagged &= slower_in_all(steady, alike)
        if flagged.any():
            return seconds, alike, flagged, excess
    peers = data_peers(shared, compute, alike)
    if peers is None:
        return compute, alike, np.zeros(len(compute), np.bool_), np.zeros(len(compute))
    return compute, peers, *straggler_ranks(residuals_by_step(relative, peers), peers)


def _shared_data(line: Timeline, stage: Ints, replica: Ints) -> DataGroups:
    """Which ranks longer data may make slow together; where the work is known, that is known to explain nothing."""
    groups = data_groups(line, _like(stage), replica)
    told = line.work is not None and bool(np.isfinite(line.work).any())
    return DataGroups(groups.groups[:0], groups.stage) if told else groups


def _is_made_of(flagged: Bools, parts: Ints) -> bool:
    """Whether the slow ranks are exactly those of one or more pipeline stages of several ranks."""
    if (parts < 0).any() or not 2 <= len(np.unique(parts)) < len(parts):
        return False
    touched = np.isin(parts, np.unique(parts[flagged]))
    return bool((touched == flagged).all())


def _late_onset(relative: Floats) -> Bools:
    """Ranks that became slower than they were at their own beginning, which no partition of the job causes."""
    change, needed = _change(relative)
    late: Bools = (change > needed) & (change >= change.max())
    return late


def _changed_stage(relative: Floats, alike: Ints) -> Bools:
    """All ranks of the one stage that became slower as a whole, as a host may become, and no partition does."""
    change, needed = _change(relative)
    kinds = np.unique(alike)
    means = np.array([change[alike == kind].mean() for kind in kinds.tolist()])
    found: Bools = alike == kinds[means.argmax()]
    # The ranks of a stage know its change together better than each alone.
    enough = max(float(np.sqrt((needed[found] ** 2).mean() / found.sum())), 2 * SMALLEST_EFFECT)
    clear = change[found].min() > means.max() / 2 > change[~found].max()
    return found if len(kinds) >= 3 and means.max() > enough and clear else np.zeros_like(found)


def _change(relative: Floats) -> tuple[Floats, Floats]:
    """By which share each rank became slower than the median rank did, and from where that is significant."""
    steps = relative.shape[1]
    if steps < 2 * FEWEST_STEPS:
        return np.zeros(len(relative)), np.full(len(relative), np.inf)
    quarter = max(steps // 4, FEWEST_STEPS)
    before, error_before = trimmed_mean(relative[:, :quarter])
    after, error_after = trimmed_mean(relative[:, -quarter:])
    change = after / np.maximum(before, 1e-12) - 1
    change = change - np.median(change)
    error = np.hypot(error_before, error_after) / np.maximum(before, 1e-12)
    needed = upper_quantile(SIGNIFICANCE / len(relative), quarter)
    return change, np.maximum(needed * error, 2 * SMALLEST_EFFECT)


def _with_calls(balance: Diagnosis, line: Timeline, alike: Ints) -> Diagnosis:
    """The imbalance with the ranks of the heaviest stages, and how many more operations these do than others.

    One with as many operations as the others, each of which takes longer, may also be on slow hosts.
    """
    calls = np.bincount(line.rank[~line.collective], minlength=line.ranks)
    own = np.isin(alike, balance.evidence.get("stages", [balance.evidence["stage"]]))
    more = float(np.median(calls[own]) / max(float(np.median(calls[~own])), 1.0))
    evidence = {"stage_ranks": np.flatnonzero(own).tolist(), "operations_over_others": round(more, 4)}
    return replace(balance, evidence={**balance.evidence, **evidence})


def _node(flagged: Bools, excess: Floats, compute: Floats, alike: Ints, by: str) -> Diagnosis:
    """The stragglers and their cost: how much faster the slowest rank of each step is if they are like peers."""
    repaired = compute.copy()
    for rank in np.flatnonzero(flagged).tolist():
        peers = (alike == alike[rank]) & ~flagged
        if peers.any():
            repaired[rank] = np.minimum(compute[rank], np.nanmedian(compute[peers], axis=0))
    saved = np.nanmax(compute, axis=0) - np.nanmax(repaired, axis=0)
    ranks, shares = _worst_first(flagged, excess)
    evidence = {"by": by, "excess_share_of_step": shares}
    return Diagnosis(Cause.NODE, ranks, seconds_lost_per_step=float(np.nanmean(saved)), evidence=evidence)


def _worst_first(flagged: Bools, excess: Floats) -> tuple[tuple[int, ...], dict[str, float]]:
    """The flagged ranks, the largest excess first, and their excess as evidence."""
    ranks = tuple(int(rank) for rank in np.flatnonzero(flagged)[np.argsort(-excess[flagged], kind="stable")])
    return ranks, {str(rank): round(float(excess[rank]), 6) for rank in ranks}


# Waiting times


def _from_lags(
    lags: Floats, free: Floats | None, blame: WaitAttribution | None, stage: Ints, doubts: Doubts, period: float,
    facts: dict[str, Any],
) -> list[Diagnosis]:  # fmt: skip
    """The rank that blocks least, for timelines whose compute times are missing or show no cause."""
    flagged, excess = straggler_ranks(lags / period, np.zeros(len(lags), np.int64), blame)
    if free is not None:
        flagged &= np.nanmean(free, axis=1) > 0.5 * excess
    facts["largest_lag_share"] = round(float(np.nanmax(np.nanmedian(lags, axis=1)) / period), 6)
    if not flagged.any():
        return []
    whole = slice(0, lags.shape[1])
    if blame is not None:
        lags = np.where((blame.victims(whole) & ~flagged)[:, None], np.minimum(lags, 0.0), lags)
    if _is_made_of(flagged, stage):
        slow = _blocked_least(flagged, excess, lags, blame)
        return [replace(slow, cause=Cause.STAGE, ranks=())]
    early = np.nanmean(lags / period if free is None else free, axis=1)
    return [
        doubted(_blocked_least(flags, excess, lags, blame, by))
        for flags, by in doubts.apart(flagged, early, "blocked_least", early)
    ]


def _blocked_least(
    flagged: Bools, excess: Floats, lags: Floats, blame: WaitAttribution | None, by: str = "blocked_least"
) -> Diagnosis:
    """Ranks that block least, and how much later than the others they come, by step."""
    ranks, shares = _worst_first(flagged, excess)
    others = np.where(flagged[:, None], np.minimum(lags, 0.0), lags)
    saved = np.nanmax(lags, axis=0) - np.maximum(np.nanmax(others, axis=0), 0.0)
    lost = float(np.nanmean(np.maximum(saved, 0.0)))
    if blame is not None:
        # A delay that is passed on from group to group counts once.
        gaps = blame.gaps(slice(0, lags.shape[1]))
        lost = min(lost, float((gaps * flagged[blame.rank_of]).max()) / lags.shape[1])
    last = np.argmax(np.nan_to_num(lags, nan=-np.inf), axis=0)
    evidence = {
        "by": by,
        "excess_share_of_step": shares,
        "last_in_share_of_steps": round(float(np.mean(last == ranks[0])), 4),
    }
    return Diagnosis(Cause.NODE, ranks, seconds_lost_per_step=lost, evidence=evidence)


def _share(relative: Floats) -> float:
    """The share of a step that ranks compute."""
    return min(1.0, float(np.nanmedian(relative)))


def without_usual_chips(
    found: list[Diagnosis], excess: Floats, usual: Bools, explained: float = EXPLAINED
) -> list[Diagnosis]:  # fmt: skip
    """Without ranks that are late because their chips are slower by what healthy chips differ by.

    `excess`: by which share of the step each computes longer than ranks with the same work; `usual`: whether that is
    no more than these differ by. A rank stays of whose lateness that is less than the share `explained`.
    """
    kept = []
    for item in found:
        late = item.evidence["excess_share_of_step"]
        ranks = tuple(
            rank
            for rank in item.ranks
            if not (usual[rank] and excess[rank] >= explained * late.get(str(rank), np.inf))
        )
        if ranks or not item.ranks:
            kept.append(replace(item, ranks=ranks))
    return kept


def _like(stage: Ints) -> Ints:
    """Which ranks do the same work: those of a stage, or all if stages are not known."""
    return stage if (stage >= 0).all() else np.zeros_like(stage)


def _alone(stage: Ints) -> Bools:
    """Ranks alone in their pipeline stage: how long they wait depends on their place in the schedule."""
    alike = _like(stage)
    return np.asarray((np.bincount(alike)[alike] == 1) & (len(np.unique(alike)) > 1))


def _free(line: Timeline, stage: Ints, period: float) -> Floats | None:
    """How much less each rank was blocked in all its groups than ranks of its stage, by (rank, step), in steps.

    All ranks spend the same time in a step. While a rank is not blocked it delays others, and a victim that waits in
    one group waits less in the next. In a pipeline the waits of single groups do not show the late rank, because a
    sender never waits for its receiver. A rank alone in its stage has no peers, and 0 everywhere.
    """
    blocked = blocked_seconds(line, _like(stage))
    if blocked is None:
        return None
    return np.asarray(np.where(_alone(stage)[:, None], 0.0, -residuals_by_step(blocked, _like(stage)) / period))


def _from_freedom(free: Floats, stage: Ints, doubts: Doubts, period: float) -> list[Diagnosis]:
    """The rank that blocks least over all groups that it belongs to."""
    flagged, excess = np.zeros(len(free), np.bool_), np.zeros(len(free))
    judged = ~_alone(stage)
    flagged[judged], excess[judged] = straggler_ranks(free[judged], _like(stage)[judged])
    if not flagged.any() or _is_made_of(flagged, stage):
        return []
    found = []
    late = np.nanmean(free, axis=1)
    for flags, by in doubts.apart(flagged, late, "blocked_least_in_all", late):
        ranks, shares = _worst_first(flags, excess)
        lost = float(np.nanmean(np.nanmax(np.maximum(free[flags], 0.0), axis=0))) * period
        evidence = {"by": by, "excess_share_of_step": shares}
        found.append(doubted(Diagnosis(Cause.NODE, ranks, seconds_lost_per_step=lost, evidence=evidence)))
    return found


def _supported(item: Diagnosis, lags: Floats) -> Diagnosis:
    """Remove ranks that compute long but block longer than ranks with the same work: they delay no other rank.

    `lags`: seconds by (rank, step) that each was blocked less than those.
    """
    if item.cause is not Cause.NODE or item.evidence["by"].startswith("blocked_least"):
        return item
    mean, error = trimmed_mean(lags)
    needed = upper_quantile(SIGNIFICANCE / len(mean), lags.shape[1]) if lags.shape[1] >= FEWEST_STEPS else 0.0
    guilty = tuple(rank for rank in item.ranks if mean[rank] >= -needed * error[rank])
    lag = {str(rank): round(float(mean[rank]), 9) for rank in item.ranks}
    if not guilty:
        return Diagnosis(Cause.NONE)
    return Diagnosis(
        item.cause, guilty, item.slowdown, item.seconds_lost_per_step, {**item.evidence, "lag_seconds": lag}
    )
