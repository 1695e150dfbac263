"""The question about nodes that are accused again and again."""

from typing import Any

from pydantic import Field

from ingero_echo.questions.base import Ending, NodeRow, Question, plural
from ingero_echo.window import ACCUSED


class LemonArguments(Ending):
    """Where and when, and what counts as coming back."""

    since: str = Field(default="30d", max_length=64)
    """Start of the window: how long ago (`15m`, `2h`, `7d`), RFC 3339, or `all`; the last 30 days by default."""
    times: int = Field(default=2, ge=1, le=10_000)
    """Fewest accusations."""
    apart_minutes: int = Field(default=60, ge=0, le=100_000)
    """Minutes without an accusation between two that are counted as two, and not as one that flickers."""


class LemonRow(NodeRow):
    """One node that came back, the one that was accused most often first."""

    accusations: int
    days: int
    """Days, in UTC, on which one began."""
    hours: float
    """Time under an accusation."""
    first: str
    last: str
    """When the first and the last one began."""
    accused: bool
    """Whether the last one is still open."""
    kinds: list[str]
    gpus: list[str]
    """GPUs that collectives named; empty where they named ranks, or nobody."""
    of_others: float | None
    """Mean number of accusations of the cluster's other nodes that sent anything."""


def _sentence(rows: list[dict[str, Any]], arguments: Any) -> str:
    if not rows:
        return f"No node was accused {plural(arguments.times, 'time')} or more."
    row = rows[0]
    words = f"{row['node_id']} was accused {plural(row['accusations'], 'time')} on {plural(row['days'], 'day')}"
    words += f", for {row['hours']:.1f} hours in all"
    words += f"; the other nodes {row['of_others']:.2g} times on average" if row["of_others"] is not None else ""
    return words + (f"; {plural(len(rows) - 1, 'more node')} came back." if len(rows) > 1 else ".")


LEMONS = Question(
    name="find_lemons",
    title="Nodes that come back",
    description="Nodes that were accused again after they had recovered: how often, for how long, the latest time.",
    row=LemonRow,
    arguments=LemonArguments,
    sql=f"""
    WITH edges AS (
        SELECT *, lead("timestamp") OVER (PARTITION BY cluster_id, node_id, source ORDER BY "timestamp") AS next
        FROM verdicts WHERE source IN ('fleet', 'collectives')
    ),
    sent AS (SELECT cluster_id, node_id, max(last) AS last_event FROM activity GROUP BY cluster_id, node_id),
    spans AS (
        SELECT edges.*, coalesce(next, greatest("timestamp", last_event)) AS ended, next IS NULL AS open
        FROM edges LEFT JOIN sent USING (cluster_id, node_id) WHERE state IN ({ACCUSED})
    ),
    begun AS (
        SELECT *, coalesce("timestamp" > max(ended) OVER (PARTITION BY cluster_id, node_id ORDER BY "timestamp"
                                                          ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                                         + to_minutes($apart_minutes), true) AS begins
        FROM spans
    ),
    numbered AS (
        SELECT *, count(*) FILTER (begins) OVER (PARTITION BY cluster_id, node_id ORDER BY "timestamp"
                                                 ROWS UNBOUNDED PRECEDING) AS number
        FROM begun
    ),
    episodes AS (
        SELECT cluster_id, node_id, min("timestamp") AS began, max(ended) AS ended, bool_or(open) AS open,
               arg_min(event_id, "timestamp") AS event_id, list(DISTINCT kind) AS kinds,
               list(DISTINCT json_extract_string(evidence, '$.gpu')) AS gpus
        FROM numbered GROUP BY cluster_id, node_id, number
    ),
    nodes AS (
        SELECT cluster_id, node_id, count(*) AS accusations, count(DISTINCT began::DATE) AS days,
               sum(epoch_ns(ended) - epoch_ns(began)) / 3.6e12 AS hours, min(began) AS first, max(began) AS last,
               arg_max(open, began) AS accused, list_sort(list_distinct(flatten(list(kinds)))) AS kinds,
               list_sort(list_distinct(flatten(list(gpus)))) AS gpus,
               list(event_id::VARCHAR ORDER BY began DESC, event_id)[1:10] AS evidence
        FROM episodes GROUP BY cluster_id, node_id
    ),
    totals AS (SELECT cluster_id, sum(accusations) AS accusations FROM nodes GROUP BY cluster_id),
    sizes AS (SELECT cluster_id, count(*) FILTER (node_id <> '') AS nodes FROM sent GROUP BY cluster_id)
    SELECT cluster_id, node_id, nodes.accusations, days, hours, first, last, accused, kinds, gpus,
           (totals.accusations - nodes.accusations) / nullif(sizes.nodes - 1, 0) AS of_others, evidence
    FROM nodes JOIN totals USING (cluster_id) LEFT JOIN sizes USING (cluster_id)
    WHERE nodes.accusations >= $times
    ORDER BY nodes.accusations DESC, hours DESC, cluster_id, node_id
    """,
    sentence=_sentence,
)

QUESTIONS = (LEMONS,)
