"""An interrupt or a MemoryError during the lookup of a class is raised. It is not cached as a fact about the class."""

from __future__ import annotations

import collections
import enum
import signal
import sys
import types
from collections.abc import Iterator
from typing import Any

import frame_writer as fw
import pytest
from frame_writer import Writer

import shmtree

NAME = "module_of_interrupts"
ERRORS = [KeyboardInterrupt, MemoryError, SystemExit]

raised: BaseException | None = None
names: set[str] = set()


def look(name: str) -> None:
    """Raises the exception that the test chose, if `name` is the chosen attribute."""
    if raised is not None and name in names:
        raise raised


class Looked(type):
    def __getattribute__(cls, name: str) -> Any:
        look(name)
        return super().__getattribute__(name)


class LookedEnum(enum.EnumMeta):
    def __getattribute__(cls, name: str) -> Any:
        look(name)
        return super().__getattribute__(name)


class Spec:
    @property
    def _initializing(self) -> bool:
        look("_initializing")
        return False


@pytest.fixture(params=ERRORS, ids=lambda error: error.__name__)
def error(request: pytest.FixtureRequest) -> type[BaseException]:
    cls: type[BaseException] = request.param
    return cls


@pytest.fixture
def module() -> Iterator[Any]:
    made = types.ModuleType(NAME)
    sys.modules[NAME] = made
    yield made
    stop()
    sys.modules.pop(NAME, None)


def add(module: Any, cls: Any) -> Any:
    cls.__module__ = NAME
    setattr(module, cls.__name__, cls)
    return cls


def start(error: type[BaseException], *attributes: str) -> None:
    global raised
    raised = error("as the test wants")
    names.update(attributes)


def stop() -> None:
    global raised
    raised = None
    names.clear()


def test_pack_raises_the_error_of_a_class_name_lookup(module: Any, error: type[BaseException]) -> None:
    value = add(module, Looked("Plain", (), {}))()
    start(error, "__module__")
    with pytest.raises(error, match="as the test wants"):
        shmtree.pack([value])
    stop()
    assert type(shmtree.unpack(shmtree.pack([value]))[0]) is type(value)


def test_register_raises_the_error_of_a_class_name_lookup(module: Any, error: type[BaseException]) -> None:
    cls = add(module, Looked("Registered", (), {}))
    start(error, "__qualname__")
    with pytest.raises(error, match="as the test wants"):
        shmtree.register(cls, str, str)


@pytest.mark.parametrize(
    ("attribute", "value"), [("_value2member_map_", 1), ("_value2member_map_", 99), ("_member_map_", 99)]
)
def test_unpack_raises_the_error_of_an_enum_lookup(
    module: Any, error: type[BaseException], attribute: str, value: int
) -> None:
    members = LookedEnum.__prepare__("Colour", (enum.Enum,))
    members["RED"] = 1
    add(module, LookedEnum("Colour", (enum.Enum,), members))
    frame = Writer().kind(fw.ENUM_VALUE).name(f"{NAME}:Colour").value(value).frame()
    start(error, attribute)
    with pytest.raises(error, match="as the test wants"):
        shmtree.unpack(frame)


def test_unpack_raises_the_error_of_a_module_state_lookup(module: Any, error: type[BaseException]) -> None:
    add(module, collections.namedtuple("Step", "x"))
    frame = bytes(shmtree.pack(module.Step(1)))
    module.__spec__ = Spec()
    start(error, "_initializing")
    with pytest.raises(error, match="as the test wants"):
        shmtree.unpack(frame)


def test_put_many_raises_an_interrupt_before_a_later_item_error() -> None:
    sender, _receiver = shmtree.create_pair(capacity=1)
    sender.put(0)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt("as the test wants")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(KeyboardInterrupt, match="as the test wants"):
            sender.put_many([1, lambda: None])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
