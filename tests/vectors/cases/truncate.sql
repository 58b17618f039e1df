-- TRUNCATE of one table, of several at once, with its two flags, and rows before and after it.
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child (id int PRIMARY KEY, parent int REFERENCES parent);
CREATE TABLE lone (id int PRIMARY KEY);
CREATE PUBLICATION vectors FOR TABLE parent, child, lone;
-- capture
INSERT INTO parent VALUES (1);
INSERT INTO child VALUES (10, 1);
INSERT INTO lone VALUES (7);
TRUNCATE lone;
BEGIN;
INSERT INTO child VALUES (11, 1);
TRUNCATE parent CASCADE;
INSERT INTO parent VALUES (2);
TRUNCATE lone, parent, child RESTART IDENTITY;
INSERT INTO parent VALUES (3);
COMMIT;
