"""Questions about work: collectives, copies, launches, memory, and the cost of lost time."""

from typing import Any

from pydantic import Field

from ingero_contract import attributes, metrics
from ingero_contract.values import LATE_RANK, VerdictState
from ingero_echo.questions.accusations import VERDICTS
from ingero_echo.questions.base import EvidenceRow, NodeRow, Question, Scoped, plural
from ingero_echo.settings import RatesConfig
from ingero_echo.window import ACCUSED
from ingero_kit.gpu_rates import canonical_provider


def key(name: str) -> str:
    """Path of an attribute in the JSON column."""
    return f'$."{name}"'


class CollectiveRow(EvidenceRow):
    """One operation of one communicator."""

    cluster_id: str
    communicator: str | None
    operation: str | None
    ranks: int
    calls: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    """Host time inside the call; the kernel's on the GPU where NCCL Inspector sends it."""
    bytes: float | None
    """Sum over all ranks."""
    gigabytes_per_second: float | None
    """Bytes over summed time."""


COLLECTIVES = Question(
    name="nccl_collective_summary",
    title="NCCL roll-up",
    description="Collectives by communicator and operation: calls, percentiles of the duration, bytes, bandwidth.",
    row=CollectiveRow,
    sql="""
    SELECT cluster_id, communicator, operation,
           CASE WHEN count(rank) > 0 THEN count(DISTINCT rank) ELSE coalesce(max(nranks), 0) END AS ranks,
           greatest(count(*) FILTER (measure = 'duration_ms'), count(*) FILTER (measure = 'bytes')) AS calls,
           quantile_cont(value_double, 0.5) FILTER (measure = 'duration_ms') AS p50_ms,
           quantile_cont(value_double, 0.95) FILTER (measure = 'duration_ms') AS p95_ms,
           quantile_cont(value_double, 0.99) FILTER (measure = 'duration_ms') AS p99_ms,
           sum(value_double) FILTER (measure = 'bytes') AS bytes,
           sum(value_double) FILTER (measure = 'bytes')
             / nullif(sum(value_double) FILTER (measure = 'duration_ms') * 1e6, 0) AS gigabytes_per_second,
           [arg_max(event_id, (measure = 'duration_ms', value_double))::VARCHAR] AS evidence
    FROM collectives GROUP BY cluster_id, communicator, operation HAVING calls > 0
    ORDER BY calls DESC, communicator, operation
    """,
    sentence=lambda rows, _: (
        f"{sum(row['calls'] for row in rows):,} collectives of {plural(len(rows), 'kind')}; most: "
        f"{rows[0]['operation'] or 'unnamed'}."
        if rows else "Nobody sent durations or bytes of collectives in this window."
    ),
)  # fmt: skip


class SkewArguments(Scoped):
    """Which communicator, and how matched."""

    communicator: str | None = Field(default=None, max_length=64)
    """One communicator; without it all."""
    bucket_ms: int = Field(default=1000, ge=1, le=60_000)
    """Collectives without a sequence number are matched by time buckets of this length."""


class SkewRow(EvidenceRow):
    """One rank, the latest first."""

    cluster_id: str
    communicator: str | None
    rank: int | None
    gpu: str | None
    """Of the node, where Fleet names the rank by its GPU: NCCL Inspector sends no ranks."""
    node_id: str
    collectives: int
    last: int
    """Collectives that this rank was the last to reach."""
    share_last: float
    mean_lag_ms: float
    """Mean lag behind the median rank; the late rank is the one that waits least."""
    worst_lag_ms: float
    accused: bool
    """Whether the newest verdict of Fleet on the rank says that the collectives wait for it alone."""
    since: str | None
    """When Fleet named it, in its own words."""
    share_lost: float | None
    """Share of the time that was lost waiting for it alone, 0 to 1."""


SKEW = Question(
    name="nccl_slow_rank",
    title="Collective skew and slow rank",
    description="Which rank comes last to collectives, how often, how late: by Fleet's lag, or by who waits least.",
    row=SkewRow,
    arguments=SkewArguments,
    sql=f"""
    WITH chosen AS (
        SELECT *, coalesce(sequence, epoch_ms("timestamp") // $bucket_ms) AS instance
        FROM collectives
        WHERE measure IN ('barrier_wait_ms', 'peer_lag_ms') AND rank IS NOT NULL
          AND ($communicator IS NULL OR communicator = $communicator)
    ),
    waits AS (
        SELECT cluster_id, communicator, operation, instance, rank, any_value(node_id) AS node_id,
               avg(value_double) AS value, max(event_id::VARCHAR) AS event, measure
        FROM chosen GROUP BY cluster_id, communicator, operation, instance, rank, measure
    ),
    lags AS (
        SELECT *, CASE measure WHEN 'peer_lag_ms' THEN value
                  ELSE median(value) OVER instance_of - value END AS lag,
               count(*) OVER instance_of AS present
        FROM waits WINDOW instance_of AS (PARTITION BY cluster_id, communicator, operation, instance, measure)
    ),
    placed AS (
        SELECT *, rank = first_value(rank) OVER (
            PARTITION BY cluster_id, communicator, operation, instance, measure ORDER BY lag DESC, rank) AS is_last
        FROM lags WHERE present > 1
    ),
    ranks AS (
        SELECT cluster_id, communicator, rank, any_value(node_id) AS node_id, count(*) AS collectives,
               count(*) FILTER (is_last AND lag > 0) AS last, avg(lag) AS mean_lag_ms, max(lag) AS worst_lag_ms,
               arg_max(event, lag) AS worst
        FROM placed GROUP BY cluster_id, communicator, rank
    ),
    newest AS (
        SELECT cluster_id, node_id, communicator, rank, state, kind, since, severity, event_id, evidence AS proof
        FROM verdicts WHERE source = 'collectives'
        QUALIFY row_number() OVER (PARTITION BY cluster_id, node_id ORDER BY "timestamp" DESC) = 1
    ),
    late AS (
        SELECT cluster_id, node_id, communicator, rank, since, severity, event_id::VARCHAR AS verdict,
               json_extract_string(proof, '$.gpu') AS gpu,
               try_cast(json_extract_string(proof, '$.collectives') AS BIGINT) AS collectives,
               try_cast(json_extract_string(proof, '$.lasts') AS BIGINT) AS lasts,
               try_cast(json_extract_string(proof, '$.lag_ms') AS DOUBLE) AS lag_ms
        FROM newest
        WHERE state IN ({ACCUSED}) AND kind = '{LATE_RANK}'
              AND ($communicator IS NULL OR communicator = $communicator)
    )
    SELECT cluster_id, communicator, rank, gpu, coalesce(late.node_id, ranks.node_id) AS node_id,
           coalesce(ranks.collectives, late.collectives, 0) AS collectives, coalesce(ranks.last, lasts, 0) AS last,
           coalesce(ranks.last / ranks.collectives, lasts / nullif(late.collectives, 0), 0) AS share_last,
           coalesce(mean_lag_ms, lag_ms, 0) AS mean_lag_ms, coalesce(worst_lag_ms, lag_ms, 0) AS worst_lag_ms,
           verdict IS NOT NULL AS accused, since, severity AS share_lost,
           list_filter([verdict, worst], lambda x: x IS NOT NULL) AS evidence
    FROM ranks FULL JOIN late USING (cluster_id, communicator, rank)
    ORDER BY accused DESC, mean_lag_ms DESC, rank
    """,
    sentence=lambda rows, _: (
        f"Fleet names {rows[0]['gpu'] or 'rank ' + str(rows[0]['rank'])} ({rows[0]['node_id']}) of communicator "
        f"{rows[0]['communicator']} since {rows[0]['since']}: {rows[0]['share_lost'] or 0:.1%} of the time is lost "
        "waiting for it alone."
        if rows and rows[0]["accused"] else
        f"Rank {rows[0]['rank']} ({rows[0]['node_id']}) is {rows[0]['mean_lag_ms']:.1f} ms behind the median and "
        f"last in {rows[0]['share_last']:.0%} of {rows[0]['collectives']} collectives."
        if rows and rows[0]["mean_lag_ms"] > 0 else "No rank lags behind the others."
    ),
)  # fmt: skip


class CopyRow(NodeRow):
    """One node and direction."""

    direction: str
    bytes: float
    """Increase of the counter in the window; a restart of the counter is not counted as a loss."""
    seconds: float
    gigabytes_per_second: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    """Percentiles of the bandwidth between neighbouring reports, gigabytes a second."""


_STEPS = """
    steps AS (
        SELECT *, value_double - lag(value_double) OVER line AS grown,
               (epoch_ns("timestamp") - lag(epoch_ns("timestamp")) OVER line) / 1e9 AS gap
        FROM counters WINDOW line AS (PARTITION BY cluster_id, node_id, metric_name, label ORDER BY "timestamp")
    )
"""

COPIES = Question(
    name="memcpy_bandwidth_summary",
    title="Copy bandwidth",
    description="Bytes copied and bandwidth by node and direction, from the cumulative counters.",
    row=CopyRow,
    sql=f"""
    WITH counters AS (
        SELECT cluster_id, node_id, metric_name, "timestamp", event_id, value_double, attributes AS label,
               coalesce(json_extract_string(attributes, '{key(attributes.MEMCPY_DIRECTION)}'), 'unknown') AS direction
        FROM (  -- one by one: the engine looks for one name while it reads, for one of two afterwards
            SELECT * FROM events WHERE metric_name = '{metrics.GPU_MEMCPY_BYTES}'
            UNION ALL SELECT * FROM events WHERE metric_name = '{metrics.MEMCPY_BYTES_TOTAL}'
        )
    ), {_STEPS}
    SELECT cluster_id, node_id, direction, sum(greatest(grown, 0)) AS bytes,
           (max(epoch_ns("timestamp")) - min(epoch_ns("timestamp"))) / 1e9 AS seconds,
           bytes / nullif(seconds, 0) / 1e9 AS gigabytes_per_second,
           quantile_cont(grown / gap / 1e9, 0.5) FILTER (grown >= 0 AND gap > 0) AS p50,
           quantile_cont(grown / gap / 1e9, 0.95) FILTER (grown >= 0 AND gap > 0) AS p95,
           quantile_cont(grown / gap / 1e9, 0.99) FILTER (grown >= 0 AND gap > 0) AS p99,
           [arg_max(event_id, "timestamp")::VARCHAR] AS evidence
    FROM steps GROUP BY cluster_id, node_id, direction HAVING bytes IS NOT NULL
    ORDER BY bytes DESC, node_id, direction
    """,
    sentence=lambda rows, _: (
        f"Most copied: {rows[0]['node_id']} {rows[0]['direction']}, {rows[0]['bytes'] / 1e9:.2f} GB."
        if rows else "No copies in this window."
    ),
)  # fmt: skip


class LaunchRow(NodeRow):
    """One node."""

    launches: float
    launches_per_second: float | None


LAUNCHES = Question(
    name="kernel_launch_summary",
    title="Kernel launches",
    description="Kernel and graph launches of every node in the window, from the cumulative counters.",
    row=LaunchRow,
    sql=f"""
    WITH counters AS (
        SELECT cluster_id, node_id, metric_name, "timestamp", event_id, value_double, attributes AS label
        FROM events WHERE metric_name = '{metrics.LAUNCHES_TOTAL}'
    ), {_STEPS}
    SELECT cluster_id, node_id, sum(greatest(grown, 0)) AS launches,
           launches * 1e9 / nullif(max(epoch_ns("timestamp")) - min(epoch_ns("timestamp")), 0)
             AS launches_per_second,
           [arg_max(event_id, "timestamp")::VARCHAR] AS evidence
    FROM steps GROUP BY cluster_id, node_id HAVING launches IS NOT NULL ORDER BY launches, node_id
    """,
    sentence=lambda rows, _: (
        f"Fewest launches: {rows[0]['node_id']}, {rows[0]['launches']:,.0f} of {plural(len(rows), 'node')}."
        if rows else "No launches in this window."
    ),
)  # fmt: skip


class FragmentationRow(NodeRow):
    """One GPU."""

    gpu: str | None
    highest: float
    mean: float
    newest: float
    """Share of the memory that is neither used nor free, 0 to 1."""


FRAGMENTATION = Question(
    name="memfrag_hotspots",
    title="Memory fragmentation",
    description="GPUs whose memory is the most fragmented.",
    row=FragmentationRow,
    sql=f"""
    SELECT cluster_id, node_id, json_extract_string(attributes, '{key(attributes.GPU_UUID)}') AS gpu,
           max(value_double) AS highest, avg(value_double) AS mean, arg_max(value_double, "timestamp") AS newest,
           [arg_max(event_id, value_double)::VARCHAR] AS evidence
    FROM events WHERE metric_name = '{metrics.GPU_MEMORY_FRAGMENTATION}' AND value_double IS NOT NULL
    GROUP BY cluster_id, node_id, gpu ORDER BY highest DESC, node_id, gpu
    """,
    sentence=lambda rows, _: (
        f"Most fragmented: {rows[0]['node_id']}, up to {rows[0]['highest']:.0%}."
        if rows else "No fragmentation was reported in this window."
    ),
)  # fmt: skip


class ProcessRow(NodeRow):
    """One process that has loaded NCCL."""

    pid: str | None
    comm: str | None
    library: str | None
    version: str | None
    last_seen: str


PROCESSES = Question(
    name="find_nccl_processes",
    title="NCCL processes",
    description="Processes that have loaded libnccl, with its path and version.",
    row=ProcessRow,
    sql=f"""
    SELECT cluster_id, node_id, json_extract_string(attributes, '$.pid') AS pid,
           json_extract_string(attributes, '$.comm') AS comm,
           json_extract_string(attributes, '$.libnccl_path') AS library,
           json_extract_string(attributes, '$.libnccl_version') AS version, max("timestamp") AS last_seen,
           [arg_max(event_id, "timestamp")::VARCHAR] AS evidence
    FROM events WHERE metric_name = '{metrics.NCCL_PROCESS_LOADED}' GROUP BY ALL ORDER BY cluster_id, node_id, pid
    """,
    sentence=lambda rows, _: (
        f"{plural(len(rows), 'NCCL process').replace('processs', 'processes')} on "
        f"{plural(len({row['node_id'] for row in rows}), 'node')}." if rows else "No NCCL process was reported."
    ),
)  # fmt: skip


class CostRow(NodeRow):
    """One node that others waited for."""

    provider: str | None
    gpu_model: str | None
    hours: float | None
    """Time under an accusation in the window; null where no verdict accuses it."""
    severity: float | None
    """Share of the rate, or of the time of who waits, that was lost; 1 where the verdict names none."""
    gpus: int
    """GPUs that waited: those of the job's ranks, or the node's own."""
    rate: float | None
    """Price of one GPU hour; nothing where no rate is known."""
    cost: float | None
    """What waiting for the node cost in the window; nothing where no rate is known."""
    currency: str
    source: str
    """fleet: the counterfactual share that Fleet sent; estimate: hours x severity x gpus x rate."""


def _rates(_: Any, cost: RatesConfig) -> dict[str, Any]:
    table = [(canonical_provider(name), *rate) for name, models in cost.rates.items() for rate in models.items()]
    return {
        "providers": [row[0] for row in table],
        "models": [row[1] for row in table],
        "prices": [row[2] for row in table],
        "fallback": cost.fallback_rate or None,
        "currency": cost.currency,
    }


def _cost_sentence(rows: list[dict[str, Any]], _: Any) -> str:
    if not rows:
        return "No time was lost to stragglers."
    sums: dict[str, float] = {}
    for row in rows:
        if row["cost"] is not None:
            sums[row["currency"]] = sums.get(row["currency"], 0.0) + row["cost"]
    money = " and ".join(f"{value:,.2f} {currency}" for currency, value in sorted(sums.items())) or "An unknown sum"
    hours = sum(row["hours"] or 0.0 for row in rows)
    words = f"{money} lost to {plural(len(rows), 'straggler')}"
    words += f" in {hours:.2f} hours" if hours else ""
    unknown = [row["node_id"] for row in rows if row["cost"] is None]
    if unknown:
        words += f"; no rate is known for {', '.join(unknown[:5])}" + (" and others" if len(unknown) > 5 else "")
        named = any(row["cost"] is None and row["gpu_model"] for row in rows)
        words += " (set cost.rates)" if named else ", which report no GPU model (set cost.fallback_rate)"
    return f"{words}."


COST = Question(
    name="get_cost",
    title="Cost of lost time",
    description=(
        "What waiting for stragglers cost: Fleet's own figures where it sends them, else time under an accusation, "
        "times the share lost, times the GPUs that waited, times the rate."
    ),
    row=CostRow,
    parameters=_rates,
    sql=f"""
    WITH rates AS (
        SELECT unnest($providers::VARCHAR[]) AS provider, unnest($models::VARCHAR[]) AS gpu_model,
               unnest($prices::DOUBLE[]) AS rate
    ),
    {VERDICTS.strip()},
    changes AS (
        SELECT *, lead("timestamp") OVER (PARTITION BY cluster_id, node_id, source ORDER BY "timestamp") AS next
        FROM verdicts WHERE source IN ('fleet', 'collectives')
    ),
    open AS (SELECT * FROM changes WHERE next IS NULL AND state IN ({ACCUSED})),
    heard AS (
        SELECT cluster_id, node_id, max(last) AS last_event FROM activity SEMI JOIN open USING (cluster_id, node_id)
        GROUP BY cluster_id, node_id
    ),
    others AS (
        SELECT cluster_id, max(last) AS last_of_all FROM activity
        SEMI JOIN (SELECT * FROM open WHERE state = '{VerdictState.SILENT}') USING (cluster_id) GROUP BY cluster_id
    ),
    told AS (
        SELECT cluster_id, node_id, "timestamp"
        FROM events JOIN (SELECT cluster_id, node_id, open."timestamp" AS named
                          FROM open SEMI JOIN told_well USING (cluster_id, node_id) WHERE source = 'fleet')
             USING (cluster_id, node_id)
        WHERE metric_name = '{metrics.HEALTH_SCORE}' AND "timestamp" > named + INTERVAL 1 MINUTE
        GROUP BY cluster_id, node_id, "timestamp"
        HAVING json_extract_string(any_value(attributes), '{key(attributes.LAST_VERDICT)}')
               LIKE '{VerdictState.HEALTHY}%'
    ),
    well AS (SELECT cluster_id, node_id, 'fleet' AS source, min("timestamp") AS well FROM told GROUP BY ALL),
    -- What was accused before the window is charged from its beginning. What is accused still is charged up to the
    -- node's newest event, or its cluster's where the accusation is that the node is silent, or its first report that
    -- Fleet calls it healthy.
    spans AS (
        SELECT changes.*, greatest("timestamp", make_timestamp_ns($window_start::BIGINT)) AS began,
               greatest(began, coalesce(next, least(well, CASE state WHEN '{VerdictState.SILENT}' THEN last_of_all
                                                          ELSE last_event END))) AS ended
        FROM changes LEFT JOIN heard USING (cluster_id, node_id) LEFT JOIN others USING (cluster_id)
             LEFT JOIN well USING (cluster_id, node_id, source)
    ),
    charged AS (
        SELECT cluster_id, node_id, coalesce(sum(epoch_ns(ended) - epoch_ns(began)), 0) / 3.6e12 AS hours,
               avg(coalesce(severity, 1)) AS severity,
               list(event_id::VARCHAR ORDER BY "timestamp" DESC, event_id)[1:10] AS cited,
               max(try_cast(json_extract_string(evidence, '$.ranks') AS INTEGER)) AS ranks
        FROM spans WHERE state IN ({ACCUSED}) AND (ended > began OR "timestamp" = began)
        GROUP BY cluster_id, node_id, source
    ),
    -- Whom detector and collectives both accuse is charged once, for the larger of the two.
    accused AS (
        SELECT * FROM charged
        QUALIFY row_number() OVER (PARTITION BY cluster_id, node_id ORDER BY hours * severity DESC) = 1
    ),
    -- A sum that falls has begun anew.
    growth AS (
        SELECT cluster_id, node_id, event_id, "timestamp", value_double AS value,
               lag(value_double) OVER (PARTITION BY cluster_id, node_id ORDER BY "timestamp") AS before,
               json_extract_string(attributes, '{key(attributes.CURRENCY)}') AS currency
        FROM events WHERE metric_name = '{metrics.STRAGGLER_COST}'
    ),
    sent AS (
        SELECT cluster_id, node_id, arg_max(currency, "timestamp") AS currency,
               sum(CASE WHEN before IS NULL THEN 0 WHEN value < before THEN value ELSE value - before END) AS cost,
               list(event_id::VARCHAR ORDER BY "timestamp" DESC)[1:10] AS cited
        FROM growth GROUP BY cluster_id, node_id
    ),
    nodes AS (
        SELECT cluster_id, node_id, arg_max(provider, "timestamp") AS provider,
               arg_max(gpu_model, "timestamp") AS gpu_model, max(world_size) AS world_size
        FROM node_metrics GROUP BY cluster_id, node_id
    ),
    counts AS (
        SELECT cluster_id, node_id,
               max(try_cast(json_extract_string(attributes, '{key(attributes.GPU_COUNT)}') AS INTEGER)) AS gpus
        FROM events WHERE metric_name = '{metrics.NODE_INFO}' GROUP BY cluster_id, node_id
    ),
    found AS (
        SELECT cluster_id, node_id, provider, gpu_model, hours, severity, sent.cost AS reported_cost,
               greatest(coalesce(world_size, 0), coalesce(counts.gpus, 1), coalesce(ranks, 0)) AS gpus,
               coalesce(rate, $fallback::DOUBLE) AS rate, coalesce(sent.currency, $currency) AS currency,
               list_concat(sent.cited, accused.cited)[1:10] AS evidence
        FROM accused FULL JOIN sent USING (cluster_id, node_id) LEFT JOIN nodes USING (cluster_id, node_id)
             LEFT JOIN counts USING (cluster_id, node_id) LEFT JOIN rates USING (provider, gpu_model)
    )
    SELECT cluster_id, node_id, provider, gpu_model, hours, severity, gpus, rate,
           coalesce(reported_cost, hours * severity * gpus * rate) AS cost, currency,
           CASE WHEN reported_cost IS NULL THEN 'estimate' ELSE 'fleet' END AS source, evidence
    FROM found ORDER BY cost DESC NULLS LAST, hours DESC NULLS LAST, node_id
    """,
    sentence=_cost_sentence,
)  # fmt: skip

QUESTIONS = (COLLECTIVES, SKEW, COPIES, LAUNCHES, FRAGMENTATION, PROCESSES, COST)
