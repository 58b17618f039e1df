-- Values that a typed column cannot hold, and floats at their edges.
CREATE TABLE edge (id int PRIMARY KEY, d date, t timestamp, tz timestamptz, n numeric(6,2), f4 float4, f8 float8);
CREATE PUBLICATION vectors FOR TABLE edge;
-- capture
INSERT INTO edge VALUES
    (1, 'infinity', '-infinity', 'infinity', 'NaN', 'NaN', '-Infinity'),
    (2, '0044-03-15 BC', '4714-11-24 00:00:00 BC', '0001-01-01 00:00:00+00 BC', 9999.99, '1e-45', '5e-324'),
    (3, '5874897-12-31', '294276-12-31 23:59:59.999999', '10000-01-01 00:00:00+00', -0.01, '3.4028235e38', 1.7976931348623157e308),
    (4, '0001-01-01', '9999-12-31 23:59:59.999999', '1969-12-31 23:59:59.9+00', 0, '-0', 1e23),
    (5, '2000-02-29', '1970-01-01 00:00:00.1', '2026-03-29 01:30:00+00', 1, '16777216', 100000000000000);
UPDATE edge SET d = '-infinity', n = 'NaN' WHERE id = 5;
