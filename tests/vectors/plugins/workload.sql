CREATE EXTENSION hstore;
CREATE SCHEMA "Odd ""schema""";
CREATE TYPE mood AS ENUM ('sad', 'it''s "fine"', 'привет');
CREATE TYPE "Odd ""schema""".pair AS (a int, b text);
CREATE DOMAIN positive AS numeric CHECK (value > 0);
CREATE DOMAIN raw AS bytea;
CREATE TABLE plain (id int PRIMARY KEY, name text, amount numeric(12,2), at timestamptz);
CREATE TABLE "Odd ""schema"""."select" ("from" int, "a]b:c" text, "new-tuple" text, "ünï" varchar(20) NOT NULL,
    "UPPER" char(5), "two words" bool, PRIMARY KEY ("from", "ünï"));
CREATE TABLE whole (a int, b text, c bytea);
ALTER TABLE whole REPLICA IDENTITY FULL;
CREATE TABLE indexed (id int PRIMARY KEY, code text NOT NULL, extra text);
CREATE UNIQUE INDEX indexed_code ON indexed (code);
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code;
CREATE TABLE toasted (id int PRIMARY KEY, big text, other text, bin bytea);
ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL, ALTER bin SET STORAGE EXTERNAL;
CREATE TABLE everything (
    id int PRIMARY KEY, c_bool bool, c_int2 int2, c_int8 int8, c_oid oid, c_float4 float4, c_float8 float8,
    c_numeric numeric, c_numeric_ps numeric(10,3), c_money money, c_text text, c_varchar varchar(10), c_bpchar char(6),
    c_char "char", c_name name, c_bytea bytea, c_date date, c_time time, c_time3 time(3), c_timetz timetz,
    c_timestamp timestamp, c_timestamptz timestamptz, c_interval interval, c_uuid uuid, c_json json, c_jsonb jsonb,
    c_xml xml, c_inet inet, c_cidr cidr, c_macaddr macaddr, c_bit bit(5), c_varbit varbit, c_point point,
    c_line line, c_lseg lseg, c_box box, c_path path, c_polygon polygon, c_circle circle, c_tsvector tsvector,
    c_tsquery tsquery, c_int4range int4range, c_tstzrange tstzrange, c_int4multirange int4multirange,
    c_int_array int[], c_text_array text[], c_num_array numeric(6,2)[][], c_mood mood, c_moods mood[],
    c_pair "Odd ""schema""".pair, c_positive positive, c_raw raw, c_hstore hstore, c_lsn pg_lsn, c_xid xid, c_xid8 xid8);
CREATE TABLE keyless (a int, b text);
CREATE TABLE unpublished (id int PRIMARY KEY, v text);
CREATE TABLE "no columns" ();
CREATE PUBLICATION p FOR TABLE plain, "Odd ""schema"""."select", whole, indexed, toasted, everything, "no columns";
-- capture
INSERT INTO plain VALUES (1, 'one', 1.50, '2026-01-02 03:04:05.678901+02'), (2, NULL, NULL, NULL);
UPDATE plain SET name = 'zwei' WHERE id = 2;
UPDATE plain SET id = 20 WHERE id = 2;
DELETE FROM plain WHERE id = 1;
BEGIN;
INSERT INTO plain VALUES (3, 'it''s', 0.01, 'infinity'), (4, 'null', -0.01, '-infinity'), (5, 'unchanged-toast-datum', 3, NULL);
SAVEPOINT s;
INSERT INTO plain VALUES (6, 'rolled back', 3, NULL);
ROLLBACK TO s;
SELECT pg_logical_emit_message(true, 'in, sz: 3 content:', 'tr''an"s\n');
INSERT INTO plain VALUES (7, E'tab\tnewline\nquote''double"backslash\\end', 3, '0044-03-15 12:00:00+00 BC');
COMMIT;
BEGIN; SELECT pg_logical_emit_message(false, 'outside', 'not transactional'); ROLLBACK;
BEGIN; INSERT INTO plain VALUES (8, 'never', 1, NULL); ROLLBACK;
INSERT INTO "Odd ""schema"""."select" VALUES (1, 'x', 'y', 'ключ', 'ab', true), (2, ' new-tuple: a[b]:''c''', NULL, '', 'abcde', false);
UPDATE "Odd ""schema"""."select" SET "ünï" = 'новый' WHERE "from" = 1;
UPDATE "Odd ""schema"""."select" SET "a]b:c" = 'old-key: ' WHERE "from" = 2;
DELETE FROM "Odd ""schema"""."select";
INSERT INTO whole VALUES (1, 'full', '\x00ff'), (NULL, NULL, NULL), (3, '', '\x');
UPDATE whole SET b = 'changed' WHERE a = 1;
UPDATE whole SET c = NULL WHERE a = 3;
UPDATE whole SET b = b WHERE a = 1;
DELETE FROM whole;
INSERT INTO indexed VALUES (1, 'A', 'x'), (2, 'B', NULL);
UPDATE indexed SET extra = 'y' WHERE id = 1;
UPDATE indexed SET code = 'C' WHERE id = 1;
UPDATE indexed SET id = 30 WHERE id = 2;
DELETE FROM indexed;
INSERT INTO toasted VALUES (1, repeat('long ', 1000), 'short', decode(repeat('00ff', 3000), 'hex')), (2, repeat('x', 3000), NULL, NULL);
UPDATE toasted SET other = 'touched' WHERE id = 1;
UPDATE toasted SET id = 3 WHERE id = 2;
UPDATE toasted SET big = 'small now' WHERE id = 1;
DELETE FROM toasted;
INSERT INTO everything VALUES (1, true, 32767, 9223372036854775807, 4294967295, 1.5, 1e-7, 123456789012345678901234567890.123456789,
    1234567.891, 1234567.89, 'text', 'varchar', 'bp', 'c', 'a_name', '\x00010203ff', '2026-11-21', '23:59:59.999999', '12:34:56.789',
    '12:00:00.5+02', '2026-11-21 12:34:56.000001', '2026-11-21 12:34:56+00', '1 year 2 mons 3 days 04:05:06.789', '00112233-4455-6677-8899-aabbccddeeff',
    '{"a": [1, null, "x\"y"]}', '{"b": 1.50, "a": {"c": []}}', '<a b="c">d</a>', '192.168.0.1/24', '10.0.0.0/8', '08:00:2b:01:02:03', '10101', '1',
    '(1.5,-2)', '{1,2,3}', '((0,0),(1,1))', '((1,1),(0,0))', '((0,0),(1,1),(2,0))', '((0,0),(1,1),(2,0))', '<(0,0),5>', 'a fat cat', 'fat & cat',
    '[1,10)', '["2026-01-01 00:00:00+00",)', '{[1,3),[5,7)}', '{1,NULL,3}', '{"a,b","c\"d",NULL,"null",""}', '{{1.5,2},{3,4.25}}', 'it''s "fine"', '{sad,"it''s \"fine\""}',
    ROW(1, 'x,"y'), 42.5, '\xdeadbeef', 'a=>1, "b c"=>NULL', '16/B374D848', '4294967295', '18446744073709551615');
INSERT INTO everything (id, c_bool, c_int2, c_int8, c_float4, c_float8, c_numeric, c_money, c_date, c_time, c_timetz, c_timestamp, c_timestamptz, c_interval, c_text, c_bytea, c_point, c_int_array)
    VALUES (2, false, -32768, -9223372036854775808, 'NaN', 'NaN', 'NaN', -0.05, 'infinity', '24:00:00', '00:30:00+15:59', 'infinity', '-infinity', '-178000000 years', '', '', '(NaN,Infinity)', '{}'),
    (3, NULL, 0, 0, 'Infinity', '-Infinity', 'Infinity', 92233720368547758.07, '-infinity', '00:00:00', '23:59:59.999999-15:59', '-infinity', 'infinity', '0', 'null', '\x', '(1e300,-0)', '{{1,2},{3,4}}'),
    (4, NULL, 1, 1, 1e20, 1e20, '-Infinity', -92233720368547758.08, '4713-01-01 BC', '00:00:00.000001', '12:00+00', '4713-01-01 00:00:00 BC', '294276-12-31 23:59:59.999999+00', '-1 day +02:03:04', E'\u0001\u007f', NULL, '(0.1,1e-5)', '[0:1]={7,8}'),
    (5, NULL, 2, 2, 123456.7, 1e15, 0.000001, 0, '5874897-12-31', '01:02:03.4', '12:00-03:30', '294276-12-31 23:59:59.999999', '0001-12-31 BC', '00:00:00.000001', NULL, NULL, NULL, NULL),
    (6, NULL, 3, 3, 1234567, 123456789012345.6, 1e-30, 1, '0001-01-01', NULL, NULL, '1999-12-31 23:59:59.5', '10000-01-01 00:00:00+00', NULL, NULL, NULL, NULL, NULL),
    (7, NULL, 4, 4, 1e-4, 1e-5, -0.0, 1, '1969-12-31', NULL, NULL, '1969-12-31 23:59:59.999999', '1970-01-01', NULL, NULL, NULL, NULL, NULL),
    (8, NULL, 5, 5, 3.4028235e38, 1.7976931348623157e308, 1e131, 1, '0001-12-31 BC', NULL, NULL, '0001-12-31 23:59:59.999999 BC', '2000-02-29', NULL, NULL, NULL, NULL, NULL),
    (9, NULL, 6, 6, 1e-45, 5e-324, 1, 1, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
UPDATE everything SET c_float4 = -0.0, c_float8 = -0.0 WHERE id = 2;
DELETE FROM everything WHERE id > 1;
INSERT INTO keyless VALUES (1, 'seen by others');
INSERT INTO unpublished VALUES (1, 'seen by others');
BEGIN;
INSERT INTO plain VALUES (100, 'before', 1, NULL);
TRUNCATE plain, toasted;
INSERT INTO plain VALUES (101, 'after', 1, NULL);
COMMIT;
TRUNCATE whole RESTART IDENTITY CASCADE;
INSERT INTO "no columns" DEFAULT VALUES;
SELECT pg_replication_origin_create('elsewhere');
SELECT pg_replication_origin_session_setup('elsewhere');
INSERT INTO plain VALUES (200, 'from elsewhere', 1, NULL);
SELECT pg_replication_origin_session_reset();
ALTER TABLE plain ADD COLUMN added int DEFAULT 7;
INSERT INTO plain VALUES (300, 'wider', 1, NULL, 8);
UPDATE plain SET name = 'wider still' WHERE id = 200;
ALTER TABLE plain DROP COLUMN amount;
INSERT INTO plain VALUES (301, 'narrower', NULL, 9);
DELETE FROM plain WHERE id = 301;
