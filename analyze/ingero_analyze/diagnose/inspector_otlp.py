"""Reads NCCL Inspector's metrics in OTLP, as the file exporter of a Collector writes them. Pure.

Points name the node and the GPU of a process, and no rank. Only the verbose form tells which points are of one
collective.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from ingero_analyze.diagnose.collective_times import MAX_RANKS, Process, Spent
from ingero_analyze.otlp_points import attributes_of, rows_of_request
from ingero_contract import metrics
from ingero_contract.json_values import number, whole
from ingero_fleet.collectives.inspector_points import from_texts

MARK: Final = b'"resourceMetrics"'
"""What every request to export metrics has, one a line of a file."""

OTHER_METRICS: Final = "points of other metrics"

MAX_DIGITS: Final = 20
"""Of nanoseconds since 1970."""


def collectives_of(request: dict[str, Any], left_out: Counter[str]) -> Iterator[Spent | str]:
    """Every collective of a request to export metrics, or why a point cannot be used; other metrics are counted."""
    resources = request.get("resourceMetrics")
    for resource in resources if isinstance(resources, list) else ():
        around = attributes_of(resource.get("resource")) if isinstance(resource, dict) else {}
        for row in rows_of_request({"resourceMetrics": [resource]}) or ():
            if row["metric"] == metrics.INSPECTOR_EXEC_TIME:
                yield _spent(row, around.get("node"))
            else:
                left_out[OTHER_METRICS] += 1


def _spent(row: dict[str, Any], node: Any) -> Spent | str:
    """One point; `node`: what its resource calls the node, before the name of the host that the point has."""
    found = from_texts({name: str(value) for name, value in row.items() if type(value) in (str, int)})
    if isinstance(found, str):
        return found
    micros = number(row["value"]) if type(row["value"]) in (int, float) else whole(row["value"])
    if micros is None or not 0 <= micros < 1e12 or not 0 < found.ranks <= MAX_RANKS:
        return f"{metrics.INSPECTOR_EXEC_TIME}: microseconds and a count of nranks were expected"
    time, duration = row["time"], micros / 1e6
    host = node if isinstance(node, str) and node else found.node
    end = int(time) / 1e9 if time.isascii() and time.isdigit() and len(time) <= MAX_DIGITS else 0.0
    return Spent(
        process=(host, found.gpu), comm=f"{found.comm}/{found.ranks}", rank=None, ranks=found.ranks,
        op=found.op or "collective", seq=found.seq, start=end - duration, duration=duration,
    )  # fmt: skip


def without_shared_names(spent: Iterable[Spent]) -> tuple[list[Spent], list[Process]]:
    """Collectives of processes without ranks, each once, and the names that several processes have.

    Nothing is left of these. They have one name where each process sees a single GPU of its node.
    """
    first: dict[tuple[Process, str, str, int], Spent] = {}
    shared: dict[Process, None] = {}
    for item in spent:
        known = first.setdefault((item.process, item.comm, item.op, item.seq), item)
        if known is not item and (known.start, known.duration) != (item.start, item.duration):
            shared[item.process] = None
    return [item for item in first.values() if item.process not in shared], list(shared)


def told_of_shared(process: Process) -> str:
    """What to say of processes that have one name."""
    node, gpu = process
    return (
        f"{node}: several processes say {gpu} and cannot be told apart; let every process see all GPUs of its node, "
        "or give each an ingero.node.id of its own"
    )
