"""The states of a node: suspected, accused, recovering, cleared, stopped, at rest."""

from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints, clipped, singles
from ingero_detect.nodes.calibration import (
    SHORT_RUN,
    discount_steps,
    record_idle_pauses,
    record_short_alarms,
    record_short_losses,
)
from ingero_detect.nodes.codes import (
    AXES,
    HEALTHY,
    IDLING,
    KINDS,
    LEARNING,
    RECOVERING,
    STOPPED,
    STRAGGLER,
    SUSPECTED,
    is_accused,
)
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.counted_events import on_root_scale
from ingero_detect.nodes.observation import ABSENT, ACTIVE, IDLE, Codes
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.residuals import MAX_DEVIATION, NOTHING, Residuals
from ingero_detect.nodes.sequential_tests import (
    CROWD_TICKS,
    DIP_TICKS,
    LONGEST_RUN,
    Alarms,
    Bounds,
    DipTest,
    PeerTest,
    is_crowd,
)
from ingero_detect.nodes.verdicts import Axis, Kind

_NOTHING: Final = NOTHING - 0.5
"""A loss beyond this is work that stopped, log units."""

_HALF: Final = float(np.log(2))
"""A loss below this is no collapse, log units."""

_MOST_FLAPS: Final = 5
"""A node whose short accusations follow one another must be well for up to 2 to this power times as long."""

_FLAPS_HOURS: Final = 4.0
"""Half-life of the count of such accusations."""

_RECURS: Final = 4.0
"""A loss that comes back within so many times as long as the last one lasted is the same one: it comes and goes."""


def advance(
    memory: ColumnStore, parameters: Parameters, now: float, nodes: Residuals, bounds: Bounds, peers: PeerTest,
    dips: DipTest, alarms: Alarms,
) -> None:  # fmt: skip
    """Move every judged node to its next state.

    None recovers while many of its cohort fall or rise at once, or in the time that it has to resume work.
    """
    memory.node("flaps")[:] *= np.float32(0.5 ** (parameters.tick_hours / _FLAPS_HOURS))
    state, at, accused = memory.node("state"), nodes.index, nodes.accused
    stays = accused | (state[at] == LEARNING) | ~nodes.fresh
    found = np.where(alarms.suspected, np.uint8(SUSPECTED), np.uint8(HEALTHY))
    state[at] = np.where(stays, state[at], found)
    rows = np.arange(len(memory.names))[at]
    speaks_against = alarms.any()
    by_peers = memory.node("kind")[at] == KINDS.index(Kind.SLOW_FROM_START)
    alarmed = speaks_against & (~accused | (by_peers & (alarms.own | alarms.collapse)))
    if alarmed.any():
        discount_steps(memory, rows[alarmed & ~accused])
        own, collapse = alarms.own[alarmed], alarms.collapse[alarmed]
        _accuse(memory, parameters, now, rows[alarmed], own, collapse, peers.absolute[alarmed].astype(np.float64))
        by_dips = alarmed & ~(alarms.own | alarms.collapse | alarms.peers)
        if by_dips.any():
            _accuse_of_dips(memory, parameters, now, rows[by_dips])
    restarts = nodes.reference.restarting[nodes.group]
    if restarts.any():
        memory.node("grace")[rows[restarts]] = RESUME_TICKS
    enough = nodes.reference.count >= np.minimum(parameters.min_peers, memory.group("size"))
    followed = accused & (enough & ~nodes.reference.common & ~bounds.crowded)[nodes.group] & nodes.fresh & nodes.ready
    if followed.any():
        gap, absolute, line = (
            values[followed].astype(np.float64) for values in (nodes.gap, peers.absolute, peers.line)
        )
        _check_recovery(
            memory,
            parameters,
            now,
            rows[followed],
            gap,
            absolute,
            line,
            speaks_against[followed],
            dips.calm[followed],
            None if nodes.share is None else nodes.share[followed],
            nodes.drift[nodes.group[followed]],
        )


def _accuse(
    memory: ColumnStore,
    parameters: Parameters,
    now: float,
    rows: Ints,
    by_own: Bools,
    by_collapse: Bools,
    absolute: Floats,
) -> None:
    """Open an episode: how much was lost, since when, and by which comparison (axis)."""
    memory.node("flaps")[rows] += _recurs(memory, now, rows)
    gap = memory.node("residual")[rows].astype(np.float64)
    spell = np.maximum(memory.node("spell")[rows], 1)
    own = by_own | by_collapse
    mean = memory.node("shortfall")[rows] / spell
    loss = np.where(own, np.where(by_collapse, -gap, mean), np.maximum(-absolute, 0.0))
    memory.node("loss")[rows] = loss
    kind = np.where(own, KINDS.index(Kind.SLOW), KINDS.index(Kind.SLOW_FROM_START))
    kind[by_collapse] = KINDS.index(Kind.COLLAPSE)
    kind[own & (-gap > _NOTHING)] = KINDS.index(Kind.STOPPED)
    memory.node("kind")[rows] = kind
    memory.node("axis")[rows] = np.where(own, AXES.index(Axis.OWN), AXES.index(Axis.PEERS))
    started = np.where(own, memory.node("onset")[rows], memory.node("below_onset")[rows])
    fell = now - (memory.node("run")[rows] - 1) * parameters.tick_seconds
    started = np.where(by_collapse, np.where(by_own, np.minimum(started, fell), fell), started)
    memory.node("since")[rows] = np.minimum(started, now)
    memory.node("detected")[rows] = now
    memory.node("state")[rows] = np.where(kind == KINDS.index(Kind.STOPPED), STOPPED, STRAGGLER)
    memory.node("reached")[rows] = memory.node("slow")[rows]
    memory.node("well")[rows] = 0.0
    memory.node("by_dips")[rows] = False


def _recurs(memory: ColumnStore, now: float, rows: Ints) -> Bools:
    """Whether the last accusation of these nodes ended a short time ago, relative to how long it lasted."""
    ended, began = memory.node("well_since")[rows], memory.node("since")[rows]
    recent: Bools = (ended > began) & (began > 0) & (now - ended <= _RECURS * (ended - began))
    return recent


def _accuse_of_dips(memory: ColumnStore, parameters: Parameters, now: float, rows: Ints) -> None:
    """Correct an episode that `_accuse` opened because of dips: its loss is their mean, and it began with them."""
    ticks = memory.node("dip_ticks")[rows]
    memory.node("loss")[rows] = _mean_of_dips(memory, rows)
    memory.node("kind")[rows] = KINDS.index(Kind.SLOW)
    memory.node("axis")[rows] = AXES.index(Axis.OWN)
    memory.node("since")[rows] = now - (ticks - 1) * parameters.tick_seconds
    memory.node("state")[rows] = STRAGGLER
    memory.node("by_dips")[rows] = True


def _mean_of_dips(memory: ColumnStore, rows: Ints) -> Floats:
    """What dips cost since they began, log units."""
    weight = -np.expm1(-np.maximum(memory.node("dip_ticks")[rows], 1) / DIP_TICKS)
    loss: Floats = -np.log1p(-np.minimum(memory.node("dips")[rows] / weight, 0.99))
    return loss


def _check_recovery(
    memory: ColumnStore, parameters: Parameters, now: float, rows: Ints, gap: Floats, absolute: Floats, line: Floats,
    again: Bools, calm: Bools, share: Floats | None, drift: Floats,
) -> None:  # fmt: skip
    """Test accused nodes for recovery, and recovering nodes for a relapse. `share`, `drift`: as in the residuals."""
    state = memory.node("state")
    against_peers = memory.node("axis")[rows] == AXES.index(Axis.PEERS)
    error = np.where(against_peers, absolute, gap)
    top = memory.group("alarm")[memory.node("group")[rows]]
    few = np.zeros(len(rows), np.bool_) if share is None else share > 0
    half = _half_of_loss(memory, parameters, rows, error, np.where(against_peers, line, parameters.own_band), few)
    if share is not None:
        half = np.where(few, -on_root_scale(singles(-half), share).astype(np.float64), half)
    scale = memory.node("scale")[rows].astype(np.float64)
    step = clipped((error + half) / scale - 0.5 * drift, -2 * parameters.largest_step, 0.75 * top)
    before = memory.node("well")[rows].astype(np.float64)
    well = np.maximum(0.0, before + step)
    memory.node("well_since")[rows] = np.where((well > 0) & (before <= 0), now, memory.node("well_since")[rows])
    recovering = state[rows] == RECOVERING
    hold = memory.node("hold")[rows]
    proven = ~recovering & (well > top) & (calm | ~memory.node("by_dips")[rows])
    relapsed = recovering & again
    healthy = recovering & ~again & (hold <= 1) & (memory.node("slow")[rows] < 0.5 * top)
    flaps = memory.node("flaps")[rows] + (_is_short(memory, parameters, rows) & proven) + relapsed
    memory.node("flaps")[rows] = flaps
    longer = np.exp2(clipped(flaps - 1, 0, _MOST_FLAPS)).astype(np.int16)
    memory.node("hold")[rows] = np.where(proven, parameters.hold_ticks * longer, np.maximum(hold - 1, 0))
    memory.node("well")[rows] = np.where(relapsed, 0.0, well)
    _relapse(memory, rows[relapsed], error[relapsed])
    resumed = (state[rows] == STOPPED) & (-error < _NOTHING) & ~proven
    state[rows[resumed]] = STRAGGLER
    state[rows[proven]] = RECOVERING
    for column in ("slow", "below", "spell", "shortfall"):
        memory.node(column)[rows[proven]] = 0.0
    memory.node("run")[rows[proven]] = 0
    state[rows[relapsed]] = STRAGGLER
    state[rows[healthy]] = HEALTHY
    memory.node("previous")[rows[healthy]] = np.nan
    record_short_losses(memory, parameters, rows[proven])
    record_short_alarms(memory, parameters, rows[healthy])


def _relapse(memory: ColumnStore, rows: Ints, error: Floats) -> None:
    """Nodes that lose less than half of what they lost before (log units) have another loss now, as one that had
    stopped and works again slowly."""
    spell = memory.node("spell")[rows]
    own = memory.node("axis")[rows] != AXES.index(Axis.PEERS)
    loss = np.where(own & (spell > 0), memory.node("shortfall")[rows] / np.maximum(spell, 1), np.maximum(-error, 0.0))
    less = loss < 0.5 * memory.node("loss")[rows]
    memory.node("loss")[rows[less]] = loss[less]
    memory.node("kind")[rows[less & own & (loss < _HALF)]] = KINDS.index(Kind.SLOW)


def _is_short(memory: ColumnStore, parameters: Parameters, rows: Ints) -> Bools:
    """Whether the accusation of these nodes ended, or seems to end, soon after it was made."""
    lasted = memory.node("well_since")[rows] - memory.node("detected")[rows]
    short: Bools = (lasted <= SHORT_RUN * parameters.tick_seconds) & ~memory.node("by_dips")[rows]
    return short


def _half_of_loss(
    memory: ColumnStore, parameters: Parameters, rows: Ints, error: Floats, band: Floats, few: Bools
) -> Floats:
    """Half of the loss, log units, which recovery is tested against; the loss is updated while it lasts.

    It stays while there are `few` events to tell it from.
    """
    before = memory.node("loss")[rows].astype(np.float64)
    still = (-error > 0.5 * before) & ~few
    loss = np.where(still, before + 0.1 * (-error - before), before)
    loss = np.where(memory.node("by_dips")[rows], np.maximum(before, _mean_of_dips(memory, rows)), loss)
    memory.node("loss")[rows] = loss
    return np.maximum(0.5 * loss, 0.5 * band)


def update_idle(memory: ColumnStore, parameters: Parameters, now: float, code: Codes) -> None:
    """Update idle nodes: stopped if most of their cohort still works, otherwise at rest with it.

    When a cohort begins to work again, its nodes have `RESUME_TICKS` to follow.
    """
    group, state = memory.node("group"), memory.node("state")
    inside = group >= 0
    m = len(memory.groups)
    idle = (code == IDLE) & inside
    run = memory.node("idle_run")
    if not idle.any() and not run.any():
        return
    working = np.bincount(group[(code == ACTIVE) & inside], minlength=m)
    resting = np.bincount(group[idle], minlength=m)
    goes_on = (working >= 2) & (working > resting)
    grace = memory.node("grace")
    waits = idle & goes_on[group] & (grace > 0)
    grace[waits] -= 1
    grace[idle & ~goes_on[group]] = RESUME_TICKS
    left = idle & memory.node("was_active") & goes_on[group] & ~waits
    accused = is_accused(state)
    before = run.copy()
    run[:] = np.where(left, np.minimum(run + 1, LONGEST_RUN), np.where(code == ABSENT, run, 0))
    of_fault = np.rint((now - memory.node("since")) / parameters.tick_seconds)
    lasted = np.where(accused, np.maximum(before, of_fault), before)
    record_idle_pauses(memory, parameters, np.flatnonzero((before > 0) & (run == 0) & inside), lasted)
    crowd = np.bincount(group[left & ~accused], minlength=m)
    needed = memory.group("confirm")
    needed = np.where(is_crowd(crowd, working + resting), np.maximum(needed, CROWD_TICKS), needed)
    ended = np.flatnonzero(left & (run >= needed[group]) & (state != STOPPED))
    if len(ended):
        known = accused[ended]
        memory.node("kind")[ended] = KINDS.index(Kind.STOPPED)
        memory.node("axis")[ended] = AXES.index(Axis.STATE)
        begun = now - (run[ended] - 1) * parameters.tick_seconds
        memory.node("since")[ended] = np.where(known, memory.node("since")[ended], begun)
        memory.node("detected")[ended] = np.where(known, memory.node("detected")[ended], now)
        memory.node("loss")[ended] = MAX_DEVIATION
        memory.node("well")[ended] = 0.0
        state[ended] = STOPPED
    at_rest = idle & ~left & ((state == STOPPED) | ~accused)
    memory.node("well_since")[at_rest & (state == STOPPED)] = now
    state[at_rest] = IDLING
    waiting = idle & left & ~is_accused(state)
    state[waiting] = IDLING
