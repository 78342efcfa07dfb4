"""Judges a history: each read has to show exactly what PostgreSQL had committed at one point of its own order.

A history is a list of operations in the form that Elle reads: `type` (invoke, ok, fail, info), `f`, `process`, `time`
(nanoseconds), `value` (micro-operations: `["append", list, value]`, `["r", list, values]`). Further keys: a transaction
has `xid`, `deletes` (lists) and `moves` (`[account, amount]`); a read has `door`, `tables`, `balances` and, where the
door says so, `frontier`. `commits` has where PostgreSQL's WAL has each commit record: `[xid, begin, end]`.

A list is named TABLE/KEY, an account too. Each transaction appends to a list of `a` or `b`, and to a list of each table
of which it deletes one: so a read tells which transactions it has seen.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, TypeAlias

Operation: TypeAlias = Mapping[str, Any]
State: TypeAlias = dict[str, Any]
"""Values of lists, and balances of accounts, by name."""

PAST = frozenset({"frontier", "moment"})
"""Doors whose reader chooses the moment: it may be earlier than that of the reader's last read."""
WAITING = frozenset({"wait", "hybrid"})
"""Doors that show all that was committed when the read began, at one position of the WAL."""
FEEDS = frozenset("abxy")
"""Tables that have a change feed."""
SNAPSHOTS = frozenset({"postgres", "seam", "hand"})
"""Doors that show a snapshot of the database. PostgreSQL makes commits visible in another order than the WAL has them,
if they are under way at the same time."""


@dataclass(eq=False)
class Transaction:
    """A transaction that has committed."""

    xid: int
    began: int
    ended: float
    """When its client knew of the commit."""
    lsn: int
    """Where the commit record begins."""
    end: int
    appends: list[tuple[str, int]]
    deletes: list[str]
    moves: list[tuple[str, int]]

    @property
    def tables(self) -> set[str]:
        """Those that it changes."""
        return {_table(name) for name, *_ in (*self.appends, *self.moves)}

    def apply(self, state: State) -> None:
        """Changes the state as the transaction does. A list that is deleted and appended to begins anew."""
        for name in self.deletes:
            state.pop(name, None)
        for name, value in self.appends:
            state[name] = [*state.get(name, ()), value]
        for name, amount in self.moves:
            state[name] += amount


@dataclass(eq=False)
class Sight:
    """What a read saw: the first transactions of the order, and some of those that were under way."""

    first: int
    """How many transactions of the order it saw without a gap, as its door and its values tell."""
    others: list[int]
    what: str
    tables: frozenset[str]
    state: State

    def sees_less(self, earlier: Sight) -> bool:
        """Whether an earlier read had seen a transaction that this one does not."""
        seen_before = (earlier.first - 1, *earlier.others)
        return any(number >= self.first and number not in self.others for number in seen_before)


@dataclass(eq=False)
class Feed:
    """The changes between two frontiers, as a reader got them."""

    what: str
    since: int
    until: int
    rows: list[list[Any]]
    """Each: table, operation, key, value, `_lsn`, `_seq`, `_xid`."""
    is_whole: bool
    """It repeats what the same reader got in parts."""
    before: State | None = None
    """The state at the first frontier."""

    @property
    def reset(self) -> set[str]:
        """Tables whose rows became others without being in the feed."""
        return {row[0] for row in self.rows if row[1] == "reset"}

    def replayed(self, before: State) -> State:
        """The state at the second frontier, by the rows."""
        state = dict(before)
        for table, operation, key, value, *_ in sorted(self.rows, key=lambda row: row[4:6]):
            if operation == "delete":
                state.pop(f"{table}/{key}", None)
            else:
                state[f"{table}/{key}"] = value
        return state


@dataclass
class Verdict:
    """What was judged, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def _table(name: str) -> str:
    return name.partition("/")[0]


def _of_tables(state: State, tables: Iterable[str]) -> State:
    return {name: value for name, value in state.items() if _table(name) in tables}


def pairs(history: Iterable[Operation]) -> Iterator[tuple[Operation, Operation]]:
    """Each operation's invocation and completion, in the order of completions."""
    open_: dict[Any, Operation] = {}
    for operation in history:
        if operation["type"] == "invoke":
            open_[operation["process"]] = operation
        elif operation["process"] in open_:
            yield open_.pop(operation["process"]), operation


class Judge:
    """Judges one history. Its order of commits is PostgreSQL's alone."""

    def __init__(self, history: Sequence[Operation]) -> None:
        self.verdict = Verdict()
        self._pairs = list(pairs(history))
        self._initial: State = {}
        commits: dict[int, tuple[int, int]] = {}
        for operation in history:
            if operation["f"] == "commits":
                commits |= {xid: (lsn, end) for xid, lsn, end in operation["value"]}
            elif operation["f"] == "accounts":
                self._initial |= operation["value"]
        self._order = sorted(self._transactions(commits), key=lambda transaction: transaction.end)
        self._ends = [transaction.end for transaction in self._order]
        self._lsns = [transaction.lsn for transaction in self._order]
        self._all_known = list(accumulate((each.ended for each in self._order), max))
        """When the clients knew of all transactions up to each."""
        later = list(accumulate((each.ended for each in reversed(self._order)), min))
        self._soonest_ended = later[::-1]
        """When a client knew of one from each on."""
        self._number = {pair: number for number, each in enumerate(self._order) for pair in each.appends}
        self._due: dict[int, list[Sight | Feed]] = defaultdict(list)
        """What is to be compared with the state after so many transactions."""

    def judge(self) -> Verdict:
        """The verdict on the whole history."""
        last: dict[Any, Sight] = {}
        feeds: dict[Any, list[Feed]] = defaultdict(list)
        for invoked, ended in self._pairs:
            if "door" not in ended:
                continue
            self.verdict.counts[f"reads by {ended['door']}, {ended['type']}"] += 1
            if ended["type"] != "ok":
                continue
            if ended["door"] == "feed":
                what = f"feed {ended['index']} of process {ended['process']}"
                feed = Feed(what, ended["since"], ended["until"], ended["rows"], ended["whole"])
                self._tile(feed, feeds[ended["process"]])
                continue
            sight = self._sight(invoked, ended)
            earlier = last.get(ended["process"])
            if ended["door"] not in PAST:
                if earlier is not None and sight.sees_less(earlier):
                    self._fault(f"{sight.what} goes back behind {earlier.what}")
                last[ended["process"]] = sight
        self._replay()
        return self.verdict

    def _fault(self, text: str) -> None:
        self.verdict.faults.append(text)

    def _transactions(self, commits: Mapping[int, tuple[int, int]]) -> Iterator[Transaction]:
        """Those that have committed. An unknown outcome is settled once its client's next transaction is done. After a
        crash PostgreSQL gives the ID of a transaction that left nothing in the WAL to another one: the last has it."""
        settled: dict[Any, float] = {}
        left = dict(commits)
        for invoked, ended in sorted(self._pairs, key=lambda pair: pair[0]["index"], reverse=True):
            if "door" in ended:
                continue
            self.verdict.counts[f"transactions, {ended['type']}"] += 1
            settled_at = float(ended["time"]) if ended["type"] == "ok" else settled.get(ended["client"], float("inf"))
            settled[ended["client"]] = settled_at
            xid = int(ended.get("xid") or 0)
            commit = left.pop(xid, None)
            if ended["type"] == ("ok" if commit is None else "fail"):
                self._fault(f"transaction {xid} is {ended['type']} to its client, but not to PostgreSQL")
            if commit is not None:
                appends = [(name, value) for kind, name, value in invoked["value"] if kind == "append"]
                moves = [(name, amount) for name, amount in invoked.get("moves", ())]
                yield Transaction(xid, invoked["time"], settled_at, *commit, appends, list(invoked["deletes"]), moves)

    def _sight(self, invoked: Operation, ended: Operation) -> Sight:
        """Which transactions a read has seen. Notes it for the comparison with the state after them."""
        door, tables, began = ended["door"], frozenset(ended["tables"]), invoked["time"]
        lists = {name: values for _, name, values in ended["value"]}
        what = f"{door} read {ended['index']} of process {ended['process']}"
        numbers = {self._number.get((name, value), -1) for name, values in lists.items() for value in values}
        newest = max(numbers, default=-1)
        if -1 in numbers:
            self._fault(f"{what} shows what no committed transaction appended")
        elif newest >= 0 and self._order[newest].began > ended["time"]:
            self._fault(f"{what} shows transaction {self._order[newest].xid}, which began later")
        committed = bisect_left(self._soonest_ended, began)
        """Behind the last transaction that a client knew of when the read began."""
        first, others = newest + 1, list[int]()
        if ended.get("frontier") is not None:
            first = bisect_right(self._ends, ended["frontier"])
        elif door in SNAPSHOTS:
            first = bisect_left(self._all_known, began)
            under_way = range(first, max(committed, newest + 1))
            others = [number for number in under_way if number in numbers or self._order[number].ended < began]
        elif door in WAITING and first < committed:
            self._fault(f"{what} lacks transaction {self._order[committed - 1].xid}, which had committed before")
        sight = Sight(first, others, what, tables, lists | ended["balances"])
        self._due[first].append(sight)
        return sight

    def _tile(self, feed: Feed, earlier: list[Feed]) -> None:
        """Notes a feed for the comparison of states. One that repeats several is compared with them."""
        if feed.is_whole:
            parts = [row for part in earlier for row in part.rows if feed.since <= row[4] < feed.until]
            if sorted(parts, key=_place) != sorted(feed.rows, key=_place):
                self._fault(f"{feed.what} is not what its parts are together")
            return
        if earlier and earlier[-1].until != feed.since:
            self._fault(f"{feed.what} does not begin where the one before it ends")
        earlier.append(feed)
        for frontier in (feed.since, feed.until):
            self._due[bisect_right(self._ends, frontier)].append(feed)

    def _replay(self) -> None:
        """Compares what was read with the states that the order of commits leads to."""
        state = dict(self._initial)
        for number in range(len(self._order) + 1):
            for item in self._due.get(number, ()):
                if isinstance(item, Sight):
                    self._compare(item, state)
                elif item.before is None:
                    item.before = dict(state)
                else:
                    self._compare_feed(item, item.before, state)
            if number < len(self._order):
                self._order[number].apply(state)

    def _compare(self, sight: Sight, state: State) -> None:
        if sight.others:
            state = dict(state)
            for number in sight.others:
                self._order[number].apply(state)
        expected = _of_tables(state, sight.tables)
        if expected != sight.state:
            names = sorted(name for name in expected | sight.state if expected.get(name) != sight.state.get(name))
            differing = ", ".join(f"{name} {sight.state.get(name)} for {expected.get(name)}" for name in names[:3])
            self._fault(f"{sight.what} is no state of the database, {sight.first} transactions on: {differing}")

    def _compare_feed(self, feed: Feed, before: State, after: State) -> None:
        places = [_place(row) for row in feed.rows]
        if len(set(places)) < len(places) or not all(feed.since <= lsn < feed.until for lsn, *_ in places):
            self._fault(f"{feed.what} has a change twice, or one that is not between its frontiers")
        first, last = (bisect_right(self._ends, frontier) for frontier in (feed.since, feed.until))
        expected = {(table, each.xid) for each in self._order[first:last] for table in each.tables & FEEDS}
        found = {(row[0], row[6]) for row in feed.rows}
        reset = feed.reset
        self.verdict.counts["changes in feeds"] += len(places)
        self.verdict.counts["tables reset in feeds"] += len(reset)
        if wrong := sorted(pair for pair in expected ^ found if pair[0] not in reset):
            self._fault(f"{feed.what} lacks, or has too many, transactions: {wrong[:3]}")
        elif _of_tables(feed.replayed(before), FEEDS - reset) != _of_tables(after, FEEDS - reset):
            self._fault(f"{feed.what} does not turn the state at its first frontier into that at its second")


def _place(row: Sequence[Any]) -> tuple[Any, ...]:
    """The order of changes. What a reset stands at may be the place of a change of another table."""
    return row[4], row[5], row[0], row[1] == "reset"
