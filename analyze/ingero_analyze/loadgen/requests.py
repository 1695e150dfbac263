"""Prepared requests: every simulated agent's push is encoded once, so that sending costs almost nothing. Pure."""

import time
from typing import Literal
from uuid import UUID

import orjson

from ingero_contract import attributes, metrics, routes
from ingero_contract.signals import SIGNALS
from ingero_contract.values import NodeState
from ingero_http.grpc_unary import frame_message
from ingero_http.http2.hpack import encode_block
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_encode import encode_report
from ingero_kit.otlp_signal import Signal

Protocol = Literal["http/protobuf", "http/json", "grpc"]


def report(number: int, cluster: str) -> HealthReport:
    """The push of one agent: scores of a tight, healthy fleet."""
    return HealthReport(
        node_id=f"node-{number:06d}",
        cluster_id=cluster,
        state=NodeState.ACTIVE,
        score=0.95 + 0.04 * ((number * 7919) % 1000) / 1000,
        throughput=0.97,
        compute=0.9,
        memory=0.4,
        cpu=0.8,
        detection_mode="fleet",
        workload_type="training",
        cgroup_path_hash="0123456789abcdef",
        instance_id=str(UUID(int=number)),
        time_unix_nano=int(time.time() * 1e9),
    )


def stock_json(number: int, cluster: str) -> bytes:
    """The same push in the published agent's JSON: nine gauges, integers as numbers."""
    node_report = report(number, cluster)
    stamp = str(node_report.time_unix_nano)
    common = [_text(attributes.NODE_STATE, "active"), _text(attributes.WORKLOAD_TYPE, "training")]
    score = [*common, _text(attributes.CGROUP_PATH_HASH, node_report.cgroup_path_hash)]
    mode = [_text(attributes.DETECTION_MODE_VALUE, "fleet")]

    def gauge(name: str, value: float | int, pairs: list[object]) -> object:
        key = "asInt" if isinstance(value, int) else "asDouble"
        return {
            "name": name,
            "unit": "1",
            "gauge": {"dataPoints": [{"timeUnixNano": stamp, key: value, "attributes": pairs}]},
        }

    gauges = [
        gauge(metrics.HEALTH_SCORE, node_report.score, list(score)),
        *(gauge(row.metric, 0.9, list(common)) for row in SIGNALS),
        gauge(metrics.DEGRADATION_WARNING, 0, list(common)),
        gauge(metrics.DETECTION_MODE, 1, list(mode)),
        gauge(metrics.FLEET_REACHABLE, 1, []),
        gauge(metrics.WORLD_SIZE_GAUGE, 0, []),
    ]
    resource = [_text(attributes.NODE_ID, node_report.node_id), _text(attributes.CLUSTER_ID, cluster)]
    scope = {"scope": {"name": "ingero.health", "version": "0.10.0"}, "metrics": gauges}
    return orjson.dumps({"resourceMetrics": [{"resource": {"attributes": resource}, "scopeMetrics": [scope]}]})


def _text(key: str, value: str) -> object:
    return {"key": key, "value": {"stringValue": value}}


def http_request(body: bytes, media: str, host: str, cluster: str) -> bytes:
    """One keep-alive POST."""
    return (
        f"POST {routes.OTLP_METRICS}?{routes.CLUSTER_PARAMETER}={cluster} HTTP/1.1\r\nhost: {host}\r\n"
        f"content-type: {media}\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


def header_block(host: str) -> bytes:
    """Request headers that share no state with the server."""
    return encode_block(
        [
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", Signal.METRICS.grpc_method.encode()),
            (b":authority", host.encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
        ]
    )


def build(protocol: Protocol, number: int, cluster: str, host: str) -> bytes:
    """The bytes sent for one push: a whole HTTP request, or the gRPC message that follows the headers."""
    if protocol == "http/json":
        return http_request(stock_json(number, cluster), "application/json", host, cluster)
    body = encode_report(report(number, cluster)).SerializeToString()
    if protocol == "http/protobuf":
        return http_request(body, "application/x-protobuf", host, cluster)
    return frame_message(body)
