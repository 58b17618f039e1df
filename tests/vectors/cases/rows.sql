-- Inserts, updates, deletes and a key change under the default replica identity; NULL and empty string.
CREATE TABLE item (id int PRIMARY KEY, name text, price numeric(8,2), sold boolean);
CREATE PUBLICATION vectors FOR TABLE item;
-- capture
BEGIN;
INSERT INTO item VALUES (1, 'bolt', 0.25, false), (2, NULL, NULL, NULL), (3, '', -1.50, true);
UPDATE item SET price = 0.30 WHERE id = 1;
COMMIT;
UPDATE item SET id = 20, name = 'nut' WHERE id = 2;
DELETE FROM item WHERE id = 3;
BEGIN;
INSERT INTO item VALUES (4, 'kept', 1, NULL);
SAVEPOINT a;
INSERT INTO item VALUES (5, 'undone', 1, NULL);
ROLLBACK TO a;
INSERT INTO item VALUES (6, 'after', 1, NULL);
COMMIT;
