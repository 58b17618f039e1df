-- The branches of the demo's bank, each with what its history adds up to.
SELECT b.bid, b.bbalance AS balance, coalesce(sum(h.delta), 0) AS history
FROM {{ source('bank', 'pgbench_branches') }} b LEFT JOIN {{ source('bank', 'pgbench_history') }} h ON h.bid = b.bid
GROUP BY 1, 2
