-- Updates that leave a large value where it is: it is not sent ('u').
CREATE TABLE document (id int PRIMARY KEY, title text, body text, notes text);
ALTER TABLE document ALTER body SET STORAGE EXTERNAL, ALTER notes SET STORAGE EXTERNAL;
CREATE PUBLICATION vectors FOR TABLE document;
-- capture
INSERT INTO document VALUES (1, 'one', repeat('x', 2100), NULL);
UPDATE document SET title = 'uno' WHERE id = 1;
UPDATE document SET notes = repeat('y', 2100) WHERE id = 1;
UPDATE document SET id = 2 WHERE id = 1;
UPDATE document SET body = 'short' WHERE id = 2;
