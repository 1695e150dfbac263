"""Exports health events to NVSentinel's platform connector over gRPC.

The service is `datamodels.PlatformConnector/HealthEventOccurredV1` of NVSentinel's `health_event.proto`. The
connector that runs as a Deployment takes events about any node from the service accounts that it lists. It requires
TLS, the token of the service account, and a key that makes a repeated request harmless. This module is imported only
if it is configured.
"""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, empty_pb2, message_factory, timestamp_pb2

from ingero_kit.clock import Clock
from ingero_operator.retrying_exporter import Refused, RetryingExporter, TryAgain
from ingero_operator.taints.health_events import HealthEvent
from ingero_operator.tasks import Tasks

METHOD: Final = "/datamodels.PlatformConnector/HealthEventOccurredV1"
KEY_HEADER: Final = "idempotency-key"
AGENT: Final = "ingero"
CHECK: Final = "IngeroStraggler"
STORE_ONLY: Final = 2
NO_ACTION: Final = 0
SEND_SECONDS: Final = 10.0
PERMANENT: Final = frozenset(
    {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OUT_OF_RANGE}
)
"""Statuses after which a retry cannot help. A refused token may be replaced, and a refused account listed."""


def _message_types() -> tuple[Any, Any]:
    """The classes `HealthEvents` and `HealthEvent`, with the fields that are used here."""
    field = descriptor_pb2.FieldDescriptorProto
    kinds = {
        "uint32": field.TYPE_UINT32,
        "string": field.TYPE_STRING,
        "bool": field.TYPE_BOOL,
        "enum": field.TYPE_INT32,
    }
    file = descriptor_pb2.FileDescriptorProto(
        name="ingero/nvsentinel_health_event.proto", package="datamodels", syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )  # fmt: skip

    def message(parent: Any, name: str, *fields: tuple[int, str, str], repeated: Iterable[str] = ()) -> Any:
        found = parent.add(name=name)
        for number, name, kind in fields:
            label = field.LABEL_REPEATED if name in repeated else field.LABEL_OPTIONAL
            if kind in kinds:
                found.field.add(name=name, number=number, type=kinds[kind], label=label)
            else:
                found.field.add(name=name, number=number, type=field.TYPE_MESSAGE, type_name=kind, label=label)
        return found

    message(
        file.message_type, "HealthEvents", (1, "version", "uint32"), (2, "events", ".datamodels.HealthEvent"),
        repeated=("events",),
    )  # fmt: skip
    message(file.message_type, "Entity", (1, "entityType", "string"), (2, "entityValue", "string"))
    event = message(
        file.message_type, "HealthEvent", (1, "version", "uint32"), (2, "agent", "string"),
        (3, "componentClass", "string"), (4, "checkName", "string"), (5, "isFatal", "bool"), (6, "isHealthy", "bool"),
        (7, "message", "string"), (8, "recommendedAction", "enum"), (9, "errorCode", "string"),
        (10, "entitiesImpacted", ".datamodels.Entity"), (11, "metadata", ".datamodels.HealthEvent.MetadataEntry"),
        (12, "generatedTimestamp", ".google.protobuf.Timestamp"), (13, "nodeName", "string"),
        (16, "processingStrategy", "enum"), repeated=("errorCode", "entitiesImpacted", "metadata"),
    )  # fmt: skip
    entry = message(event.nested_type, "MetadataEntry", (1, "key", "string"), (2, "value", "string"))
    entry.options.map_entry = True
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    names = "datamodels.HealthEvents", "datamodels.HealthEvent"
    batch, one = (message_factory.GetMessageClass(pool.FindMessageTypeByName(name)) for name in names)
    return batch, one


HealthEvents, _ = _message_types()


def request_of(event: HealthEvent) -> bytes:
    """The encoded request for one event."""
    request = HealthEvents(version=1)
    found = request.events.add(
        version=1, agent=AGENT, componentClass="Node", checkName=CHECK, isFatal=False, isHealthy=event.healthy,
        message=event.message, recommendedAction=NO_ACTION, nodeName=event.node, metadata=event.metadata,
        errorCode=() if event.healthy else ("INGERO_STRAGGLER",), processingStrategy=STORE_ONLY,
    )  # fmt: skip
    found.entitiesImpacted.add(entityType="NODE", entityValue=event.node)
    found.generatedTimestamp.FromMilliseconds(int(event.time * 1000))
    encoded: bytes = request.SerializeToString()
    return encoded


class HealthEventExporter(RetryingExporter):
    """Exports health events. Certificate and token are read again for every request, so that they may be replaced."""

    def __init__(self, clock: Clock, endpoint: str, ca: Path | None, token: Path | None, tasks: Tasks) -> None:
        super().__init__(clock, tasks=tasks)
        self._endpoint, self._ca, self._token = endpoint, ca, token

    def export(self, event: HealthEvent) -> None:
        """Send an event in the background."""
        self.start("health event", partial(self._send, request_of(event), event.key))

    async def _send(self, body: bytes, key: str) -> None:
        metadata = [(KEY_HEADER, key)]
        try:
            if self._token:
                metadata.append(("authorization", f"Bearer {self._token.read_text().strip()}"))
            credentials = grpc.ssl_channel_credentials(self._ca.read_bytes() if self._ca else None)
        except OSError as error:
            raise TryAgain(f"{error.filename}: {error.strerror}") from error
        async with grpc.aio.secure_channel(self._endpoint, credentials) as channel:
            call = channel.unary_unary(METHOD, None, empty_pb2.Empty.FromString)
            try:
                await call(body, timeout=SEND_SECONDS, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                why = f"NVSentinel answers {error.code().name}: {(error.details() or '')[:200]}"
                raise (Refused if error.code() in PERMANENT else TryAgain)(why) from error
