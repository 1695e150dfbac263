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

from dataclasses import replace
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Floats, Ints
from ingero_detect.ranks.calm_compute import data_peers
from ingero_detect.ranks.case import Case
from ingero_detect.ranks.chores import without_chores
from ingero_detect.ranks.doubts import Doubts
from ingero_detect.ranks.idle_together import idle_ranks
from ingero_detect.ranks.imbalance import (
    SMALLEST_IMBALANCE,
    Cause,
    Diagnosis,
    stage_imbalance,
)
from ingero_detect.ranks.last_arrival import residuals_by_step
from ingero_detect.ranks.late_compute import late_by_computing
from ingero_detect.ranks.late_waits import free_steps, late_by_waits, supported_by_waits
from ingero_detect.ranks.lost_compute import with_lost_compute
from ingero_detect.ranks.operation_excess import operation_excess
from ingero_detect.ranks.peers import alone_in_stage, like_work, relative_compute, share_of_step
from ingero_detect.ranks.pipeline_slack import with_slack
from ingero_detect.ranks.rank_outliers import (
    CHIP_SPREAD,
    possible_stragglers,
    straggler_ranks,
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
from ingero_detect.ranks.slower_part import (
    LATE_PART,
    idle_part,
    part_slower_since,
    part_without_operations,
    slower_part,
    stalls_without_operations,
)
from ingero_detect.ranks.stalls import FEW_STALLS, late_together, stalling_rank
from ingero_detect.ranks.timeline import (
    FEWEST_PROVEN,
    FEWEST_STEPS,
    Timeline,
    most_common_by_rank,
    step_period,
    sum_by_rank_and_step,
    well_covered_steps,
)
from ingero_detect.ranks.wait_attribution import blocked_seconds, compute_lags, with_exposed_waits
from ingero_detect.ranks.warm_up import warm_up_steps, without_first_steps
from ingero_detect.ranks.work import with_equal_work, work_differs

ONE_RANK: Final = "there is one rank, and none to compare it with"

MOST_TIMES: Final = 100.0
"""How many times as long as it could a job takes at most: stalls may be longer than the usual step."""

FEW_STEPS: Final = "few_steps"
"""What shows a rank that is last in nearly all steps, which are too few to prove that it is the cause."""

LIKE_COST: Final = 1 / 3
"""Share of the largest cost from which ranks that are late for another reason are named beside the worst."""

LARGER_COST: Final = 2.0
"""How many times as much as all proven ranks together a slower half costs that is mentioned beside them."""

LISTED: Final = ("by", "possible", "longer_in", "as_fast_as_peers_in")
"""Evidence that is also given of findings that are not the verdict."""


def diagnose(line: Timeline) -> Diagnosis:
    """Judge a timeline, without the steps in which the job warms up (`evidence.warm_up_steps`)."""
    count = warm_up_steps(line)
    found = _of_usual_steps(without_first_steps(line, count))
    return replace(found, evidence={**found.evidence, "warm_up_steps": count}) if count else found


def _of_usual_steps(line: Timeline) -> Diagnosis:
    """Judge a timeline whose first steps are like the others."""
    period = step_period(line)
    if line.ranks < 2 or not period > 0:
        reason = ONE_RANK if line.ranks < 2 else "the steps take no time"
        return Diagnosis(Cause.UNKNOWN, evidence={"reason": reason, "steps": line.steps})
    chores = without_chores(line, like_work(most_common_by_rank(line, line.stage)), period)
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
        equal, uneven_by = without_unequal_parts(line, shared, like_work(stage)), "place_in_ring"
    case = _prepared(recorded, equal.line if equal is not None else line, stage, replica, part, shared, period)
    if chores is not None:
        case.facts["chores"] = chores.answer()
    found = late_by_computing(case)
    found += late_by_waits(case, found)
    found = _with_idle_or_stalling(case, found)
    if equal is not None and equal.seconds_lost_per_step >= SMALLEST_IMBALANCE * period:
        cost = equal.seconds_lost_per_step
        found.append(Diagnosis(Cause.SEQUENCE, seconds_lost_per_step=cost, evidence={"by": uneven_by}))
    found = [item for item in found if item.cause is not Cause.NONE]
    if all(item.evidence.get("by") == FEW_STALLS for item in found):
        found += _slower_half(case, nobody_else=not found)
    elif all(item.cause is Cause.NODE for item in found):
        least = LARGER_COST * sum(item.seconds_lost_per_step for item in found)
        found += [half for half in _slower_half(case, nobody_else=False) if half.seconds_lost_per_step > least]
    return _verdict(case, [case.doubts.with_operations(item) for item in found])


def _shared_data(line: Timeline, stage: Ints, replica: Ints) -> DataGroups:
    """Which ranks longer data may make slow together; where the work is known, that is known to explain nothing."""
    groups = data_groups(line, like_work(stage), replica)
    told = line.work is not None and bool(np.isfinite(line.work).any())
    return DataGroups(groups.groups[:0], groups.stage) if told else groups


def _prepared(
    recorded: Timeline, line: Timeline, stage: Ints, replica: Ints, part: Ints, shared: DataGroups, period: float
) -> Case:
    """What the judgements share. `recorded`: without chores; `line`: as ranks waited, with equal work."""
    like, single = like_work(stage), alone_in_stage(stage)
    line = with_lost_compute(line, like)
    compute = sum_by_rank_and_step(line, ~line.collective, line.duration)
    lags, blame = compute_lags(line) or (None, None)
    known = well_covered_steps(compute)
    peers = data_peers(shared, compute[:, known], like) if known.any() else None
    doubts = Doubts(shared, operation_excess(line, like if peers is None else peers), float(period))
    free = free_steps(line, stage, period) if lags is not None and not single.all() else None
    late = free * period if free is not None else lags if lags is not None else np.zeros((line.ranks, 0))
    facts: dict[str, Any] = {"ranks": line.ranks, "steps": line.steps, "step_seconds": float(period)}
    return Case(
        recorded, line, period, stage, like, replica, single, compute, known, lags, blame, free, late,
        part, doubts, facts,
    )  # fmt: skip


def _with_idle_or_stalling(case: Case, found: list[Diagnosis]) -> list[Diagnosis]:
    """The findings as waits support them, with ranks that do nothing together, or stand still now and then."""
    if case.waits_compare:
        found = [supported_by_waits(item, case.late) for item in found]
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


def _idle_together(case: Case) -> Diagnosis | None:
    """Ranks that do nothing together while the others wait for them."""
    # Stages hand each other tensors: where no row shows that, a rank that does nothing may wait for another stage.
    if case.staged and not some_meet(case.recorded):
        return None
    longer = np.zeros(case.line.ranks)
    if case.known.any():
        longer = np.nan_to_num(np.nanmean(residuals_by_step(case.compute[:, case.known], case.like), axis=1))
    return idle_ranks(case.recorded, case.line, case.late, longer, case.like, case.period)


def _stalling(case: Case, known: set[int]) -> Diagnosis | None:
    """A rank beside the known ones that stands still in single steps."""
    if not case.waits_compare:
        return None
    waits = None if case.free is None else blocked_seconds(case.line, case.like)
    return stalling_rank(case.late, case.period, known, waits)


def _slower_half(case: Case, nobody_else: bool) -> list[Diagnosis]:
    """Many ranks that are slow alike, or do nothing in turn; where nobody else is late, also who is possibly late."""
    half = None
    computing, late = case.relative, case.late
    if not case.single.any():
        chips = CHIP_SPREAD * share_of_step(computing) if computing is not None else 0.0
        # Of several groups the waits of single ones show who sends and who receives.
        told = case.waits_compare and (case.free is not None or case.blame is None)
        half = slower_part(computing, late if told else late[:, :0], case.like, chips, case.period)
        if half is None and nobody_else and computing is not None:
            half = part_slower_since(case.compute[:, case.known], case.like, case.period)
    if half is None and (some_meet(case.recorded) if case.staged else case.sends_recorded):
        half = idle_part(case.recorded, case.line, case.period, case.staged)
    if half is None and nobody_else and case.staged and not case.known.any() and some_meet(case.recorded):
        half = _busy_stage(case)
    if half is None and nobody_else and case.only_waits_of_parts:
        blocked = blocked_seconds(case.line, case.part)
        half = late_in_parts(blocked, case.part, case.period) if blocked is not None else None
    if half is None and nobody_else and case.lags is None:
        half = part_without_operations(case.line, case.period)
    if half is None and nobody_else:
        half = stalls_without_operations(case.line, case.period)
    if half is None and nobody_else:
        compute = case.compute[:, case.known] if case.known.any() else None
        half = _unproven(compute, late if case.waits_compare else None, case.stage, case.period)
    return [with_those_that_act_alike(half, late, case.part)] if half is not None else []


def _busy_stage(case: Case) -> Diagnosis | None:
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


def _verdict(case: Case, found: list[Diagnosis]) -> Diagnosis:
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
    judged = ~alone_in_stage(stage)
    for seconds, computes in ((compute, True), (late, False)):
        if seconds is None or not seconds.shape[1] or not judged.any():
            continue
        relative = relative_compute(seconds, period) if computes else seconds / period
        chips = CHIP_SPREAD * share_of_step(relative) if computes else 0.0
        often, cost = possible_stragglers(relative[judged], like_work(stage)[judged], chips)
        if not often.any():
            # Who may only have wandered so far is possible, unless others do not wait for that rank.
            often, cost = straggler_ranks(relative[judged], like_work(stage)[judged], chips=chips, sure=False)
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
