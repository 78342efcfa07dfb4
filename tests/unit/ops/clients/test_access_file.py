"""The access file: what is refused, and what grants give."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror_pump.errors import UsageError
from mirror_pump.model import TableName
from mirror_pump.ops.clients.access_file import AccessRules
from mirror_pump.ops.clients.client import ANY_CLIENT, Client, Grant, Right
from mirror_pump.source.relations.table_patterns import parse_pattern

_ISSUER = '[issuer]\nurl = "https://login.example.com"\naudience = "lake"\n'
_GRANT = '[[grant]]\nto = ["a"]\ntables = ["public.*"]\nrights = ["read"]\n'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "issuer: Field required"),
        (_GRANT, "issuer: Field required"),
        (_ISSUER.replace("https:", "http:"), "issuer.url"),
        (_ISSUER.replace('"lake"', '""'), "issuer.audience"),
        (_ISSUER + 'keys = "file:///etc/passwd"\n', "issuer.keys"),
        (_ISSUER + "leeway = 3\n", "issuer.leeway: Extra inputs"),
        (_ISSUER + _GRANT.replace('"read"', '"admin"'), "grant.0.rights.0"),
        (_ISSUER + _GRANT.replace('["a"]', "[]"), "grant.0.to"),
        (_ISSUER + _GRANT.replace("public.*", "a.b.c"), "not a pattern"),
        (_ISSUER + "[[grants]]\n", "grants: Extra inputs"),
        (_ISSUER + '[credentials]\nrole = "r"\nseconds = 5\n', "credentials.seconds"),
        (_ISSUER + "[", "is no TOML"),
        (_ISSUER + "\udcff", "is no TOML"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_mistake_is_named(text: str | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "access.toml"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError) as refused:
        AccessRules(path)
    assert reason in str(refused.value)
    assert str(path) in str(refused.value) or "pattern" in reason
    assert refused.value.remedy


def grant(to: str, tables: str, right: Right) -> Grant:
    return Grant(frozenset([to]), (parse_pattern(tables),), frozenset([right]))


def test_grants_are_of_names_roles_and_everybody() -> None:
    grants = [
        grant("anna", "public.orders", Right.READ),
        grant("role:staff", "shop.*", Right.WRITE),
        grant("*", '"Odd".*', Right.LOAD),
    ]
    anna, staff = Client("anna").with_grants(grants), Client("role:staff", frozenset(["staff"])).with_grants(grants)
    orders, item, odd = TableName("public", "orders"), TableName("shop", "item"), TableName("Odd", "t")
    rights = [(Right.READ, orders), (Right.READ, item), (Right.WRITE, item), (Right.LOAD, odd), (Right.READ, odd)]
    assert [anna.may(*right) for right in rights] == [True, False, False, True, False]
    assert [staff.may(*right) for right in rights] == [False, True, True, True, False]
    assert [ANY_CLIENT.may(*right) for right in rights] == [True] * 5
    # A client is no role, whatever its name is.
    assert not Client("role:staff").with_grants(grants[1:2]).may(Right.READ, item)
    assert [staff.may_in_all(Right.READ, "shop"), anna.may_in_all(Right.READ, "public")] == [True, False]
    assert [anna.may_in_part(Right.READ, "public"), anna.may_in_part(Right.READ, "shop")] == [True, False]
