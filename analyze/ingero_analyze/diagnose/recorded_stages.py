"""The pipeline stages of timelines that name none, from which ranks communicate. Pure."""

import re
from typing import Final

import numpy as np

from ingero_detect.grouped import Bools, Ints, connected, extremes

_BETWEEN_STAGES: Final = re.compile(r"send|recv|receive|p2p", re.IGNORECASE)

SMALLEST_RING: Final = 3
RING_SPREAD: Final = 0.02
"""Ranks that a ring of sends has at least, and by which share some may have more sends than others."""


def stages_of(rank: Ints, op: Ints, names: list[str], group: Ints, collective: Bools) -> Ints:
    """Pipeline stages by row, from which ranks communicate; -1 without a pipeline. Numbered by first rank.

    Stages exchange tensors by sends and receives. All other operations connect ranks of one stage, and so do sends in
    a ring (of a long sequence's attention), except operations in which ranks take part that also send to each other
    from stage to stage, such as a norm over the whole job. A ring of two looks like two stages, but several of them
    have nothing else in common.
    """
    unknown = np.full(len(rank), -1, np.int64)
    sends = sends_of(op, names, collective)
    if not sends.any() or (group[sends] < 0).any():
        return unknown
    between = sends & ~np.isin(op, _ring_operations(rank[sends], op[sends], group[sends]))
    inside = collective & ~between & (group >= 0)
    ranks = int(rank.max()) + 1
    pairs = np.unique(np.stack([group[inside], rank[inside]]), axis=1)
    sending = np.unique([group[between], rank[between]], axis=1)
    across = np.isin(pairs[0], _across_stages(pairs, sending))
    stage = connected(pairs[:, ~across], ranks)
    if not between.any() or len(np.unique(stage)) < 2:
        return unknown
    # Replicas of a pipeline sum gradients stage by stage. Those that only meet as a whole are no pipelines.
    replica = connected(np.concatenate([pairs[:, ~across], sending], axis=1), ranks)
    met = replica[pairs[1, across]]
    if any(len(np.unique(met[pairs[0, across] == one])) > 1 for one in np.unique(pairs[0, across]).tolist()):
        return unknown
    return stage[rank]


def _across_stages(pairs: Ints, sending: Ints) -> Ints:
    """Groups with two members that send to each other; each column of both tables is a group and one of its ranks.

    A group that all ranks send in does not tell who sends to whom.
    """
    width = int(max(pairs[1].max(initial=0), sending[1].max(initial=0))) + 1
    senders = [sending[1][sending[0] == one] for one in np.unique(sending[0]).tolist()]
    found = []
    for one in np.unique(pairs[0]).tolist():
        inside = np.zeros(width, np.bool_)
        inside[pairs[1][pairs[0] == one]] = True
        if any(len(ranks) < width and inside[ranks].sum() >= 2 for ranks in senders):
            found.append(one)
    return np.array(found, np.int64)


def _ring_operations(rank: Ints, op: Ints, group: Ints) -> Ints:
    """Sends that go round: all ranks that they connect, three or more each, have equally many.

    The first and the last stage of a pipeline have fewer than those in between. Two ranks look like two stages.
    """
    found = []
    for one in np.unique(op).tolist():
        rows = op == one
        ranks, index, times = np.unique(rank[rows], return_inverse=True, return_counts=True)
        ring = connected(np.stack([group[rows], index]), len(ranks))
        size, first = np.bincount(ring), np.unique(ring)
        fewest, most = extremes(times, ring, len(ranks))
        if (size[first] >= SMALLEST_RING).all() and (most[first] <= (1 + RING_SPREAD) * fewest[first]).all():
            found.append(one)
    return np.array(found, np.int64)


def sends_of(op: Ints, names: list[str], collective: Bools) -> Bools:
    """Rows of sends and receives, by their names."""
    return np.array([bool(_BETWEEN_STAGES.search(name)) for name in names], np.bool_)[op] & collective
