"""Payloads of NCCL Inspector's OTLP export: resource, names, attributes and their order as its source writes them."""

from typing import Any

import numpy as np
import orjson

from ingero_contract import attributes, metrics
from ingero_testing.collectives import Job

TRANSFER_MS = 3.0
"""How long a collective takes after its last rank has arrived."""

RESOURCE = {attributes.CLUSTER_ID: "c", "service.name": "nccl-inspector"}


def _attributes(texts: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": text}} for key, text in texts.items()]


def _body(series: dict[str, tuple[str, list[dict[str, Any]]]], resource: dict[str, str]) -> bytes:
    items = [
        {"name": name, "description": name, "unit": unit, "gauge": {"dataPoints": points}}
        for name, (unit, points) in series.items()
    ]
    scope = {"scope": {"name": "nccl-inspector"}, "metrics": items}
    return orjson.dumps(
        {"resourceMetrics": [{"resource": {"attributes": _attributes(resource)}, "scopeMetrics": [scope]}]}
    )


def _point(attributes: dict[str, str], micros: int, value: float) -> dict[str, Any]:
    return {"attributes": _attributes(attributes), "timeUnixNano": str(micros * 1000), "asDouble": value}


def exports(
    job: Job, steps: int, *, verbose: bool = True, gpus: int = 4, gpu: str = "GPU{}",
    resource: dict[str, str] = RESOURCE,
) -> list[bytes]:  # fmt: skip
    """What the processes of all ranks, one for each GPU, export about the next `steps` steps of a job."""
    entered, blocked = job.run(steps)
    begin, job.done = job.done, job.done + len(entered)
    bodies = []
    for rank in range(job.ranks):
        spent = np.rint(1000 * (blocked[:, rank] + TRANSFER_MS)).astype(int).tolist()
        ended = np.rint(1e6 * (entered[:, rank]) + spent).astype(int).tolist()
        node, device = f"node-{rank // gpus}", gpu.format(rank % gpus)
        shared = {"n_nodes": str(job.ranks // gpus), "nranks": str(job.ranks)}
        if verbose:
            common = {"version": "v5.2", "node": node, "gpu": device, "comm_name": "unknown",
                      "comm_id": f"0x{job.comm}", **shared, "coll_msg_size_bytes": "4194304",
                      "collective": "AllReduce"}  # fmt: skip
            each = [
                ({**common, "coll_sn": str(begin + place), "algo_proto": "Ring_simple"}, time, micros)
                for place, (micros, time) in enumerate(zip(spent, ended, strict=True))
            ]
        else:
            common = {"gpu": device, "comm_name": "unknown", "version": "v5.1", "node": node, **shared,
                      "message_size": "4-5MB", "collective": "AllReduce", "algo_proto": "Ring_simple"}  # fmt: skip
            each = [(common, max(ended), float(np.mean(spent)))]
        bandwidths = ["nccl_bus_bandwidth_gbs", "nccl_collective_algobw_gbs"][: 2 if verbose else 1]
        series = {name: ("GB/s", [_point(texts, time, 80.0) for texts, time, _ in each]) for name in bandwidths}
        exec_time = [_point(texts, time, float(micros)) for texts, time, micros in each]
        bodies.append(_body(series | {metrics.INSPECTOR_EXEC_TIME: ("us", exec_time)}, resource))
    return bodies
