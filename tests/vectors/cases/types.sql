-- One row of each kind of type, and one of NULLs.
CREATE TABLE kind (
    id int8 PRIMARY KEY, bool_ bool, bytea_ bytea, char_ "char", name_ name, int2_ int2, int4_ int4, text_ text,
    oid_ oid, xid_ xid, json_ json, jsonb_ jsonb, point_ point, float4_ float4, float8_ float8, money_ money,
    macaddr_ macaddr, inet_ inet, cidr_ cidr, bpchar_ char(5), varchar_ varchar(9), date_ date, time_ time,
    timetz_ timetz, timestamp_ timestamp, timestamptz_ timestamptz(3), interval_ interval, bit_ bit(3),
    varbit_ varbit, numeric_ numeric, numeric_p numeric(38,10), numeric_w numeric(60,2), uuid_ uuid, tsvector_ tsvector,
    int4range_ int4range, multirange_ datemultirange, int_array int[], text_array text[][], lsn_ pg_lsn
);
CREATE PUBLICATION vectors FOR TABLE kind;
-- capture
INSERT INTO kind VALUES (
    1, true, '\xdeadbeef00', 'c', 'a name', -2, 2147483647, E'tab\tquote"', 4294967295, '4000000000', '{"a":  1}',
    '{"b": 1.0, "a": [null]}', '(1.5,2)', 0.1, 1e300, '12.34', '08:00:2b:01:02:03', '10.0.0.1', '10.0.0.0/8', 'ab',
    'varchar', '2026-11-21', '23:59:59.5', '23:59:59+05:30', '2026-11-21 01:02:03.000004', '2026-11-21 01:02:03.5+02',
    '1 year -2 days 03:04:05.06', '101', '1', 12345678901234567890.123456789, 0.0000000001, -1e50, 
    'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'fat cat', '[1,5)', '{[2026-01-01,2026-02-01)}', '{1,NULL,3}',
    '{{a,"b c"},{NULL,""}}', '16/B374D848'
);
INSERT INTO kind (id) VALUES (-9223372036854775808);
