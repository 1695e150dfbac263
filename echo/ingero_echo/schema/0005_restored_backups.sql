-- A database that was restored from a backup has an identity of its own. It remembers the one that the backup was made
-- of, and the highest order of arrival in the backup: the other database may have sealed these rows since.
ALTER TABLE sealing ADD COLUMN origin UUID;
ALTER TABLE sealing ADD COLUMN copied BIGINT DEFAULT -1;
