-- Transactions replicated from elsewhere carry their origin.
CREATE TABLE note (id int PRIMARY KEY);
CREATE PUBLICATION vectors FOR TABLE note;
-- capture
INSERT INTO note VALUES (1);
SELECT pg_replication_origin_create('upstream');
SELECT pg_replication_origin_session_setup('upstream');
BEGIN;
SELECT pg_replication_origin_xact_setup('16/B374D848', '2026-11-21 00:00:00+00');
INSERT INTO note VALUES (2);
COMMIT;
SELECT pg_replication_origin_session_reset();
INSERT INTO note VALUES (3);
SELECT pg_replication_origin_drop('upstream');
