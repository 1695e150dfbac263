"""What stragglers have cost as OTLP sums, for Echo or any collector. Pure."""

from collections.abc import Mapping
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from ingero_contract import attributes, metrics
from ingero_contract.identifiers import NodeKey, node_key
from ingero_fleet.cost.ledger import CostLedger
from ingero_kit.otlp_encode import pairs

EXPORT_SECONDS: Final = 60.0
MAX_EXPORTED: Final = 10_000
"""Most nodes in one export, the largest growth first."""


class CostExporter:
    """Exports, at most once a minute, every account that changed. Remembers the last exported value by node."""

    def __init__(self, now: float) -> None:
        self._last = now - EXPORT_SECONDS
        self._exported: dict[NodeKey, float] = {}

    def state(self) -> dict[str, Any]:
        """Everything that later exports depend on."""
        return {"last": self._last, "exported": list(self._exported.items())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned."""
        self._last = state["last"]
        self._exported = {node_key(*node): share for node, share in state["exported"]}

    def encode(self, ledger: CostLedger, currency: str) -> bytes | None:
        """One request with a sum for every account that grew; `None` when it is too early or nothing has changed.

        An account that is exported for the first time first gets a point of 0, so that its whole growth counts.
        """
        if ledger.last < self._last + EXPORT_SECONDS:
            return None
        self._exported = {node: share for node, share in self._exported.items() if node in ledger.stragglers}
        grown = [
            (node, account)
            for node, account in ledger.stragglers.items()
            if account.share > self._exported.get(node, 0.0)
        ]
        if not grown:
            return None
        self._last = ledger.last
        grown.sort(key=lambda item: self._exported.get(item[0], 0.0) - item[1].share)
        request = ExportMetricsServiceRequest()
        start = int(ledger.since * 1e9)
        for node, account in grown[:MAX_EXPORTED]:
            block = request.resource_metrics.add()
            block.resource.attributes.extend(pairs({attributes.CLUSTER_ID: node[0], attributes.NODE_ID: node[1]}))
            metric = block.scope_metrics.add().metrics.add(name=metrics.STRAGGLER_COST, unit=currency)
            metric.sum.is_monotonic = True
            metric.sum.aggregation_temporality = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
            job = pairs(
                {attributes.CURRENCY: currency, **({attributes.JOB_ID: name} if (name := account.job[1]) else {})}
            )
            points = [(ledger.last, account.share)]
            if node not in self._exported:
                points.insert(0, (ledger.last - account.seconds, 0.0))
            for moment, value in points:
                metric.sum.data_points.add(
                    start_time_unix_nano=start, time_unix_nano=int(moment * 1e9), as_double=value, attributes=job
                )
            self._exported[node] = account.share
        return request.SerializeToString()
