"""Makes states of collectives that older versions saved readable. Pure."""

from typing import Any, Final

import numpy as np

from ingero_fleet.collectives.batch import POINT
from ingero_fleet.collectives.slow_network import SlowNetwork
from ingero_fleet.collectives.transfer_times import TransferTimes

_POINT_1: Final = np.dtype(
    [(name, kind[0]) for name, kind in (POINT.fields or {}).items() if name != "size"]  # in the order of POINT
)


def with_transfer_times(state: dict[str, Any]) -> dict[str, Any]:
    """Version 2 from version 1, whose points had no message size and which knew nothing of the network."""
    if "collectives" not in state:
        return {**state, "version": 2}
    before = state["collectives"]
    old = np.frombuffer(bytes(before["batch"]), _POINT_1)
    points = np.zeros(len(old), POINT)
    for name in _POINT_1.names or ():
        points[name] = old[name]
    waiting = before["matcher"]["waiting"]
    after = {
        **before, "batch": points.tobytes(),
        "matcher": {**before["matcher"], "waiting": {**waiting, "size": np.zeros(len(waiting["rank"]), np.int64)}},
        "transfers": TransferTimes().state(), "network": SlowNetwork({}).state(),
    }  # fmt: skip
    return {**state, "version": 2, "collectives": after}
