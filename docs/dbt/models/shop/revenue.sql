-- A plain join of two tables: both are at one point.
SELECT c.name, count(*) AS orders, sum(o.total) AS total
FROM {{ source('lake', 'orders') }} o JOIN {{ source('lake', 'customers') }} c ON c.id = o.customer
GROUP BY 1
