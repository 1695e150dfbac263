"""Computes the sequential tests on the residuals of all nodes (one-sided CUSUMs; see docs/detection.md).

`compute_bounds` returns how much one tick may add. There are three tests: against own history (with a mirrored test),
against peers, and for a collapse. They read earlier columns; only `store_results` writes.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, Singles, clipped, filled, singles
from ingero_detect.nodes.autocorrelation import Steps, steps_of
from ingero_detect.nodes.codes import AXES, RECOVERING
from ingero_detect.nodes.cohorts import is_guest
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.peer_outliers import groups_to_examine, lone_outliers
from ingero_detect.nodes.residuals import LATE_PHASE_COUNT, MAX_DEVIATION, Residuals
from ingero_detect.nodes.verdicts import Axis
from ingero_detect.reference import HALF, Reference
from ingero_detect.threshold import MEDIAN_ERROR

_ONSET: Final = 0.1
"""Share of the alarm level at which the onset is set: below it the evidence of healthy nodes moves by noise."""

DIP_TICKS: Final = 120
"""Ticks over which short losses are averaged."""

_DIP: Final = 3.0
"""Standard deviations beyond which a loss counts as a dip."""

_HALF_OF_BAND: Final = np.float32(0.5)
"""Share of the band that a node is behind its peers by when it is accused of that: evidence outlasts a repair."""

LARGEST_SHARE: Final = 0.75
"""Share of the alarm level that one tick adds at most. Half a step is left for evidence that noise brought before."""

LONGEST_PAUSE: Final = 4
"""Ticks. A large loss that ends by itself within this time is a pause; one that lasts longer is a fault.

It is also the longest that the alarm for a large loss waits because of pauses.
"""

CROWD_TICKS: Final = 5
"""Ticks that confirm a loss of a fifth of a cohort at once: often it is the beginning of what all do."""

_CROWD_DEVIATION: Final = 4.0
"""Standard deviations by which a node of a crowd falls or rises at least. Beside a straggler one of seven others is
beyond three in one of a hundred ticks."""

_PHASE_BAND: Final = 0.15
"""Loss, log units, below which no node is accused while it learns what a new phase of its job adds."""

_RESPONSE: Final = 0.1
"""Share of a change of load by which nodes may differ in following it."""

_MOVED_APART: Final = 3.0
"""Standard deviations, of how differently nodes follow a move of all, by which one may be below the others."""

_FOLLOWED_TICKS: Final = 10
"""Ticks of learning in a new phase after which the usual band may hold again."""

_ADDED: Final = 0.5
_ADDED_TO_MOST: Final = 0.25
"""Shares of the band that a phase adds to a node, and to half of its cohort, at most where they follow alike."""

_NEAR: Final = 2.0
"""Standard deviations within which a node that follows alike was in the tick before."""

LONGEST_RUN: Final = 30_000
"""Ticks at which the count of a run stops."""


@dataclass(frozen=True)
class Bounds:
    """How a tick changes the evidence, standard deviations by node: it adds at most `cap`; the alarm is above `top`.

    `z`: this tick's loss, of which a negative one removes at most `largest`; `allowance`: the loss that adds nothing
    (the reference value of the test), wider by the standard error of the baseline. `crowded`, by group: a fifth of
    it falls at once, or rises, which no straggler explains. `steps`: what the tick adds before these limits, of which
    `first_cap` is that of the first tick of a loss.
    """

    z: Singles
    largest: float
    allowance: Singles
    cap: Singles
    top: Singles
    crowded: Bools
    steps: Steps
    first_cap: Singles


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


def compute_bounds(
    memory: ColumnStore, parameters: Parameters, nodes: Residuals, alarm: Floats, top: Singles
) -> Bounds:
    """Compute how much this tick may add. `alarm`: the level of every group; `top`: of every node."""
    group, scale = nodes.group, nodes.scale
    new = nodes.new & ~_followed_alike(memory, parameters, nodes)
    wide = new | _many_moved_differently(memory, parameters, nodes)[group]
    usual = singles(_usual_band(memory, parameters, nodes.reference))[group]
    band = np.where(wide, np.float32(_PHASE_BAND), usual)
    z = -nodes.gap / scale
    error = singles(MEDIAN_ERROR / np.sqrt(np.maximum(nodes.known, 1)))
    allowance = np.maximum(singles(nodes.drift)[group], band / scale) + error
    far = np.maximum(allowance, _CROWD_DEVIATION)
    low = (z > far) & ~nodes.accused & nodes.ready
    high = (z < -far) & nodes.ready
    slow, fast = (np.bincount(group[some], minlength=len(alarm)) for some in (low, high))
    crowded = is_crowd(slow, nodes.reference.count) | is_crowd(fast, nodes.reference.count)
    confirm = np.minimum(memory.group("confirm"), LONGEST_PAUSE)
    most = np.where(confirm > 2, alarm / (confirm - 0.5), LARGEST_SHARE * alarm)
    most = np.where(crowded, np.minimum(most, alarm / CROWD_TICKS), most)
    cap = np.minimum(parameters.largest_step, most)
    follows = ~(nodes.new | nodes.reference.common[group])
    steps = steps_of(memory, nodes.past, nodes.index, group, follows, nodes.sigma, scale, z, allowance)
    return Bounds(
        z,
        parameters.largest_step,
        allowance,
        singles(cap)[group],
        top,
        crowded,
        steps,
        singles(most)[group],
    )


def _usual_band(memory: ColumnStore, parameters: Parameters, reference: Reference) -> Floats:
    """By group the loss that never accuses: the band, and a share of how far the load is from its usual level.

    Nodes that share a load do not respond to it alike, and their baselines were learnt at the usual level. Nor do
    they follow alike when all move at once: then what they differ by more than usual says how much that is.
    """
    away = filled(np.abs(memory.group("level") - memory.group("usual_level")), 0.0)
    band = parameters.own_band + _RESPONSE * away
    apart = np.sqrt(np.maximum(reference.spread**2 - filled(memory.group("scale"), 0.0) ** 2, 0.0))
    band = np.where(reference.common, np.maximum(band, _MOVED_APART * apart), band)
    limited: Floats = np.minimum(band, _PHASE_BAND)
    return limited


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


def _followed_alike(memory: ColumnStore, parameters: Parameters, nodes: Residuals) -> Bools:
    """By node: whether it has followed its cohort into a new phase as most of that did, hardly otherwise than before,
    so that its baseline holds there.

    What a phase adds to it is estimated from what was `learnt` of that so far, a share that grows with the `ticks` in
    which it learnt, and more slowly where it is large. So the node must have been near it until the tick before this
    one, or evidence has begun since.
    """
    if not nodes.new.any():
        return nodes.new
    at, band = nodes.index, parameters.own_band
    ticks = memory.node("filled")[at]
    learnt = ticks / (ticks + LATE_PHASE_COUNT)
    added = np.where(nodes.new & (ticks > 0), np.abs(memory.node("sofar")[at]) / np.maximum(learnt, 1e-9), 0.0)
    most = filled(nodes.median(added), np.inf) <= _ADDED_TO_MOST * band
    long = ticks >= _FOLLOWED_TICKS
    near = (np.abs(memory.node("residual")[at]) <= _NEAR * nodes.sigma) | (memory.node("slow")[at] > 0)
    alike: Bools = nodes.new & long & near & (added <= _ADDED * band) & most[nodes.group]
    return alike


def is_crowd(falling: Ints, nodes: Ints) -> Bools:
    """By group: whether a fifth of its nodes, and at least two, fall (or rise) at once."""
    crowd: Bools = (falling >= 2) & (falling > 0.2 * nodes)
    return crowd


def _cusum(
    before: Singles,
    step: Singles,
    nodes: Residuals,
    bounds: Bounds,
    most: Singles | None = None,
    first: Singles | None = None,
) -> Singles:
    """One step of a one-sided CUSUM (Page 1954), at most `most`; without enough peers nothing changes.

    `first`: what the tick is worth as the first one of a change.
    """
    after = -bounds.largest - bounds.allowance
    np.maximum(after, step, out=after)
    np.minimum(after, bounds.cap, out=after)
    after += before
    if first is not None:
        np.maximum(after, np.minimum(first, bounds.first_cap), out=after)
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
    at = nodes.index
    (loss, gain), (first_loss, first_gain) = bounds.steps.later, bounds.steps.first or (None, None)
    slow = _cusum(memory.node("slow")[at], loss, nodes, bounds, first=first_loss)
    fast = _cusum(memory.node("fast")[at], gain, nodes, bounds, most=1.5 * bounds.top, first=first_gain)
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
        usual = nodes.baseline - filled(nodes.median(nodes.baseline), 0.0)[nodes.group]
        absolute = np.where(nodes.share > 0, singles(usual) + nodes.gap, absolute)
    return clipped(absolute, -MAX_DEVIATION, MAX_DEVIATION)


def against_peers(
    memory: ColumnStore, parameters: Parameters, now: float, ticks: int, nodes: Residuals, bounds: Bounds,
    absolute: Singles,
) -> PeerTest:  # fmt: skip
    """The sequential test against peers, for nodes that were slow from the start.

    Of accused nodes only those that are accused of that: others may be another kind of hardware.
    """
    at, group, scale = nodes.index, nodes.group, nodes.scale
    offsets = filled(memory.group("offsets"), 0.0)
    line = singles(np.maximum(parameters.absolute_band, 4 * offsets))[group]
    step = -absolute / scale - np.maximum(parameters.drift, line / scale)
    before = memory.node("below")[at]
    below = _cusum(before, step, nodes, bounds)
    _, onset = _onset(now, below, memory.node("below_onset")[at], bounds.top)
    alarm = (below > bounds.top) & nodes.eligible
    fresh = alarm & ~nodes.accused & (absolute < -_HALF_OF_BAND * line)
    alarm &= nodes.accused & (memory.node("axis")[at] == AXES.index(Axis.PEERS))
    if fresh.any():
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
        level = np.maximum(level, 2 * singles(filled(nodes.median(share), 0.0))[group])
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
