"""Computes the residuals of all nodes and the sequential tests on them (one-sided CUSUMs; see docs/detection.md).

`compute_residuals` returns residuals and their scale, `compute_bounds` how much one tick may add. There are three
tests: against own history (with a mirrored test), against peers, and for a collapse. They read earlier columns; only
`store_results` writes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.codes import RECOVERING, is_accused
from ingero_detect.cohorts import is_guest
from ingero_detect.column_store import ColumnStore
from ingero_detect.counted_events import noise_of_counts, on_root_scale, share_of_unit
from ingero_detect.grouped import Bools, Floats, Groups, Ints, Singles, singles
from ingero_detect.parameters import Parameters
from ingero_detect.peer_outliers import groups_to_examine, lone_outliers
from ingero_detect.reference import HALF, Reference, find_reference

MAX_DEVIATION: Final = 7.0
"""Limit of residuals, log units."""

NOTHING: Final = 4.0
"""Residuals below minus this (2 % of the usual rate) count as this: of what a job does while it starts or ends, the
logarithm is noise."""

_ONSET: Final = 0.1
"""Share of the alarm level at which the onset is set: below it the evidence of healthy nodes moves by noise."""

_MEDIAN_ERROR: Final = 1.2533
"""Standard error of the median of n normal values, in standard deviations, times the root of n."""

_RECENT: Final = 64
"""Samples that tell how much the nodes of a cohort scatter at present."""

_CHANCE_GROWTH: Final = 1.25
"""What the recent spread exceeds the lasting one by without meaning: three standard errors of so many samples."""

_CERTAIN_GROWTH: Final = 1.5
_GROWTH_SLOPE: Final = 4.0
"""What the recent spread exceeds the lasting one by when the noise has certainly grown, and how fast the whole excess
then counts: from two thirds more than usual."""

DIP_TICKS: Final = 120
"""Ticks over which short losses are averaged."""

_DIP: Final = 3.0
"""Standard deviations beyond which a loss counts as a dip."""

LARGEST_SHARE: Final = 0.75
"""Share of the alarm level that one tick adds at most. Half a step is left for evidence that noise brought before."""

LONGEST_PAUSE: Final = 4
"""Ticks. A large loss that ends by itself within this time is a pause; one that lasts longer is a fault.

It is also the longest that the alarm for a large loss waits because of pauses.
"""

CROWD_TICKS: Final = 5
"""Ticks that confirm a loss of a fifth of a cohort at once: often it is the beginning of what all do."""

_LATE_PHASE_COUNT: Final = 10
"""Samples that a baseline is worth once the job has entered a new phase."""

_CROWD_DEVIATION: Final = 4.0
"""Standard deviations by which a node of a crowd falls or rises at least. Beside a straggler one of seven others is
beyond three in one of a hundred ticks."""

LONGEST_RUN: Final = 30_000
"""Ticks at which the count of a run stops."""


@dataclass(frozen=True)
class Residuals:
    """Nodes judged in a tick, arrays by node; `index` selects their columns, `group` those of their groups.

    `gap`: residual against own history minus the reference; `sigma`: its standard deviation from tick to tick;
    `scale`: the same in the long run. All are in log units, like `logs`, `baseline` and, by group, `level`.
    `new`: in a new phase of the job, for which baselines are still learnt; `known`: ticks that `baseline` was learnt
    from. `ready`: its grace after a return is over; `fresh`: not held; `eligible`: fresh and with enough peers. By
    group, `usual`: the mean `scale`; `recent`: the spread of the last ticks; `median`: medians. `share`: one event as
    a share of those expected, where they are so few that residuals are those of roots, else 0; None if no cohort
    counts events.
    """

    index: slice | Ints
    group: Ints
    logs: Floats
    baseline: Floats
    new: Bools
    known: Ints
    level: Floats
    gap: Singles
    sigma: Singles
    scale: Singles
    usual: Floats
    recent: Floats
    accused: Bools
    ready: Bools
    fresh: Bools
    eligible: Bools
    reference: Reference
    median: Callable[[Floats | Singles], Floats]
    share: Floats | None = None


@dataclass(frozen=True)
class Bounds:
    """How a tick changes the evidence, standard deviations by node: it adds at most `cap`; the alarm is above `top`.

    `z`: this tick's loss, of which a negative one removes at most `largest`; `allowance`: the loss that adds nothing
    (the reference value of the test), wider by the standard error of the baseline. `crowded`, by group: a fifth of
    it falls at once, or rises, which no straggler explains.
    """

    z: Singles
    largest: float
    allowance: Singles
    cap: Singles
    top: Singles
    crowded: Bools


@dataclass(frozen=True)
class OwnTest:
    """Against own history, by node: evidence `slow`, its mirror `fast`, loss `shortfall` over `spell` ticks."""

    slow: Singles
    fast: Singles
    onset: Floats
    shortfall: Singles
    spell: Ints


@dataclass(frozen=True)
class PeerTest:
    """Against peers, by node: log distance `absolute`, band `line`, evidence `below`; `alarm`: accused by it."""

    absolute: Singles
    line: Singles
    below: Singles
    onset: Floats
    alarm: Bools


@dataclass(frozen=True)
class CollapseTest:
    """By node: whether more than half is lost, for how many ticks, and how many ticks are needed.

    `steep`: ticks in a row with a collapse or a loss that adds more than the largest step, until the node is accused;
    `steep_before`: the same before this tick.
    """

    falling: Bools
    run: Ints
    confirm: Ints
    steep_before: Ints
    steep: Ints


@dataclass(frozen=True)
class DipTest:
    """Short losses that come back again and again, by node.

    `share`: of its work that dips take at present, for `ticks`; `usual`: what they take usually; `alarm`: more than
    usual, by the band, and than the dips of its peers; `calm`: they no longer do.
    """

    share: Singles
    usual: Singles
    ticks: Ints
    alarm: Bools
    calm: Bools


@dataclass(frozen=True)
class Alarms:
    """Which test accuses which node, and which nodes are suspected."""

    own: Bools
    dips: Bools
    peers: Bools
    collapse: Bools
    suspected: Bools

    def any(self) -> Bools:
        """By node: accused by one test or more."""
        return self.own | self.collapse | self.peers | self.dips


def compute_residuals(
    memory: ColumnStore, parameters: Parameters, groups: Groups, index: slice | Ints, logs: Floats, fresh: Bools
) -> Residuals:
    """Compute the residuals of the nodes in `index` from their log rates; nodes that are not `fresh` are held."""
    group = memory.node("group")[index].astype(np.int64)
    spread = np.nan_to_num(memory.group("scale"), nan=0.0)
    level = np.nan_to_num(memory.group("level"), nan=0.0)
    new = (memory.node("relearn")[index] > 0) & ~memory.group("back")[group]
    baseline, known = memory.node("baseline")[index].copy(), memory.node("count")[index]
    if new.any():
        baseline += np.where(new, memory.node("sofar")[index], 0.0)
        in_phase = _LATE_PHASE_COUNT + parameters.warmup - memory.node("relearn")[index]
        known = np.where(new, np.minimum(known, in_phase), known)
    residual = singles(logs - baseline - level[group])
    share = share_of_unit(memory, group, baseline + level[group])
    if share is not None:
        residual = np.where(share > 0, on_root_scale(residual, share), residual)
    residual = np.clip(residual, -NOTHING, MAX_DEVIATION)
    tolerance = np.maximum(parameters.own_band, 3 * spread)
    count = np.bincount(group, minlength=len(memory.groups))

    def median(values: Floats | Singles) -> Floats:
        return groups.median(values, index, count)

    def quartiles(values: Singles, members: Ints) -> tuple[Floats, Floats]:
        return groups.median_and_upper_quartile(values, index, members)

    accused = is_accused(memory.node("state"))[index]
    reference = find_reference(residual, group, count, accused, quartiles, tolerance)
    recent = _recent_spread(memory, reference)
    sigma = _sigma(memory, index, group, spread)
    if share is not None:
        sigma = np.maximum(sigma, noise_of_counts(share))
    scale, usual = _long_run_scale(memory, parameters, sigma, group, reference, recent)
    return Residuals(
        index=index,
        group=group,
        logs=logs,
        baseline=baseline,
        new=new,
        known=known,
        level=level,
        gap=residual - singles(reference.level)[group],
        sigma=sigma,
        scale=scale,
        usual=usual,
        recent=recent,
        accused=accused,
        ready=memory.node("grace")[index] <= 0,
        fresh=fresh,
        eligible=(reference.count >= parameters.min_peers)[group] & fresh,
        reference=reference,
        median=median,
        share=share,
    )


def _sigma(memory: ColumnStore, index: slice | Ints, group: Ints, spread: Floats) -> Singles:
    """The node's own noise, mixed with the cohort's spread while there are few samples of the node."""
    own = memory.node("own")[index]
    trust = singles(np.minimum(memory.node("count")[index], 300))
    sigma = np.sqrt((trust * own**2 + singles(30 * spread**2)[group]) / (trust + 30))
    floored: Singles = np.maximum(sigma, 1e-12)
    return floored


def _recent_spread(memory: ColumnStore, reference: Reference) -> Floats:
    """By group the spread of its faster nodes in the last ticks, from about `_RECENT` samples."""
    before = memory.group("recent")
    gain = np.clip(reference.count / _RECENT, 0.0, 0.5)
    step = gain * (reference.upper - before)
    return np.where(np.isnan(reference.upper), before, np.where(np.isnan(before), reference.upper, before + step))


def variance_ratio(memory: ColumnStore) -> Floats:
    """By group the variance in the long run over that from tick to tick: so many ticks tell as much as one sample."""
    ratio = np.clip(memory.group("lagged") / np.maximum(memory.group("squares"), 1e-12), 0.0, 0.95)
    ratios: Floats = (1 + ratio) / (1 - ratio)
    return ratios


def _growth(recent: Floats, usual: Floats) -> Floats:
    """By group the factor by which the noise of all nodes has just grown: 1 unless it is more than chance brings."""
    times = recent / np.maximum(usual, 1e-12)
    factor: Floats = np.clip(1 + _GROWTH_SLOPE * (times - _CERTAIN_GROWTH), 1.0, np.maximum(times, 1.0))
    return factor


def _long_run_scale(
    memory: ColumnStore, parameters: Parameters, sigma: Singles, group: Ints, reference: Reference, recent: Floats
) -> tuple[Singles, Floats]:
    """The standard deviation including autocorrelation, never below half of the band; also the usual one by group.

    Noise of all nodes that has just grown counts at once, beyond what the spread of a few nodes varies by chance.
    """
    stretch, least = np.sqrt(variance_ratio(memory)), 0.5 * parameters.own_band
    recent = np.nan_to_num(recent, nan=0.0)
    usual = np.bincount(group, sigma, len(recent)) / np.maximum(reference.count, 1)
    factor = _growth(recent, usual) * stretch
    floor = np.maximum(recent / _CHANCE_GROWTH * stretch, least)
    scale: Singles = np.maximum(sigma * singles(factor)[group], singles(floor)[group])
    if reference.common.any():
        scale = np.where(reference.common[group], np.maximum(scale, singles(reference.spread)[group]), scale)
    return scale, np.maximum(usual * factor, floor)


def compute_bounds(memory: ColumnStore, parameters: Parameters, nodes: Residuals, alarm: Floats) -> Bounds:
    """Compute how much this tick may add. `alarm`: the level of every group."""
    group, scale = nodes.group, nodes.scale
    wide = nodes.new | _many_moved_differently(memory, parameters, nodes)[group]
    band = np.where(wide, np.float32(parameters.absolute_band), np.float32(parameters.own_band))
    z = -nodes.gap / scale
    error = singles(_MEDIAN_ERROR / np.sqrt(np.maximum(nodes.known, 1)))
    allowance = np.maximum(parameters.drift, band / scale) + error
    far = np.maximum(allowance, _CROWD_DEVIATION)
    low = (z > far) & ~nodes.accused & nodes.ready
    high = (z < -far) & nodes.ready
    slow, fast = (np.bincount(group[some], minlength=len(alarm)) for some in (low, high))
    crowded = is_crowd(slow, nodes.reference.count) | is_crowd(fast, nodes.reference.count)
    confirm = np.minimum(memory.group("confirm"), LONGEST_PAUSE)
    cap = np.minimum(parameters.largest_step, LARGEST_SHARE * alarm)
    cap = np.where(confirm > 2, np.minimum(cap, alarm / (confirm - 0.5)), cap)
    cap = np.where(crowded, np.minimum(cap, alarm / CROWD_TICKS), cap)
    return Bounds(z, parameters.largest_step, allowance, singles(cap)[group], singles(alarm)[group], crowded)


def _many_moved_differently(memory: ColumnStore, parameters: Parameters, nodes: Residuals) -> Bools:
    """By group: whether it moves to another phase in which a tenth of its nodes, and two at least, do less than most.

    A job that does something else loads its nodes differently; a straggler that drags the others along is alone.
    """
    reference = nodes.reference
    moving: Bools = reference.common & ~memory.group("back")
    if not moving.any():
        return moving
    low = (-nodes.gap > np.maximum(parameters.own_band, 2 * nodes.scale)) & ~nodes.accused & nodes.ready
    many = np.bincount(nodes.group[low], minlength=len(moving))
    several: Bools = moving & (many >= 2) & (many > 0.1 * reference.count)
    return several


def is_crowd(falling: Ints, nodes: Ints) -> Bools:
    """By group: whether a fifth of its nodes, and at least two, fall (or rise) at once."""
    crowd: Bools = (falling >= 2) & (falling > 0.2 * nodes)
    return crowd


def _cusum(before: Singles, step: Singles, nodes: Residuals, bounds: Bounds, most: Singles | None = None) -> Singles:
    """One step of a one-sided CUSUM (Page 1954), at most `most`; without enough peers nothing changes."""
    after = -bounds.largest - bounds.allowance
    np.maximum(after, step, out=after)
    np.minimum(after, bounds.cap, out=after)
    after += before
    np.maximum(after, 0.0, out=after)
    after *= nodes.ready
    if most is not None:
        np.minimum(after, most, out=after)
    return after if nodes.eligible.all() else np.where(nodes.eligible, after, before)


def _onset(now: float, evidence: Singles, onset: Floats, top: Singles) -> tuple[Bools, Floats]:
    """By node: whether its evidence begins now, and when it began; 0 for nodes without evidence."""
    lasts = evidence > _ONSET * top
    begins = lasts & (onset == 0)
    since = onset * lasts
    since[begins] = now
    return begins, since


def against_own_history(memory: ColumnStore, now: float, nodes: Residuals, bounds: Bounds) -> OwnTest:
    """The sequential test against own history, and its mirror for nodes that are too fast."""
    at, z, allowance = nodes.index, bounds.z, bounds.allowance
    slow = _cusum(memory.node("slow")[at], z - allowance, nodes, bounds)
    fast = _cusum(memory.node("fast")[at], -z - allowance, nodes, bounds, most=1.5 * bounds.top)
    begins, onset = _onset(now, slow, memory.node("onset")[at], bounds.top)
    goes_on = ~begins
    shortfall = memory.node("shortfall")[at] * goes_on - nodes.gap * nodes.eligible
    spell = memory.node("spell")[at] * goes_on + nodes.eligible
    return OwnTest(slow, fast, onset, shortfall, spell)


def distance_from_peers(nodes: Residuals) -> Singles:
    """Log distance of every node from the median of its group."""
    logs = np.maximum(nodes.logs, -1e3)  # idle nodes lie no further from other idle nodes
    absolute = singles(logs - np.nan_to_num(nodes.median(logs), nan=0.0)[nodes.group])
    if nodes.share is not None:
        usual = nodes.baseline - np.nan_to_num(nodes.median(nodes.baseline), nan=0.0)[nodes.group]
        absolute = np.where(nodes.share > 0, singles(usual) + nodes.gap, absolute)
    return np.clip(absolute, -MAX_DEVIATION, MAX_DEVIATION)


def against_peers(
    memory: ColumnStore, parameters: Parameters, now: float, ticks: int, nodes: Residuals, bounds: Bounds,
    absolute: Singles,
) -> PeerTest:  # fmt: skip
    """The sequential test against peers, for nodes that were slow from the start."""
    at, group, scale = nodes.index, nodes.group, nodes.scale
    offsets = np.nan_to_num(memory.group("offsets"), nan=0.0)
    line = singles(np.maximum(parameters.absolute_band, 4 * offsets))[group]
    step = -absolute / scale - np.maximum(parameters.drift, line / scale)
    before = memory.node("below")[at]
    below = _cusum(before, step, nodes, bounds)
    _, onset = _onset(now, below, memory.node("below_onset")[at], bounds.top)
    alarm = (below > bounds.top) & nodes.eligible
    fresh = alarm & ~nodes.accused
    if fresh.any():
        alarm &= nodes.accused
        rows = np.arange(len(memory.names))[at]
        for row in np.flatnonzero(fresh).tolist():
            home, own = memory.homes[memory.node("home")[rows[row]]], memory.groups[group[row]]
            fresh[row] = not is_guest(home, own)
        unexamined = memory.group("unexamined")
        unexamined[group[fresh & (before <= bounds.top)]] = True
        for number in groups_to_examine(ticks, group, fresh, unexamined):
            unexamined[number] = False
            here = np.flatnonzero(group == number)
            alarm[here] |= lone_outliers(
                memory, parameters.own_band, rows[here], nodes.baseline[here], fresh[here], nodes.accused[here],
                float(offsets[number]),
            )  # fmt: skip
    return PeerTest(absolute, line, below, onset, alarm)


def against_collapse(memory: ColumnStore, nodes: Residuals, bounds: Bounds) -> CollapseTest:
    """Count ticks in a row in which a node lost more than half of its own rate."""
    falling = (nodes.gap < -HALF) & (-nodes.gap > 4 * nodes.scale) & nodes.ready
    excess = bounds.z > bounds.allowance + bounds.largest
    large = falling | (excess & nodes.ready & ~bounds.crowded[nodes.group])
    steep_before = memory.node("steep")[nodes.index].copy()
    needed = memory.group("confirm")
    confirm = np.where(bounds.crowded, np.maximum(needed, CROWD_TICKS), needed)[nodes.group]
    return CollapseTest(
        falling, _count_run(memory.node("run")[nodes.index], falling, nodes), confirm,
        steep_before, np.where(nodes.accused, steep_before, _count_run(steep_before, large, nodes)),
    )  # fmt: skip


def _count_run(before: Ints, lasts: Bools, nodes: Residuals) -> Ints:
    """Ticks in a row, one more or none; held nodes keep theirs."""
    return np.where(nodes.eligible, np.minimum(before + 1, LONGEST_RUN) * lasts, before)


def against_dips(memory: ColumnStore, parameters: Parameters, nodes: Residuals, bounds: Bounds) -> DipTest:
    """Average the short losses of every node, which end before the other tests have enough evidence.

    A node that is accused for another reason is not followed until it recovers. What a node always did is usual.
    """
    at, group = nodes.index, nodes.group
    before, usual = memory.node("dips")[at], memory.node("usual_dips")[at]
    accused = nodes.accused & ~memory.node("by_dips")[at] & (memory.node("state")[at] != RECOVERING)
    follows = nodes.eligible & nodes.ready & ~accused & ~nodes.reference.common[group]
    loss = np.where(bounds.z > np.maximum(bounds.allowance, np.float32(_DIP)), -np.expm1(nodes.gap), np.float32(0))
    share = np.where(follows, before + (loss - before) / np.float32(DIP_TICKS), before * ~accused)
    band = -np.expm1(-parameters.own_band)
    level, alarm = 2 * usual, np.zeros(len(share), np.bool_)
    high = share > 0.5 * band + level
    if high.any():
        level = np.maximum(level, 2 * singles(np.nan_to_num(nodes.median(share), nan=0.0))[group])
        high, alarm = share > 0.5 * band + level, share > band + level
    young = memory.node("count")[at] < parameters.warmup + 2 * DIP_TICKS
    gain = np.where(young, 2.0 / DIP_TICKS, ~high / parameters.baseline_ticks)
    usual = np.where(follows & ~nodes.accused, usual + singles(gain) * (share - usual), usual)
    ticks = np.minimum(memory.node("dip_ticks")[at] + 1, LONGEST_RUN) * (share > 0.1 * band)
    return DipTest(share, usual, ticks, alarm & follows, ~high)


def decide(
    parameters: Parameters, now: float, nodes: Residuals, bounds: Bounds, own: OwnTest, peers: PeerTest,
    collapse: CollapseTest, dips: DipTest,
) -> Alarms:  # fmt: skip
    """Decide which nodes the tests accuse and which are suspected.

    While many nodes fall at once, evidence that began with their fall waits until it has lasted `CROWD_TICKS`. While
    a cohort restarts, nobody is accused.
    """
    eligible = nodes.eligible & ~nodes.reference.restarting[nodes.group]
    top, crowded = bounds.top, bounds.crowded[nodes.group]
    lasting = now - own.onset > (CROWD_TICKS - 1.5) * parameters.tick_seconds
    half = 0.5 * top
    return Alarms(
        own=(own.slow > top) & eligible & (~crowded | lasting),
        dips=dips.alarm,
        peers=peers.alarm,
        collapse=(collapse.run >= collapse.confirm) & eligible,
        suspected=eligible & ((own.slow > half) | (collapse.run > 0)),
    )


def may_learn_from(nodes: Residuals, bounds: Bounds, own: OwnTest, collapse: CollapseTest) -> Bools:
    """By node: whether its baseline may be updated."""
    quiet = ~nodes.accused & (own.slow < 0.5 * bounds.top) & ~collapse.falling
    return quiet & ~nodes.reference.common[nodes.group] & nodes.ready & nodes.eligible


def store_results(
    memory: ColumnStore, nodes: Residuals, own: OwnTest, peers: PeerTest, collapse: CollapseTest, dips: DipTest
) -> None:
    """Write the results of the tests into the columns."""
    expected = nodes.baseline + nodes.level[nodes.group] + nodes.reference.level[nodes.group]
    for name, values in (
        ("slow", own.slow), ("fast", own.fast), ("onset", own.onset), ("shortfall", own.shortfall),
        ("spell", own.spell), ("below", peers.below), ("below_onset", peers.onset), ("run", collapse.run),
        ("steep", collapse.steep), ("dips", dips.share), ("usual_dips", dips.usual), ("dip_ticks", dips.ticks),
        ("residual", nodes.gap), ("scale", nodes.scale), ("expected", expected),
    ):  # fmt: skip
        memory.node(name)[nodes.index] = values
    memory.group("recent")[:] = nodes.recent
