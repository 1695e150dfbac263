"""A store of Echo and the service that answers from it, in the test's own process."""

import asyncio
import time
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from ingero_contract import attributes, echo, metrics
from ingero_echo.auth import ANONYMOUS
from ingero_echo.ingest import decode_request
from ingero_echo.query_service import QueryService
from ingero_echo.settings import EchoConfig, StoreConfig
from ingero_echo.store import Store
from ingero_echo.writer import Writer
from ingero_kit.otlp_signal import Signal
from ingero_testing import telemetry

HOUR: Final = 3600 * 10**9


class Books:
    """A store and the query service that reads it, in this process."""

    def __init__(self, folder: Path) -> None:
        config = EchoConfig(insecure=True, store=StoreConfig(path=folder / "e.duckdb"))
        self.store = Store.open(config.store)
        self.writer = Writer(self.store, config.ingest)
        self.writer.start()
        self.service = QueryService(config, lambda: self.store)
        self.now = time.time_ns()

    def put(self, signal: Signal, message: Any) -> None:
        body = message.SerializeToString()
        batch = decode_request(signal, "protobuf", body, "", self.now, lambda _: True)
        assert not batch.rejected
        self.writer.put(batch, len(body)).result(60)

    def verdict(self, node: str, state: str, hours_ago: float, cluster: str = "c", **own: Any) -> None:
        at = self.now - int(hours_ago * HOUR)
        self.put(Signal.LOGS, telemetry.verdict(node, state, cluster, at, **own))

    def alive(self, node: str, cluster: str = "c") -> None:
        points: list[telemetry.Point] = [(metrics.HEALTH_SCORE, 0.9, {})]
        at = self.now - 10**9
        self.put(Signal.METRICS, telemetry.gauges(points, cluster, node, at, **{attributes.PROVIDER: "aws"}))

    def reports(self, node: str, first: float, last: float, cluster: str = "c", **own: Any) -> None:
        """Health reports of a node every 10 s, from one number of minutes ago to another."""
        request = ExportMetricsServiceRequest()
        for seconds in range(int(first * 60), int(last * 60), -10):
            at = self.now - seconds * 10**9
            request.MergeFrom(telemetry.gauges([(metrics.HEALTH_SCORE, 0.9, {})], cluster, node, at, **own))
        self.put(Signal.METRICS, request)

    def ask(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return asyncio.run(self.service.call(ANONYMOUS, echo.TOOL_PREFIX + tool, arguments)).body

    def close(self) -> None:
        """End its threads, and close the store."""
        self.service.close()
        self.writer.stop()
        self.store.close()
