"""API answers on communicators: the lags of their ranks, the latest first, and the verdict with a message. Pure."""

from typing import Any, Final

import numpy as np

from ingero_fleet.collectives.communicators import Communicators, verdict_text
from ingero_fleet.collectives.points import CommKey

MAX_SERIES: Final = 1_000
"""Peer lags on the Prometheus page, the largest first."""

ANSWERED_RANKS: Final = 1_024
"""Most ranks of one communicator in an answer; those that came latest are first."""


def numbers_by_loss(communicators: Communicators, cluster: str | None) -> list[int]:
    """Communicators of one cluster or of all, those that lost the most time first."""
    numbers = [
        number for number in communicators.windows if cluster in (None, communicators.reader.comms[number].cluster)
    ]
    numbers.sort(key=lambda number: -(finding.share if (finding := communicators.windows[number].finding) else -1.0))
    return numbers


def largest_lags(communicators: Communicators) -> list[tuple[CommKey, int | str, str, float]]:
    """Communicator, rank or GPU, node and lag in milliseconds of the ranks with the largest recent lags."""
    found: list[tuple[float, int, int]] = []
    for number, window in communicators.windows.items():
        if len(window.lag):
            values = np.nan_to_num(window.lag, nan=-np.inf)
            found += [(float(values[rank]), number, rank) for rank in np.argsort(-values)[:8].tolist()]
    found.sort(key=lambda item: -item[0])
    return [
        (
            communicators.reader.comms[number],
            (source := communicators.source(communicators.windows[number], rank)).gpu or rank,
            source.node,
            value,
        )
        for value, number, rank in found[:MAX_SERIES]
        if np.isfinite(value)
    ]


def communicator(communicators: Communicators, number: int, now: float) -> dict[str, Any]:
    """One communicator with the lag of every rank, milliseconds, `null` where a rank reported nothing."""
    window, key = communicators.windows[number], communicators.reader.comms[number]
    finding = window.finding
    lag = window.lag if len(window.lag) else np.full(window.ranks, np.nan, np.float32)
    late = (None, None) if finding is None else communicators.member(window, finding.rank)
    order = np.argsort(np.nan_to_num(-lag, nan=np.inf), kind="stable")[:ANSWERED_RANKS]
    return {
        "cluster_id": key.cluster,
        "comm": key.hash,
        "ranks": key.ranks,
        "judged": window.judged,
        "in_window": len(window.last),
        "verdict": verdict_text(window, now),
        "finding": None if finding is None else {
            "rank": late[0], "gpu": late[1], "node_id": communicators.source(window, finding.rank).node or None,
            "share": round(finding.share, 6), "lasts": finding.last_arrivals, "collectives": finding.collectives,
            "chance": finding.chance,
        },
        "lags": [
            {
                "rank": (member := communicators.member(window, rank))[0], "gpu": member[1],
                "node_id": (source := communicators.source(window, rank)).node or None,
                "pod": source.pod or None, "job_id": source.job or None,
                "lag_ms": round(float(lag[rank]), 6) if lag[rank] == lag[rank] else None,
            }
            for rank in order.tolist()
        ],
    }  # fmt: skip
