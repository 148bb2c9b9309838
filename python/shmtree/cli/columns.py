"""Tables that fit a terminal: columns are shortened first, and then left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

_GAP = 2
_CUT = "+"  # ends a text that was cut off, as in top(1)

Span = tuple[str, str]  #: a text, and its style as rich names it; "" for none
Line = list[Span]


class Column(NamedTuple):
    head: str
    least: int = 0  #: width to which the column may be shortened; 0: it keeps its width
    rank: int = 0  #: columns with the highest rank are left out first; 0: never left out
    is_number: bool = False


class Table(NamedTuple):
    columns: Sequence[Column]
    rows: list[Line]  #: each has a cell for each column

    def lines(self, width: int | None = None) -> list[Line]:
        """Returns the head and the rows, within `width` characters if it is given."""
        kept = _kept(self, width)
        heads = [(self.columns[each].head, "bold") for each in kept]
        return [_line(self.columns, kept, row) for row in (heads, *([row[each] for each in kept] for row in self.rows))]


def _natural(table: Table, number: int) -> int:
    return max(len(table.columns[number].head), *(len(row[number][0]) for row in table.rows), 0)


def _kept(table: Table, width: int | None) -> dict[int, int]:
    """Returns the columns that are shown, and their widths."""
    widths = {number: _natural(table, number) for number in range(len(table.columns))}
    if width is None:
        return widths

    def least(number: int) -> int:
        return min(widths[number], table.columns[number].least or widths[number])

    def space() -> int:
        return width - _GAP * (len(widths) - 1)

    while sum(map(least, widths)) > space():
        ranked = [number for number in widths if table.columns[number].rank]
        if not ranked:
            break
        del widths[max(ranked, key=lambda number: table.columns[number].rank)]
    while sum(widths.values()) > space():
        wide = [number for number in widths if widths[number] > least(number)]
        if not wide:
            break
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + _CUT


def _line(columns: Sequence[Column], widths: dict[int, int], cells: Line) -> Line:
    line: Line = []
    for (number, width), (text, style) in zip(widths.items(), cells):
        shown = cut(text, width)
        padded = shown.rjust(width) if columns[number].is_number else shown.ljust(width)
        line += [(padded, style), (" " * _GAP, "")]
    while line and not line[-1][0].strip():
        line.pop()
    if line:
        line[-1] = (line[-1][0].rstrip(), line[-1][1])
    return line


def plain(line: Line) -> str:
    return "".join(text for text, _ in line)


def within(blocks: Sequence[list[Line]], height: int) -> list[list[Line]]:
    """Returns blocks of lines that have at most `height` lines together, where that is possible.

    Shortens the longest block first. Each keeps its first line and says how many lines it lacks.
    """
    sizes = [len(block) for block in blocks]
    while sum(sizes) > height and max(sizes, default=0) > 2:
        sizes[sizes.index(max(sizes))] -= 1
    return [
        block if size == len(block) else [*block[: size - 1], [(f"{_CUT} {len(block) - size + 1} more", "dim")]]
        for block, size in zip(blocks, sizes)
    ]
