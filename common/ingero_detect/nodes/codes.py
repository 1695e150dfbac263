"""Codes of states, kinds and axes in the columns."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_contract.values import VerdictState
from ingero_detect.grouped import Bools
from ingero_detect.nodes.verdicts import Axis, Kind

STATES: Final = tuple(VerdictState)
CODE: Final = {state: np.uint8(number) for number, state in enumerate(STATES)}
"""Codes of the state column."""

KINDS: Final = tuple(Kind)
AXES: Final = tuple(Axis)

LEARNING, HEALTHY, SUSPECTED, STRAGGLER, RECOVERING, IDLING, STOPPED, SILENT = (
    CODE[state]
    for state in (
        VerdictState.LEARNING, VerdictState.HEALTHY, VerdictState.SUSPECTED, VerdictState.STRAGGLER,
        VerdictState.RECOVERING, VerdictState.IDLE, VerdictState.STOPPED, VerdictState.SILENT,
    )
)  # fmt: skip


def is_accused(state: npt.NDArray[np.uint8]) -> Bools:
    """By slot: accused and not recovered yet."""
    found: Bools = (state == STRAGGLER) | (state == RECOVERING) | (state == STOPPED)
    return found
