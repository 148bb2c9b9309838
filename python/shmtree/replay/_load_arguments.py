"""Arguments of a buffer that cannot be changed when it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import _rows, _spec

_ROWS = {"example": _rows.from_example, "columns": _rows.from_columns}
#: Default values of these arguments.
_TERMS: dict[str, Any] = {
    "next": (),
    "n_step": 1,
    "stack": None,
    "stack_padding": "zeros",
    "reward": "reward",
    "done": "done",
}


def check(saved: _spec.Spec, given: Mapping[str, Any]) -> None:
    """Raises ValueError for the first argument that differs from the saved one; the error has both."""
    for name in given:
        if name not in _ROWS and name not in _TERMS:
            raise TypeError(f"ReplayBuffer.load() got an unexpected keyword argument {name!r}")
    for name, rows_of in _ROWS.items():
        if name in given and (rows := rows_of(given[name])) != saved.rows:
            raise ValueError(_refusal(name, _leaves(rows), _leaves(saved.rows)))
    terms = {**_TERMS, "done": None, **{name: given[name] for name in _TERMS if name in given}}
    wanted = _terms(
        _spec.make(saved.rows, saved.samplers, gamma=saved.gamma, limit=None, on_peer_death="wait", **_as_made(terms))
    )
    for name, there in _terms(saved).items():
        if name in given and wanted[name] != there:
            raise ValueError(_refusal(name, repr(given[name]), _shown(there)))


def _refusal(name: str, given: str, there: str) -> str:
    return f"{name} is {given}, but the saved buffer has {there}; load() cannot change it"


def _shown(there: Any) -> str:
    """Formats an argument of the saved buffer. For the leaves that end episodes, names only those that exist."""
    if isinstance(there, dict) and there.keys() >= {"terminated", "truncated"}:
        return " and ".join(map(repr, filter(None, there.values()))) or "None"
    return repr(there)


def _as_made(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Renames arguments to those of `_spec.make`."""
    return {"padding" if name == "stack_padding" else name: value for name, value in terms.items()}


def _terms(spec: _spec.Spec) -> dict[str, Any]:
    """Returns the arguments in the form in which a program passes them, but with paths in place of leaves."""
    ways = _rows.paths_of(spec.rows.skeleton, "row")

    def way(leaf: int | None) -> str | None:
        return None if leaf is None else ways[leaf]

    return {
        "next": [ways[leaf] for leaf in spec.next],
        "n_step": spec.n_step,
        "stack": {ways[leaf]: frames for leaf, frames in sorted(spec.stack)},
        "stack_padding": spec.padding,
        "reward": way(spec.reward),
        "done": {key: way(getattr(spec, key)) for key in ("done", "terminated", "truncated")},
    }


def _leaves(rows: _rows.Rows) -> str:
    ways = _rows.paths_of(rows.skeleton, "row")
    return ", ".join(f"{way}: {dtype} {shape}" for way, (dtype, shape) in zip(ways, rows.leaves, strict=True))
