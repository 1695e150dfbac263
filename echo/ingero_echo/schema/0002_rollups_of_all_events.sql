-- The partial sums count every event, with a value or without, and know the newest one: what a summary of a long window
-- needs. They are made anew from the events, which are kept as long.
CREATE OR REPLACE TABLE node_rollups (
    "timestamp"     TIMESTAMP_NS NOT NULL,
    cluster_id      VARCHAR NOT NULL,
    node_id         VARCHAR NOT NULL,
    metric_name     VARCHAR NOT NULL,
    rank            INTEGER,
    events          BIGINT NOT NULL,
    last            TIMESTAMP_NS NOT NULL,
    samples         BIGINT NOT NULL,
    total           DOUBLE,
    lowest          DOUBLE,
    highest         DOUBLE,
    lowest_event    UUID,
    highest_event   UUID
);

INSERT INTO node_rollups
SELECT make_timestamp_ns(epoch_ns("timestamp") // 300000000000 * 300000000000) AS bucket, cluster_id, node_id,
       metric_name, max(rank), count(*), max("timestamp"), count(finite), sum(finite), min(finite), max(finite),
       arg_min(event_id, finite), arg_max(event_id, finite)
FROM (SELECT *, CASE WHEN isfinite(value_double) THEN value_double END AS finite FROM events)
GROUP BY bucket, cluster_id, node_id, metric_name;
