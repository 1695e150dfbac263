-- How far a stream was read: its identity, and the message through which the rows up to an order of arrival have it.
CREATE TABLE source (
    seq      BIGINT NOT NULL,
    stream   VARCHAR NOT NULL,
    sequence BIGINT NOT NULL
);
-- The databases whose place in the shared tables this one took after a volume was lost.
ALTER TABLE sealing ADD COLUMN predecessors VARCHAR;
