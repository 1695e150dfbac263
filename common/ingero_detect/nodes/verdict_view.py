"""The detector's results after a tick, as a copy that other threads may read while the next tick runs."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ingero_contract.identifiers import NodeKey
from ingero_contract.values import VerdictState
from ingero_detect.nodes.codes import AXES, KINDS, STATES, is_accused
from ingero_detect.nodes.cohorts import CohortKey, cohort_name
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.verdicts import Axis, Kind, Verdict

COLUMNS: Final = (
    "state", "home", "group", "axis", "kind", "since", "detected", "well_since", "loss", "value", "expected",
    "residual", "scale", "below", "slow",
)  # fmt: skip

_PAST: Final = (VerdictState.RECOVERING, VerdictState.HEALTHY, VerdictState.IDLE, VerdictState.SUSPECTED)
"""States in which an episode has ended or seems to have ended."""


@dataclass(frozen=True)
class VerdictView:
    """Columns by slot and by group from which verdicts are read."""

    now: float
    digest: str
    columns: dict[str, npt.NDArray[Any]]
    names: list[NodeKey]
    homes: list[CohortKey]
    groups: list[CohortKey]
    sizes: npt.NDArray[np.int64]
    levels: npt.NDArray[np.float64]

    @classmethod
    def take(cls, memory: ColumnStore, now: float, digest: str, copy: bool) -> "VerdictView":
        """A view of the columns of a store, or of a copy of them."""
        names, homes, groups = memory.names, memory.homes, memory.groups
        columns = {name: memory.node(name) for name in COLUMNS}
        sizes, levels = memory.group("size"), memory.group("alarm")
        if copy:
            names, homes, groups = memory.roster(), list(homes), list(groups)
            columns = {name: column.copy() for name, column in columns.items()}
            sizes, levels = sizes.copy(), levels.copy()
        return cls(now, digest, columns, names, homes, groups, sizes, levels)

    def verdict(self, slot: int) -> Verdict:
        """The verdict on the node in a slot."""
        columns = self.columns
        code = columns["state"][slot]
        state = STATES[int(code)]
        episode = bool(columns["detected"][slot] > 0) or bool(is_accused(code))
        cluster, node = self.names[slot]
        home, group = int(columns["home"][slot]), int(columns["group"][slot])
        axis = AXES[int(columns["axis"][slot])]
        return Verdict(
            cluster=cluster,
            node=node,
            state=state,
            kind=KINDS[int(columns["kind"][slot])] if episode else Kind.NONE,
            axis=axis if episode else Axis.NONE,
            since=float(columns["since"][slot]) if episode else None,
            detected=float(columns["detected"][slot]) if episode else None,
            recovered=float(columns["well_since"][slot]) if episode and state in _PAST else None,
            severity=float(1 - np.exp(-max(0.0, float(columns["loss"][slot])))) if episode else 0.0,
            value=_finite(float(columns["value"][slot])),
            expected=_finite(float(np.exp(columns["expected"][slot]))),
            residual=_finite(float(columns["residual"][slot])),
            scale=_finite(float(columns["scale"][slot])),
            evidence=_finite(float(columns["below" if axis is Axis.PEERS else "slow"][slot])),
            level=_finite(float(self.levels[group])) if group >= 0 else None,
            cohort=cohort_name(self.groups[group]) if group >= 0 else "",
            cohort_size=int(self.sizes[group]) if group >= 0 else 0,
            merged=group >= 0 and home >= 0 and self.groups[group] != self.homes[home],
            time=self.now,
            digest=self.digest,
        )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
