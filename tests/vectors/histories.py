"""Histories of several sessions, for the server's own word on streamed and prepared transactions.

A line is a session's letter and its statement; statements run one by one, in this order.  With each comes
which kinds of message it is there for.
"""

from __future__ import annotations

SETUP = """
CREATE SCHEMA hidden;
CREATE TABLE hidden.flush (n int);
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE t0 (id int PRIMARY KEY, note text, feeling mood);
CREATE TABLE t1 (id int PRIMARY KEY, note text);
CREATE TABLE t2 (id int PRIMARY KEY, note text, more numeric(10, 2));
ALTER TABLE t1 REPLICA IDENTITY FULL;
CREATE PUBLICATION p FOR TABLES IN SCHEMA public;
"""
HISTORIES = {
    "interleaved": ("SEcIO", """
        a BEGIN
        b BEGIN
        a INSERT INTO t0 VALUES (1, 'a', 'ok')
        b INSERT INTO t0 VALUES (2, 'b', 'sad')
        c INSERT INTO t0 VALUES (3, 'c', NULL)
        a UPDATE t0 SET note = 'again' WHERE id = 1
        b SELECT pg_logical_emit_message(true, 'p', 'inside')
        a SELECT pg_logical_emit_message(false, 'p', 'outside')
        b COMMIT
        c SELECT pg_logical_emit_message(false, 'p', 'between')
        a DELETE FROM t0 WHERE id = 1
        a COMMIT
        o SELECT pg_replication_origin_create('elsewhere')
        o SELECT pg_replication_origin_session_setup('elsewhere')
        o BEGIN
        o INSERT INTO t1 VALUES (1, 'from elsewhere')
        o INSERT INTO t1 VALUES (2, 'also')
        o COMMIT
    """),
    "subtransactions": ("SEcA", """
        a BEGIN
        a INSERT INTO t1 VALUES (1, 'kept')
        a SAVEPOINT one
        a INSERT INTO t1 VALUES (2, 'dropped with one')
        a SAVEPOINT two
        a INSERT INTO t1 VALUES (3, 'dropped with two')
        a ROLLBACK TO two
        a INSERT INTO t1 VALUES (4, 'dropped with one')
        a SAVEPOINT three
        a INSERT INTO t2 VALUES (1, 'released into one, dropped with it', 1)
        a RELEASE three
        a INSERT INTO t1 VALUES (5, 'dropped with one')
        b INSERT INTO t1 VALUES (6, 'another')
        a ROLLBACK TO one
        a INSERT INTO t1 VALUES (7, 'kept, in one again')
        a RELEASE one
        a INSERT INTO t2 VALUES (2, 'kept', 2)
        a COMMIT
        a BEGIN
        a INSERT INTO t1 VALUES (8, 'dropped with all')
        a SAVEPOINT one
        a INSERT INTO t1 VALUES (9, 'dropped with all')
        a ROLLBACK
    """),
    "schema changes": ("SEcAR", """
        a INSERT INTO t1 VALUES (1, 'a')
        a BEGIN
        a INSERT INTO t1 VALUES (2, 'before')
        a SAVEPOINT one
        a ALTER TABLE t1 ADD COLUMN extra int DEFAULT 5
        a INSERT INTO t1 VALUES (3, 'wider', 3)
        a ROLLBACK TO one
        a INSERT INTO t1 VALUES (4, 'as before')
        a ALTER TABLE t1 DROP COLUMN note
        a INSERT INTO t1 VALUES (5)
        a TRUNCATE t1, t2
        a CREATE TABLE made (id int PRIMARY KEY)
        a INSERT INTO made VALUES (1)
        a COMMIT
        b INSERT INTO t1 VALUES (6)
        b INSERT INTO made VALUES (2)
        b BEGIN
        b ALTER TABLE t1 ADD COLUMN other text
        b INSERT INTO t1 VALUES (7, 'rolled back')
        b ROLLBACK
        b INSERT INTO t1 VALUES (8)
        b BEGIN
        b INSERT INTO t2 VALUES (1, 'x', 1)
        b COMMIT
    """),
    "prepared": ("bPKrp", """
        a BEGIN
        a INSERT INTO t1 VALUES (1, 'prepared, committed late')
        a PREPARE TRANSACTION 'one'
        b BEGIN
        b INSERT INTO t1 VALUES (2, 'prepared, rolled back')
        b SAVEPOINT s
        b INSERT INTO t1 VALUES (3, 'dropped before')
        b ROLLBACK TO s
        b PREPARE TRANSACTION 'two'
        c INSERT INTO t1 VALUES (4, 'between')
        b ROLLBACK PREPARED 'two'
        b BEGIN
        b ALTER TABLE t2 ADD COLUMN extra int
        b INSERT INTO t2 VALUES (1, 'x', 1, 1)
        b PREPARE TRANSACTION 'two'
        c INSERT INTO t1 VALUES (5, 'between')
        a COMMIT PREPARED 'one'
        b ROLLBACK PREPARED 'two'
        c INSERT INTO t2 VALUES (2, 'x', 1)
        c BEGIN
        c ALTER TABLE t1 ADD COLUMN extra int
        c INSERT INTO t1 VALUES (6, 'x', 1)
        c ALTER TABLE t1 DROP COLUMN note
        c INSERT INTO t1 VALUES (7, 1)
        c PREPARE TRANSACTION 'one'
        a INSERT INTO t2 VALUES (3, 'x', 1)
        c COMMIT PREPARED 'one'
        c INSERT INTO t1 VALUES (8, 2)
        d BEGIN
        d INSERT INTO t1 VALUES (9, 3)
        d PREPARE TRANSACTION 'never resolved'
    """),
}  # fmt: skip
