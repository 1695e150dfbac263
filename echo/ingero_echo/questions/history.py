"""Questions about history: events, anomalies, verdicts with their evidence, causal chains."""

from typing import Final
from uuid import UUID

from pydantic import Field

from ingero_contract import echo, metrics
from ingero_contract.values import VerdictState
from ingero_echo.questions.base import (
    CHANGES,
    MAX_ID,
    EvidenceRow,
    NodeFilter,
    Question,
    Row,
    VerdictFacts,
    plural,
)
from ingero_echo.window import ACCUSED


class HistoryArguments(NodeFilter):
    """Which events."""

    metric_name: str | None = Field(default=None, min_length=1, max_length=MAX_ID)
    """One metric, event or span name."""
    signal: str | None = Field(default=None, pattern="^(metrics|logs|traces)$")
    """metrics, logs or traces."""
    causal_chain_id: str | None = Field(default=None, min_length=1, max_length=1024)
    """One causal chain."""
    event_ids: list[UUID] = Field(default=[], max_length=1000)
    """These events only, whatever the window: what an answer cites."""
    cursor: str | None = Field(default=None, max_length=128)
    """Continue after this place."""


class EventRow(Row):
    """One event, the newest first."""

    event_id: str
    timestamp: str
    signal: str
    cluster_id: str
    node_id: str
    metric_name: str
    value_double: float | None
    rank: int | None
    nranks: int | None
    causal_chain_id: str | None
    message: str | None
    attributes: str | None
    """JSON text."""


HISTORY = Question(
    name="event_history",
    title="Event history",
    description="Events, newest first, by node, name, signal, causal chain or id; page with `cursor`.",
    row=EventRow,
    arguments=HistoryArguments,
    paged=True,
    sql="""
    WITH newest AS (
        SELECT DISTINCT "timestamp", event_id FROM (
            SELECT "timestamp", event_id FROM events WHERE $filters
            ORDER BY "timestamp" DESC, event_id DESC LIMIT $limit + 1
        )
    )
    SELECT event_id::VARCHAR AS event_id, "timestamp", signal, cluster_id, node_id, metric_name, value_double, rank,
           nranks, causal_chain_id, message, attributes
    FROM events JOIN newest USING ("timestamp", event_id) WHERE $filters
    ORDER BY "timestamp" DESC, events.event_id DESC
    """,
    filters={
        "node_id": "node_id = $node_id",
        "metric_name": "metric_name = $metric_name",
        "signal": "signal = $signal",
        "causal_chain_id": "causal_chain_id = $causal_chain_id",
        "event_ids": "events.event_id IN (SELECT unnest($event_ids::UUID[]))",
        "cursor": '("timestamp", events.event_id) < (make_timestamp_ns($cursor_time), $cursor_id::UUID)',
    },
    sentence=lambda rows, _: (
        f"{plural(len(rows), 'event')}, newest {rows[0]['timestamp']}." if rows else "No such events in this window."
    ),
)


class AnomalyRow(EvidenceRow):
    """One anomaly, the newest first."""

    timestamp: str
    """When it began, in the window."""
    cluster_id: str
    node_id: str
    anomaly: str
    """verdict, self_reported, network, hang, degradation or causal_chain."""
    detail: str | None
    severity: str | None


_LASTING: Final = "5 MINUTE"
"""Time between two reports of the same thing after which the second is another anomaly."""

_SECONDS: Final = "%Y-%m-%dT%H:%M:%SZ"

ANOMALIES = Question(
    name="anomaly_stream",
    title="Anomaly stream",
    description="What is out of the ordinary, newest first: verdicts, slow network, hangs, degradations, causes.",
    row=AnomalyRow,
    arguments=NodeFilter,
    sql=f"""
    WITH {CHANGES.strip()},
    -- What an agent repeats with every push while it lasts is one anomaly.
    repeated AS (
        SELECT "timestamp", cluster_id, node_id, event_id, 'self_reported' AS anomaly,
               concat_ws(' ', state, kind) AS detail
        FROM verdicts WHERE source = 'agent' AND state IS DISTINCT FROM '{VerdictState.HEALTHY}'
        UNION ALL
        SELECT "timestamp", cluster_id, node_id, event_id, 'degradation', 'a signal below half of its baseline'
        FROM events WHERE metric_name = '{metrics.DEGRADATION_WARNING}' AND value_double > 0
    ),
    begun AS (
        SELECT *, coalesce("timestamp" - lag("timestamp") OVER alike > INTERVAL {_LASTING}, true) AS begins
        FROM repeated WINDOW alike AS (PARTITION BY cluster_id, node_id, anomaly, detail ORDER BY "timestamp")
    ),
    numbered AS (
        SELECT *, count(*) FILTER (begins) OVER (PARTITION BY cluster_id, node_id, anomaly, detail
                                                 ORDER BY "timestamp" ROWS UNBOUNDED PRECEDING) AS number
        FROM begun
    ),
    lasting AS (
        SELECT min("timestamp") AS "timestamp", cluster_id, node_id, anomaly,
               CASE WHEN count(*) = 1 THEN detail
                    ELSE concat(detail, ', ', count(*), ' reports until ', strftime(max("timestamp"), '{_SECONDS}'))
               END AS detail,
               list_distinct([arg_min(event_id, "timestamp"), arg_max(event_id, "timestamp")]) AS cited
        FROM numbered GROUP BY cluster_id, node_id, anomaly, numbered.detail, number
    )
    SELECT "timestamp", cluster_id, node_id, anomaly, detail, severity, cited::VARCHAR[] AS evidence FROM (
        SELECT "timestamp", cluster_id, node_id, [event_id] AS cited, 'verdict' AS anomaly,
               concat_ws(' ', state, kind, CASE WHEN communicator IS NOT NULL THEN
                   concat('rank ' || rank || ' of ', json_extract_string(evidence, '$.gpu') || ' in ',
                          'communicator ', communicator) END) AS detail,
               severity::VARCHAR AS severity
        FROM verdicts WHERE source <> 'agent' AND state IS DISTINCT FROM '{VerdictState.HEALTHY}'
        UNION ALL
        SELECT "timestamp", cluster_id, node_id, [event_id], what, message, severity FROM changes WHERE kind <> 'none'
        UNION ALL
        SELECT "timestamp", cluster_id, node_id, cited, anomaly, detail, NULL FROM lasting
        UNION ALL
        SELECT "timestamp", cluster_id, node_id, [event_id], 'causal_chain', coalesce(summary, root_cause), severity
        FROM causal_chains
    ) WHERE ($node_id IS NULL OR node_id = $node_id
             OR anomaly = 'network' AND contains(detail, concat(' ', $node_id, '/')))
    ORDER BY "timestamp" DESC, node_id, anomaly
    """,
    sentence=lambda rows, _: (
        f"{plural(len(rows), 'anomaly').replace('anomalys', 'anomalies')}, newest: {rows[0]['anomaly']} at "
        f"{rows[0]['node_id'] or rows[0]['cluster_id']}." if rows else "Nothing out of the ordinary."
    ),
)  # fmt: skip


class VerdictArguments(NodeFilter):
    """Whose verdicts."""

    open_only: bool = False
    """Only nodes that are under an accusation now."""


class VerdictRow(VerdictFacts):
    """The newest verdict of one node, with what it rests on; a second row where collectives have a say about it."""

    source: str
    cohort: str | None
    digest: str | None
    proof: str | None
    """The numbers that decided, as JSON text."""
    timestamp: str
    edges: int
    """Verdicts of the node in the window, from the same judge."""


VERDICT = Question(
    name="verdict",
    title="Verdicts with evidence",
    description="The newest verdict of every node with the numbers that decided and the events that it rests on.",
    row=VerdictRow,
    arguments=VerdictArguments,
    sql=f"""
    WITH ordered AS (
        SELECT *, row_number() OVER (PARTITION BY cluster_id, node_id, source = 'collectives'
                                     ORDER BY (source = 'fleet') DESC, "timestamp" DESC) AS place,
               count(*) OVER (PARTITION BY cluster_id, node_id, source = 'collectives') AS edges
        FROM verdicts
    ),
    lowest AS (
        SELECT cluster_id, node_id, arg_min(event_id, health_score) AS worst FROM node_metrics GROUP BY ALL
    )
    SELECT cluster_id, node_id, rank, communicator, json_extract_string(ordered.evidence, '$.gpu') AS gpu, pod,
           source, state, kind, since, severity, cohort, digest, ordered.evidence AS proof,
           "timestamp", edges, list_filter([event_id, worst]::VARCHAR[], lambda x: x IS NOT NULL) AS evidence
    FROM ordered LEFT JOIN lowest USING (cluster_id, node_id)
    WHERE place = 1 AND ($node_id IS NULL OR node_id = $node_id)
      AND (NOT $open_only OR coalesce(state IN ({ACCUSED}), false))
    ORDER BY coalesce(state IN ({ACCUSED}), false) DESC, severity DESC NULLS LAST, "timestamp" DESC, node_id
    """,
    sentence=lambda rows, _: (
        f"{rows[0]['node_id']}: {rows[0]['state']}"
        + (f" ({rows[0]['kind']})" if rows[0]["kind"] and rows[0]["state"] != VerdictState.HEALTHY else "")
        + (f" since {rows[0]['since']}" if rows[0]["since"] else "")
        + (f"; {plural(len(rows) - 1, 'more node')}." if len(rows) > 1 else ".")
        if rows else "No verdicts in this window."
    ),
)  # fmt: skip


class ChainRow(EvidenceRow):
    """One causal chain."""

    cluster_id: str
    causal_chain_id: str
    first_seen: str
    last_seen: str
    events: int
    nodes: list[str]
    severity: str | None
    root_cause: str | None
    summary: str | None
    found: str | None
    """The agent's evidence, a line each."""
    advice: str | None


CHAINS = Question(
    name="causal_chains",
    title="Causal chains",
    description="Causal chains with the nodes and events that carry them, and what the agents said about them.",
    row=ChainRow,
    sql=f"""
    WITH newest AS MATERIALIZED (
        SELECT cluster_id, causal_chain_id, "timestamp" FROM events WHERE causal_chain_id IS NOT NULL
        ORDER BY "timestamp" DESC LIMIT 10 * ($limit + 1)
    ),
    full_scan AS (
        SELECT 1 AS needed FROM newest HAVING count(*) = 10 * ($limit + 1) AND
          (SELECT count(DISTINCT (cluster_id, causal_chain_id)) FROM newest
           WHERE "timestamp" > (SELECT min("timestamp") FROM newest)) <= $limit
    ),
    described AS (
        SELECT cluster_id, causal_chain_id, arg_max(severity, "timestamp") AS severity,
               arg_max(root_cause, "timestamp") AS root_cause, arg_max(summary, "timestamp") AS summary,
               arg_max(json_extract_string(attributes, '$."{echo.CHAIN_EVIDENCE}"'), "timestamp") AS found,
               arg_max(json_extract_string(attributes, '$."{echo.CHAIN_ADVICE}"'), "timestamp") AS advice
        FROM causal_chains GROUP BY cluster_id, causal_chain_id
    ),
    recent AS (
        SELECT cluster_id, causal_chain_id, max("timestamp") AS last_seen FROM (
            SELECT * FROM newest UNION ALL
            SELECT cluster_id, causal_chain_id, "timestamp" FROM events, full_scan WHERE causal_chain_id IS NOT NULL
        ) GROUP BY cluster_id, causal_chain_id
        ORDER BY last_seen DESC, causal_chain_id LIMIT $limit + 1
    ),
    candidates AS (
        SELECT cluster_id, causal_chain_id FROM recent UNION SELECT cluster_id, causal_chain_id FROM described
    ),
    carried AS (
        SELECT cluster_id, causal_chain_id, min("timestamp") AS first_seen, max("timestamp") AS last_seen,
               count(*) AS events, list(DISTINCT node_id ORDER BY node_id) AS nodes,
               list(event_id::VARCHAR ORDER BY "timestamp")[1:10] AS evidence
        FROM events SEMI JOIN candidates USING (cluster_id, causal_chain_id) GROUP BY cluster_id, causal_chain_id
    )
    SELECT cluster_id, causal_chain_id, first_seen, last_seen, carried.events, nodes, severity, root_cause, summary,
           found, advice, evidence
    FROM carried LEFT JOIN described USING (cluster_id, causal_chain_id)
    ORDER BY (severity = 'HIGH') DESC NULLS LAST, last_seen DESC, causal_chain_id
    """,
    sentence=lambda rows, _: (
        f"{plural(len(rows), 'causal chain')}; newest: {rows[0]['summary'] or rows[0]['causal_chain_id']}."
        if rows else "No causal chains in this window."
    ),
)  # fmt: skip

QUESTIONS = (HISTORY, ANOMALIES, VERDICT, CHAINS)
