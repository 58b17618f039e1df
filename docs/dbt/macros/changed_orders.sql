-- Which orders changed since the point that a model saw last: a condition on `id`.
{% macro changed_orders() %}
{%- set changes = source('lake', 'orders__changes') -%}
{%- set since -%} lsn > (SELECT coalesce(max(seen_at), 0) FROM {{ this }}) {%- endset -%}
(id IN (SELECT unnest([new.id, old.id]) FROM {{ changes }} WHERE {{ since }})
 OR EXISTS (SELECT 1 FROM {{ changes }} WHERE {{ since }} AND op IN ('T', 'C')))  {# truncated, or copied again #}
{% endmacro %}

-- Takes them out of a model, before they are read anew: those that were deleted do not come back.
{% macro forget_changed_orders() %}
{% if is_incremental() %} DELETE FROM {{ this }} WHERE {{ changed_orders() }} {% endif %}
{% endmacro %}
