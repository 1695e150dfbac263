"""Tells ranks that are slow on their own from those that are slow together with all ranks of their replica. Pure.

The ranks of a replica process the same data: where it is longer, all of them compute longer. Which ranks belong to
one replica is seen from the groups in which they communicate: tensor groups, and stages that hand each other
activations.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.timeline import Timeline

ALIKE: Final = 1 / 3
"""Share of a rank's excess that another one needs to be slow like it. Of few peers, two slow ones halve an excess."""


FEWEST_PLACES: Final = 3
"""Ranks, or blocks of them, that are hardly by chance at equal distances."""


@dataclass(frozen=True)
class DataGroups:
    """Sets of ranks that may share data, by (group, rank), and the ranks' stages, all equal where none are known.

    `recorded`: whether there are groups or replicas that could show who shares data.
    """

    groups: Bools
    stage: Ints
    recorded: bool = True

    def slow_together(self, flagged: Bools, excess: Floats) -> Bools:
        """The flagged ranks whose excess longer data of their replica may explain, with all that are slow like them.

        `excess`: by rank, over ranks with the same work. A rank is explained if ranks that are slow like it form
        whole groups that connect it with others in all stages. Without any recorded group, they may be a replica if
        they are equally many in each of several stages, or at equal distances in the whole job.
        """
        found, alone = np.zeros(len(flagged), np.bool_), np.zeros(len(flagged), np.bool_)
        for rank in np.flatnonzero(flagged).tolist():
            slow = excess >= ALIKE * excess[rank]
            slow[rank] = True
            together = self._connected(rank, slow) if self.recorded else self._placed_alike(slow)
            found |= together
            alone[rank] = not together.any()
        return found & ~alone

    def _placed_alike(self, slow: Bools) -> Bools:
        """The slow ranks if they may be a replica by their stages or, where none are known, by their numbers."""
        kinds = np.unique(self.stage)
        count = np.bincount(self.stage[slow], minlength=int(self.stage.max()) + 1)[kinds]
        alike = len(kinds) > 1 and count.min() == count.max()
        return slow if alike or (len(kinds) == 1 and _at_equal_distances(slow)) else np.zeros_like(slow)

    def _connected(self, rank: int, slow: Bools) -> Bools:
        """The ranks that groups of slow ranks alone connect with this one; none if they are not in all stages."""
        inner = self.groups[~(self.groups & ~slow).any(axis=1)]
        found = np.arange(len(slow)) == rank
        while True:
            reached = found | inner[(inner & found).any(axis=1)].any(axis=0)
            if (reached == found).all():
                break
            found = reached
        whole = found.sum() >= 2 and len(np.unique(self.stage[found])) == len(np.unique(self.stage))
        return found if whole else np.zeros_like(found)


def _at_equal_distances(slow: Bools) -> bool:
    """Whether these are ranks, or blocks of them, at equal distances from the first to the last rank.

    So are those of a place in a grid of parallel groups. The ranks of a host follow one another.
    """
    begins = np.flatnonzero(slow & ~np.append(False, slow[:-1]))
    if len(begins) < FEWEST_PLACES or len(slow) % len(begins):
        return False
    return bool((slow.reshape(len(begins), -1) == slow[: len(slow) // len(begins)]).all())


def data_groups(line: Timeline, stage: Ints, replica: Ints) -> DataGroups:
    """The groups of the timeline, and its replicas where they are known; without those of the whole job."""
    parts = [_members(replica, np.arange(line.ranks), line.ranks)]
    if line.group is not None:
        parts.append(_members(line.group, line.rank, line.ranks))
    groups = np.unique(np.concatenate(parts), axis=0)
    sizes = groups.sum(axis=1)
    recorded = bool((replica >= 0).any() or (line.group is not None and (line.group >= 0).any()))
    return DataGroups(groups[(sizes >= 2) & (sizes < line.ranks)], stage, recorded)


def _members(group: Ints, rank: Ints, ranks: int) -> Bools:
    """Which ranks belong to which group, by (group, rank); rows of group -1 belong to none."""
    known = group >= 0
    found = np.zeros((int(group.max(initial=-1)) + 1, ranks), np.bool_)
    found[group[known], rank[known]] = True
    return found
