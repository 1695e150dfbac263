"""The score map: the latest report of every node, in columns, bounded, forgotten after a time to live."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from ingero_contract.identifiers import NodeKey, node_key
from ingero_contract.signals import SIGNALS
from ingero_contract.values import NodeState
from ingero_contract.verdicts import ACTIONABLE
from ingero_detect.nodes.cohorts import CohortKey
from ingero_fleet.agent_instances import AgentInstances, instance_code
from ingero_fleet.processor_settings import IngeroConfig
from ingero_fleet.verdict_cache import cohort_of
from ingero_kit.health_report import HealthReport

STATES: Final = (NodeState.CALIBRATING, NodeState.ACTIVE, NodeState.IDLE)
"""Codes of the state column."""

_NOT_GIVEN: Final = float("nan")
_CODES: Final = {state: code for code, state in enumerate(STATES)}
_ACCUSED: Final = tuple(str(state) for state in ACTIONABLE)
"""Prefixes of the verdict line of an accused node."""

ACTIVE: Final = _CODES[NodeState.ACTIVE]
IDLE: Final = _CODES[NodeState.IDLE]
CALIBRATING: Final = _CODES[NodeState.CALIBRATING]

_SIGNALS: Final = tuple(str(row.signal) for row in SIGNALS)

COLUMNS: Final = {
    "score": np.float64,
    "rate": np.float64,
    "seen": np.float64,
    "since": np.float64,
    "first_seen": np.float64,
    **dict.fromkeys(_SIGNALS, np.float32),
    "cohort": np.int32,
    "hardware": np.int32,
    "world_size": np.int32,
    "rank": np.int32,
    "windows": np.int32,
    "pushes": np.int64,
    "sent_ns": np.int64,
    "tenancy": np.int64,
    "instance": np.int64,
    "state": np.uint8,
    "alive": np.bool_,
    "fresh": np.bool_,
    "straggling": np.bool_,
}
"""Columns and their types."""


FEW_COHORTS: Final = 64
"""Cohorts below which those without nodes are kept: they cost next to nothing."""

FASTEST_CLOCK: Final = 2.0
"""Seconds that a sender's clock may advance in one second of the receiver's, with delays on the way."""

MAX_HARDWARE: Final = 4096
"""Kinds of hardware that are distinguished; further ones count as unknown."""


class Hardware(NamedTuple):
    """Provider and GPUs as a node reported them; empty and 0 where it reported nothing."""

    provider: str = ""
    model: str = ""
    gpus: int = 0


BATCH_COLUMNS: Final = (
    "score", "rate", "seen", "first_seen", *_SIGNALS, "cohort", "hardware",
    "world_size", "rank", "pushes", "sent_ns", "state", "instance",
)  # fmt: skip
"""Columns of a report that are copied from one score map to another."""

BATCH_RECORD: Final = np.dtype([(name, COLUMNS[name]) for name in BATCH_COLUMNS])
"""The same as a record."""


@dataclass(frozen=True)
class ReportBatch:
    """The latest reports of some nodes. `records["cohort"]` and `["hardware"]` are indices into the batch's lists.

    `pushes` counts those since the last batch; `last_verdicts` holds the verdict that a node last received, by index;
    `several` says how many seconds before its latest report a node was last known to have several agents, by index.
    """

    names: list[NodeKey]
    cohorts: list[CohortKey]
    hardware: list[Hardware]
    records: npt.NDArray[np.void]
    last_verdicts: dict[int, str]
    several: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ScoreLimits:
    """Bounds of the score map."""

    nodes: int
    clusters: int
    ttl_seconds: float
    cohorts: int = 10_000


class ScoreTable:
    """Columns by row; a node keeps its row while it lives. Not thread-safe: one owner.

    `since` and `windows` belong to the threshold rule: when the node fell below and for how many ticks since.
    `first_seen` is the time of the node's first report, `sent_ns` the sender's time in its latest report, in
    nanoseconds, 0 for none. `tenancy` distinguishes the nodes that have used a row; `instance` is the agent process
    that reported last.
    """

    def __init__(self, limits: ScoreLimits, by: tuple[str, ...]) -> None:
        self.limits = limits
        self.by = by
        self._cohort = cohort_of(by)
        self.losses: Counter[str] = Counter()
        """What the score map did not keep, by reason."""
        self.names: list[NodeKey] = []
        self.cohorts: list[CohortKey] = []
        self.last_verdict: dict[int, str] = {}
        """The accusations that nodes echoed since the last tick, by row."""
        self._columns: dict[str, npt.NDArray[Any]] = {name: np.zeros(1024, dtype) for name, dtype in COLUMNS.items()}
        self._cells: dict[str, memoryview[Any]] = {name: column.data for name, column in self._columns.items()}
        """Views of the columns' memory: writing one number through them takes a third of the time."""
        self.instances = AgentInstances(limits.ttl_seconds)
        self._rows: dict[NodeKey, int] = {}
        self._free: list[int] = []
        self._roster: list[NodeKey] | None = None
        self._tenancies = 0
        self._cohort_ids: dict[CohortKey, int] = {}
        self._ttl_nanos = int(limits.ttl_seconds * 1e9)
        self.hardware = [Hardware()]
        self._hardware_ids: dict[tuple[str, str, int], int] = {Hardware(): 0}
        self._clusters: dict[str, int] = {}
        self._texts: dict[str, str] = {}
        self._late: dict[int, tuple[float, int]] = {}
        """Arrival and time of the latest report of a node, by row, where it was late."""
        self._encoded_names: tuple[list[NodeKey] | None, bytes] = (None, b"")

    @classmethod
    def of(cls, config: IngeroConfig) -> "ScoreTable":
        """An empty score map with the bounds of these settings."""
        ttl_seconds = config.push_interval * config.ttl_multiplier
        return cls(
            ScoreLimits(config.max_nodes, config.max_clusters, ttl_seconds, config.max_cohorts), config.cohort.by
        )

    def __len__(self) -> int:
        return len(self._rows)

    def view(self, name: str) -> npt.NDArray[Any]:
        """One column in place, rows that are not `alive` included; valid until the next `observe`."""
        return self._columns[name][: len(self.names)]

    def roster(self) -> list[NodeKey]:
        """The names by row, not to be changed: the same list object while no node comes or goes."""
        if self._roster is None:
            self._roster = list(self.names)
        return self._roster

    def row_of(self, node: NodeKey) -> int | None:
        """The row of a node; `None` when unknown."""
        return self._rows.get(node)

    def first_seen(self, row: int) -> float:
        """The time of the first report of the node in a row."""
        return float(self._cells["first_seen"][row])

    def observe(self, report: HealthReport, now: float) -> int | str:
        """Take a report; returns the node's row, or the reason why the report was not taken."""
        node = node_key(report.cluster_id, report.node_id)
        row = self._rows.get(node)
        cohort = self._cohort_number(self._cohort(report))
        if cohort is None:
            return "Fleet keeps no more cohorts (processors.ingero.max_cohorts)"
        if row is None:
            taken = self._add_node(node, now)
            if isinstance(taken, str):
                return taken
            row = taken
        cells, state, sent_ns = self._cells, _CODES[report.state], report.time_unix_nano
        instance = instance_code(report.instance_id)
        if instance != cells["instance"][row] or row in self.instances:
            self._note_instance(row, instance, sent_ns, now)
        if sent_ns and 0 < cells["sent_ns"][row] - sent_ns < self._ttl_nanos and self._is_late(row, sent_ns, now):
            self.losses["late_reports"] += 1
            return row
        if self._late:
            self._late.pop(row, None)
        cells["sent_ns"][row] = sent_ns
        cells["cohort"][row] = cohort
        cells["hardware"][row] = self._hardware_number((report.provider, report.gpu_model, report.gpu_count))
        cells["score"][row] = report.score
        cells["state"][row] = state
        cells["seen"][row] = now
        cells["rate"][row] = _NOT_GIVEN if report.rate is None else report.rate
        for name in _SIGNALS:
            value = getattr(report, name)
            cells[name][row] = _NOT_GIVEN if value is None else value
        world_size = report.world_size
        if world_size > self.limits.nodes:
            self.losses["world_sizes_over_limit"] += 1
            world_size = 0
        cells["world_size"][row] = world_size
        cells["rank"][row] = -1 if report.rank is None else report.rank
        cells["pushes"][row] += 1
        cells["fresh"][row] = True
        if report.last_verdict and report.last_verdict.startswith(_ACCUSED):
            self.last_verdict[row] = report.last_verdict
        return row

    def _is_late(self, row: int, sent_ns: int, now: float) -> bool:
        """Whether a report with an older time than its predecessor is a retry, or came on a slower route.

        Otherwise the sender's clock was set back: then the next report, too, is older, and follows this one at the
        pace of that clock, while a queue delivers faster. A clock set back by more than the time to live is not asked
        about.
        """
        before = self._late.get(row)
        self._late[row] = (now, sent_ns)
        return before is None or not 0 < sent_ns - before[1] <= FASTEST_CLOCK * 1e9 * (now - before[0])

    def _note_instance(self, row: int, instance: int, sent_ns: int, now: float) -> None:
        """The report comes from another process than the previous one, or did so of late."""
        cells = self._cells
        if self.instances.note(row, (cells["instance"][row], cells["sent_ns"][row]), instance, sent_ns, now):
            self.losses["contradicting_reports"] += 1
        if now >= cells["seen"][row]:
            cells["instance"][row] = instance

    def take_fresh(self, most: int) -> "ReportBatch":
        """Return, and no longer count as fresh, the fresh reports of at most `most` nodes."""
        rows = np.flatnonzero(self.view("fresh") & self.view("alive"))[:most]
        records = np.empty(len(rows), BATCH_RECORD)
        for name in BATCH_COLUMNS:
            records[name] = self._columns[name][rows]
        cohorts, records["cohort"] = np.unique(records["cohort"], return_inverse=True)
        hardware, records["hardware"] = np.unique(records["hardware"], return_inverse=True)
        self._columns["fresh"][rows] = False
        self._columns["pushes"][rows] = 0
        last_verdicts = self.last_verdict
        places = rows.tolist()
        proven = self.instances.proven()
        return ReportBatch(
            [self.names[row] for row in places],
            [self.cohorts[number] for number in cohorts.tolist()],
            [self.hardware[number] for number in hardware.tolist()],
            records,
            {place: last_verdicts.pop(row) for place, row in enumerate(places) if row in last_verdicts}
            if last_verdicts
            else {},
            {place: float(records["seen"][place]) - proven[row] for place, row in enumerate(places) if row in proven}
            if proven
            else {},
        )

    def merge(self, batch: "ReportBatch") -> None:
        """Merge reports of another score map, except where this one has a later report of the node."""
        rows = np.empty(len(batch.names), np.int64)
        records = batch.records
        cohorts = np.array([_none_as(self._cohort_number(key)) for key in batch.cohorts], np.int32)
        homeless = (cohorts < 0)[records["cohort"]].tolist()
        for place, node in enumerate(batch.names):
            row = self._rows.get(node)
            if homeless[place]:
                row = -1
            elif row is None:
                taken = self._add_node(node, float(records["first_seen"][place]))
                row = -1 if isinstance(taken, str) else taken
            rows[place] = row
        hardware = np.array([self._hardware_number(item) for item in batch.hardware], np.int32)
        places = np.flatnonzero(rows >= 0)
        rows, records = rows[places], records[places]
        self._merge_instances(places, rows, records, batch.several)
        pushes, first_seen = self._columns["pushes"], self._columns["first_seen"]
        pushes[rows] += records["pushes"]
        first_seen[rows] = np.minimum(first_seen[rows], records["first_seen"])
        self._columns["fresh"][rows] = True
        behind = self._columns["sent_ns"][rows] - records["sent_ns"]
        late = (records["sent_ns"] > 0) & (behind > 0) & (behind < self._ttl_nanos)
        for place in np.flatnonzero(late).tolist():
            sent_ns, seen = int(records["sent_ns"][place]), float(records["seen"][place])
            late[place] = self._is_late(int(rows[place]), sent_ns, seen)
        for row in rows[~late].tolist() if self._late else ():
            self._late.pop(row, None)
        latest = np.flatnonzero((records["seen"] >= self._columns["seen"][rows]) & ~late)
        places, rows, records = places[latest], rows[latest], records[latest]
        for name in BATCH_COLUMNS:
            if name not in ("pushes", "first_seen"):
                self._columns[name][rows] = records[name]
        self._columns["cohort"][rows] = cohorts[records["cohort"]]
        self._columns["hardware"][rows] = hardware[records["hardware"]]
        kept = dict(zip(places.tolist(), rows.tolist(), strict=True))
        self.last_verdict.update({kept[place]: text for place, text in batch.last_verdicts.items() if place in kept})

    def _merge_instances(
        self,
        places: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        records: npt.NDArray[np.void],
        several: Mapping[int, float],
    ) -> None:
        """Compare the agents of a batch with those of the nodes' last reports."""
        changed = records["instance"] != self._columns["instance"][rows]
        for at in np.flatnonzero(changed | np.isin(rows, self.instances.tracked())).tolist():
            record = records[at]
            self._note_instance(int(rows[at]), int(record["instance"]), int(record["sent_ns"]), float(record["seen"]))
        for at in np.flatnonzero(np.isin(places, list(several))).tolist():
            self.instances.mark(int(rows[at]), float(records["seen"][at]) - several[int(places[at])])

    def state(self) -> dict[str, Any]:
        """A copy of everything that later steps depend on."""
        length, roster = len(self.names), self.roster()
        if self._encoded_names[0] is not roster:
            self._encoded_names = roster, orjson.dumps(roster)
        return {
            "names": self._encoded_names[1],
            "cohorts": list(self.cohorts),
            "hardware": list(self.hardware),
            "free": np.array(self._free, np.int64),
            "last_verdict": list(self.last_verdict.items()),
            "tenancies": self._tenancies,
            "instances": self.instances.state(),
            "late": [[row, *found] for row, found in self._late.items()],
            "columns": {name: column[:length].copy() for name, column in self._columns.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state` returned; signals that it does not have yet count as not reported.

        The list of hardware stays the same object.
        """
        names = [node_key(cluster, node) for cluster, node in orjson.loads(bytes(state["names"]))]
        self._free = state["free"].tolist()
        free = set(self._free)
        self.names, self._roster = names, None
        self._rows = {name: row for row, name in enumerate(names) if row not in free}
        self._clusters = dict(Counter(cluster for cluster, _ in self._rows))
        self._texts = {cluster: cluster for cluster in self._clusters}
        self.cohorts = [tuple(key) for key in state["cohorts"]]
        self._cohort_ids = {key: number for number, key in enumerate(self.cohorts)}
        self.hardware[:] = [Hardware(*item) for item in state["hardware"]]
        self._hardware_ids = {item: number for number, item in enumerate(self.hardware)}
        self.last_verdict = dict(state["last_verdict"])
        self._tenancies = state["tenancies"]
        self.instances.restore(state.get("instances", []))
        self._late = {row: (now, sent_ns) for row, now, sent_ns in state.get("late", [])}
        size = max(1024, len(names))
        for name, dtype in COLUMNS.items():
            column: npt.NDArray[Any] = np.zeros(size, dtype)
            column[: len(names)] = state["columns"].get(name, _NOT_GIVEN if name in _SIGNALS else 0)
            self._columns[name], self._cells[name] = column, column.data

    def _cohort_number(self, key: CohortKey) -> int | None:
        """The number of a cohort; `None`, counted, when the limit is reached."""
        number = self._cohort_ids.get(key)
        if number is None:
            if len(self.cohorts) >= self.limits.cohorts:
                self.losses["cohorts_over_limit"] += 1
                return None
            number = self._cohort_ids[key] = len(self.cohorts)
            self.cohorts.append(key)
        return number

    def _hardware_number(self, item: tuple[str, str, int]) -> int:
        code = self._hardware_ids.get(item)
        if code is None:
            if len(self.hardware) >= MAX_HARDWARE:
                return 0
            code = self._hardware_ids[item] = len(self.hardware)
            self.hardware.append(Hardware(*item))
        return code

    def _add_node(self, node: NodeKey, now: float) -> int | str:
        if len(self._rows) >= self.limits.nodes:
            self.losses["nodes_over_limit"] += 1
            return "Fleet keeps no more nodes (processors.ingero.max_nodes)"
        cluster = node[0]
        if cluster not in self._clusters and len(self._clusters) >= self.limits.clusters:
            self.losses["clusters_over_limit"] += 1
            return "Fleet keeps no more clusters (processors.ingero.max_clusters)"
        self._clusters[cluster] = self._clusters.get(cluster, 0) + 1
        node = node_key(self._texts.setdefault(cluster, cluster), node[1])
        self._roster = None
        if self._free:
            row = self._free.pop()
            self.names[row] = node
        else:
            row = len(self.names)
            self.names.append(node)
            if row == len(self._columns["score"]):
                self._grow()
        self._rows[node] = row
        for name, column in self._columns.items():
            column[row] = name == "alive"
        self._tenancies += 1
        self._columns["first_seen"][row], self._columns["tenancy"][row] = now, self._tenancies
        return row

    def _grow(self) -> None:
        for name, column in self._columns.items():
            wider = np.zeros(2 * len(column), column.dtype)
            wider[: len(column)] = column
            self._columns[name] = wider
            self._cells[name] = wider.data

    def excuse(self, seconds: float, latest: float) -> None:
        """Do not count the last `seconds` as silence of any node; no node counts as seen after `latest` by this."""
        seen = self._columns["seen"][: len(self.names)]
        np.maximum(seen, np.minimum(seen + seconds, latest), out=seen)

    def expire(self, now: float) -> list[NodeKey]:
        """Forget nodes that have been silent for longer than the time to live; returns their names."""
        length = len(self.names)
        seen, alive = self._columns["seen"][:length], self._columns["alive"][:length]
        gone = np.flatnonzero(alive & (now - seen > self.limits.ttl_seconds))
        names = []
        for row in gone.tolist():
            node = self.names[row]
            names.append(node)
            del self._rows[node]
            self.last_verdict.pop(row, None)
            self.instances.forget(row)
            self._late.pop(row, None)
            alive[row] = False
            self._roster = None
            self._free.append(row)
            self._clusters[node[0]] -= 1
            if not self._clusters[node[0]]:
                del self._clusters[node[0]]
                self._texts.pop(node[0], None)
        self.losses["expired"] += len(names)
        self.instances.expire(now)
        if len(self.cohorts) > min(FEW_COHORTS, self.limits.cohorts - 1):
            used = np.count_nonzero(np.bincount(self._columns["cohort"][:length][alive]))
            if len(self.cohorts) > 2 * used or len(self.cohorts) >= self.limits.cohorts:
                self._compact_cohorts()
        return names

    def _compact_cohorts(self) -> None:
        """Forget cohorts without nodes, so that ended jobs leave nothing behind."""
        length = len(self.names)
        alive = self._columns["alive"][:length]
        used = np.unique(self._columns["cohort"][:length][alive])
        self.cohorts = [self.cohorts[cohort] for cohort in used.tolist()]
        self._cohort_ids = {key: number for number, key in enumerate(self.cohorts)}
        renumbered = np.searchsorted(used, self._columns["cohort"][:length]).astype(np.int32)
        self._columns["cohort"][:length] = np.where(alive, renumbered, 0)


def _none_as(number: int | None) -> int:
    return -1 if number is None else number
