-- A row filter that turns updates into inserts and deletes, a column list, and partitions published as their root.
CREATE TABLE stock (id int PRIMARY KEY, amount int, secret text);
ALTER TABLE stock REPLICA IDENTITY FULL;
CREATE TABLE slim (id int PRIMARY KEY, hidden text, shown text);
CREATE TABLE measure (day date NOT NULL, value int, PRIMARY KEY (day)) PARTITION BY RANGE (day);
CREATE TABLE measure_b PARTITION OF measure FOR VALUES FROM ('2026-02-01') TO ('2026-03-01');
CREATE TABLE measure_a (value int, gone int, day date NOT NULL);
ALTER TABLE measure_a DROP COLUMN gone;
ALTER TABLE measure ATTACH PARTITION measure_a FOR VALUES FROM ('2026-01-01') TO ('2026-02-01');
CREATE PUBLICATION vectors FOR TABLE stock WHERE (amount > 10), slim (shown, id), measure WITH (publish_via_partition_root);
-- capture
INSERT INTO stock VALUES (1, 5, 's'), (2, 50, 't'), (3, NULL, 'u');
UPDATE stock SET amount = 15 WHERE id = 1;
UPDATE stock SET amount = 1 WHERE id = 2;
UPDATE stock SET secret = 'v' WHERE id = 1;
INSERT INTO slim VALUES (1, 'h', 's');
UPDATE slim SET hidden = 'i' WHERE id = 1;
INSERT INTO measure VALUES ('2026-01-05', 1), ('2026-02-05', 2);
UPDATE measure SET day = '2026-02-06' WHERE day = '2026-01-05';
TRUNCATE measure;
