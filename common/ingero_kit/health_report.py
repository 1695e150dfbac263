"""The health report of one node, and the result of decoding a payload of several. Pure data."""

from dataclasses import dataclass, field
from typing import Final

from ingero_contract import metrics
from ingero_contract.identifiers import NodeKey
from ingero_contract.signals import SIGNALS
from ingero_contract.values import NodeState

MAX_NAME: Final = 253
"""Longest node or cluster id, characters: the longest Kubernetes node name."""

MAX_INSTANCE: Final = 64
"""Longest instance id of an agent that is kept, characters; longer ones are cut."""

MAX_LABEL: Final = 256
"""Longest value of any other attribute that is kept, characters; longer ones are cut."""

FUTURE_SECONDS: Final = 3600.0
"""How far ahead of the receiver's clock a point's time may be."""


class MalformedPayload(Exception):
    """The payload as a whole cannot be read; the text says why."""


@dataclass(slots=True, kw_only=True)
class HealthReport:
    """What one node reports about itself in one push.

    `score` and the four signals are 0 to 1; `rate` is absolute work a second; `time_unix_nano` is the sender's clock,
    0 when not given; `instance_id` is new with every start of the agent, and empty where it sends none.
    """

    node_id: str
    cluster_id: str
    state: NodeState = NodeState.ACTIVE
    score: float = 0.0
    throughput: float | None = None
    compute: float | None = None
    memory: float | None = None
    cpu: float | None = None
    rate: float | None = None
    degraded: bool = False
    detection_mode: str = ""
    decision_source: str = ""
    fleet_reachable: bool = True
    workload_type: str = ""
    cgroup_path_hash: str = ""
    world_size: int = 0
    rank: int | None = None
    provider: str = ""
    gpu_model: str = ""
    gpu_count: int = 0
    job_id: str = ""
    stage: str = ""
    last_verdict: str = ""
    instance_id: str = ""
    time_unix_nano: int = 0


@dataclass(slots=True)
class DecodedReports:
    """The content of a payload: reports, straggler events of the agents (node, cluster, is straggler), errors.

    `rejected` counts data points. `reasons` counts, by short text, why they and other parts were left out.
    """

    reports: list[HealthReport] = field(default_factory=list)
    events: list[tuple[str, str, bool]] = field(default_factory=list)
    other_points: int = 0
    collective_points: int = 0
    rejected: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    repaired: bytes | None = None
    """The payload without its unreadable parts; `None` if there were none."""
    sender: NodeKey | None = None
    """The node that all resources of a payload without reports name; `None` if they name several."""

    def reject(self, reason: str, count: int = 1) -> None:
        """Count points that are left out."""
        self.rejected += count
        self.reasons[reason] = self.reasons.get(reason, 0) + count

    @property
    def message(self) -> str:
        """The reasons in one line for the sender; empty when nothing was wrong."""
        return format_reasons(self.reasons)


def format_reasons(reasons: dict[str, int]) -> str:
    """Reasons with their counts in one line, for the sender."""
    return "; ".join(f"{reason} ({count})" for reason, count in reasons.items())


def check_name(name: str) -> str | None:
    """What is wrong with a node or cluster id; `None` if it is valid."""
    if not name:
        return "is empty"
    if len(name) > MAX_NAME:
        return f"is longer than {MAX_NAME} characters"
    if not name.isprintable():
        return "holds control characters"
    if "\ufffd" in name:
        return "holds characters that cannot be read"
    return None


SIGNAL_METRICS: Final[tuple[tuple[str, str], ...]] = (
    (metrics.HEALTH_SCORE, "score"),
    *((row.metric, str(row.signal)) for row in SIGNALS),
    (metrics.THROUGHPUT_RATE, "rate"),
)
