"""Removes from a timeline what few ranks do for the whole job in some steps, such as checkpoints. Pure.

By convention rank 0 writes checkpoints and logs, alone or with others that write parts of them, and all ranks wait;
Megatron-LM writes logs on the last rank. A fault has no reason to keep to the numbers of steps. So what makes such a
rank late in every N-th step, and in hardly any other, is taken out: its next collective begins earlier by as much,
and ranks are compared without it. So is, on any rank, an operation whose name says what it is.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, grouped_median
from ingero_detect.ranks.idle_together import LEAST_STALL, idle_seconds
from ingero_detect.ranks.last_arrival import FAR_SIGMAS, SAME_STEPS, min_last_count, residuals_by_step
from ingero_detect.ranks.timeline import FEWEST_STEPS, LONGEST_PAUSE, Timeline, sum_by_rank_and_step
from ingero_detect.threshold import MAD_TO_SIGMA

FEWEST_TIMES: Final = 3
"""How often a chore is seen at least, at equal distances."""

SHORTEST_PERIOD: Final = 3
"""Steps from one time to the next at least: who is late in half of the steps or more is slow."""

USUAL_PERIOD: Final = 5
"""Steps from which one time to the next is usual, and up to half of the ranks take part. Shorter ones are tried
apart, for a quarter of the ranks at most: what half of them do so often is no checkpoint."""

MOST_CHORES: Final = 2
"""Chores with rhythms of their own, such as logs and checkpoints."""

MOST_STEPS: Final = 0.4
"""Share of all steps that have a chore at most."""

MOST_OTHERS: Final = 0.25
"""Share of the late steps of the rank that may have another cause, and of its chores that may be a step off."""

PART_OF_LAG: Final = 0.25
"""Share of the largest lag of a step from which that in another collective is of the same chore, as in a pipeline."""

MOST_RESTARTS: Final = 2
"""Restarts of a job after each of which a rhythm may begin anew; with more, chance has too many."""

MUCH_LONGER: Final = 1.5
SHARE_OF_JOB: Final = 0.15
"""What ranks do in some steps over what they do in others, and the share of all time that the difference takes, from
which the rhythm is that of the job; evaluations take less."""

CHANCE: Final = 0.05
"""Chance with which late steps at random are taken for a chore of a usual distance, and for one of a shorter one."""

Without = Callable[[Timeline, Ints, Bools], tuple[Floats, Floats, Floats]]
"""Starts and durations of a rank's rows without its chores in some steps, and the seconds that each step saves."""


@dataclass(frozen=True)
class Chores:
    """The timeline without the chores of these ranks, the distances of their steps, and what they cost."""

    line: Timeline
    ranks: tuple[int, ...]
    every: tuple[int, ...]
    seconds_per_step: float

    def answer(self) -> dict[str, Any]:
        """As evidence."""
        return {"ranks": list(self.ranks), "every": list(self.every), "seconds_per_step": self.seconds_per_step}


def without_chores(line: Timeline, alike: Ints, period: float) -> Chores | None:
    """The timeline without what few ranks do by its name, and without what the first and the last rank do in every
    N-th step; `None` where that is nothing.

    `alike` numbers the ranks that do the same work, `period` is seconds of a step.
    """
    if line.ranks < 2:
        return None
    found = _told(line)
    line = line if found is None else found.line
    if line.steps < FEWEST_TIMES * SHORTEST_PERIOD:
        return found
    for lead in (0, line.ranks - 1):
        found = _joined(found, _of_rank(line, lead, alike, period))
        line = line if found is None else found.line
        # What was not recorded shows in the waits of the others.
        found = _joined(found, _of_waits(line, lead, alike, period))
        line = line if found is None else found.line
    return found


def _joined(before: Chores | None, more: Chores | None) -> Chores | None:
    if before is None or more is None:
        return more or before
    ranks, every = (
        tuple(sorted({*one, *other})) for one, other in ((before.ranks, more.ranks), (before.every, more.every))
    )
    return Chores(more.line, ranks, every, before.seconds_per_step + more.seconds_per_step)


def _told(line: Timeline) -> Chores | None:
    """Without the operations that are chores by their names, if at most half of the ranks do them, in some steps."""
    if line.chores is None:
        return None
    told = line.chores & ~line.collective & (line.duration > 0)
    for op in np.unique(line.op[told]).tolist():
        by_step = np.isfinite(sum_by_rank_and_step(line, told & (line.op == op), line.duration))
        doing = by_step.any(axis=1)
        if 2 * doing.sum() > line.ranks or (by_step[doing].mean(axis=1) > MOST_STEPS).any():
            told &= line.op != op
    if not told.any():
        return None
    steps = np.nan_to_num(sum_by_rank_and_step(line, told, line.duration)) > 0
    times = np.flatnonzero(steps.any(axis=0))
    every = int(np.median(np.diff(times))) if len(times) > 1 else line.steps
    return _changed(line, (every,), steps, partial(_without_told, told=told))


def _without_told(line: Timeline, rows: Ints, steps: Bools, told: Bools) -> tuple[Floats, Floats, Floats]:
    """Starts and durations of a rank's rows without those that are `told`, and the seconds of each step.

    What follows begins earlier, up to the next collective, in which the rank then waits longer.
    """
    start, duration, saved = line.start[rows], line.duration[rows], np.zeros(line.steps)
    collectives = np.flatnonzero(line.collective[rows])
    for at in np.flatnonzero(told[rows]).tolist():
        seconds, duration[at] = duration[at], 0.0
        saved[line.step[rows[at]]] += seconds
        following = collectives[np.searchsorted(collectives, at) :]
        if len(following):
            start[at + 1 : following[0] + 1] -= seconds
            duration[following[0]] += seconds
    return start, duration, saved


def _of_rank(line: Timeline, lead: int, alike: Ints, period: float) -> Chores | None:
    """Without the chores that the operations of this rank show, or the time between them."""
    done = sum_by_rank_and_step(line, ~line.collective, line.duration)
    seen = (idle_seconds(line), done, _in_rare_operations(line, lead))
    every, far = _in_rhythm(line, lead, seen, alike, period)
    return _taken_out(line, every, far, _without_longest)


def _of_waits(line: Timeline, lead: int, alike: Ints, period: float) -> Chores | None:
    """Without the chores of this rank that only waits of the other ranks show."""
    lags = _lags(line)
    waits = (sum_by_rank_and_step(line, line.collective, lags),)
    every, late = _in_rhythm(line, lead, waits, alike, period)
    return _taken_out(line, every, late, partial(_without_lags, lags=lags))


def _in_rhythm(
    line: Timeline, lead: int, tables: Iterable[Floats], alike: Ints, period: float
) -> tuple[tuple[int, ...], Bools]:  # fmt: skip
    """The distances of the steps in which rank `lead` has a chore, and in which of them each rank is late.

    `tables`: seconds by (rank, step) that show it. Ranks are late that are in most of these steps.
    """
    rows = sum_by_rank_and_step(line, np.ones(len(line.rank), np.bool_), line.duration)
    begins = _begins(line, period)
    far, steps, every = np.zeros(rows.shape, np.bool_), np.zeros(line.steps, np.bool_), set[int]()
    for seconds in tables:
        late = _far(np.nan_to_num(seconds), alike, period)
        # What came before the first step and after the last one, and what a recording that was cut off lacks, is not
        # known.
        known = np.isfinite(rows[lead]) & ~np.isnan(seconds[lead])
        known[[0, -1]] = late[lead, [0, -1]]
        distances, times = _regular(late[lead], known, begins)
        if _is_of_all(line, lead, times, period):
            continue
        every |= set(distances)
        steps |= times
        far |= late & times
    others = far.sum(axis=1) < SAME_STEPS * steps.sum()
    others[lead] = False
    far[others] = False
    return tuple(sorted(every)), far


def _begins(line: Timeline, period: float) -> list[int]:
    """The first step, and those before which all ranks did nothing for as long as while a job is restarted."""
    idle = idle_seconds(line)
    paused = np.where(np.isnan(idle), np.inf, idle).min(axis=0) > LONGEST_PAUSE * period
    again = np.flatnonzero(paused & np.isfinite(idle).any(axis=0)).tolist()
    return [0, *(step for step in again if step)] if len(again) <= MOST_RESTARTS else [0]


def _is_of_all(line: Timeline, lead: int, times: Bools, period: float) -> bool:
    """Whether all ranks but `lead` do more before what they do together in these steps, as in every step of a job.

    Where nothing but collectives was recorded, one of several in a step, such as a bucket of gradients, may stand for
    a step: then the forward pass comes before every N-th, and a rank that is slow in it keeps to that rhythm.
    """
    if not line.collective.all() or times.sum() < FEWEST_STEPS or times.all():
        return False
    busy = np.nanmedian(np.delete(idle_seconds(line), lead, axis=0), axis=0)
    usual, longer = float(np.nanmedian(busy[~times])), float(np.nanmedian(busy[times]))
    share = (longer - usual) * times.sum() / (period * line.steps)
    return longer > MUCH_LONGER * usual and share > SHARE_OF_JOB


def _taken_out(line: Timeline, every: tuple[int, ...], far: Bools, without: Without) -> Chores | None:
    """The timeline without chores; `None` where there are none, or where too many ranks have them."""
    if not every:
        return None
    most = line.ranks // 2 if min(every) >= USUAL_PERIOD else max(1, line.ranks // 4)
    return _changed(line, every, far, without) if 0 < far.any(axis=1).sum() <= most else None


def _changed(line: Timeline, every: tuple[int, ...], far: Bools, without: Without) -> Chores:
    """The timeline without what ranks do in the steps in which they are `far` behind."""
    ranks = np.flatnonzero(far.any(axis=1))
    starts, durations = line.start.copy(), line.duration.copy()
    saved = np.zeros((len(ranks), line.steps))
    for place, rank in enumerate(ranks.tolist()):
        rows = np.flatnonzero(line.rank == rank)
        rows = rows[np.argsort(line.start[rows], kind="stable")]
        starts[rows], durations[rows], saved[place] = without(line, rows, far[rank])
    changed = replace(line, start=starts, duration=durations)
    return Chores(changed, tuple(ranks.tolist()), every, float(saved.max(axis=0).sum()) / line.steps)


def _lags(line: Timeline) -> Floats:
    """By row, how much less than the median of its ranks, or than the other one, one waited in a collective.

    0 for compute.
    """
    found = np.zeros(len(line.rank))
    rows = np.flatnonzero(line.collective & (line.instance >= 0))
    if len(rows):
        _, instance = np.unique(line.instance[rows], return_inverse=True)
        count, middle = grouped_median(line.duration[rows], instance.astype(np.int64), int(instance.max()) + 1)
        # The median of two lies halfway to the other one.
        found[rows] = (middle[instance] - line.duration[rows]) * np.where(count == 2, 2.0, 1.0)[instance]
    return found


def _without_lags(line: Timeline, rows: Ints, steps: Bools, lags: Floats) -> tuple[Floats, Floats, Floats]:
    """Starts and durations of a rank's rows with the collectives to which it came latest in each of these steps begun
    with the others, and the seconds of each step.

    What the rank did before, and would overlap them now, began earlier as well, up to where the rank did nothing.
    """
    start, duration, step, own = line.start[rows], line.duration[rows], line.step[rows], lags[rows]
    saved = np.zeros(line.steps)
    for one in np.flatnonzero(steps).tolist():
        inside = np.flatnonzero(step == one)
        for at in inside[own[inside] >= PART_OF_LAG * own[inside].max()].tolist():
            pauses = np.maximum(start[1 : at + 1] - np.maximum.accumulate((start + duration)[:at]), 0.0)
            start[: at + 1] -= np.maximum(own[at] - np.append(np.cumsum(pauses[::-1])[::-1], 0.0), 0.0)
            duration[at] += own[at]
            saved[one] += own[at]
    return start, duration, saved


def _in_rare_operations(line: Timeline, lead: int) -> Floats:
    """Seconds by (rank, step) in operations of compute that rank `lead` does in few of its steps."""
    own = (line.rank == lead) & ~line.collective
    pairs = np.unique(np.stack([line.op[own], line.step[own]]), axis=1)
    ops, steps = np.unique(pairs[0], return_counts=True)
    rare = ops[steps <= MOST_STEPS * line.steps]
    return np.nan_to_num(sum_by_rank_and_step(line, ~line.collective & np.isin(line.op, rare), line.duration))


def _far(seconds: Floats, alike: Ints, period: float) -> Bools:
    """In which steps each rank needs far longer than usual, beyond what it is above ranks with the same work."""
    apart = residuals_by_step(seconds, alike)
    apart -= np.median(apart, axis=1, keepdims=True)
    noise = MAD_TO_SIGMA * float(np.median(np.abs(apart)))
    return np.asarray(apart > max(FAR_SIGMAS * noise, LEAST_STALL * period))


def _regular(late: Bools, known: Bools, begins: Sequence[int]) -> tuple[list[int], Bools]:
    """The distances of late steps that return, and all steps at these distances that are late, if they are `known`.

    Nothing where more than a few late steps are at no such distance, as those of chance are. `begins`: the steps with
    which a job begins, and begins again: there a rhythm may begin anew.
    """
    every: list[int] = []
    left, found = late.copy(), np.zeros_like(late)
    more_often = any((late | ~known)[first::n].all() for n in range(1, SHORTEST_PERIOD) for first in range(n))
    if more_often or late.sum() > MOST_STEPS * len(late):
        return every, found
    near = _with_neighbours(late) | ~known
    while left.sum() >= FEWEST_TIMES and len(every) < MOST_CHORES:
        best, best_distance, best_times = FEWEST_TIMES - 1, 0, found
        for distance in range(SHORTEST_PERIOD, len(late) // FEWEST_TIMES + 1):
            times = _times_at(distance, left, near, begins)
            count, all_times = int(left[times].sum()), int(known[times].sum())
            if count > best and count >= (1 - MOST_OTHERS) * all_times:
                best, best_distance, best_times = count, distance, times
        if not best_distance or best < _needed(left, int(known[best_times].sum()), best_distance, len(begins)):
            break
        every.append(best_distance)
        found |= late & _with_neighbours(best_times)
        left &= ~found
    return (every, found) if left.sum() <= MOST_OTHERS * late.sum() else ([], np.zeros_like(late))


def _times_at(distance: int, late: Bools, near: Bools, begins: Sequence[int]) -> Bools:
    """Steps at a distance, all of them `near` late ones and as many as can be late; none where there are no such."""
    found = np.zeros_like(late)
    for begin, end in pairwise((*begins, len(late))):
        rhythms = [slice(first, end, distance) for first in range(begin, begin + distance)]
        fitting = [times for times in rhythms if near[times].all()]
        if not fitting:
            return np.zeros_like(late)
        found[max(fitting, key=lambda times: int(late[times].sum()))] = True
    return found


def _needed(late: Bools, times: int, distance: int, begins: int) -> int:
    """How many of so many known steps at this distance must be late so that late steps at random hardly are.

    All distances of its kind, usual or shorter, and all first steps after each of the `begins` are tried.
    """
    short = range(SHORTEST_PERIOD, USUAL_PERIOD)
    kind = short if distance in short else range(USUAL_PERIOD, len(late) // FEWEST_TIMES + 1)
    tries = sum(one**begins for one in kind)
    return min_last_count(times, 1 / float(late.mean()), CHANCE / tries)


def _with_neighbours(steps: Bools) -> Bools:
    """The steps and those beside them: a pause between two steps may be counted to either of them."""
    found = steps.copy()
    found[1:] |= steps[:-1]
    found[:-1] |= steps[1:]
    return found


def _without_longest(line: Timeline, rows: Ints, steps: Bools) -> tuple[Floats, Floats, Floats]:
    """Starts and durations of a rank's rows without the longest pause, or what makes an operation longest, of steps.

    Also returns the seconds of each of these steps. What follows begins earlier, up to the next collective, in which
    the rank then waits longer. `rows` are in order of starts. Operations are compared with those of all other steps.
    """
    start, duration, step, computes = line.start[rows], line.duration[rows], line.step[rows], ~line.collective[rows]
    until = np.append(start[0], np.maximum.accumulate(start + duration)[:-1])
    pauses = np.maximum(start - until, 0.0)
    longer = np.where(computes, duration - _usual(line.op[rows], duration, ~steps[step]), 0.0)
    collectives, saved = np.flatnonzero(~computes), np.zeros(line.steps)
    for one in np.flatnonzero(steps).tolist():
        own = np.flatnonzero(step == one)
        at = int(own[np.maximum(pauses[own], longer[own]).argmax()])
        following = collectives[np.searchsorted(collectives, at) :]
        if not len(following):
            continue
        end, saved[one] = int(following[0]), max(pauses[at], longer[at])
        if longer[at] > pauses[at]:
            duration[at] -= saved[one]
            at += 1
        start[at : end + 1] -= saved[one]
        duration[end] += saved[one]
    return start, duration, saved


def _usual(op: Ints, duration: Floats, chosen: Bools) -> Floats:
    """By row, the median duration of its operation in the chosen rows; 0 for one that is in none of them."""
    found = np.zeros(len(op))
    for one in np.unique(op[chosen]).tolist():
        found[op == one] = np.median(duration[chosen & (op == one)])
    return found
