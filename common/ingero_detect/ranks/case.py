"""A timeline made ready for judgement, and what all judgements share. Pure."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ingero_detect.grouped import Bools, Floats, Ints
from ingero_detect.ranks.doubts import Doubts
from ingero_detect.ranks.peers import relative_compute
from ingero_detect.ranks.timeline import Timeline
from ingero_detect.ranks.wait_attribution import WaitAttribution


@dataclass(frozen=True)
class Case:
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
        return relative_compute(self.compute[:, self.known], self.period) if self.known.any() else None

    @property
    def staged(self) -> bool:
        """Whether there are several pipeline stages."""
        return len(np.unique(self.like)) > 1

    @property
    def sends_recorded(self) -> bool:
        """Whether sends or receives were recorded that do not say between whom."""
        return self.recorded.sends is not None and bool(self.recorded.sends.any())
