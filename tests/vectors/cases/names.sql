-- Names that need quotes, outside ASCII, of the greatest length, and a table without columns.
CREATE SCHEMA "a.b";
CREATE TABLE "a.b"."Größe ""x""" ("seq" int PRIMARY KEY, "N0" text, "ключ'" text, " " text);
CREATE TABLE public.t23456789012345678901234567890123456789012345678901234567890123 (c int PRIMARY KEY);
CREATE TABLE nothing ();
CREATE PUBLICATION vectors FOR TABLE "a.b"."Größe ""x""", t23456789012345678901234567890123456789012345678901234567890123, nothing
    WITH (publish = 'insert, update');
-- capture
INSERT INTO "a.b"."Größe ""x""" VALUES (1, 'n', 'значение', '😀');
INSERT INTO t23456789012345678901234567890123456789012345678901234567890123 VALUES (1);
INSERT INTO nothing DEFAULT VALUES;
UPDATE "a.b"."Größe ""x""" SET seq = 2;
