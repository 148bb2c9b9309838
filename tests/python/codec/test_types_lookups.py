"""Failed lookups by name or by value raise errors about the message."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Iterator
from typing import Any

import frame_writer as fw
import pytest
from frame_writer import Writer

import shmtree


class Colour(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Word(str, enum.Enum):
    A = "a"


class Bit(enum.Flag):
    A = 1


class Bare(enum.Enum):
    """An enum without members: Python raises TypeError for any value."""


class BareFlag(enum.Flag):
    """A flag without members."""


class Aliased(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return {"one": cls.ONE}[value]  # type: ignore[index]


class Confused(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        return value


class Broken(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise RuntimeError("broken")


class Interrupted(enum.Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise KeyboardInterrupt if value == 2 else MemoryError


def by_value(cls: type[enum.Enum], value: Any) -> bytes:
    return Writer().kind(fw.LIST).length(1).kind(fw.ENUM_VALUE).name(f"{__name__}:{cls.__name__}").value(value).frame()


@pytest.mark.parametrize("allow_pickle", [False, True])
@pytest.mark.parametrize("value", [[], [[1]], ([],), None, 99, "x", 1.5], ids=repr)
@pytest.mark.parametrize(
    "cls", [Colour, Number, Word, Bit, Bare, BareFlag, Aliased, Confused, Broken], ids=lambda cls: cls.__name__
)
def test_unknown_enum_value_raises_corrupt_message(cls: type[enum.Enum], value: Any, allow_pickle: bool) -> None:
    with pytest.raises(shmtree.CorruptMessage) as caught:
        shmtree.unpack(by_value(cls, value), allow_pickle=allow_pickle)
    if not issubclass(cls, enum.Flag):
        assert isinstance(caught.value, shmtree.IncompatibleMessage) and caught.value.path == "[0]"
        assert f"{__name__}:{cls.__name__}" in str(caught.value) and "Members here" in str(caught.value)


def test_error_of_a_lookup_is_the_cause() -> None:
    with pytest.raises(shmtree.IncompatibleMessage) as caught:
        shmtree.unpack(by_value(Broken, []))
    assert repr(caught.value.__cause__) == "RuntimeError('broken')"


@pytest.mark.parametrize(("value", "error"), [(2, KeyboardInterrupt), ([], MemoryError)])
def test_interrupt_in_a_lookup_is_raised_unchanged(value: Any, error: type[BaseException]) -> None:
    with pytest.raises(error):
        shmtree.unpack(by_value(Interrupted, value))


NAME = "module_of_lookups"
CLASSES = """
import dataclasses, enum, pickle

@dataclasses.dataclass
class Record:
    x: int = 1

class Colour(enum.Enum):
    RED = 1

class Pickled:
    pass

class Nested:
    class Inner:
        pass

def function(): pass

class Failing:
    def __setstate__(self, state):
        raise AttributeError("a defect of the class")
    def __getstate__(self):
        return 1
"""
VALUES = {
    "Record": "Record()",
    "Colour": "Colour.RED",
    "Pickled": "Pickled()",
    "Nested": "Nested.Inner()",
    "function": "function",
}


@pytest.fixture
def module() -> Iterator[types.ModuleType]:
    """Yields a module that messages can name."""
    made = types.ModuleType(NAME)
    sys.modules[NAME] = made
    exec(CLASSES, vars(made))
    yield made
    sys.modules.pop(NAME, None)


@pytest.mark.parametrize("name", VALUES)
def test_class_missing_in_its_module_raises_with_both_names(name: str, module: types.ModuleType) -> None:
    sender, receiver = shmtree.create_pair()
    value = {"item": [eval(VALUES[name], vars(module))]}
    sender.put_many([value, "next"])
    kept = vars(module).pop(name)
    with pytest.raises(shmtree.IncompatibleMessage) as caught:
        receiver.get(timeout=60)
    error = caught.value
    assert isinstance(error.__cause__, AttributeError)
    assert name in str(error) and NAME in str(error)
    assert error.path is not None and error.ticket == 0
    assert receiver.get(timeout=60) == "next"
    vars(module)[name] = kept
    assert shmtree.unpack(error.frame)["item"]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", VALUES)
def test_missing_module_raises_with_its_name(name: str, module: types.ModuleType) -> None:
    frame = bytes(shmtree.pack(eval(VALUES[name], vars(module))))
    del sys.modules[NAME]
    with pytest.raises(shmtree.IncompatibleMessage, match=f"No module named '{NAME}'") as caught:
        shmtree.unpack(frame, allow_pickle=True)
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


def test_attribute_error_of_a_pickled_object_is_not_changed(module: types.ModuleType) -> None:
    frame = bytes(shmtree.pack(module.Failing()))
    with pytest.raises(AttributeError, match="a defect of the class"):
        shmtree.unpack(frame, allow_pickle=True)


def test_unregistered_class_is_refused_despite_allow_pickle(module: types.ModuleType) -> None:
    frame = Writer().kind(fw.REGISTERED).name(f"{NAME}:Gone").value(1).frame()
    with pytest.raises(shmtree.PickleRefused, match="not registered here"):
        shmtree.unpack(frame, allow_pickle=True)
