"""Makes states of collectives that older versions saved readable. Pure."""

from typing import Any, Final

import numpy as np

from ingero_fleet.collectives.batch import POINT
from ingero_fleet.collectives.slow_network import SlowNetwork
from ingero_fleet.collectives.transfer_times import TransferTimes

_POINT_2: Final = np.dtype(
    [(name, kind[0]) for name, kind in (POINT.fields or {}).items() if name != "work"]  # in the order of POINT
)
_POINT_1: Final = np.dtype([(name, kind[0]) for name, kind in (_POINT_2.fields or {}).items() if name != "size"])


def with_transfer_times(state: dict[str, Any]) -> dict[str, Any]:
    """Version 2 from version 1, whose points had no message size and which knew nothing of the network."""
    if "collectives" not in state:
        return {**state, "version": 2}
    after = {
        **_with_column(state["collectives"], "size", 0, _POINT_1, _POINT_2),
        "transfers": TransferTimes().state(), "network": SlowNetwork({}).state(),
    }  # fmt: skip
    return {**state, "version": 2, "collectives": after}


def with_work(state: dict[str, Any]) -> dict[str, Any]:
    """Version 3 from version 2, whose points told no work."""
    if "collectives" not in state:
        return {**state, "version": 3}
    return {**state, "version": 3, "collectives": _with_column(state["collectives"], "work", np.nan, _POINT_2, POINT)}


def _with_column(
    collectives: dict[str, Any], name: str, value: float, before: np.dtype[Any], after: np.dtype[Any]
) -> dict[str, Any]:
    """The state of collectives with one more column of points."""
    old = np.frombuffer(bytes(collectives["batch"]), before)
    points = np.zeros(len(old), after)
    for column in before.names or ():
        points[column] = old[column]
    points[name] = value
    waiting = collectives["matcher"]["waiting"]
    added = np.full(len(waiting["rank"]), value, after[name])
    return {**collectives, "batch": points.tobytes(),
            "matcher": {**collectives["matcher"], "waiting": {**waiting, name: added}}}  # fmt: skip
