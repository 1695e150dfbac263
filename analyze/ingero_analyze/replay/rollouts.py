"""Finds changes that most of a cohort made alike, one node after another, as in a rolling update. Pure."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_analyze.replay.level_blocks import BLOCK_TICKS, KeptLevels, LevelBlock
from ingero_analyze.replay.numbering import CohortMembers
from ingero_detect.grouped import Bools, Floats, Ints, grouped_median, row_medians
from ingero_detect.nodes.cohort_assignment import RESUME_TICKS
from ingero_detect.nodes.episodes import Episode
from ingero_detect.nodes.verdicts import Axis
from ingero_detect.threshold import MAD_TO_SIGMA

SIDE: Final = 3
"""Blocks before and after a step, whose median levels are compared; two are known at least."""

LEAST: Final = 0.05
ERRORS: Final = 4.0
"""A step, log units, and in deviations of such comparisons where the node makes no step, at least."""

SHARE: Final = 0.75
UNDER_WAY: Final = 0.5
FEWEST: Final = 3
"""Share of the nodes of a cohort, and nodes, that make a step alike: fewer may fail one after another. The second one
where the history ends before the next step is due, after twice the usual time between two of them and two blocks."""

ALIKE: Final = 0.3
"""Steps differ from their median by no more than this share of it, or by no more than `LEAST` / 2."""

AT_ONCE: Final = 2 / 3
"""Share of these nodes that do it within two blocks, at most: what many do at once may be damage."""

BACK: Final = 0.7
"""A node that made so much of its step in the other direction as well did not change for good."""

DEEPER: Final = 1.5
"""A node that lost more than so many times what the others lost did not only do the same."""

MOST_LEVELS: Final = 8_000_000
"""Nodes times blocks up to which they are followed, 4 bytes each."""


@dataclass(frozen=True)
class Rollout:
    """The step that a cohort made since `begun`, log units and seconds, and when this node made it; `None` if
    it did not."""

    step: float
    begun: float
    moved: float | None

    def explains(self, episode: Episode, tick_seconds: float) -> bool:
        """Whether an accusation, by the node's own history, is of the step that its peers made as well, or of having
        made it later than they."""
        first = episode.first
        deeper = episode.lost > DEEPER * abs(self.step) + LEAST / 2
        if first.axis is not Axis.OWN or first.since is None or self.moved is None or deeper:
            return False
        near = (2 * BLOCK_TICKS + RESUME_TICKS) * tick_seconds
        if self.step < 0:
            return abs(first.since - self.moved) <= near
        return self.begun - near <= first.since <= self.moved and (episode.end or np.inf) >= self.moved - near


class Rollouts:
    """Levels of nodes by block, against a reference that single steps of less than half of a cohort do not move."""

    def __init__(self, members: CohortMembers) -> None:
        self._members = members
        self._levels = KeptLevels(members, MOST_LEVELS)
        self._times: list[float] = []

    def note(self, now: float, block: LevelBlock) -> None:
        """Add a block that ends at this time."""
        self._levels.add(block.level)
        if not self._levels.full:
            self._times.append(now)

    def found(self) -> dict[int, Rollout]:
        """By number of a node, what its cohort did."""
        levels, pairs = self._levels.table(), self._members.pairs
        if len(levels) < 2 * SIDE:
            return {}
        steps = _steps(levels - _reference(levels, pairs[:, 1]))
        found: dict[int, Rollout] = {}
        for cohort in np.unique(pairs[steps.certain, 1]).tolist():
            inside = np.flatnonzero(pairs[:, 1] == cohort)
            found |= self._rollout(pairs[inside, 0], steps.of(inside))
        return found

    def _rollout(self, nodes: Ints, steps: "_Steps") -> dict[int, Rollout]:
        """By node, if enough nodes of a cohort made a step alike."""
        typical = float(np.median(steps.size[steps.certain]))
        alike = steps.single & (np.abs(steps.size - typical) <= max(ALIKE * abs(typical), LEAST / 2) + steps.error)
        when = steps.when[alike & steps.certain]
        if len(when) < max(FEWEST, UNDER_WAY * len(nodes)):
            return {}
        pace = (int(when.max()) - int(when.min())) / (len(when) - 1)
        under_way = len(self._times) - int(when.max()) <= SIDE + 2 + 2 * pace
        if not under_way and len(when) < SHARE * len(nodes):
            return {}
        blocks = np.bincount(when, minlength=len(self._times))
        if np.convolve(blocks, np.ones(2, np.int64)).max() > AT_ONCE * len(when):
            return {}
        begun = self._times[int(when.min()) - 1]
        return {
            node: Rollout(typical, begun, self._times[place - 1] if same else None)
            for node, place, same in zip(nodes.tolist(), steps.when.tolist(), alike.tolist(), strict=True)
        }


@dataclass(frozen=True)
class _Steps:
    """By node its largest change of level, log units, the block that it begins with, the error of such changes,
    whether the node made none back, and whether that one is certain."""

    size: Floats
    when: Ints
    error: Floats
    single: Bools
    certain: Bools

    def of(self, nodes: Ints) -> "_Steps":
        """Those of some nodes."""
        return _Steps(self.size[nodes], self.when[nodes], self.error[nodes], self.single[nodes], self.certain[nodes])


def _reference(levels: Floats, cohort: Ints) -> Floats:
    """By block and node the sum of the median changes of its cohort from block to block."""
    reference = np.zeros_like(levels)
    for block in range(1, len(levels)):
        change = levels[block] - levels[block - 1]
        known = np.isfinite(change)
        usual = grouped_median(change[known], cohort[known], int(cohort.max(initial=0)) + 1)[1]
        reference[block] = reference[block - 1] + np.nan_to_num(usual)[cohort]
    return reference


def _steps(levels: Floats) -> _Steps:
    """The largest steps in levels by block and node."""
    blocks, nodes = levels.shape
    changes = np.full((blocks, nodes), np.nan)
    for block in range(SIDE, blocks - SIDE + 1):
        before, after = levels[block - SIDE : block], levels[block : block + SIDE]
        known = (np.isfinite(before).sum(axis=0) >= 2) & (np.isfinite(after).sum(axis=0) >= 2)
        changes[block, known] = row_medians(after[:, known].T) - row_medians(before[:, known].T)
    known = np.isfinite(changes).any(axis=0)
    error = np.zeros(nodes)
    error[known] = MAD_TO_SIGMA * row_medians(np.abs(changes[:, known]).T)
    changes = np.nan_to_num(changes)
    when = np.argmax(np.abs(changes), axis=0)
    size = changes[when, np.arange(nodes)]
    apart = np.abs(np.arange(blocks)[:, None] - when) > SIDE
    least = np.maximum(LEAST, BACK * np.abs(size))
    single = known & ~(apart & (-changes * np.sign(size) >= least)).any(axis=0)
    return _Steps(size, when, error, single, single & (np.abs(size) >= np.maximum(LEAST, ERRORS * error)))
