"""Questions about clusters and their nodes."""

from typing import Any, Final

from pydantic import Field

from ingero_contract import metrics
from ingero_contract.signals import SIGNALS
from ingero_contract.values import THRESHOLD_K, THRESHOLD_MIN_BAND, VerdictState
from ingero_echo.questions.accusations import PATIENCE, VERDICTS, second, silence, silent
from ingero_echo.questions.base import (
    CHANGES,
    MAX_ID,
    Ending,
    EvidenceRow,
    NodeRow,
    Question,
    Scoped,
    VerdictFacts,
    plural,
)
from ingero_echo.window import ACCUSED


class SummaryRow(EvidenceRow):
    """One cluster."""

    cluster_id: str
    nodes: int
    """Nodes that sent anything in the window."""
    active: int
    idle: int
    calibrating: int
    """States as the nodes reported them last, without those that are silent."""
    silent: int
    """Nodes that reported their health, and have sent nothing for five of the usual intervals, and two minutes."""
    silent_nodes: list[str]
    silent_since: str | None
    """Time of the newest event, where the whole cluster is silent for as long; its accusations may be over."""
    stragglers: int
    """Nodes under an accusation now."""
    straggler_nodes: list[str]
    faults: list[str]
    """Slow parts of the network and jobs that hang, as their newest record in the window says it; five at most."""
    events: int
    median_score: float | None
    lowest_score: float | None
    lowest_node: str | None
    """The node with the lowest latest score."""
    last_event: str


_NAMED: Final = 5
"""Maximum of clusters, and of stragglers of each, that the sentence names."""


def _summary(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "No events in this window."
    ordered = sorted(rows, key=lambda row: (not (row["stragglers"] or row["faults"]), bool(row["silent_since"])))
    words = [_state(row) for row in ordered[:_NAMED]]
    if more := ordered[_NAMED:]:
        accused = sum(1 for row in more if row["stragglers"])
        words.append(f"{plural(len(more), 'more cluster')}, {accused or 'none'} of them with stragglers")
    return "; ".join(words)


def _state(row: dict[str, Any]) -> str:
    since = row["silent_since"]
    words = f"{row['cluster_id'] or 'no cluster'}: {plural(row['nodes'], 'node')}, "
    words += f"nothing since {second(since)}, " if since else ""
    straggler = f"straggler{' then' if since else ''}: {_names(row['straggler_nodes'])}"
    words += straggler if row["stragglers"] else "no straggler"
    words += f", silent: {_names(row['silent_nodes'])}" if row["silent"] and not since else ""
    return words + (f" ({' '.join(row['faults'])})" if row["faults"] else "")


def _names(nodes: list[str]) -> str:
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return ", ".join(nodes[:_NAMED]) + more


SUMMARY = Question(
    name="summary",
    title="Cluster summary",
    description="State of every cluster: nodes by state, scores, who is a straggler now. Ask this first.",
    row=SummaryRow,
    sql=f"""
    WITH {VERDICTS},
    {PATIENCE.strip()},
    sent AS (
        SELECT cluster_id, node_id, sum(events)::BIGINT AS events, max(last) AS last_event
        FROM activity GROUP BY cluster_id, node_id
    ),
    states AS (
        SELECT cluster_id, node_id, arg_max(state, "timestamp") AS state,
               arg_max(health_score, "timestamp") AS score, arg_max(event_id, "timestamp") AS event_id
        FROM node_metrics GROUP BY cluster_id, node_id
    ),
    heard AS (
        SELECT states.*, {silent("last_event")} AS silent
        FROM states LEFT JOIN sent USING (cluster_id, node_id) LEFT JOIN patience USING (cluster_id)
    ),
    scores AS (
        SELECT cluster_id, count(*) FILTER (state = 'active' AND NOT silent) AS active,
               count(*) FILTER (state = 'idle' AND NOT silent) AS idle,
               count(*) FILTER (state = 'calibrating' AND NOT silent) AS calibrating,
               count(*) FILTER (silent) AS silent, list(node_id ORDER BY node_id) FILTER (silent) AS silent_nodes,
               median(score) AS median_score, min(score) AS lowest_score, arg_min(node_id, score) AS lowest_node,
               arg_min(event_id, score) AS lowest_event
        FROM heard GROUP BY cluster_id
    ),
    accused AS (
        SELECT cluster_id, count(*) AS stragglers, list(node_id ORDER BY node_id) AS names,
               list(event_id ORDER BY node_id)[1:10] AS proofs, max("timestamp") AS accused_at
        FROM latest WHERE state IN ({ACCUSED}) GROUP BY cluster_id
    ),
    {CHANGES.strip()},
    broken AS (
        SELECT cluster_id, list(message ORDER BY "timestamp" DESC)[1:{_NAMED}] AS faults,
               list(event_id ORDER BY "timestamp" DESC)[1:{_NAMED}] AS records
        FROM (
            SELECT * FROM changes
            QUALIFY row_number() OVER (PARTITION BY cluster_id, what, job ORDER BY "timestamp" DESC) = 1
        ) WHERE kind <> 'none' GROUP BY cluster_id
    ),
    seen AS (
        SELECT cluster_id, count(*) FILTER (node_id <> '') AS nodes, sum(events)::BIGINT AS events,
               max(last_event) AS last_event
        FROM sent GROUP BY cluster_id
    )
    SELECT cluster_id, coalesce(nodes, 0) AS nodes, coalesce(active, 0) AS active, coalesce(idle, 0) AS idle,
           coalesce(calibrating, 0) AS calibrating, coalesce(silent, 0) AS silent,
           coalesce(silent_nodes, []) AS silent_nodes,
           CASE WHEN {silent("coalesce(last_event, accused_at)")} THEN coalesce(last_event, accused_at) END
             AS silent_since, coalesce(stragglers, 0) AS stragglers,
           coalesce(names, []) AS straggler_nodes, coalesce(faults, []) AS faults, coalesce(events, 0) AS events,
           median_score, lowest_score, lowest_node, coalesce(last_event, accused_at) AS last_event,
           list_filter(list_append(coalesce(proofs, []) || coalesce(records, []), lowest_event),
                       lambda x: x IS NOT NULL)::VARCHAR[] AS evidence
    FROM seen FULL JOIN accused USING (cluster_id) LEFT JOIN scores USING (cluster_id)
         LEFT JOIN broken USING (cluster_id) LEFT JOIN patience USING (cluster_id) ORDER BY cluster_id
    """,
    sentence=lambda rows, _: _summary(rows),
)


class StragglerRow(VerdictFacts):
    """One node, the worst first."""

    source: str | None
    """`fleet`, `collectives` for a rank that they wait for, or `agent` for a node's own classification."""
    score: float | None
    """Mean health score in the window, 0 to 1."""
    peer_median: float | None
    """Median of the mean scores of its cluster."""
    deficit: float | None
    """How far the score lies below that."""
    last_event: str | None
    """Time of the node's newest event in the window."""
    silent: bool
    """Whether it has sent nothing for five of the usual intervals, and two minutes; then others are named first."""


def in_communicator(row: dict[str, Any]) -> str:
    """Which rank of which communicator, as a part of a sentence; empty where collectives do not name the node."""
    if not row["communicator"]:
        return ""
    pod = f", pod {row['pod']}" if row["pod"] else ""
    rank = f"{row['gpu']} in " if row["gpu"] else "" if row["rank"] is None else f"rank {row['rank']} of "
    return f", {rank}communicator {row['communicator']}{pod}"


_SHOWN_DEFICIT: Final = 0.0005
"""Distance below the peers' median score from which the two are told apart in a sentence: it has three digits."""


class StragglerArguments(Scoped):
    """Where, when, and how far below the peers counts."""

    min_deficit: float = Field(default=0.1, ge=0, le=1)
    """Smallest distance below the peers' median score."""


STRAGGLERS = Question(
    name="find_stragglers",
    title="Straggler ranking",
    description="Nodes ranked by how likely they hold the job up: verdicts first, then the distance below the peers.",
    row=StragglerRow,
    sql=f"""
    WITH {VERDICTS},
    means AS (
        SELECT cluster_id, node_id, sum(total) / sum(samples) AS score, arg_min(lowest_event, lowest) AS worst,
               max(rank) AS rank
        FROM activity WHERE samples > 0 AND metric_name = '{metrics.HEALTH_SCORE}' GROUP BY cluster_id, node_id
    ),
    peers AS (SELECT cluster_id, median(score) AS peer_median FROM means GROUP BY cluster_id),
    found AS (
        SELECT cluster_id, node_id, CASE WHEN communicator IS NULL THEN coalesce(means.rank, latest.rank)
               ELSE latest.rank END AS rank, communicator, gpu, pod, state, kind, since, severity, source,
               score, peer_median, greatest(peer_median - score, 0) AS deficit,
               coalesce(state IN ({ACCUSED}), false) AS accused,
               list_filter([latest.event_id, late_event, worst]::VARCHAR[], lambda x: x IS NOT NULL) AS evidence
        FROM means FULL JOIN latest USING (cluster_id, node_id) LEFT JOIN peers USING (cluster_id)
        WHERE accused OR peer_median - score > $min_deficit
    ),
    {PATIENCE.strip()},
    heard AS (
        SELECT cluster_id, node_id, max(last) AS last_event FROM activity SEMI JOIN found USING (cluster_id, node_id)
        GROUP BY cluster_id, node_id
    )
    SELECT cluster_id, node_id, rank, communicator, gpu, pod, state, kind, since, severity, source, score,
           peer_median, deficit, last_event, {silent("last_event")} AS silent, evidence
    FROM found LEFT JOIN heard USING (cluster_id, node_id) LEFT JOIN patience USING (cluster_id)
    ORDER BY accused DESC, silent AND state IS DISTINCT FROM '{VerdictState.SILENT}',
             coalesce(severity, 0) DESC, deficit DESC NULLS LAST, cluster_id, node_id
    """,
    arguments=StragglerArguments,
    sentence=lambda rows, _: (
        f"{rows[0]['node_id']}{silence(rows[0])} {'was' if rows[0]['silent'] else 'is'} the straggler"
        + (f" ({rows[0]['kind']})" if rows[0]["kind"] else "")
        + in_communicator(rows[0])
        + (f", since {rows[0]['since']}" if rows[0]["since"] else "")
        + (f"; it lost {rows[0]['severity']:.0%}" if rows[0]["severity"] else "")
        + (f"; score {rows[0]['score']:.3f} against {rows[0]['peer_median']:.3f} of its peers"
           if (rows[0]["deficit"] or 0) >= _SHOWN_DEFICIT else "")
        + (f"; {len(rows) - 1} more below" if len(rows) > 1 else "")
        + "."
        if rows
        else "No node is accused, and none lies below its peers."
    ),
)  # fmt: skip


class OutlierArguments(Scoped):
    """Which metric, and how far from the peers counts."""

    metric_name: str = Field(default=metrics.HEALTH_SCORE, min_length=1, max_length=MAX_ID)
    """The metric to compare."""
    k: float = Field(default=3.0, gt=0, le=100)
    """Scaled median absolute deviations from the median."""
    min_band: float = Field(default=0.05, ge=0)
    """Smallest distance from the median that counts, as a share of the median."""
    direction: str = Field(default="both", pattern="^(low|high|both)$")
    """`low`, `high` or `both`."""


class OutlierRow(NodeRow):
    """One node that lies apart."""

    value: float
    """Mean in the window."""
    median: float
    mad: float
    """Median absolute deviation of the nodes' means."""
    z: float | None
    """Distance in scaled deviations; null when the others are all alike."""
    samples: int


OUTLIERS = Question(
    name="find_outlier_nodes",
    title="Outlier nodes",
    description="Nodes whose mean of a metric lies apart from their cluster's, by median and MAD.",
    row=OutlierRow,
    arguments=OutlierArguments,
    sql="""
    WITH means AS (
        SELECT cluster_id, node_id, sum(total) / sum(samples) AS value, sum(samples)::BIGINT AS samples,
               arg_min(lowest_event, lowest) AS least, arg_max(highest_event, highest) AS most
        FROM activity WHERE samples > 0 AND metric_name = $metric_name GROUP BY cluster_id, node_id
    ),
    middle AS (SELECT cluster_id, median(value) AS median, mad(value) AS mad FROM means GROUP BY cluster_id)
    SELECT cluster_id, node_id, value, median, mad,
           CASE WHEN mad > 0 THEN (value - median) / (1.4826 * mad) END AS z, samples,
           [CASE WHEN value < median THEN least ELSE most END]::VARCHAR[] AS evidence
    FROM means JOIN middle USING (cluster_id)
    WHERE abs(value - median) > greatest($k * 1.4826 * mad, $min_band * abs(median))
      AND ($direction = 'both' OR ($direction = 'low') = (value < median))
    ORDER BY abs(value - median) DESC, cluster_id, node_id
    """,
    sentence=lambda rows, arguments: (
        f"{plural(len(rows), 'node')} apart in {arguments.metric_name}: "
        + ", ".join(f"{row['node_id']} ({row['value']:.4g} against {row['median']:.4g})" for row in rows[:5])
        + "."
        if rows
        else f"No node lies apart in {arguments.metric_name}."
    ),
)


class NodeArguments(Scoped):
    """Which node."""

    node_id: str = Field(min_length=1, max_length=MAX_ID)
    """The node."""


class WhyRow(VerdictFacts):
    """What decides about one node."""

    straggler: bool
    proof: str | None
    """The verdict's own numbers, as JSON text."""
    reports: int
    """Health reports of the node in the window."""
    score: float | None
    lowest: float | None
    peers: int
    peer_median: float | None
    threshold: float | None
    """Median minus 2 scaled deviations, at least 0.05 below the median: the published rule with Fleet's defaults."""
    place: int | None
    """Place among its peers, 1 is the lowest score."""
    weakest: str | None
    """The measure in which the node lies lowest against its peers."""
    cause: str | None
    """What the node's agent found: its most severe causal chain, the newest of these; else `weakest`."""
    causal_chain_id: str | None
    """The causal chain that `cause` describes."""
    last_event: str | None
    """Time of the node's newest event in the window."""
    silent: bool
    """Whether it has sent nothing for five of the usual intervals, and two minutes."""


def _why(rows: list[dict[str, Any]], arguments: Any) -> str:
    if not rows:
        return f"{arguments.node_id} sent nothing in this window, and no verdict names it."
    row = rows[0]
    name = row["node_id"] + silence(row)
    compared = (
        f"score {row['score']:.3f}, place {row['place']} of {row['peers'] + 1}, peers at {row['peer_median']:.3f}"
        if row["score"] is not None and row["peer_median"] is not None
        else f"score {row['score']:.3f}, no peers to compare with" if row["score"] is not None
        else "no health reports in this window"
    )  # fmt: skip
    cause = f"; weakest against its peers: {row['weakest']}" if row["weakest"] else ""
    cause += f"; cause: {row['cause']}" if row["causal_chain_id"] else ""
    if row["straggler"]:
        kind = f" ({row['kind']})" if row["kind"] else ""
        kind += in_communicator(row)
        return f"{name} is a straggler{kind}: the newest verdict says {row['state']}; {compared}{cause}."
    if row["state"]:
        return f"{name} is no straggler: the newest verdict says {row['state']}; {compared}{cause}."
    if row["score"] is not None and row["threshold"] is not None and row["score"] < row["threshold"]:
        return f"{name} is not accused by any verdict, but lies below {row['threshold']:.3f}: {compared}{cause}."
    return f"{name} is no straggler: no verdict names it; {compared}{cause}."


_SIGNAL_GAPS: Final = ", ".join(
    f"{{'name': '{row.signal}', 'gap': others.{row.signal} - one.{row.signal}}}" for row in SIGNALS
)
"""By how much a node's signal lies below the median of the others, as a list in SQL."""

WHY_NOT = Question(
    name="why_not",
    title="Why, or why not, this node",
    description="Why a node is, or is not, called a straggler: its verdict, its score, its place among the peers.",
    row=WhyRow,
    arguments=NodeArguments,
    sql=f"""
    WITH {VERDICTS},
    means AS (
        SELECT cluster_id, node_id, avg(health_score) AS score, min(health_score) AS lowest, count(*) AS reports,
               arg_min(event_id, health_score) AS worst,
               {", ".join(f"avg({row.column}) AS {row.signal}" for row in SIGNALS)}
        FROM node_metrics GROUP BY cluster_id, node_id
    ),
    ranked AS (
        SELECT *, row_number() OVER (PARTITION BY cluster_id ORDER BY score, node_id) AS place,
               count(*) OVER (PARTITION BY cluster_id) - 1 AS peers
        FROM means
    ),
    others AS (
        SELECT cluster_id, median(score) AS peer_median, mad(score) AS spread,
               {", ".join(f"median({row.signal}) AS {row.signal}" for row in SIGNALS)}
        FROM means WHERE node_id <> $node_id GROUP BY cluster_id
    ),
    one AS (SELECT * FROM ranked WHERE node_id = $node_id),
    accused AS (SELECT * FROM latest WHERE node_id = $node_id),
    gaps AS (
        SELECT one.cluster_id, unnest([
            {_SIGNAL_GAPS}]) AS item
        FROM one JOIN others USING (cluster_id)
    ),
    weak AS (
        SELECT cluster_id, arg_max(item.name, item.gap) FILTER (item.gap > 0.05) AS weakest
        FROM gaps GROUP BY cluster_id
    ),
    described AS (
        SELECT * FROM causal_chains WHERE node_id = $node_id
        QUALIFY row_number() OVER (PARTITION BY cluster_id, causal_chain_id ORDER BY "timestamp" DESC, event_id) = 1
    ),
    chained AS (
        SELECT cluster_id, causal_chain_id, coalesce(summary, root_cause) AS found, event_id AS chain_event
        FROM described
        QUALIFY row_number() OVER (PARTITION BY cluster_id ORDER BY
            list_position(['LOW', 'MEDIUM', 'HIGH'], severity) DESC NULLS LAST, "timestamp" DESC, causal_chain_id) = 1
    ),
    {PATIENCE.strip()},
    heard AS (SELECT cluster_id, max(last) AS last_event FROM activity WHERE node_id = $node_id GROUP BY cluster_id)
    SELECT cluster_id, $node_id AS node_id, coalesce(state IN ({ACCUSED}), false) AS straggler, state, kind,
           severity, since, rank, communicator, gpu, pod, proof,
           coalesce(reports, 0) AS reports, score, lowest, coalesce(peers, 0) AS peers,
           peer_median,
           peer_median - greatest({THRESHOLD_K} * 1.4826 * spread, {THRESHOLD_MIN_BAND}) AS threshold,
           place, weakest, coalesce(found, weakest) AS cause, causal_chain_id, last_event,
           {silent("last_event")} AS silent,
           list_filter(
               [accused.event_id, late_event, worst, chain_event]::VARCHAR[], lambda x: x IS NOT NULL
           ) AS evidence
    FROM one FULL JOIN accused USING (cluster_id) LEFT JOIN others USING (cluster_id)
         LEFT JOIN weak USING (cluster_id) LEFT JOIN chained USING (cluster_id)
         LEFT JOIN heard USING (cluster_id) LEFT JOIN patience USING (cluster_id)
    ORDER BY cluster_id
    """,
    sentence=_why,
)


class CompareArguments(Ending):
    """Two windows of one length: the newer ends at `until`, the older ends `apart` before that."""

    metric_name: str = Field(default=metrics.HEALTH_SCORE, min_length=1, max_length=MAX_ID)
    """The metric to compare."""
    length: str = Field(default="15m", max_length=64)
    """Length of both windows, a duration."""
    apart: str = Field(default="1h", max_length=64)
    """How much earlier the older window is, a duration."""


class CompareRow(NodeRow):
    """One node in both windows, the largest change first."""

    before: float | None
    after: float | None
    change: float | None
    """after / before - 1"""
    samples_before: int
    samples_after: int


COMPARE = Question(
    name="compare_windows",
    title="Compare two windows",
    description="How every node's mean of a metric changed between an older and a newer window of the same length.",
    row=CompareRow,
    arguments=CompareArguments,
    sql="""
    WITH marked AS (
        SELECT cluster_id, node_id, samples, total, lowest, lowest_event,
               "timestamp" >= make_timestamp_ns($newer_start) AS new,
               "timestamp" < make_timestamp_ns($older_end) AS old
        FROM activity WHERE metric_name = $metric_name AND samples > 0
    ),
    means AS (
        SELECT cluster_id, node_id, coalesce(sum(samples) FILTER (old), 0)::BIGINT AS samples_before,
               coalesce(sum(samples) FILTER (new), 0)::BIGINT AS samples_after,
               sum(total) FILTER (old) / samples_before AS before, sum(total) FILTER (new) / samples_after AS after,
               arg_min(lowest_event, lowest) FILTER (old) AS first, arg_min(lowest_event, lowest) FILTER (new) AS last
        FROM marked WHERE old OR new GROUP BY cluster_id, node_id
    )
    SELECT cluster_id, node_id, before, after, CASE WHEN before <> 0 THEN after / before - 1 END AS change,
           samples_before, samples_after, list_filter([first, last]::VARCHAR[], lambda x: x IS NOT NULL) AS evidence
    FROM means ORDER BY abs(change) DESC NULLS LAST, cluster_id, node_id
    """,
    sentence=lambda rows, arguments: (
        f"Largest change of {arguments.metric_name}: {rows[0]['node_id']} "
        + (f"{rows[0]['change']:+.1%}." if rows[0]["change"] is not None else "is there in one window only.")
        if rows
        else f"Nothing of {arguments.metric_name} in either window."
    ),
)

QUESTIONS = (SUMMARY, STRAGGLERS, OUTLIERS, WHY_NOT, COMPARE)
