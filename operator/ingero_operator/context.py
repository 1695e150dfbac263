"""The dependencies that the reconcilers share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from ingero_kit.clock import Clock
from ingero_operator.admission import NodePolicyProbe
from ingero_operator.api_client import ApiClient
from ingero_operator.audit_exporter import AuditExporter
from ingero_operator.children import ChildApplier
from ingero_operator.events import EventRecorder
from ingero_operator.failures import Failures
from ingero_operator.fleet_poller import FleetPoller
from ingero_operator.informer import Informer
from ingero_operator.pod_reader import PodReader
from ingero_operator.referenced import ReferencedObjects
from ingero_operator.render.common import Platform
from ingero_operator.settings import OperatorConfig
from ingero_operator.status_writer import StatusWriter
from ingero_operator.taints.health_events import HealthEvent
from ingero_operator.volume_usage import VolumeUsagePoller


class HealthEventSink(Protocol):
    """Takes health events and counts what became of them."""

    sent: int
    lost: int

    def export(self, event: HealthEvent) -> None:
        """Send an event in the background."""


@dataclass
class ReconcileContext:
    """The shared dependencies, wired once in `app.py`."""

    config: OperatorConfig
    clock: Clock
    leads: Callable[[], bool]
    """Whether this replica may still write to nodes."""
    api: ApiClient
    informer: Informer
    referenced: ReferencedObjects
    fleet_poller: FleetPoller
    volume_usage: VolumeUsagePoller
    applier: ChildApplier
    failures: Failures
    status: StatusWriter
    recorder: EventRecorder
    pods: PodReader
    audit_exporter: AuditExporter
    health_events: HealthEventSink | None
    """NVSentinel, if it is configured."""
    admission: NodePolicyProbe
    """Of writes to nodes."""
    status_admission: NodePolicyProbe
    """Of writes to the status of nodes."""
    platform: Platform = field(default_factory=Platform)
