"""Who waits longer in a communicator than anybody does in like ones, to excuse who is late elsewhere from it.

In a pair of pipeline stages one rank always waits for the other, so the last rank of each collective proves nothing.
But when one of the two becomes slow, the other waits longer than the ranks of all other pairs do, and then arrives
late in its own data-parallel group.
"""

from collections.abc import Collection
from typing import Final

import numpy as np
import numpy.typing as npt

from ingero_detect.network.links import FEWEST_PEERS
from ingero_detect.threshold import MAD_TO_SIGMA
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.window import CommunicatorWindow

LIKE_SPREADS: Final = 3.0
"""How far a wait must exceed the longest ones of like communicators, standard deviations."""

Floats = npt.NDArray[np.float64]

Waits = dict[int, dict[str, float]]
"""By communicator and node: share of time by which all of the node's ranks waited longer than is usual."""


def long_waits(communicators: Communicators, cluster: str, nodes: Collection[str]) -> Waits:
    """The long waits of these nodes, in communicators of several nodes. Like ones have equal size and operation."""
    reader = communicators.reader
    theirs = [place for place, sender in enumerate(reader.sources)
              if sender.cluster == cluster and sender.node in nodes]  # fmt: skip
    wanted = {
        number for number, window in communicators.windows.items()
        if window.op_waits and reader.comms[number].cluster == cluster and np.isin(window.members, theirs).any()
    }  # fmt: skip
    kinds = {(communicators.windows[number].ranks, op) for number in wanted
             for op in communicators.windows[number].op_waits}  # fmt: skip
    longest: dict[tuple[int, int], list[Floats]] = {kind: [] for kind in kinds}
    for number, window in communicators.windows.items():
        if reader.comms[number].cluster == cluster:
            for op, waits in window.op_waits.items():
                if (window.ranks, op) in longest:
                    longest[window.ranks, op].append(np.fmax.reduce(waits, axis=1).astype(np.float64))
    usual = {kind: _usual(np.array(values)) for kind, values in longest.items() if len(values) >= FEWEST_PEERS}
    found: Waits = {}
    for number in sorted(wanted):
        by_node = _longer(communicators, communicators.windows[number], usual, nodes)
        if by_node:
            found[number] = by_node
    return found


def _usual(longest: Floats) -> tuple[Floats, Floats]:
    """By period the median of the longest waits, and the wait that is beyond chance, milliseconds, as columns."""
    median = np.median(longest, axis=0)[:, None]
    spread = MAD_TO_SIGMA * np.median(np.abs(longest - median.T), axis=0)[:, None]
    return median, median + LIKE_SPREADS * spread


def _longer(
    communicators: Communicators, window: CommunicatorWindow, usual: dict[tuple[int, int], tuple[Floats, Floats]],
    nodes: Collection[str],
) -> dict[str, float]:  # fmt: skip
    members = [communicators.source(window, rank).node for rank in range(window.ranks)]
    period = window.elapsed_ms / max(1, len(window.time))
    if len({node for node in members if node}) < 2 or period <= 0:
        return {}
    excess: Floats = np.zeros(1)
    for op, waits in window.op_waits.items():
        if (window.ranks, op) in usual:
            median, beyond = usual[window.ranks, op]
            excess = excess + np.where(waits > beyond, waits - median, 0.0)
    found: dict[str, float] = {}
    shares = np.broadcast_to(excess.reshape(-1, excess.shape[-1]).max(axis=0) / period, window.ranks)
    for node, share in zip(members, shares.tolist(), strict=True):
        if node in nodes:
            found[node] = min(share, found.get(node, 1.0))
    return {node: share for node, share in found.items() if share > 0}
