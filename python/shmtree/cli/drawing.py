"""Tables and sentences, which rich draws if it is installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO


class _Column(NamedTuple):
    is_number: bool = True  #: aligned to the right
    least: int | None = None  #: width to which the column is shortened if the others do not fit
    turn: int | None = None  #: order in which columns are left out if the others still do not fit; None: never


_TEXT = _Column(is_number=False)
_COLUMNS = {
    "THROUGH": _Column(False, 10, 1), "OLDEST": _Column(turn=2), "OBJECTS": _Column(turn=3), "BYTES": _Column(turn=4),
    "FOR": _Column(turn=5), "BLOCKED": _Column(turn=6), "EMPTY": _Column(turn=7), "FULL": _Column(turn=8),
    "PUT": _Column(turn=9), "GET": _Column(turn=10), "PUT/S": _Column(turn=11), "GET/S": _Column(turn=12),
    "NAME": _Column(False, 8), "SENDS TO": _Column(False, 8), "RECEIVES FROM": _Column(False, 8),
    "PROCESSES": _Column(False, 9), "CHANNEL": _Column(False, 12), "ARENA": _Column(False, 12),
    "COMMAND": _Column(False, 12), "CREATED AT": _Column(False, 16),
    **dict.fromkeys("PID DEPTH PINS USED OF MESSAGES CPU PICKLE SAVES".split(), _Column()),
}  # fmt: skip
_GAP = 1
_UNLIMITED = 10_000  # columns

Span = tuple[str, str]  #: a text, and its style as rich names it; "" for none


class Table(NamedTuple):
    heads: Sequence[str]
    rows: Sequence[Sequence[Span]]  #: each row has one cell per column


def has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


def _least(table: Table, number: int) -> int:
    head = table.heads[number]
    natural = max(len(head), *(len(row[number][0]) for row in table.rows), 0)
    return min(natural, max(_COLUMNS.get(head, _TEXT).least or natural, len(head)))


def _fitting(table: Table, width: int) -> Table:
    """Returns the table with the columns that fit."""
    kept = {number: _least(table, number) + _GAP for number in range(len(table.heads))}
    turns = [(turn, number) for number, head in enumerate(table.heads) if (turn := _COLUMNS.get(head, _TEXT).turn)]
    for _, number in sorted(turns):
        if sum(kept.values()) > width + _GAP:
            del kept[number]
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
        column = _COLUMNS.get(head, _TEXT)
        justify: Any = "right" if column.is_number else "left"
        table.add_column(head, justify=justify, no_wrap=column.least is None, min_width=_least(block, number))
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


def printable(name: str) -> str:
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in name)


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
