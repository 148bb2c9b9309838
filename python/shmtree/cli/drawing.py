"""Tables and sentences, which rich draws if it is installed."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

_NUMBERS = frozenset(
    """PID DEPTH BYTES PUT/S GET/S OLDEST FULL EMPTY PINS FOR USED OF
    OBJECTS MESSAGES PUT GET BLOCKED CPU PICKLE SAVES""".split()
)
#: Columns that are shortened if the width is too small, with the width that they keep.
_SHORTENED = {"NAME": 8, "CHANNEL": 12, "ARENA": 12, "COMMAND": 12, "SENDS TO": 8, "RECEIVES FROM": 8, "PROCESSES": 9}
_SHORTENED |= {"CREATED AT": 16, "THROUGH": 10}
#: Columns that are left out, in this order, if the others do not fit.
_LEFT_OUT = ("THROUGH", "OLDEST", "OBJECTS", "BYTES", "FOR", "BLOCKED", "EMPTY", "FULL", "PUT", "GET", "PUT/S", "GET/S")
_GAP = 1
_UNLIMITED = 10_000  # columns

Span = tuple[str, str]  #: a text, and its style as rich names it; "" for none


class Table(NamedTuple):
    heads: Sequence[str]
    rows: Sequence[Sequence[Span]]  #: each has a cell for each column


def has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


def _least(table: Table, number: int) -> int:
    head = table.heads[number]
    natural = max(len(head), *(len(row[number][0]) for row in table.rows), 0)
    return min(natural, max(_SHORTENED.get(head, natural), len(head)))


def _fitting(table: Table, width: int) -> Table:
    """Returns the table with the columns that fit."""
    kept = {number: _least(table, number) + _GAP for number in range(len(table.heads))}
    for head in _LEFT_OUT:
        if sum(kept.values()) > width + _GAP and head in table.heads:
            del kept[table.heads.index(head)]
    return Table([table.heads[each] for each in kept], [[row[each] for each in kept] for row in table.rows])


def drawn(block: Table | Span, width: int) -> Any:
    """Returns a table or a sentence for rich to draw. Columns are shortened or left out if `width` is too small."""
    from rich.table import Table as Drawn
    from rich.text import Text

    if not isinstance(block, Table):
        return Text(*block)
    block = _fitting(block, width)
    table = Drawn(box=None, pad_edge=False, padding=(0, _GAP, 0, 0))
    for number, head in enumerate(block.heads):
        justify: Any = "right" if head in _NUMBERS else "left"
        least = _least(block, number)
        table.add_column(head, justify=justify, no_wrap=head not in _SHORTENED, min_width=least)
    for row in block.rows:
        table.add_row(*(Text(*cell, no_wrap=True, overflow="ellipsis") for cell in row))
    return table


def show(*blocks: Table | Span, file: TextIO | None = None, width: int | None = None) -> None:
    """Prints tables and sentences, within `width`. By default, they fit a terminal, and are not cut elsewhere."""
    file = file or sys.stdout
    if has_rich():
        from rich.console import Console

        console = Console(file=file, width=width or (None if file.isatty() else _UNLIMITED))
        console.on_broken_pipe = _raise  # type: ignore[method-assign]  # rich would end the program
        console.print(*(drawn(block, console.width) for block in blocks), sep="\n")
    else:
        print(*map(_plain, blocks), sep="\n", file=file)
    file.flush()


def _raise() -> None:
    raise BrokenPipeError


def _plain(block: Table | Span) -> str:
    if not isinstance(block, Table):
        return block[0]
    rows = [block.heads, *([text for text, _ in row] for row in block.rows)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def wrapped(text: str) -> str:
    """Returns a text with its lines wrapped at the width of the terminal, if the output goes to one."""
    if not sys.stdout.isatty():
        return text
    columns = max(shutil.get_terminal_size().columns, 1)
    return "\n".join(
        textwrap.fill(line, columns, subsequent_indent=_indent(line, columns)) for line in text.split("\n")
    )


def _indent(line: str, columns: int) -> str:
    indent = len(line) - len(line.lstrip())
    return " " * (indent + 4) if 0 < indent < columns // 2 - 4 else ""


def printable(name: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in name)


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
