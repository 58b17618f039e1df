#!/bin/sh
# What PostgreSQL's image runs once, in an empty database: a table to begin with, and the role of the pipeline.
set -eu
psql -v ON_ERROR_STOP=1 -U postgres -d shop -v password="$SLOTLAKE_PASSWORD" <<'SQL'
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, price numeric(12, 2));
INSERT INTO orders (item, price) VALUES ('first', 1.50), ('second', 2.50);
CREATE ROLE slotlake LOGIN REPLICATION PASSWORD :'password';
GRANT SELECT ON orders TO slotlake;
CREATE PUBLICATION shop FOR TABLE orders;
SQL
