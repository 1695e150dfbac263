"""Records which nodes report, and their cohorts: `home` is a node's own cohort, `group` the cohort after merging."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.nodes.codes import AXES, HEALTHY, IDLING, KINDS, LEARNING, SILENT, STRAGGLER, is_accused
from ingero_detect.nodes.cohorts import CohortKey, merge
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.observation import ABSENT, ACTIVE, CALIBRATING, IDLE, Codes, Observation
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.verdicts import Axis, Kind

RESUME_TICKS: Final = 12
"""Ticks that a node may take to work again once most of its cohort does."""


def enter_observation(memory: ColumnStore, now: float, seen: Observation, slots: Ints) -> tuple[Floats, Codes]:
    """Values and codes by slot; a node that the detector does not know and that echoes a verdict is accused anew."""
    total = len(memory.names)
    value, code = np.full(total, np.nan), np.zeros(total, np.uint8)
    known = slots >= 0
    if known.all():
        value[slots], code[slots] = seen.value, seen.state
        memory.node("seen")[slots[seen.state != ABSENT]] = now
    else:
        value[slots[known]], code[slots[known]] = seen.value[known], seen.state[known]
        memory.node("seen")[slots[known & (seen.state != ABSENT)]] = now
    for row, loss in seen.echo.items():
        slot = int(slots[row])
        if slot >= 0 and not memory.node("filled")[slot] and memory.node("state")[slot] == LEARNING:
            memory.node("echo")[slot] = loss
            memory.node("state")[slot] = STRAGGLER
            memory.node("kind")[slot] = KINDS.index(Kind.SLOW)
            memory.node("axis")[slot] = AXES.index(Axis.ECHO)
            memory.node("loss")[slot] = loss
            for column in ("since", "detected"):
                memory.node(column)[slot] = now
    return value, code


class CohortAssignment:
    """Keeps homes and groups current. A new job starts a new history; a new group only changes the level."""

    def __init__(self, mergeable: tuple[int, ...], min_peers: int) -> None:
        self._mergeable, self._min_peers = mergeable, min_peers
        self.forget()

    def forget(self) -> None:
        """Assign all nodes anew in the next tick."""
        self._placed: tuple[Any, ...] = ()
        self._merged_for: dict[CohortKey, int] = {}
        self._merged: dict[CohortKey, CohortKey] = {}

    def assign(self, memory: ColumnStore, seen: Observation, slots: Ints) -> None:
        """Update the columns `home`, `group` and `size`."""
        if self._placed and self._is_placed(memory, seen, slots):
            return
        _move_home(memory, seen, slots)
        _move_to_groups(memory, self._groups(memory))
        self._placed = (seen.cohorts, seen.cohort, slots, memory.forgotten)

    def _is_placed(self, memory: ColumnStore, seen: Observation, slots: Ints) -> bool:
        """Whether all nodes are still in the cohort of the last tick."""
        cohorts, cohort, at, forgotten = self._placed
        return (
            slots is at
            and forgotten == memory.forgotten
            and (seen.cohorts is cohorts or list(seen.cohorts) == list(cohorts))
            and (seen.cohort is cohort or np.array_equal(seen.cohort, cohort))
        )

    def _groups(self, memory: ColumnStore) -> Ints:
        """The group that every slot belongs to, -1 for none."""
        homes = memory.node("home")
        inside = memory.node("used") & (homes >= 0)
        counts = np.bincount(homes[inside], minlength=len(memory.homes)).tolist()
        sizes = {key: count for key, count in zip(memory.homes, counts, strict=True) if count}
        if sizes != self._merged_for:
            self._merged = merge(sizes, self._mergeable, self._min_peers)
            self._merged_for = sizes
        group_of = np.array(
            [memory.group_number(self._merged[key]) if key in self._merged else -1 for key in memory.homes], np.int32
        )
        return np.where(homes >= 0, group_of[homes], -1) if len(group_of) else np.full(len(homes), -1, np.int32)


def _move_home(memory: ColumnStore, seen: Observation, slots: Ints) -> None:
    """Set the cohort of every node; a node that changed its cohort is learnt anew."""
    known = slots >= 0
    home_of = np.array([memory.home(key) for key in seen.cohorts], np.int32)
    rows = slots[known]
    home = home_of[seen.cohort[known]] if len(home_of) else np.zeros(0, np.int32)
    column = memory.node("home")
    if not np.array_equal(column[rows], home):
        moved = rows[(column[rows] >= 0) & (column[rows] != home)]
        if len(moved):
            learn_anew(memory, moved, keep=("seen", "was_active"))
        memory.node("home")[rows] = home


def learn_anew(
    memory: ColumnStore, rows: Ints, keep: Sequence[str] = ("seen", "was_active", "home", "group", "code", "value")
) -> None:
    """Forget all of these nodes but the columns to `keep`: they begin a new warm-up."""
    kept = {name: memory.node(name)[rows].copy() for name in keep}
    memory.clear(rows)
    for name, values in kept.items():
        memory.node(name)[rows] = values


def _move_to_groups(memory: ColumnStore, wanted: Ints) -> None:
    """Set the group of every node; baselines are shifted by the difference of the levels."""
    group = memory.node("group")
    other = (wanted != group) & memory.node("used")
    if other.any():
        level = memory.group("level")
        shifted = np.flatnonzero(other & (group >= 0) & (wanted >= 0) & memory.node("learned"))
        for slot in shifted.tolist():
            old, new = level[group[slot]], level[wanted[slot]]
            if np.isnan(new) and np.isfinite(old):
                level[wanted[slot]] = new = old
            if np.isfinite(old):
                memory.node("baseline")[slot] += old - new
        group[other] = wanted[other]
    members = memory.node("used") & (group >= 0)
    memory.group("size")[:] = np.bincount(group[members], minlength=len(memory.groups))


def begin_anew(memory: ColumnStore, parameters: Parameters, nodes: Bools) -> None:
    """Drop the evidence of nodes, and take none before a grace period is over. Accusations stand."""
    rows = np.flatnonzero(nodes)
    memory.node("grace")[rows] = parameters.hold_ticks
    memory.node("run")[rows] = 0
    for column in ("slow", "fast", "below"):
        memory.node(column)[rows] = 0
    memory.node("previous")[rows] = np.nan


def _give_time_to_resume(memory: ColumnStore, back: Bools) -> None:
    """Nodes that come back while most of their cohort is away, or has just come back: their job starts again."""
    group, grace = memory.node("group"), memory.node("grace")
    inside = (group >= 0) & memory.node("used")
    starting = inside & ((grace > 0) | (memory.node("absent") > 1))
    members, few = (np.bincount(group[some], minlength=len(memory.groups)) for some in (inside, starting))
    grace[back & inside & (2 * few > members)[group]] = RESUME_TICKS


def note_presence(
    memory: ColumnStore, parameters: Parameters, code: Codes, working: Bools, *, was_away: bool
) -> None:
    """Update presence: silent, calibrating, returned. On a return evidence starts anew, after a grace period.

    `was_away`: the detector itself was, so that nodes are back of which it does not know that they were away.
    """
    state, absent, last = memory.node("state"), memory.node("absent"), memory.node("code")
    absent += 1
    away = absent > parameters.silent_ticks
    here = code != ABSENT
    back = here & (away | (last == IDLE) | (last == CALIBRATING)) & (code == ACTIVE) & memory.node("learned")
    if back.any():
        begin_anew(memory, parameters, back)
        if not was_away:
            _give_time_to_resume(memory, back & (last != CALIBRATING))
    calm = ~is_accused(state) & memory.node("used")
    state[calm & ~here & away] = SILENT
    state[calm & (code == CALIBRATING)] = LEARNING
    returned = calm & (code == ACTIVE) & ((state == SILENT) | (state == IDLING) | (state == LEARNING))
    state[returned] = np.where(memory.node("learned")[returned], HEALTHY, LEARNING)
    absent[here] = 0
    last[here] = code[here]
    memory.node("was_active")[working] = True
