-- The mirror's rows, and then the newest change of each key. A deleted row leaves its key with _op = 'delete'.
{{ config(materialized='incremental', unique_key='id', incremental_strategy='delete+insert') }}
{% if is_incremental() %}
  {% set others = run_query("SELECT count(*) FROM changes.public.orders WHERE _op IN ('reset', 'truncate')") %}
  {% if execute and others.rows[0][0] %}
    {{ exceptions.raise_compiler_error("changes cannot tell what the rows are: run dbt with --full-refresh") }}
  {% endif %}
  SELECT id, customer, total, _op FROM changes.public.orders
  QUALIFY row_number() OVER (PARTITION BY id ORDER BY _lsn DESC, _seq DESC) = 1
{% else %}
  SELECT id, customer, total, 'copy' AS _op FROM mirror.public.orders
{% endif %}
