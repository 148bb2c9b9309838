"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], labels: int = 1) -> str:
    """The first columns, as many as `labels`, have words, all others numbers."""
    rule = "|" + "---|" * labels + "---:|" * (len(head) - labels)
    return "\n".join([_line(head), rule, *map(_line, rows)]) + "\n"


def verdicts(targets: dict[str, bool]) -> str:
    """A line for each target, after an empty one."""
    return "".join(f"\n- {'met' if is_met else 'missed'}: {target}" for target, is_met in targets.items()) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
