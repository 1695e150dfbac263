"""The detector that Fleet runs, as the judge of a recorded history."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from ingero_analyze.replay.common_levels import CommonLevels
from ingero_analyze.replay.recorded_history import RecordedTick
from ingero_contract.identifiers import NodeKey
from ingero_detect.nodes.column_store import ColumnStore
from ingero_detect.nodes.detector import Detector
from ingero_detect.nodes.fingerprint import processor_text, state_hash
from ingero_detect.nodes.observation import Edge, JobSlow
from ingero_detect.nodes.parameters import Parameters
from ingero_detect.nodes.verdicts import Verdict
from ingero_fleet.recording import MAX_STATES_BYTES, STATES_SUFFIX


@dataclass
class RecordedStates:
    """State hash and processor by digest, and how many of them were compared and differ."""

    known: dict[str, tuple[str, str]] = field(default_factory=dict)
    compared: int = 0
    differ: int = 0
    recorded_with: str = ""

    @classmethod
    def read(cls, files: Iterable[str]) -> Self:
        """The states next to these files; lines that cannot be read are left out."""
        found = cls()
        for file in files:
            with suppress(OSError), Path(file + STATES_SUFFIX).open(encoding="utf-8", errors="replace") as stream:
                for line in stream.read(2 * MAX_STATES_BYTES).splitlines():
                    digest, _, rest = line.partition(",")
                    hashed, _, processor = rest.partition(",")
                    if hashed and processor:
                        found.known[digest] = hashed, processor
        return found

    def compare(self, digest: str, memory: ColumnStore) -> None:
        """Compare the state after a tick, if it was recorded."""
        if digest in self.known:
            recorded, processor = self.known[digest]
            self.compared += 1
            if recorded != state_hash(memory):
                self.differ += 1
                self.recorded_with = self.recorded_with or processor

    def summary(self) -> dict[str, Any] | None:
        """What was compared; `None` if nothing was recorded."""
        if not self.compared:
            return None
        return {
            "compared": self.compared, "differ": self.differ, "recorded_with": self.recorded_with or None,
            "replayed_with": processor_text(),
        }  # fmt: skip


class DetectorJudge:
    """The detector that Fleet runs."""

    def __init__(self, parameters: Parameters, mergeable: tuple[int, ...], counts: bool = True) -> None:
        self.detector = Detector(parameters, mergeable, counts=counts)
        self.digest = ""
        self.states = RecordedStates()
        self.jobs: dict[tuple[str, ...], JobSlow] = {}
        self.levels: CommonLevels | None = None
        """Tells whether jobs were slow by more than chance, where that is asked."""

    @property
    def node_hours(self) -> float:
        """Node-hours judged."""
        return self.detector.node_hours

    def tick(self, moment: RecordedTick) -> list[Edge]:
        """Judge one tick."""
        outcome = self.detector.tick(moment.now, moment.seen)
        self.digest = outcome.digest
        self.states.compare(outcome.digest, self.detector.memory)
        for job in outcome.jobs:
            self.jobs.setdefault((*job.cohort, str(job.since)), job)
        if self.levels is not None:
            self.levels.note(moment.now, self.detector.memory)
        return outcome.edges

    def open_verdicts(self, nodes: list[NodeKey]) -> Iterator[Verdict]:
        """The present verdicts of nodes that are accused."""
        for node in nodes:
            slot = self.detector.memory.slot(node)
            if slot is not None:
                yield self.detector.verdict(slot)

    def counted(self) -> bool:
        """Whether values of a cohort are small numbers of events."""
        return bool((self.detector.memory.group("counted") > 0.5).any())

    def names(self) -> list[NodeKey]:
        """Nodes by slot."""
        return self.detector.memory.names

    def speeds(self) -> npt.NDArray[np.float32]:
        """Value over expectation."""
        memory = self.detector.memory
        with np.errstate(divide="ignore", over="ignore"):
            speed = memory.node("value") / np.exp(memory.node("expected"))
        found: npt.NDArray[np.float32] = np.where(memory.node("absent") > 0, np.nan, speed).astype(np.float32)
        return found

    def summary(self) -> dict[str, Any]:
        """Budget, estimates, parameters, digest, jobs that slowed down as a whole."""
        estimates = self.detector.estimates()
        jobs = self.jobs.values() if self.levels is None else self.levels.proven(self.jobs.values())
        rate = max(estimates["own_tail"], estimates["mirror"])
        return {
            "budget": self.detector.parameters.budget,
            "estimated_false_alarms": float(f"{rate * self.node_hours:.4g}"),
            "parameters": asdict(self.detector.parameters),
            "digest": self.digest,
            "state_hash": state_hash(self.detector.memory),
            "recorded_states": self.states.summary(),
            "small_cohorts": self._small_cohorts(),
            "job_slow": [
                {"cohort": "/".join(filter(None, job.cohort)), "since": job.since, "severity": round(job.severity, 4)}
                for job in jobs
            ],
        }

    def _small_cohorts(self) -> dict[str, int]:
        """By cohort the number of its nodes, for cohorts whose nodes are too few to be compared at the end."""
        memory = self.detector.memory
        sizes = zip(memory.groups, memory.group("size").tolist(), strict=True)
        fewest = self.detector.parameters.min_peers
        return {"/".join(filter(None, key)): size for key, size in sizes if 0 < size < fewest}
