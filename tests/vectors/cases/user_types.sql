-- Enum, domain, composite, range and their arrays: Type messages; the domain's names its base type.
CREATE SCHEMA "my types";
CREATE TYPE "my types".mood AS ENUM ('sad', 'so, so', 'ok');
CREATE DOMAIN positive AS numeric(6,2) CHECK (VALUE > 0);
CREATE DOMAIN flag AS boolean;
CREATE TYPE pair AS (a int, b text);
CREATE TYPE floatrange AS RANGE (subtype = float8);
CREATE TABLE person (
    id int PRIMARY KEY, feels "my types".mood, moods "my types".mood[], size positive, ok flag, p pair, ps pair[], r floatrange
);
CREATE PUBLICATION vectors FOR TABLE person;
-- capture
INSERT INTO person VALUES (1, 'so, so', '{sad,"so, so"}', 1.5, true, '(1,"x y")', ARRAY[ROW(NULL, NULL)::pair], '[0.1,2)');
ALTER TYPE "my types".mood RENAME TO temper;
UPDATE person SET feels = 'ok' WHERE id = 1;
