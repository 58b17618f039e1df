r"""`slotlake shell`: many questions to one pinned point, typed or from a pipe.

A statement ends with ``;``; a line that begins with ``\`` is a command of the shell.  An error is printed and
the shell goes on; its exit code is that of the first error.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.infra.cli.asking import is_terminal
from slotlake.infra.cli.output import show_rows
from slotlake.infra.query.queries import PinnedQueries, parsed_at

_HELP = r"""  SELECT …;          a query of the lake's tables; it may have several lines
  \d                 the tables
  \d TABLE           the columns of a table
  \point             the point at which the tables are read
  \point latest      … the newest point from now on; or an LSN, or a time
  \q                 end (Ctrl-D too)"""
_HISTORY_LINES_MAX = 2000


class Shell:
    """One conversation.

    Args:
        queries: answers, at a pinned point.
        as_json: print each result as one JSON document.
    """

    def __init__(self, queries: PinnedQueries, *, as_json: bool) -> None:
        self._queries, self._as_json = queries, as_json
        self._console = Console(highlight=False)
        self._commands: dict[str, Callable[[str], None]] = {
            "d": self._describe,
            "point": self._point,
            "?": self._help,
        }
        self._text = ""
        self.exit_code = 0

    def run(self, history: Path) -> int:
        """Answer until the input ends; return the exit code.

        Args:
            history: the file of the lines that were typed, for a person at a terminal.
        """
        if is_terminal():
            self._console.print(rf"the lake at {self._queries.lsn}; \d lists tables, \? helps, \q ends")
            with _line_history(history):
                self._answer_all(self._typed_lines())
        else:
            self._answer_all(line.rstrip("\n") for line in sys.stdin or ())
            self._answer(f"{self._text}\n;")  # the last statement of a file needs no semicolon
        return self.exit_code

    def _typed_lines(self) -> Iterator[str]:
        while True:
            try:
                yield input("     -> " if self._text.strip() else "slotlake> ")
            except EOFError:
                self._console.print()
                return
            except KeyboardInterrupt:
                self._text = ""
                self._console.print()

    def _answer_all(self, lines: Iterator[str]) -> None:
        for line in lines:
            if not self._text.strip() and line.strip().startswith("\\"):
                if line.strip() in {"\\q", "\\quit"}:
                    self._text = ""
                    return
                self._guarded(self._command, line.strip()[1:])
            else:
                self._answer(f"{self._text}{line}\n")

    def _answer(self, text: str) -> None:
        statements, self._text = whole_statements(text)
        for statement in statements:
            self._guarded(self._ask, statement)

    def _guarded(self, step: Callable[[str], None], text: str) -> None:
        try:
            step(text)
        except SlotlakeError as error:
            self._failed(str(error), error.exit_code)
        except KeyboardInterrupt:
            self._failed("interrupted", 130)

    def _failed(self, words: str, exit_code: int) -> None:
        sys.stdout.flush()
        sys.stderr.write(f"slotlake: {words}\n")
        self.exit_code = self.exit_code or exit_code

    def _ask(self, statement: str) -> None:
        show_rows(self._queries.ask(statement), self._as_json)

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name not in self._commands:
            raise PipelineFileError(
                f"there is no command \\{name}", where="shell", way_out=r"\? lists the commands"
            )
        self._commands[name](argument.strip().rstrip(";").strip())

    def _help(self, argument: str) -> None:
        self._console.print(escape(_HELP))

    def _point(self, argument: str) -> None:
        if argument:
            self._queries.pin(parsed_at(argument.strip("'"), r"\point"))
        self._console.print(f"the lake at {self._queries.lsn}")

    def _describe(self, argument: str) -> None:
        if not argument:
            rows = [(table.name, table.source) for table in self._queries.tables()]
            self._grid(("table", "source table"), rows)
            return
        self._grid(("column", "type", "PostgreSQL"), self._queries.table(argument).columns())

    def _grid(
        self, titles: tuple[str, ...], rows: list[tuple[str, str, str]] | list[tuple[str, str]]
    ) -> None:
        grid = Table()
        for title in titles:
            grid.add_column(title, overflow="fold")
        for row in rows:
            grid.add_row(*map(escape, row))
        self._console.print(grid)


@contextmanager
def _line_history(file: Path) -> Iterator[None]:
    """Keep the lines that are typed in a file, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_HISTORY_LINES_MAX)
    try:
        yield
    finally:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)


# In this order: what begins one of these hides a semicolon up to its end.
_PARTS = re.compile(
    r"""
      '(?:[^']|'')*(?:'|(?P<open_string>\Z))
    | "(?:[^"]|"")*(?:"|(?P<open_name>\Z))
    | `(?:[^`]|``)*(?:`|(?P<open_tick>\Z))
    | --[^\n]*
    | /\*.*?(?:\*/|(?P<open_comment>\Z))
    | (?P<end>;)
    """,
    re.VERBOSE | re.DOTALL,
)


def whole_statements(text: str) -> tuple[list[str], str]:
    """Return the whole statements without their semicolons, and the text after the last of them.

    Args:
        text: what was typed so far.
    """
    statements, start = [], 0
    for part in _PARTS.finditer(text):
        if part["end"]:
            statements.append(text[start : part.start()].strip())
            start = part.end()
    return [statement for statement in statements if statement], text[start:]
