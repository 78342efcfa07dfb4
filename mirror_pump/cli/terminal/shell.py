"""The shell of `mirror-pump sql`: reads queries interactively, with history and name completion."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mirror_pump.cli.terminal.output import one_line, pass_on, remark, report_error, say
from mirror_pump.database.quoting import identifier
from mirror_pump.errors import MirrorPumpError, UsageError
from mirror_pump.model import MirroredTable
from mirror_pump.ops.reads.query import Query, open_query
from mirror_pump.ops.reads.query_results import Opens, run_query
from mirror_pump.ops.reads.statements import split
from mirror_pump.ops.reads.table_list import mirrored_tables
from mirror_pump.settings.config import Settings

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.formatted_text import AnyFormattedText
    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyPressEvent

_LEAVE = frozenset({"exit", "quit", r"\q"})
_HELP = """\
A query ends with a semicolon and may span several lines. SHOW TABLES lists the mirrored tables, DESCRIBE t the columns
of a table. Tab completes names, the arrow keys go through earlier queries, Ctrl-R searches them. Ctrl-C discards the
line or stops the query; \\q or Ctrl-D leaves."""
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_WORD = re.compile(r'[\w."$]+')


def run_shell(settings: Settings, how: Query, written_as: str, opens: Opens = open_query) -> None:
    """Reads queries from the terminal until the user leaves. Runs each as `how` specifies, as of its own point in time.

    Takes completed settings. `opens`: what the tables are. Errors only end the query. Raises UsageError if
    prompt_toolkit is not installed.
    """
    names = _Names(settings)
    session = _session(names)
    say(r"Queries end with a semicolon; \? for help, \q or Ctrl-D to leave.")
    while True:
        names.refresh()
        try:
            text = session.prompt("mirror=> ")
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        command = text.strip().rstrip("; ").lower()
        if command in _LEAVE:
            return
        if command == r"\?":
            say(_HELP)
            continue
        complete, rest = split(text)
        for statement in [*complete, *([rest] if rest else [])]:
            if not _run(settings, replace(how, statement=statement), written_as, opens):
                break


def _run(settings: Settings, query: Query, written_as: str, opens: Opens) -> bool:
    """Runs a query. Returns False if it failed, after reporting the reason."""
    try:
        run_query(settings, query, written_as, pass_on, lambda text: remark(f"mirror-pump: {text}"), opens)
    except KeyboardInterrupt:
        remark("mirror-pump: interrupted")
    except MirrorPumpError as error:
        report_error(error)
    except Exception as error:  # noqa: BLE001 - a later query may succeed
        remark(f"mirror-pump: {type(error).__name__}: {one_line(str(error))}")
        remark("  what to do: run the query with `mirror-pump sql --debug QUERY` to get the traceback, and report it")
    else:
        return True
    return False


class _Names:
    """Names that words can be completed to."""

    def __init__(self, settings: Settings) -> None:
        import duckdb

        self._settings = settings
        with duckdb.connect() as connection:
            keywords = connection.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall()
        self._keywords = sorted({*(str(row[0]).upper() for row in keywords), "DESCRIBE", "SUMMARIZE", "TABLES"})
        self._tables: tuple[MirroredTable, ...] = ()

    def refresh(self) -> None:
        """Reads the names from the catalog; keeps the old ones if that fails."""
        with suppress(MirrorPumpError):
            self._tables = mirrored_tables(self._settings)

    def after(self, text: str, word: str) -> Iterator[str]:
        """Completions of `word`, ignoring case: names, then keywords.

        `text` is the whole query; columns of the tables in it come first.
        """
        candidates = [*self._columns(text, word), *self._table_names(word)]
        if word and "." not in word and '"' not in word:
            candidates += [keyword if word[-1].isupper() else keyword.lower() for keyword in self._keywords]
        proposed = set()
        for name in candidates:
            if name not in proposed and name.replace('"', "").lower().startswith(word.replace('"', "").lower()):
                proposed.add(name)
                yield name

    def _table_names(self, word: str) -> Iterable[str]:
        qualified = [f"{_quoted(table.name.schema)}.{_quoted(table.name.name)}" for table in self._tables]
        return qualified if "." in word else [*(_quoted(table.name.name) for table in self._tables), *qualified]

    def _columns(self, text: str, word: str) -> Iterator[str]:
        """Columns of the tables in the query, or of all tables. Also after a qualifier, a table name or an alias."""
        words = {part.strip('"').lower() for part in re.split(r"[^\w\".]+|\.", text)}
        named = [table for table in self._tables if table.name.name.lower() in words]
        qualifier, dot, _ = word.rpartition(".")
        exact = [table for table in named if table.name.name.lower() == qualifier.strip('"').lower()]
        for table in exact or named or self._tables:
            for column in table.columns:
                yield f"{qualifier}{dot}{_quoted(column.name)}"


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else identifier(name)


def _session(names: _Names) -> PromptSession[str]:
    try:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.key_binding import KeyBindings
    except ImportError as error:
        raise UsageError(
            "the shell needs prompt_toolkit, which is not installed",
            "pip install 'mirror-pump[sql]', which includes it, or give a query",
        ) from error
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if _finished(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return PromptSession(
        history=_history(),
        completer=_completer(names),
        complete_while_typing=False,
        multiline=True,
        prompt_continuation=_continuation,
        key_bindings=keys,
        enable_open_in_editor=True,
    )


def _continuation(width: int, _line: int, _wrapped: int) -> AnyFormattedText:
    return "-> ".rjust(width)


def _finished(text: str) -> bool:
    """Whether Enter runs the text: it is empty, a command of the shell, or its last query ends with a semicolon."""
    return not split(text)[1] or text.strip().lower() in _LEAVE | {r"\?"}


def _completer(names: _Names) -> Completer:
    from prompt_toolkit.completion import CompleteEvent, Completer, Completion

    class NameCompleter(Completer):
        def get_completions(self, document: Document, _event: CompleteEvent) -> Iterator[Completion]:
            word = document.get_word_before_cursor(pattern=_WORD)
            for name in names.after(document.text, word):
                yield Completion(name, start_position=-len(word))

    return NameCompleter()


def _history() -> History:
    """The history, in the user's state directory (XDG base directories). Only the user may read it, as queries may hold
    secrets. If the file cannot be written, the history only lasts as long as the shell."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    state = os.environ.get("XDG_STATE_HOME", "")
    root = Path(state) if state.startswith("/") else Path("~/.local/state").expanduser()
    path = root / "mirror-pump" / "sql_history"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError as error:
        remark(f"mirror-pump: the history is not saved: {path} cannot be written ({error.strerror})")
        return InMemoryHistory()
    return FileHistory(path)
