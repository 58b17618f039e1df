-- A key that is an index of two columns; a table with none; a table whose identity is switched on the way.
CREATE TABLE seat (hall text NOT NULL, row int NOT NULL, taken boolean, UNIQUE (row, hall));
ALTER TABLE seat REPLICA IDENTITY USING INDEX seat_row_hall_key;
CREATE TABLE log (line text);
ALTER TABLE log REPLICA IDENTITY NOTHING;
CREATE TABLE switched (id int PRIMARY KEY, v text);
CREATE PUBLICATION vectors FOR TABLE seat, switched;
CREATE PUBLICATION inserts FOR TABLE log WITH (publish = 'insert');
-- capture
INSERT INTO seat VALUES ('a', 1, false), ('b', 2, NULL);
INSERT INTO log VALUES ('first'), ('second');
INSERT INTO switched VALUES (1, 'a'), (2, 'b');
UPDATE seat SET taken = true WHERE hall = 'a';
UPDATE seat SET hall = 'c' WHERE hall = 'b';
DELETE FROM seat WHERE hall = 'a';
BEGIN;
UPDATE switched SET v = 'A' WHERE id = 1;
ALTER TABLE switched REPLICA IDENTITY FULL;
UPDATE switched SET v = 'AA' WHERE id = 1;
COMMIT;
DELETE FROM switched WHERE id = 2;
