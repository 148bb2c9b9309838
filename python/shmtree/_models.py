"""Classes of other packages whose instances travel like dataclasses: those of attrs, and models of pydantic.

Neither package is imported here: who sends or receives such an instance has its class.
"""

from __future__ import annotations

import sys
from typing import Any

from .errors import CorruptMessage, IncompatibleMessage

_STATE = ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")


def attrs_fields(cls: type) -> tuple[Any, ...] | None:
    """The fields of a class of attrs; None when pickle would send more than them, or something else."""
    fields: tuple[Any, ...] | None = cls.__dict__.get("__attrs_attrs__")
    methods = [cls.__dict__.get(name) for name in ("__getstate__", "__setstate__")]
    made_by_attrs = all(
        getattr(method, "__module__", None) == "attr._make"
        and getattr(method, "__qualname__", "").startswith("_ClassBuilder._make_getstate_setstate.")
        for method in methods
    )
    if made_by_attrs:  # of a class with slots
        return fields
    plain = all(getattr(cls, name, None) is getattr(object, name, None) for name in ("__getstate__", "__setstate__"))
    return fields if plain else None


def is_model(cls: type) -> bool:
    """Whether it is a model of pydantic that pickles as these do, with nothing of its own."""
    base = getattr(sys.modules.get("pydantic.main"), "BaseModel", None)
    if not isinstance(base, type) or not issubclass(cls, base):
        return False
    own = [name for name in ("__getstate__", "__setstate__") if getattr(cls, name) is not getattr(base, name)]
    return not own and cls.__new__ is object.__new__ and not hasattr(cls, "__getnewargs__")


def model_state(model: Any) -> tuple[Any, ...] | None:
    """What a model is made of; None for what only pickle can send."""
    state = model.__getstate__()
    if state.keys() != set(_STATE) or _unlike(type(model), state["__dict__"], state["__pydantic_private__"]):
        return None
    return tuple(state[name] for name in _STATE)


def _fields_of(cls: Any) -> Any:
    return cls.__pydantic_fields__ if hasattr(cls, "__pydantic_fields__") else cls.model_fields


def _unlike(cls: Any, attributes: dict[str, Any], private: dict[str, Any] | None) -> str | None:
    """Returns how a state differs from the state of an instance of `cls`, as a predicate, or None if it does not.

    The state must have every field. Any other name in it must be a cached property or another attribute of the class.
    """
    fields, known = _fields_of(cls), cls.__private_attributes__
    for name in fields:
        if name not in attributes:
            return f"has a field {name!r} here, but the message lacks it"
    for name in attributes:
        if name not in fields and not any(name in vars(base) for base in cls.__mro__):
            return f"has no field {name!r} here, but the message has it"
    for name in private or ():
        if name not in known:
            return f"has no private attribute {name!r} here, but the message has it"
    return None


def model_build(cls: Any, state: Any) -> Any:
    """The model of that state, which is not validated again. CorruptMessage when it is none."""
    kinds: tuple[tuple[type, ...], ...] = ((dict,), (dict, type(None)), (set,), (dict, type(None)))
    if type(state) is not tuple or len(state) != len(_STATE) or not all(map(_is_one_of, state, kinds)):
        raise CorruptMessage("The frame is corrupt: that is no state of a model")
    difference = _unlike(cls, state[0], state[3])
    if difference is not None:
        sent, here = ", ".join(state[0]), ", ".join(_fields_of(cls))
        raise IncompatibleMessage(
            f"'{cls.__module__}:{cls.__qualname__}' {difference}. Fields in the message: {sent}; fields here: {here}"
        )
    made: Any = cls.__new__(cls)
    made.__setstate__(dict(zip(_STATE, state, strict=True)))
    return made


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    return type(value) in kinds
