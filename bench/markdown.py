"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]], labels: int = 1) -> str:
    """Formats a table. The first `labels` columns contain text, the others numbers."""
    rule = "|" + "---|" * labels + "---:|" * (len(head) - labels)
    return "\n".join([_line(head), rule, *map(_line, rows)]) + "\n"


def verdicts(targets: dict[str, bool]) -> str:
    """Returns an empty line, then a line for each target."""
    return "".join(f"\n- {'met' if is_met else 'missed'}: {target}" for target, is_met in targets.items()) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)
