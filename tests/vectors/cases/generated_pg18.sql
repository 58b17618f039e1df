-- Stored generated columns are published only when asked for (PostgreSQL 18).
CREATE TABLE line (id int PRIMARY KEY, price numeric(6,2), total numeric(8,2) GENERATED ALWAYS AS (price * 2) STORED);
CREATE PUBLICATION vectors FOR TABLE line WITH (publish_generated_columns = stored);
-- capture
INSERT INTO line VALUES (1, 1.25);
UPDATE line SET price = 2 WHERE id = 1;
