"""Findings on collectives as OTLP, for Echo or any collector: lags are metrics, accusations log records. Pure."""

import json
import uuid
from collections.abc import Iterable
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from ingero_contract import attributes, metrics
from ingero_contract.values import GPU_THROTTLED, VerdictState
from ingero_fleet.collectives.communicators import Communicators
from ingero_fleet.collectives.lags import PeerLag
from ingero_fleet.collectives.points import PointSource
from ingero_fleet.collectives.slow_network import NetworkChange
from ingero_fleet.collectives.straggler_ranks import RankEdge, StragglerRank
from ingero_fleet.verdict_records import log_request, verdict_record
from ingero_kit.otlp_encode import pairs

_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_URL, "urn:ingero:late-rank")
_EVIDENCE: Final = (
    "comm",
    "ranks",
    "rank",
    "gpu",
    "pod",
    "share",
    "lag_ms",
    "lasts",
    "collectives",
    "chance",
    "nvml",
)
_STATES: Final = {
    "accused": VerdictState.STRAGGLER, "cleared": VerdictState.HEALTHY, "withdrawn": VerdictState.LEARNING,
}  # fmt: skip


def encode_lags(communicators: Communicators, lags: list[PeerLag], now: float) -> bytes:
    """One request with a point for every lag, by sender; `now` in seconds since the epoch."""
    blocks: dict[int, list[PeerLag]] = {}
    for item in lags:
        blocks.setdefault(int(communicators.windows[item[1]].members[item[2]]), []).append(item)
    request = ExportMetricsServiceRequest()
    for place, items in blocks.items():
        block = request.resource_metrics.add()
        block.resource.attributes.extend(_resource(communicators.reader.sources[place]))
        metric = block.scope_metrics.add().metrics.add(name=metrics.COLLECTIVE_PEER_LAG, unit="ms")
        for value, number, rank, op in items:
            comm = communicators.reader.comms[number]
            point = metric.gauge.data_points.add(time_unix_nano=int(now * 1e9), as_double=value)
            name = {attributes.NCCL_OP_TYPE: communicators.reader.ops[op]}
            point.attributes.extend(
                pairs(
                    {
                        **_member(comm.hash, *communicators.member(communicators.windows[number], rank), comm.ranks),
                        **name,
                    }
                )
            )
    return request.SerializeToString()


def encode_rank_edges(edges: Iterable[RankEdge]) -> bytes:
    """One request with a record for every change, in the format of the detector's records."""
    return log_request((_resource(_source(edge.straggler)), _record(edge)) for edge in edges)


def encode_network_changes(changes: Iterable[NetworkChange]) -> bytes:
    """One request with a record for every change; the resource is the cluster, because no node is accused."""
    return log_request(
        (pairs({attributes.CLUSTER_ID: change.cluster}), _network_record(change)) for change in changes
    )


def _network_record(change: NetworkChange) -> LogRecord:
    item = change.verdict or {}
    identity = (change.cluster, "network", str(int(change.time * 1e9)))
    evidence = {name: item.get(name) for name in ("elements", "possible", "slow_group_count", "compared_groups")}
    groups = [{**group, "members": group["members"][:2]} for group in item.get("slow_groups", [])[:5]]
    return verdict_record(
        change.time,
        item.get("why", "No part of the network is slow any more."),
        {
            attributes.EVENT_ID: str(uuid.uuid5(_NAMESPACE, "\0".join(identity))),
            attributes.VERDICT_KIND: item.get("kind", "none"),
            attributes.VERDICT_SINCE: item.get("since", ""),
            attributes.VERDICT_SEVERITY: float(item.get("excess_share", 0.0)),
            attributes.VERDICT_EVIDENCE: json.dumps({**evidence, "slow_groups": groups}, separators=(",", ":")),
        },
        accused=bool(item),
        event=metrics.NETWORK_EVENT,
    )


def _source(item: StragglerRank) -> PointSource:
    return PointSource(item["cluster_id"], item["node_id"], item["pod"] or "", job=item.get("job_id") or "")


def _record(edge: RankEdge) -> LogRecord:
    item = edge.straggler
    evidence = {"edge": edge.what, "axis": "collectives", **{name: item.get(name) for name in _EVIDENCE}}
    identity = (
        item["cluster_id"], item["node_id"], item["comm"], item.get("gpu") or str(item["rank"]), edge.what,
        str(int(edge.time * 1e9)),
    )  # fmt: skip
    return verdict_record(
        edge.time,
        sentence(edge),
        {
            attributes.EVENT_ID: str(uuid.uuid5(_NAMESPACE, "\0".join(identity))),
            attributes.VERDICT_STATE: str(_STATES[edge.what]),
            attributes.VERDICT_KIND: item["kind"],
            attributes.VERDICT_SINCE: item["since"],
            attributes.VERDICT_SEVERITY: float(item["share"]) if edge.what == "accused" else 0.0,
            attributes.VERDICT_EVIDENCE: json.dumps(evidence, separators=(",", ":")),
            **_member(item["comm"], item["rank"], item.get("gpu"), item["ranks"]),
        },
        accused=edge.what == "accused",
    )


def sentence(edge: RankEdge) -> str:
    """A change as a sentence for people."""
    item: StragglerRank = edge.straggler
    who = item.get("gpu") or f"rank {item['rank']}"
    if edge.what == "accused":
        return f"{item['node_id']} delays its job. {item['why']}"
    if edge.what == "cleared" and item["kind"] == GPU_THROTTLED:
        return f"{item['node_id']}: its GPU no longer delays the collectives of {item['comm']}"
    if edge.what == "cleared":
        return f"{item['node_id']}: the collectives of {item['comm']} wait for {who} alone no more"
    return f"{item['node_id']}: the collectives of {item['comm']} are seen no more, {who} is not judged"


def _resource(source: PointSource) -> list[KeyValue]:
    named = {
        attributes.NODE_ID: source.node, attributes.CLUSTER_ID: source.cluster, attributes.POD_NAME: source.pod,
        attributes.JOB_ID: source.job,
    }  # fmt: skip
    return pairs({key: text for key, text in named.items() if text})


def _member(comm: str, rank: int | None, gpu: str | None, ranks: int) -> dict[str, Any]:
    place: dict[str, Any] = {} if rank is None else {attributes.NCCL_RANK: rank}
    if gpu:
        place[attributes.NCCL_GPU] = gpu
    return {attributes.NCCL_COMM_HASH: comm, **place, attributes.NCCL_NRANKS: ranks}
