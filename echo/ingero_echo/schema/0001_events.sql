-- One row for every data point, log record and span, in the order of arrival (= nearly the order of time, which is
-- what makes zone maps skip). No primary key: repeats are recognised before the insert.
CREATE TABLE events (
    event_id        UUID NOT NULL,
    "timestamp"     TIMESTAMP_NS NOT NULL,
    received        TIMESTAMP_NS NOT NULL,
    signal          VARCHAR NOT NULL,
    cluster_id      VARCHAR NOT NULL,
    node_id         VARCHAR NOT NULL,
    metric_name     VARCHAR NOT NULL,
    value_double    DOUBLE,
    rank            INTEGER,
    nranks          INTEGER,
    causal_chain_id VARCHAR,
    message         VARCHAR,
    attributes      VARCHAR
);

-- One row for every health push of a node.
CREATE TABLE node_metrics (
    event_id            UUID NOT NULL,
    "timestamp"         TIMESTAMP_NS NOT NULL,
    cluster_id          VARCHAR NOT NULL,
    node_id             VARCHAR NOT NULL,
    rank                INTEGER,
    world_size          INTEGER,
    state               VARCHAR,
    workload_type       VARCHAR,
    job_id              VARCHAR,
    gpu_model           VARCHAR,
    provider            VARCHAR,
    health_score        DOUBLE,
    throughput_ratio    DOUBLE,
    compute_efficiency  DOUBLE,
    memory_headroom     DOUBLE,
    cpu_availability    DOUBLE,
    throughput_rate     DOUBLE
);

-- One row for every measurement of one rank in one collective.
CREATE TABLE collectives (
    event_id     UUID NOT NULL,
    "timestamp"  TIMESTAMP_NS NOT NULL,
    cluster_id   VARCHAR NOT NULL,
    node_id      VARCHAR NOT NULL,
    measure      VARCHAR NOT NULL,
    operation    VARCHAR,
    communicator VARCHAR,
    rank         INTEGER,
    nranks       INTEGER,
    sequence     BIGINT,
    value_double DOUBLE
);

-- One row for every edge of a verdict: Fleet's, and the agents' own.
CREATE TABLE verdicts (
    event_id    UUID NOT NULL,
    "timestamp" TIMESTAMP_NS NOT NULL,
    cluster_id  VARCHAR NOT NULL,
    node_id     VARCHAR NOT NULL,
    rank        INTEGER,
    source      VARCHAR NOT NULL,
    state       VARCHAR,
    kind        VARCHAR,
    since       VARCHAR,
    severity    DOUBLE,
    cohort      VARCHAR,
    evidence    VARCHAR,
    digest      VARCHAR
);

-- One row for every causal chain that an agent described.
CREATE TABLE causal_chains (
    event_id        UUID NOT NULL,
    "timestamp"     TIMESTAMP_NS NOT NULL,
    cluster_id      VARCHAR NOT NULL,
    node_id         VARCHAR NOT NULL,
    causal_chain_id VARCHAR NOT NULL,
    severity        VARCHAR,
    root_cause      VARCHAR,
    summary         VARCHAR,
    attributes      VARCHAR
);

-- Partial sums of every metric of every node by five minutes, written in the transaction of their events; several rows
-- of one key add up, and are merged into one when their time has passed. Long windows are answered from here.
CREATE TABLE node_rollups (
    "timestamp"     TIMESTAMP_NS NOT NULL,
    cluster_id      VARCHAR NOT NULL,
    node_id         VARCHAR NOT NULL,
    metric_name     VARCHAR NOT NULL,
    rank            INTEGER,
    samples         BIGINT NOT NULL,
    total           DOUBLE NOT NULL,
    lowest          DOUBLE NOT NULL,
    highest         DOUBLE NOT NULL,
    lowest_event    UUID NOT NULL,
    highest_event   UUID NOT NULL
);
