"""The answers to pushes: thresholds and verdicts of the latest tick. Replaced as a whole, read from any thread."""

import functools
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from ingero_contract import headers
from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.cohorts import CohortKey
from ingero_detect.threshold import HIGHEST, LOWEST
from ingero_kit.health_report import HealthReport
from ingero_kit.otlp_receiver import ACCEPTED, Answer

COLLECTIVES_KEY: Final = ";collectives="
"""What a verdict line has before the kind of accusation of a node that collectives wait for."""


@functools.cache
def cohort_of(by: tuple[str, ...]) -> Callable[[HealthReport], CohortKey]:
    """The function that returns the cohort of a report; one for each setting."""
    if not by:
        return lambda report: (report.cluster_id,)
    return operator.attrgetter("cluster_id", *by)


@dataclass(frozen=True)
class NodeVerdicts:
    """The verdict lines that nodes get: most of them `default`, the others their own; an empty line is not sent.

    `as_of` is the time of the snapshot; nodes that came later get no line.
    """

    default: str = ""
    overrides: Mapping[NodeKey, str] = field(default_factory=dict)
    as_of: float = 0.0


def with_collectives(verdicts: NodeVerdicts, kinds: Mapping[NodeKey, str]) -> NodeVerdicts:
    """Add to the lines of nodes that collectives wait for why, by `kinds`. Nodes without a line get none."""
    lines = {
        key: f"{line}{COLLECTIVES_KEY}{kind}"
        for key, kind in kinds.items()
        if (line := verdicts.overrides.get(key, verdicts.default))
    }
    return replace(verdicts, overrides={**verdicts.overrides, **lines}) if lines else verdicts


def without(verdicts: NodeVerdicts, nodes: Iterable[NodeKey]) -> NodeVerdicts:
    """Send no lines to these nodes."""
    silent = dict.fromkeys(nodes, "")
    return replace(verdicts, overrides={**verdicts.overrides, **silent}) if silent else verdicts


@dataclass(frozen=True)
class VerdictCache:
    """Thresholds of the cohorts that have a quorum, and the verdict line of every judged node.

    A cohort without a quorum is absent: its nodes get no headers and ask the threshold API instead.
    """

    by: tuple[str, ...] = ()
    thresholds: Mapping[CohortKey, float] = field(default_factory=dict)
    verdicts: NodeVerdicts = NodeVerdicts()
    _answers: dict[tuple[float | None, str], Answer] = field(default_factory=dict, repr=False, compare=False)
    _cohort: Callable[[HealthReport], CohortKey] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_cohort", cohort_of(self.by))

    def answer(self, report: HealthReport, node: NodeKey, first_seen: float) -> Answer:
        """The answer to a report of a node first seen at `first_seen`; shared by nodes with the same line."""
        threshold = self.thresholds.get(self._cohort(report))
        verdict, verdicts = "", self.verdicts
        if first_seen <= verdicts.as_of:
            verdict = verdicts.overrides.get(node, verdicts.default)
        return self._built(threshold, verdict)

    def answer_tracer(self, node: NodeKey) -> Answer:
        """The answer to a tracer's push, which has no report: the verdict line if collectives wait for the node."""
        verdict = self.verdicts.overrides.get(node, "")
        return self._built(None, verdict) if COLLECTIVES_KEY in verdict else ACCEPTED

    def _built(self, threshold: float | None, verdict: str) -> Answer:
        known = self._answers.get((threshold, verdict))
        if known is None:
            known = self._answers[(threshold, verdict)] = build_answer(threshold, verdict)
        return known


def build_answer(threshold: float | None, verdict: str) -> Answer:
    """Put threshold and verdict into HTTP headers and gRPC metadata; without both there is no header."""
    if threshold is None and not verdict:
        return ACCEPTED
    lines: list[str] = []
    metadata: list[tuple[str, str]] = []
    if threshold is not None:
        text = f"{min(max(threshold, LOWEST), HIGHEST):.6f}"
        lines += [f"{headers.THRESHOLD}: {text}", f"{headers.QUORUM_MET}: true"]
        metadata += [(headers.GRPC_THRESHOLD, text), (headers.GRPC_QUORUM_MET, "true")]
    if verdict:
        lines.append(f"{headers.VERDICT}: {verdict}")
        metadata.append((headers.GRPC_VERDICT, verdict))
    return Answer(http_headers="".join(f"{line}\r\n" for line in lines).encode("latin-1"), metadata=tuple(metadata))
