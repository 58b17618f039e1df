-- The orders as they are. A run reads and writes only the orders that changed since the point it saw last.
{{ config(materialized='incremental', unique_key='id', incremental_strategy='delete+insert',
          pre_hook="{{ forget_changed_orders() }}") }}
SELECT id, customer, total, (SELECT max(position) FROM {{ source('lake', 'commits') }}) AS seen_at
FROM {{ source('lake', 'orders') }}
{% if is_incremental() %} WHERE {{ changed_orders() }} {% endif %}
