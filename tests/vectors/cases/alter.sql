-- The table changes shape inside and between transactions: each shape is a version of its own.
CREATE TABLE shape (id int PRIMARY KEY, a text, b int);
CREATE PUBLICATION vectors FOR TABLE shape;
-- capture
INSERT INTO shape VALUES (1, 'one', 1);
BEGIN;
INSERT INTO shape VALUES (2, 'two', 2);
ALTER TABLE shape ADD COLUMN c date DEFAULT '2026-01-02';
UPDATE shape SET b = 20 WHERE id = 2;
ALTER TABLE shape DROP COLUMN a;
INSERT INTO shape VALUES (3, 3, NULL);
COMMIT;
ALTER TABLE shape RENAME COLUMN b TO beta;
UPDATE shape SET beta = 30 WHERE id = 3;
ALTER TABLE shape ALTER beta TYPE numeric(6,1);
ALTER TABLE shape RENAME TO figure;
UPDATE figure SET beta = 30.5 WHERE id = 3;
