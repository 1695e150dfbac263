"""The three signals of OTLP and its two encodings, for senders and receivers. Pure."""

from enum import Enum
from typing import Literal

from ingero_contract import routes

Encoding = Literal["protobuf", "json"]


class Signal(Enum):
    """The three OTLP signals, with their HTTP path, gRPC method and the partial success field's counter."""

    METRICS = (routes.OTLP_METRICS, "metrics.v1.MetricsService", "rejectedDataPoints")
    LOGS = (routes.OTLP_LOGS, "logs.v1.LogsService", "rejectedLogRecords")
    TRACES = (routes.OTLP_TRACES, "trace.v1.TraceService", "rejectedSpans")

    __hash__ = object.__hash__  # members are singletons; the inherited method hashes the name every time

    @property
    def path(self) -> str:
        """HTTP path."""
        return self.value[0]

    @property
    def grpc_method(self) -> str:
        """Full gRPC method name."""
        return f"/opentelemetry.proto.collector.{self.value[1]}/Export"

    @property
    def rejected_field(self) -> str:
        """JSON name of the count in `partialSuccess`."""
        return self.value[2]
