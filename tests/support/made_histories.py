"""Histories of a few transactions and reads, as clients of a mirror without faults would have noted them."""

from __future__ import annotations

from typing import Any

from proofs.histories.judge import Transaction

_ACCOUNTS = {"x/1": 100, "y/1": 100}
Fields = dict[str, Any]


class MadeHistory:
    """Notes operations one after the other. Transaction n has xid n, its commit record is at 100 n to 100 n + 50."""

    def __init__(self) -> None:
        self.operations: list[Fields] = []
        self._states: list[Fields] = [dict(_ACCOUNTS)]
        self._transactions: list[Transaction] = []
        self._note("info", f="accounts", value=dict(_ACCOUNTS))

    def commit(self, *appends: tuple[str, int], moves: Fields | None = None, deletes: tuple[str, ...] = ()) -> None:
        """A transaction begins and is committed."""
        xid = len(self._states)
        value = [["append", *append] for append in appends]
        moved = list((moves or {}).items())
        fields: Fields = {"value": value, "moves": [list(move) for move in moved], "deletes": list(deletes)}
        self._note("invoke", **fields)
        self._note("ok", xid=xid, **fields)
        place = (100 * xid, 100 * xid + 50)
        self._note("info", f="commits", value=[[xid, *place]])
        self._transactions.append(Transaction(xid, 0, 0, *place, list(appends), list(deletes), moved))
        self._states.append(dict(self._states[-1]))
        self._transactions[-1].apply(self._states[-1])

    def read(self, door: str, number: int | None = None) -> None:
        """All is read after so many transactions; by default all that there are."""
        number = len(self._transactions) if number is None else number
        state = self._states[number]
        fields: Fields = {
            "value": [["r", name, list(value)] for name, value in state.items() if name[0] in "ab"],
            "balances": {name: value for name, value in state.items() if name[0] in "xy"},
            "tables": list("abxy"),
        }
        if door in ("frontier", "moment"):
            fields["frontier"] = 100 * number + 70
        self._note("invoke", client=door, value=[])
        self._note("ok", client=door, door=door, **fields)

    def feed(self, since: int, until: int, *, whole: bool = False) -> None:
        """The changes of the transactions from number `since` on, counted from 0, to number `until`."""
        rows = [row for each in self._transactions[since:until] for row in _changes(each, self._states[each.xid])]
        ends: Fields = {"since": 100 * since + 70, "until": 100 * until + 70}
        self._note("invoke", client="feed", value=[])
        self._note("ok", client="feed", door="feed", value=[], rows=rows, whole=whole, **ends)

    def _note(self, type_: str, f: str = "txn", client: str = "writer", **fields: Any) -> None:
        index = len(self.operations)
        process = client if f == "txn" else "nemesis"
        noted = {"index": index, "time": index, "process": process, "client": client, "type": type_, "f": f}
        self.operations.append(noted | fields)


def _changes(transaction: Transaction, state: Fields) -> list[list[Any]]:
    names = [*(name for name, _ in (*transaction.appends, *transaction.moves)), *transaction.deletes]
    places = [(transaction.lsn, number, transaction.xid) for number in range(len(names))]
    return [
        [name[0], "update" if name in state else "delete", int(name[2:]), state.get(name), *place]
        for name, place in zip(names, places, strict=True)
    ]


def made_history() -> list[Fields]:
    """Reads by every door, between transactions of every kind."""
    history = MadeHistory()
    history.commit(("a/1", 1), ("b/1", 2), moves={"x/1": -5, "y/1": 5})
    history.commit(("a/1", 3))
    history.read("latest", 1)
    history.read("wait")
    history.feed(0, 2)
    history.commit(("a/2", 4), ("b/1", 5), moves={"x/1": 7, "y/1": -7})
    history.read("latest")
    history.commit(("a/2", 6), deletes=("a/1",))
    history.read("wait")
    history.read("postgres")
    history.read("latest")
    history.read("frontier", 3)
    history.read("moment", 2)
    history.feed(2, 4)
    history.feed(0, 4, whole=True)
    return history.operations
