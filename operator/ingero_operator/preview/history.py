"""Echo's record as a history: which node was accused when, and which node reported when. Pure."""

import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ingero_contract.values import NodeState
from ingero_contract.verdicts import ACTIONABLE
from ingero_operator.taints.nodes import moment

MINUTE: Final = 60.0
"""Resolution of the record of reports, in seconds."""
FLEET: Final = "fleet"
COLLECTIVES: Final = "collectives"
"""Sources of verdicts that count. What an agent says of its own node does not."""


@dataclass(frozen=True, kw_only=True)
class Accusation:
    """One accusation of a node, from the verdict to its end."""

    node: str
    source: str
    kind: str
    begin: float
    end: float | None = None
    """`None` while it lasts."""
    since: float | None = None
    """Estimated onset."""
    detected: float
    """When Fleet first accused the node; before `begin` where the record begins in the middle."""
    severity: float | None = None
    pods: frozenset[str] = frozenset()
    whole: bool = True
    """Whether its begin is in the record."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A time in which a node reported one state."""

    node: str
    state: str
    begin: float
    end: float


@dataclass(frozen=True, kw_only=True)
class History:
    """The record of one cluster from `since` to `until`, in seconds since the epoch."""

    since: float
    until: float
    accusations: tuple[Accusation, ...] = ()
    runs: tuple[Run, ...] = ()
    """By node and time. Empty where Echo has no health reports."""
    unreadable: int = 0
    """Rows that could not be read."""

    @property
    def begin(self) -> float | None:
        """Time of the first record in the window."""
        times = [*(item.begin for item in self.accusations), *(item.begin for item in self.runs)]
        return min(times, default=None)

    @property
    def end(self) -> float:
        """Time of the last report in the window; its end where there are no reports."""
        return max((run.end for run in self.runs), default=self.until)


class VerdictChange(BaseModel):
    """One change of a verdict."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    t: Annotated[int, Field(ge=0)]
    node_id: Annotated[str, Field(min_length=1, max_length=253)]
    source: str
    state: str | None
    kind: str | None
    since: str | None
    severity: Annotated[float, Field(allow_inf_nan=False)] | None
    communicator: str | None
    rank: int | None
    pod: str | None
    edge: str | None
    detected: Annotated[float, Field(allow_inf_nan=False)] | None

    @property
    def time(self) -> float:
        """Seconds since the epoch."""
        return self.t / 1e9

    @property
    def key(self) -> tuple[str, str, str, int]:
        """What is accused: a node by the detector, or one of its ranks by the collectives of a communicator."""
        rank = -1 if self.rank is None else self.rank
        return (self.node_id, self.source, *((self.communicator or "", rank) if self.source != FLEET else ("", -1)))


class RunRow(BaseModel):
    """Minutes in which a node reported one state."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    node_id: Annotated[str, Field(min_length=1, max_length=253)]
    state: str | None
    first: Annotated[int, Field(ge=0)]
    last: Annotated[int, Field(ge=0)]


def read_history(
    verdicts: Iterable[Mapping[str, Any]],
    runs: Iterable[Mapping[str, Any]],
    since: float,
    until: float,
    interval: float,
) -> History:
    """The history of the rows that Echo returned. `interval`: seconds between two statistics of Fleet."""
    edges, reports, unreadable = [], [], 0
    for row in verdicts:
        try:
            edges.append(VerdictChange.model_validate(row))
        except ValidationError:
            unreadable += 1
    for row in runs:
        try:
            reports.append(RunRow.model_validate(row))
        except ValidationError:
            unreadable += 1
    times = [*(edge.time for edge in edges), *(report.first * MINUTE for report in reports)]
    start = max(since, min(times, default=since))
    return History(
        since=since, until=until, accusations=tuple(_accusations(edges, since, start, interval)),
        runs=tuple(_runs(reports, since, until, longest_gap(interval))), unreadable=unreadable,
    )  # fmt: skip


def longest_gap(interval: float) -> float:
    """Silence, in seconds, after which a node no longer reports."""
    return max(2 * MINUTE, 3 * interval)


@dataclass
class _Open:
    """The accusations that have not ended, by what is accused."""

    items: dict[tuple[str, str, str, int], Accusation] = field(default_factory=dict)
    known: set[tuple[str, str, str, int]] = field(default_factory=set)


def _accusations(edges: list[VerdictChange], since: float, start: float, interval: float) -> list[Accusation]:
    """Accusations of the window. Rows before `since` give its initial state; the record begins at `start`."""
    done, now = [], _Open()
    for edge in sorted(edges, key=lambda item: item.t):
        before, accuses = now.items.pop(edge.key, None), edge.state in ACTIONABLE
        if before is None and not accuses and (edge.key in now.known or edge.edge not in ("cleared", "withdrawn")):
            now.known.add(edge.key)
            continue
        if before is None:
            before = _begun(edge, start, edge.key not in now.known)
        elif accuses and edge.edge == "accused":
            # Fleet knew nothing of the earlier accusation any more: it restarted, so one statistic was without it.
            done.append(replace(before, end=edge.time))
            before = replace(_begun(edge, start, False), begin=edge.time + interval)
        pods = before.pods | ({edge.pod} if edge.pod else set())
        before = replace(before, pods=pods)
        if accuses:
            severity = max(before.severity or 0.0, edge.severity or 0.0) or None
            now.items[edge.key] = replace(before, severity=severity)
        else:
            done.append(replace(before, end=edge.time))
        now.known.add(edge.key)
    found = [item for item in (*done, *now.items.values()) if item.end is None or item.end > max(since, item.begin)]
    return sorted(found, key=lambda item: (item.begin, item.node, item.source))


def _begun(edge: VerdictChange, start: float, first: bool) -> Accusation:
    """An accusation that begins with this row or, where the row is its first known change, before the record."""
    whole = edge.time >= start and (edge.edge == "accused" or not first)
    begin = edge.time if whole else start
    return Accusation(
        node=edge.node_id, source=edge.source, kind=edge.kind or "", begin=begin, since=moment(edge.since) or None,
        detected=begin if whole else edge.detected or min(edge.time, begin), severity=edge.severity, whole=whole,
    )  # fmt: skip


def _runs(rows: list[RunRow], since: float, until: float, gap: float) -> list[Run]:
    """Runs without the gaps that come from the resolution of the record and from single lost reports."""
    out: list[Run] = []
    for row in sorted(rows, key=lambda item: (item.node_id, item.first)):
        run = Run(
            node=row.node_id, state=row.state or NodeState.ACTIVE,
            begin=max(since, row.first * MINUTE), end=min(until, (row.last + 1) * MINUTE),
        )  # fmt: skip
        if run.end <= run.begin:
            continue
        before = out[-1] if out and out[-1].node == run.node else None
        if before is None:
            begin = since if run.begin - since <= gap else run.begin
            out.append(replace(run, begin=begin))
        elif run.begin - before.end > gap:
            out.append(run)
        elif before.state == run.state:
            out[-1] = replace(before, end=max(before.end, run.end))
        else:
            out[-1] = replace(before, end=run.begin)
            out.append(run)
    last = {run.node: number for number, run in enumerate(out)}
    for number in last.values():
        if until - out[number].end <= gap:
            out[number] = replace(out[number], end=until)
    return out


def verdicts_query(cluster: str, since: float, until: float) -> str:
    """Changes of verdicts in the window, and the latest one before it of everything that was judged."""
    return f"""
    SELECT epoch_ns("timestamp") AS t, node_id, source, state, kind, since, severity, communicator, rank, pod,
           CASE WHEN json_valid(evidence) THEN json_extract_string(evidence, '$.edge') END AS edge,
           CASE WHEN json_valid(evidence) THEN json_extract_string(evidence, '$.detected') END AS detected
    FROM (SELECT *, "timestamp" >= {_moment(since)} AS inside FROM verdicts
          WHERE cluster_id = {_literal(cluster)} AND source IN ('{FLEET}', '{COLLECTIVES}')
            AND "timestamp" < {_moment(until)})
    QUALIFY inside OR row_number() OVER
        (PARTITION BY node_id, source, communicator, rank, inside ORDER BY "timestamp" DESC) = 1
    ORDER BY t, event_id"""


def runs_query(cluster: str, since: float, until: float, gap: float) -> str:
    """Runs of one state by node, in minutes since the epoch."""
    by_node = "OVER (PARTITION BY node_id ORDER BY m)"
    return f"""
    WITH reports AS (
        SELECT node_id, epoch_ns("timestamp") // 60000000000 AS m, arg_max(state, "timestamp") AS state
        FROM node_metrics
        WHERE cluster_id = {_literal(cluster)}
          AND "timestamp" >= {_moment(since)} AND "timestamp" < {_moment(until)}
        GROUP BY node_id, m),
    marked AS (
        SELECT *, CASE WHEN lag(m) {by_node} >= m - {int(gap // MINUTE)} AND lag(state) {by_node} = state
                       THEN 0 ELSE 1 END AS begins
        FROM reports),
    numbered AS (SELECT *, sum(begins) {by_node} AS run FROM marked)
    SELECT node_id, any_value(state) AS state, min(m) AS first, max(m) AS last
    FROM numbered GROUP BY node_id, run ORDER BY node_id, first"""


def spans(since: float, until: float, length: float) -> list[tuple[float, float]]:
    """The window in parts of this length, in seconds, so that each query stays small."""
    out, begin = [], since
    while begin < until:
        end = min(until, (begin // length + 1) * length)
        out.append((begin, end))
        begin = end
    return out


def _moment(time: float) -> str:
    return f"'{datetime.datetime.fromtimestamp(time, datetime.UTC):%Y-%m-%d %H:%M:%S.%f}'::TIMESTAMP_NS"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
