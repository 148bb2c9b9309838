"""Lookups by name or value in a message that find nothing here are errors about the message."""

from __future__ import annotations

import enum
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
    """Has no members: Python raises TypeError for any value."""


class BareFlag(enum.Flag):
    """Has no members."""


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
def test_value_that_an_enum_lacks_is_an_error_about_the_message(
    cls: type[enum.Enum], value: Any, allow_pickle: bool
) -> None:
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
def test_interrupt_in_a_lookup_stays_what_it_is(value: Any, error: type[BaseException]) -> None:
    with pytest.raises(error):
        shmtree.unpack(by_value(Interrupted, value))
