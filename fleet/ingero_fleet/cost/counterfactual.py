"""Divides a job's waiting among the stragglers that cause it. Pure.

A synchronised job runs as fast as its slowest member: with severities s (share of its own rate that a member lost) it
does 1 - max(s) of its work, so max(s) of what it costs is spent waiting. Two figures are computed:

* what repairing this member *alone* would have saved: max(s) - max(s without it). Repairing one of two equally slow
  members saves nothing.
* the member's share of the waiting, such that shares add up to all of it: the Shapley value, the only division that
  is symmetric, charges nothing to members that caused nothing, and adds up. For a maximum it has a closed form (the
  airport game, Littlechild and Owen 1973): sorted by severity, each increment is shared by the members that reach it.

Members of a job that is not synchronised waste only their own time.
"""

from collections.abc import Sequence


def shares(severities: Sequence[float]) -> list[float]:
    """Each member's part of max(severities), 0 to 1; they add up to it."""
    order = sorted(range(len(severities)), key=severities.__getitem__)
    out = [0.0] * len(severities)
    reached = carried = 0.0
    for place, member in enumerate(order):
        carried += (severities[member] - reached) / (len(order) - place)
        reached = severities[member]
        out[member] = carried
    return out


def savings(severities: Sequence[float]) -> list[float]:
    """What repairing one member alone would save, as a share of the job: above 0 only for the single slowest."""
    if not severities:
        return []
    first, second = sorted((*severities, 0.0), reverse=True)[:2]
    return [first - second if severity == first else 0.0 for severity in severities]
