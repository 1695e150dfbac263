"""How much longer the collectives of communicators take than those of like ones, to excuse who is late from it.

This needs less proof than a verdict on the network, and is known as soon as the late ranks are: a rank that leaves a
slow collective later than others arrives later at the next one, which proves nothing against its node.
"""

from typing import Final

import numpy as np

from ingero_detect.network.links import FEWEST_PEERS, SMALLEST_EXCESS
from ingero_detect.threshold import MAD_TO_SIGMA
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.transfer_times import Floats, TransferTimes

PERIODS: Final = (4, 12, 24)
"""Latest ticks over which communicators are compared; the one that shows most counts."""

LIKE_SPREADS: Final = 3.0
"""How far a mean must exceed those of like communicators, standard deviations."""


def slowed_communicators(communicators: Communicators, times: TransferTimes) -> dict[int, float]:
    """By communicator the share of its time that its collectives take longer than those of like communicators."""
    numbers = {communicators.reader.comms[number]: number for number in communicators.windows}
    kinds: dict[tuple[str, str, int, int], list[int]] = {}
    for place, series in enumerate(times.series):
        if series.comm in numbers:
            kinds.setdefault((series.comm.cluster, series.op, series.size, series.comm.ranks), []).append(place)
    most: dict[int, float] = {}
    for ticks in PERIODS:
        seconds, count = times.latest(ticks)
        excess = np.zeros(len(times))
        for places in kinds.values():
            excess[places] = _excess(seconds[places], count[places])
        lost: dict[int, float] = {}
        collectives: dict[int, int] = {}
        for place in [place for places in kinds.values() for place in places]:
            number = numbers[times.series[place].comm]
            lost[number] = lost.get(number, 0.0) + float(excess[place])
            collectives[number] = collectives.get(number, 0) + int(count[place])
        for number, total in lost.items():
            window = communicators.windows[number]
            period = window.elapsed_ms / max(1, len(window.time))
            if total > 0 and period > 0:
                most[number] = max(most.get(number, 0.0), 1000 * total / collectives[number] / period)
    return most


def _excess(seconds: Floats, count: Floats) -> Floats:
    """Seconds by which each of these like series took longer than the median one; 0 within their usual spread."""
    found = np.zeros(len(seconds))
    seen = np.flatnonzero(count > 0)
    if len(seen) < FEWEST_PEERS:
        return found
    logs = np.log(seconds[seen] / count[seen])
    above = logs - np.median(logs)
    least = max(LIKE_SPREADS * MAD_TO_SIGMA * float(np.median(np.abs(above))), float(np.log1p(SMALLEST_EXCESS)))
    found[seen] = np.where(above > least, -np.expm1(-above) * seconds[seen], 0.0)
    return found
