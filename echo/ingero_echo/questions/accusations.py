"""Whom verdicts accuse now, and who still reports: common table expressions that several questions share."""

from typing import Any, Final

from ingero_contract import attributes, metrics
from ingero_contract.values import VerdictState
from ingero_echo.window import ACCUSED

VERDICTS: Final = f"""
    newest AS (
        SELECT cluster_id, node_id, source, arg_max(state, "timestamp") AS state, arg_max(kind, "timestamp") AS kind,
               arg_max(since, "timestamp") AS since, arg_max(severity, "timestamp") AS severity,
               arg_max(event_id, "timestamp") AS event_id, arg_max(evidence, "timestamp") AS proof,
               max("timestamp") AS "timestamp", arg_max_null(rank, "timestamp") AS rank,
               arg_max(communicator, "timestamp") AS communicator, arg_max(pod, "timestamp") AS pod,
               json_extract_string(arg_max(evidence, "timestamp"), '$.gpu') AS gpu
        FROM verdicts GROUP BY cluster_id, node_id, source
    ),
    reported AS (
        SELECT cluster_id, node_id, max(node_metrics."timestamp") AS "timestamp" FROM node_metrics
        JOIN (SELECT cluster_id, node_id, "timestamp" AS named FROM newest
              WHERE source = 'fleet' AND state IN ({ACCUSED})) USING (cluster_id, node_id)
        WHERE node_metrics."timestamp" > named GROUP BY cluster_id, node_id HAVING count(*) >= 3
    ),
    -- HAVING: the attributes of these few reports are read, and not those of all events before they are joined.
    told_well AS (
        SELECT cluster_id, node_id, any_value("timestamp") AS told
        FROM events JOIN reported USING (cluster_id, node_id, "timestamp")
        WHERE metric_name = '{metrics.HEALTH_SCORE}' GROUP BY cluster_id, node_id
        HAVING json_extract_string(any_value(attributes), '$."{attributes.LAST_VERDICT}"')
               LIKE '{VerdictState.HEALTHY}%'
    ),
    detected AS (
        SELECT newest.* REPLACE (CASE WHEN told > "timestamp" + INTERVAL 1 MINUTE AND state IN ({ACCUSED})
                                      THEN '{VerdictState.HEALTHY}' ELSE state END AS state)
        FROM newest LEFT JOIN told_well USING (cluster_id, node_id) WHERE source = 'fleet'
    ),
    own AS (
        SELECT * FROM detected
        UNION ALL
        SELECT * FROM newest ANTI JOIN detected USING (cluster_id, node_id) WHERE source = 'agent'
    ),
    late AS (SELECT * FROM newest WHERE source = 'collectives' AND state IN ({ACCUSED})),
    latest AS (
        SELECT own.* REPLACE (coalesce(late.rank, own.rank) AS rank, late.communicator AS communicator,
                              late.pod AS pod, late.gpu AS gpu), late.event_id AS late_event
        FROM own LEFT JOIN late USING (cluster_id, node_id)
        WHERE late.node_id IS NULL OR own.state IN ({ACCUSED})
        UNION ALL
        SELECT late.*, NULL AS late_event
        FROM late ANTI JOIN (SELECT * FROM own WHERE state IN ({ACCUSED})) USING (cluster_id, node_id)
    )
"""
"""The newest verdict of every node: Fleet's, or the agent's own where Fleet sent none.

An accusation of Fleet is over when the node's newest report, the third or a later one and a minute after it or more,
says that Fleet called it healthy: a Fleet that began without a snapshot knows of no accusation that it could end. The
first report after an accusation was sent before the node could know of it.

Where only collectives accuse a node, it is their verdict. Where they accuse it too, rank, communicator and pod are
theirs. Accusations that they withdrew are ignored.
"""

PATIENCE_SECONDS: Final = 120
"""Shortest silence that an answer mentions."""

_MISSED: Final = 5
"""Usual intervals between reports after which a node counts as silent, as in Fleet."""

PATIENCE: Final = f"""
    reporting AS (
        SELECT cluster_id, node_id, count(*) AS reports, min("timestamp") AS first_report,
               max("timestamp") AS last_report
        FROM node_metrics GROUP BY cluster_id, node_id
    ),
    patience AS (
        SELECT cluster_id, greatest({PATIENCE_SECONDS} * 1e9, {_MISSED} * median(
                   (epoch_ns(last_report) - epoch_ns(first_report)) / nullif(reports - 1, 0))) AS nanos
        FROM reporting GROUP BY cluster_id
    )
"""
"""How long a node of a cluster may send nothing before it counts as silent: five of the usual intervals between the
health reports of its nodes, and two minutes at least."""


def silent(last: str) -> str:
    """The condition that the time in a column lies further before the window's end than a joined `patience` allows.

    True also for no time at all.
    """
    patience = f"coalesce(nanos, {PATIENCE_SECONDS} * 1e9)"
    return f"coalesce(epoch_ns({last}) + {patience} < $window_end::BIGINT, true)"


def second(moment: str) -> str:
    """A time as an answer has it, `2026-01-01T00:00:00.123456789Z`, to the second."""
    return f"{moment[:19]}Z"


def silence(row: dict[str, Any]) -> str:
    """That a node is silent, as the part of a sentence between its name and a verb; empty for one that is not."""
    if not row["silent"]:
        return ""
    since = f"since {second(row['last_event'])}" if row["last_event"] else "in this window"
    return f" has sent nothing {since}. It"
