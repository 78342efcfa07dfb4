"""Which tables are proposed for a name that means none."""

from __future__ import annotations

import pytest

from mirror_pump.model import TableName
from mirror_pump.source.relations.similar_names import similar_names

_TABLES = (
    TableName("public", "orders"),
    TableName("shop", "orders"),
    TableName("shop", "Order lines"),
    TableName("stock", "items"),
)


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ("shop.orderz", ["shop.orders"]),
        ("shpo.orders", ["public.orders", "shop.orders"]),
        ("ordrs", ["public.orders", "shop.orders", 'shop."Order lines"']),
        ("SHOP.ORDERS", ["shop.orders"]),
        ("shop.order_lines", ['shop."Order lines"', "shop.orders"]),
        ('"Items"', ["stock.items"]),
        ("nowhere", []),
        ("", []),
    ],
)
def test_names_that_look_like_it(text: str, proposed: list[str]) -> None:
    assert list(map(str, similar_names(text, _TABLES))) == proposed
