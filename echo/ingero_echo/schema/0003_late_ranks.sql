-- Collectives accuse ranks: a verdict may name the communicator whose collectives wait, and the rank's pod.
ALTER TABLE verdicts ADD COLUMN communicator VARCHAR;
ALTER TABLE verdicts ADD COLUMN pod VARCHAR;
