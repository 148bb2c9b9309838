"""Arguments of a buffer that cannot be changed when it is loaded."""

from __future__ import annotations

from typing import Any

from . import _rows, _spec
from ._options import Episodes, Limits


def check(saved: _spec.Spec, example: Any, columns: Any, episodes: Episodes | None) -> None:
    """Raises ValueError for the first argument that differs from the saved one; the error has both."""
    if example is not None:
        _check_rows("example", _rows.from_example(example), saved)
    if columns is not None:
        _check_rows("columns", _rows.from_columns(columns), saved)
    if episodes is None:
        return
    wanted = _terms(_spec.make(saved.rows, saved.samplers, episodes, Limits()))
    for name, there in _terms(saved).items():
        if wanted[name] != there:
            raise ValueError(_refusal(name, repr(getattr(episodes, name)), _shown(there)))


def _check_rows(name: str, rows: _rows.Rows, saved: _spec.Spec) -> None:
    if rows != saved.rows:
        raise ValueError(_refusal(name, _leaves(rows), _leaves(saved.rows)))


def _refusal(name: str, given: str, there: str) -> str:
    return f"{name} is {given}, but the saved buffer has {there}; load() cannot change it"


def _shown(there: Any) -> str:
    """Formats an argument of the saved buffer. For the leaves that end episodes, names only those that exist."""
    if isinstance(there, dict) and there.keys() >= {"terminated", "truncated"}:
        return " and ".join(map(repr, filter(None, there.values()))) or "None"
    return repr(there)


def _terms(spec: _spec.Spec) -> dict[str, Any]:
    """Returns the arguments of `Episodes` except `gamma`, with paths in place of leaves."""
    options, ways = spec.options, _rows.paths_of(spec.rows.skeleton, "row")

    def way(leaf: int | None) -> str | None:
        return None if leaf is None else ways[leaf]

    return {
        "next": [ways[leaf] for leaf in spec.core.next],
        "n_step": options["n_step"],
        "stack": {ways[leaf]: frames for leaf, frames in sorted(options["stack"])},
        "stack_padding": "first" if options["repeats_first"] else "zeros",
        "reward": way(options["reward"]),
        "done": {key: way(options[key]) for key in ("done", "terminated", "truncated")},
    }


def _leaves(rows: _rows.Rows) -> str:
    ways = _rows.paths_of(rows.skeleton, "row")
    return ", ".join(f"{way}: {dtype} {shape}" for way, (dtype, shape) in zip(ways, rows.leaves, strict=True))
