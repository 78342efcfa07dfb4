"""Which tables get an index if not all can have one."""

from __future__ import annotations

from dataclasses import replace

from mirror_pump.model import TableId
from mirror_pump.pipeline.key_index.index_budget import Candidate, choose
from tests.support.table_values import live_table

MIB = 1 << 20


def candidate(number: int, deletes: float, nbytes: int, at: float = 0.0) -> Candidate:
    table = live_table(number=number, name=f"t{number}")
    return Candidate(table, deletes, at, nbytes)


def chosen(candidates: dict[int, Candidate], taken: dict[int, int], budget: int, now: float = 0.0) -> set[int]:
    known = {TableId(number): candidate for number, candidate in candidates.items()}
    return {int(table_id) for table_id in choose(known, {TableId(n): size for n, size in taken.items()}, budget, now)}


def test_all_if_there_is_room() -> None:
    tables = {number: candidate(number, 1, 10 * MIB) for number in range(5)}
    assert chosen(tables, {}, 50 * MIB) == set(range(5))


def test_most_deletes_for_a_byte_first_and_smaller_ones_into_what_is_left() -> None:
    tables = {1: candidate(1, 1000, 100 * MIB), 2: candidate(2, 900, 10 * MIB), 3: candidate(3, 1, 20 * MIB)}
    assert chosen(tables, {}, 99 * MIB) == {2, 3}
    assert chosen(tables, {}, 110 * MIB) == {1, 2}
    assert chosen(tables, {}, 9 * MIB) == set()


def test_an_index_stays_unless_another_helps_twice_as_much() -> None:
    tables = {1: candidate(1, 100, 10 * MIB), 2: candidate(2, 190, 10 * MIB)}
    assert chosen(tables, {1: 10 * MIB}, 15 * MIB) == {1}
    tables[2] = replace(tables[2], deletes=210)
    assert chosen(tables, {1: 10 * MIB}, 15 * MIB) == {2}


def test_old_deletes_count_less() -> None:
    tables = {1: candidate(1, 1000, 10 * MIB, at=0.0), 2: candidate(2, 100, 10 * MIB, at=600.0)}
    assert chosen(tables, {1: 10 * MIB}, 15 * MIB, now=600.0) == {2}


def test_an_index_that_outgrew_the_budget_goes() -> None:
    tables = {1: candidate(1, 1000, 10 * MIB)}
    assert chosen(tables, {1: 20 * MIB}, 15 * MIB) == set()


def test_without_a_budget_there_is_none() -> None:
    assert chosen({1: candidate(1, 1000, MIB)}, {}, 0) == set()
