-- Logical messages: in a transaction with rows, alone, undone, and outside of any transaction.
CREATE TABLE note (id int PRIMARY KEY);
CREATE PUBLICATION vectors FOR TABLE note;
-- capture
BEGIN;
INSERT INTO note VALUES (1);
SELECT pg_logical_emit_message(true, 'app', 'in a transaction');
INSERT INTO note VALUES (2);
COMMIT;
SELECT pg_logical_emit_message(true, 'app', 'alone');
SELECT pg_logical_emit_message(false, 'loose', '\x00ff'::bytea);
BEGIN;
SELECT pg_logical_emit_message(true, 'app', 'undone');
SELECT pg_logical_emit_message(false, 'loose', '');
ROLLBACK;
INSERT INTO note VALUES (3);
