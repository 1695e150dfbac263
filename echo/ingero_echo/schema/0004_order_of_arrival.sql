-- The order of arrival: the number of the transaction that wrote a row, rising by one. Rows from before have 0. Sealing
-- into an open table takes rows by it, because rows with old times arrive late.
ALTER TABLE events ADD COLUMN seq BIGINT DEFAULT 0;
ALTER TABLE node_metrics ADD COLUMN seq BIGINT DEFAULT 0;
ALTER TABLE node_rollups ADD COLUMN seq BIGINT DEFAULT 0;
ALTER TABLE collectives ADD COLUMN seq BIGINT DEFAULT 0;
ALTER TABLE verdicts ADD COLUMN seq BIGINT DEFAULT 0;
ALTER TABLE causal_chains ADD COLUMN seq BIGINT DEFAULT 0;

-- One row: the identity of this database for the shared tables, the highest order of arrival that was sealed into them,
-- and the highest whose rows were deleted here.
CREATE TABLE sealing (
    store   UUID NOT NULL,
    sealed  BIGINT NOT NULL,
    deleted BIGINT NOT NULL
);
INSERT INTO sealing SELECT uuid(), -1, -1;
