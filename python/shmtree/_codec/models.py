"""Classes of attrs and models of pydantic. Their instances are sent like dataclasses.

This module imports neither package: a process that sends or receives such an instance has imported its class.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any

from ..errors import CorruptMessage, IncompatibleMessage

_STATE = ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")
_MAX_SHOWN = 20  # number of field names in an error
_MAX_SHOWN_CHARACTERS = 64  # length of each name


def attrs_fields(cls: type) -> tuple[Any, ...] | None:
    """Returns the fields of an attrs class, or None if a pickle would contain anything but these fields."""
    fields: tuple[Any, ...] | None = cls.__dict__.get("__attrs_attrs__")
    methods = [cls.__dict__.get(name) for name in ("__getstate__", "__setstate__")]
    made_by_attrs = all(
        getattr(method, "__module__", None) == "attr._make"
        and getattr(method, "__qualname__", "").startswith("_ClassBuilder._make_getstate_setstate.")
        for method in methods
    )
    if made_by_attrs:  # a class with slots has no instance dict
        return fields
    plain = all(getattr(cls, name, None) is getattr(object, name, None) for name in ("__getstate__", "__setstate__"))
    return fields if plain else None


def is_model(cls: type) -> bool:
    """Returns True if `cls` is a pydantic model without its own pickling methods."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    if not isinstance(base, type) or not issubclass(cls, base):
        return False
    own = [name for name in ("__getstate__", "__setstate__") if getattr(cls, name) is not getattr(base, name)]
    return not own and cls.__new__ is object.__new__ and not hasattr(cls, "__getnewargs__")


def model_state(model: Any) -> tuple[Any, ...] | None:
    """Returns the parts of a model's state, or None if only pickle can send it."""
    state = model.__getstate__()
    if state.keys() != set(_STATE):
        return None
    parts = tuple(state[name] for name in _STATE)
    if not _has_only_names(parts) or _unlike(type(model), state["__dict__"], state["__pydantic_private__"]):
        return None
    return parts


def _fields_of(cls: Any) -> Any:
    return cls.__pydantic_fields__ if hasattr(cls, "__pydantic_fields__") else cls.model_fields


def _has_only_names(state: tuple[Any, ...]) -> bool:
    """Returns True if all names in a state are exactly of type str.

    Only exact strs are accepted, because an object of another type could compare equal to a name.
    """
    return all(type(name) is str for part in state for name in part or ())


def _unlike(cls: Any, attributes: dict[str, Any], private: dict[str, Any] | None) -> str | None:
    """Returns the difference between a state and that of an instance of `cls`, as a predicate of a sentence; None if
    there is none.

    The state must have every field. Any other name in it must be a cached property of the class: another instance
    attribute could hide a method.
    """
    fields, known = _fields_of(cls), cls.__private_attributes__
    for name in fields:
        if name not in attributes:
            return f"has a field {_shown(name)} here, but the message lacks it"
    for name in attributes:
        if name not in fields and not _is_cached_property(cls, name):
            return f"has no field {_shown(name)} here, but the message has it"
    for name in private or ():
        if name not in known:
            return f"has no private attribute {_shown(name)} here, but the message has it"
    return None


def _is_cached_property(cls: type, name: str) -> bool:
    found = next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
    return isinstance(found, functools.cached_property)


def _shown(name: str) -> str:
    """Quotes a name that may come from a message. Shortens it, and escapes control characters."""
    return repr(name if len(name) <= _MAX_SHOWN_CHARACTERS else name[:_MAX_SHOWN_CHARACTERS] + "...")


def _listed(names: Iterable[str]) -> str:
    all_names = list(names)
    shown = [_shown(name)[1:-1] for name in all_names[:_MAX_SHOWN]]
    more = len(all_names) - len(shown)
    return ", ".join([*shown, f"and {more} more"] if more else shown) or "none"


def model_build(cls: Any, state: Any) -> Any:
    """Returns the model of that state, without validating it again.

    Raises:
        CorruptMessage: if `state` is not the state of a model.
        IncompatibleMessage: if `state` is that of a model with other fields.
    """
    kinds: tuple[tuple[type, ...], ...] = ((dict,), (dict, type(None)), (set,), (dict, type(None)))
    if type(state) is not tuple or len(state) != len(_STATE) or not all(map(_is_one_of, state, kinds)):
        raise CorruptMessage(
            f"The frame is corrupt: the state of a model is not a tuple of {len(_STATE)} dicts and sets"
        )
    if not _has_only_names(state):
        raise CorruptMessage("The frame is corrupt: a field name in the state of a model is not a str")
    difference = _unlike(cls, state[0], state[3])
    if difference is not None:
        sent, here = _listed(state[0]), _listed(_fields_of(cls))
        raise IncompatibleMessage(
            f"'{cls.__module__}:{cls.__qualname__}' {difference}. Fields in the message: {sent}; fields here: {here}"
        )
    model: Any = cls.__new__(cls)
    model.__setstate__(dict(zip(_STATE, state, strict=True)))
    return model


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds
