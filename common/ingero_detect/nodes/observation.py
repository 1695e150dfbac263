"""Inputs and outputs of one tick of the detector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_detect.grouped import Floats, Ints
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.nodes.verdicts import Verdict

ABSENT, ACTIVE, IDLE, CALIBRATING, HELD = range(5)
"""Codes of what a node reports. Held: active by its last report, which another tick judges or has judged.

A tick with held nodes judges the others early. Held nodes only represent their cohort: their own evidence does not
change.
"""

Codes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Observation:
    """One tick: by row the node, its cohort (a number into `cohorts`), its value and what it reports.

    `names` must not be changed: it is kept to check whether the next tick has the same nodes.

    `value` is larger-is-better, not negative, NaN without a report; `state` holds the codes above. `echo`: the loss
    in log units of an earlier accusation that a node reports, by row, for nodes that the detector does not know.
    """

    names: Sequence[NodeKey]
    cohort: Ints
    cohorts: Sequence[CohortKey]
    value: Floats
    state: Codes
    echo: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Edge:
    """A node that was accused, began to recover, relapsed or was cleared in this tick."""

    what: str
    verdict: Verdict


@dataclass(frozen=True)
class JobSlow:
    """A cohort that lost speed together: a new phase of its job, or a slow job; no node is to blame."""

    cohort: CohortKey
    since: float
    severity: float


@dataclass(frozen=True)
class Outcome:
    """The result of a tick. `slots`: the detector's slot of each row of the observation, -1 if the store was full."""

    now: float
    slots: Ints
    edges: list[Edge]
    jobs: list[JobSlow]
    digest: str
