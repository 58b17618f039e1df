-- REPLICA IDENTITY FULL: the whole old row comes along; two rows are the same.
CREATE TABLE reading (sensor int, value float8, note text);
ALTER TABLE reading REPLICA IDENTITY FULL;
ALTER TABLE reading ALTER note SET STORAGE EXTERNAL;
CREATE PUBLICATION vectors FOR TABLE reading;
-- capture
INSERT INTO reading VALUES (1, 0.1, NULL), (1, 0.1, NULL), (2, 'NaN', repeat('z', 2100));
UPDATE reading SET value = '-Infinity' WHERE sensor = 2;
DELETE FROM reading WHERE ctid = (SELECT min(ctid) FROM reading WHERE sensor = 1);
