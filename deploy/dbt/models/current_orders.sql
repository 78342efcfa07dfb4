SELECT id, customer, total FROM {{ ref('orders') }} WHERE _op <> 'delete'
