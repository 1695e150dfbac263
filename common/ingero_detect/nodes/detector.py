"""The detector: takes a tick of observations, returns states and edges. No clock or I/O; equal inputs, equal results.

The steps of a tick: assign nodes to cohorts (`cohort_assignment`), compute residuals (`residuals`) and tests
(`sequential_tests`), calibrate the alarm levels (`calibration`), update baselines (`learning`), states (`states`) and
the common level of every cohort (`cohort_levels`). The formulas are in docs/detection.md.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Groups, Ints
from ingero_detect.nodes import (
    calibration,
    cohort_assignment,
    cohort_levels,
    counted_events,
    false_alarm_budget,
    learning,
    residuals,
    sequential_tests,
    states,
)  # fmt: skip
from ingero_detect.nodes.codes import RECOVERING, is_accused
from ingero_detect.nodes.column_store import ColumnStore, SnapshotError
from ingero_detect.nodes.coming_up import wait_for_rising
from ingero_detect.nodes.digest import DigestChain
from ingero_detect.nodes.lost_advantage import forgive_lost_advantage
from ingero_detect.nodes.observation import ACTIVE, HELD, IDLE, Codes, Edge, Observation, Outcome
from ingero_detect.nodes.parameters import ADJUSTABLE, Parameters
from ingero_detect.nodes.verdict_view import VerdictView
from ingero_detect.nodes.verdicts import Verdict
from ingero_detect.reference import Reference

_LONGEST_WAIT: Final = 6.5
"""Ticks. A longer gap between two ticks counts as an absence of all nodes."""

_FORGET_TICKS: Final = 64
"""Ticks between two removals of forgotten nodes."""


class Detector:
    """Judges every node at every tick. Ticks come in order; rows sorted by (cluster, node) make runs comparable.

    `counts`: values may be numbers of events; shares and clocks in whole units are none, and only look like them.
    """

    def __init__(
        self, parameters: Parameters | None = None, mergeable: Sequence[int] = (), *, counts: bool = True
    ) -> None:
        self.parameters = parameters or Parameters()
        self.mergeable = tuple(mergeable)
        self._counts = counts
        self.memory = self._fresh()
        self.ticks = 0
        self.node_hours = 0.0
        self.theory = false_alarm_budget.theoretical_level(
            1 / (self.parameters.budget * self.parameters.tick_hours), self.parameters.drift
        )
        self._assignment = cohort_assignment.CohortAssignment(self.mergeable, self.parameters.min_peers)
        self._groups = Groups(np.zeros(0, np.int32), 0)
        self._chain = DigestChain(json.dumps([asdict(self.parameters), self.mergeable], sort_keys=True))
        self._now = 0.0
        self._continues = False

    def _fresh(self) -> ColumnStore:
        parameters = self.parameters
        return ColumnStore(parameters.warmup, parameters.max_nodes, parameters.max_cohorts)

    def tick(self, now: float, seen: Observation) -> Outcome:
        """Judge one tick."""
        memory, parameters = self.memory, self.parameters
        was_away = self._continues and (now - self._now) / parameters.tick_seconds > _LONGEST_WAIT
        if was_away:
            memory.node("absent")[:] += parameters.silent_ticks + 1
        self._now, self._continues = now, True
        slots = memory.slots(seen.names)
        before = memory.node("state").copy()
        value, code = cohort_assignment.enter_observation(memory, now, seen, slots)
        held = code == HELD
        code[held] = ACTIVE
        self._assignment.assign(memory, seen, slots)
        working = (code == ACTIVE) & np.isfinite(value) & (memory.node("group") >= 0)
        cohort_assignment.note_presence(memory, parameters, code, working, was_away=was_away)
        with np.errstate(divide="ignore"):
            logs = np.log(value)
        memory.node("value")[working] = value[working]
        memory.node("value")[code == IDLE] = 0.0

        judged = working & memory.node("learned")
        reference = self._judge(slice(None) if judged.all() else np.flatnonzero(judged), logs, ~held)
        starting = working & ~memory.node("learned") & (value > 0) & ~held
        learning.learn_warmup(memory, parameters, np.flatnonzero(starting), logs, reference)
        states.update_idle(memory, parameters, now, code)
        if not held.any():
            cohort_levels.follow_levels(memory, parameters, reference, now)
        self.ticks += 1
        if self.ticks % _FORGET_TICKS == 0:
            memory.forget(now - parameters.forget_hours * 3600)
        self._chain.fold(now, seen)
        return Outcome(now, slots, self._edges(before), cohort_levels.slow_jobs(memory), self._chain.hex())

    def _judge(self, index: slice | Ints, logs: Floats, fresh: Bools) -> Reference:
        """Compute residuals, tests and states of the nodes in `index`. By slot: `logs`, and `fresh` if not held."""
        memory, parameters, now = self.memory, self.parameters, self._now
        group = memory.node("group")
        if not self._groups.still(group, len(memory.groups)):
            self._groups = Groups(group, len(memory.groups))
        if self._counts:
            counted_events.follow_units(memory, self.ticks, group[index], logs[index])
        nodes = residuals.compute_residuals(memory, parameters, self._groups, index, logs[index], fresh[index])
        if not len(nodes.group):
            return nodes.reference
        wait_for_rising(memory, parameters, now, nodes)
        levels = calibration.alarm_levels(memory, parameters, self.ticks, nodes)
        bounds = sequential_tests.compute_bounds(memory, parameters, nodes, *levels)
        own = sequential_tests.against_own_history(memory, now, nodes, bounds)
        distance = sequential_tests.distance_from_peers(nodes)
        cohort_levels.follow_offsets(memory, self.ticks, distance, nodes)
        peers = sequential_tests.against_peers(memory, parameters, now, self.ticks, nodes, bounds, distance)
        collapse = sequential_tests.against_collapse(memory, nodes, bounds)
        forgive_lost_advantage(memory, parameters, nodes, bounds, own, collapse)
        dips = sequential_tests.against_dips(memory, parameters, nodes, bounds)
        calibration.record_tick(memory, parameters, self.ticks, nodes, bounds, own, collapse)
        self.node_hours += int(np.count_nonzero(nodes.fresh)) * parameters.tick_hours
        calm = sequential_tests.may_learn_from(nodes, bounds, own, collapse)
        learning.update_baselines(memory, parameters, self.ticks, nodes, calm)
        sequential_tests.store_results(memory, nodes, own, peers, collapse, dips)
        alarms = sequential_tests.decide(parameters, now, nodes, bounds, own, peers, collapse, dips)
        states.advance(memory, parameters, now, nodes, bounds, peers, dips, alarms)
        return nodes.reference

    # Results

    def accused(self) -> Bools:
        """By slot: accused and not recovered yet."""
        return is_accused(self.memory.node("state"))

    def _edges(self, before: Codes) -> list[Edge]:
        after = self.memory.node("state")
        was, is_now = is_accused(before), is_accused(after)
        edges = []
        for slot in np.flatnonzero((before != after) & (was | is_now)).tolist():
            if not was[slot]:
                what = "accused"
            elif not is_now[slot]:
                what = "cleared"
            elif after[slot] == RECOVERING:
                what = "recovering"
            elif before[slot] == RECOVERING:
                what = "relapsed"
            else:
                what = "changed"
            edges.append(Edge(what, self.verdict(slot)))
        return edges

    def verdict(self, slot: int) -> Verdict:
        """The verdict on the node in a slot, as of the last tick."""
        return VerdictView.take(self.memory, self._now, self._chain.hex(), copy=False).verdict(slot)

    def view(self) -> VerdictView:
        """A copy of the results, to be read while the next tick runs."""
        return VerdictView.take(self.memory, self._now, self._chain.hex(), copy=True)

    def estimates(self) -> dict[str, float]:
        """Node-hours judged, and estimated false alarms per node-hour from the test and from the mirrored test."""
        return {
            "node_hours": self.node_hours,
            "budget": self.parameters.budget,
            **calibration.estimates(self.memory, self.parameters.budget, self.theory),
        }

    # Snapshot

    def snapshot(self) -> bytes:
        """All state that a restart needs to continue with the same results.

        The next tick assigns all nodes to their cohorts anew, as it does in a detector that is restored from this.
        """
        self._assignment.forget()
        facts = {
            "parameters": asdict(self.parameters), "mergeable": list(self.mergeable), "ticks": self.ticks,
            "node_hours": self.node_hours, "now": self._now, "digest": self._chain.hex(),
            "continues": self._continues,
        }  # fmt: skip
        return self.memory.snapshot(facts)

    def restore(self, data: bytes, *, continued: bool = False) -> float:
        """Continue from a snapshot; returns the time of its last tick, seconds. Parameters that are not `ADJUSTABLE`,
        and all of them if it is `continued` at once, must be the same; a smaller `max_nodes` keeps the latest nodes.

        Unless the snapshot is `continued` at once, the time until the next tick is the detector's own absence, which
        does not count as silence of the nodes. `SnapshotError` leaves the detector as it was.
        """
        memory = self._fresh()
        facts = memory.restore(data)
        changed = self._changed_parameters(facts)
        lasting = [text for name, text in changed.items() if continued or name not in ADJUSTABLE]
        if lasting:
            raise SnapshotError(f"the snapshot was taken under other parameters: {'; '.join(lasting)}")
        try:
            ticks, node_hours, now = int(facts["ticks"]), float(facts["node_hours"]), float(facts["now"])
            digest = bytes.fromhex(facts["digest"])
        except (KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the snapshot is damaged: {type(error).__name__}") from error
        self.memory, self.ticks, self.node_hours, self._now = memory, ticks, node_hours, now
        self._chain.restore(digest)
        if changed:
            self._chain.fold_text("; ".join(changed.values()))
        self._continues = continued and bool(facts.get("continues"))
        self._assignment.forget()
        return self._now

    def interrupted(self, seconds: float) -> None:
        """The time until the next tick is the detector's own absence, and no silence of the nodes.

        Evidence begins anew if the absence was longer than evidence waits for nodes.
        """
        if seconds / self.parameters.tick_seconds > _LONGEST_WAIT:
            cohort_assignment.begin_anew(self.memory, self.parameters, self.memory.node("learned"))
        self._continues = False

    def _changed_parameters(self, facts: Mapping[str, Any]) -> dict[str, str]:
        """What differs between a snapshot's parameters and one's own, by name, in words."""
        known, own = facts.get("parameters"), {**asdict(self.parameters), "mergeable": list(self.mergeable)}
        if not isinstance(known, dict):
            raise SnapshotError("the snapshot is damaged: it names no parameters")
        known = {**known, "mergeable": facts.get("mergeable")}
        return {
            name: f"{name} was {known.get(name)} and is {own.get(name)}"
            for name in sorted(own.keys() | known.keys()) if name not in known or known[name] != own.get(name)
        }  # fmt: skip

    def present(self) -> int:
        """How many nodes are not silent."""
        memory = self.memory
        return int(np.count_nonzero(memory.node("used") & (memory.node("absent") <= self.parameters.silent_ticks)))
