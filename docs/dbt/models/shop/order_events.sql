-- One row for each change of an order. A run reads only the changes since the last point that it saw.
{{ config(materialized='incremental') }}
SELECT lsn || '-' || commit_lsn || '-' || seq || '-' || row_number() OVER (PARTITION BY lsn, commit_lsn, seq) AS event,
       lsn, commit_lsn, seq, op, commit_time, coalesce(new.id, old.id) AS id, new.total AS total
FROM {{ source('lake', 'orders__changes') }}
WHERE op IN ('R', 'I', 'U', 'D')
{% if is_incremental() %}
  AND lsn > (SELECT coalesce(max(lsn), 0) FROM {{ this }})
{% endif %}
