"""User classes: dataclasses, subclasses of native types, registered kinds, and the instances that are refused."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import enum
import importlib
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import frame_writer as fw
import numpy as np
import pytest
from exact import assert_same
from frame_writer import Writer
from starts import START_METHODS
from test_types import cases

import shmtree
from shmtree._codec import optional


def through(value: object) -> Any:
    return shmtree.unpack(bytes(shmtree.pack(value, allow_pickle=False)))


def through_pickle(value: object) -> Any:
    return shmtree.unpack(bytes(shmtree.pack(value)), allow_pickle=True)


@dataclasses.dataclass
class Step:
    obs: Any
    reward: float = 0.0
    info: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int
    y: int = 2


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("x", "y")
    x: int
    y: object


@dataclasses.dataclass
class Counted:
    x: int
    made = 0

    def __post_init__(self) -> None:
        type(self).made += 1


@dataclasses.dataclass
class Derived(Step):
    extra: int = 5


@dataclasses.dataclass
class WithState:
    x: int

    def __getstate__(self) -> dict:
        return {"x": self.x + 1}


class Typed(NamedTuple):
    a: int
    b: str = "b"


class Loud(list):
    """A subclass of a native container with its own state."""


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Table(dict):
    pass


class Plain:
    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return type(other) is Plain and other.value == self.value

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value",
    [
        Step(1),
        Step(np.arange(6.0).reshape(2, 3), 1.5, {"a": [1]}),
        Frozen(1),
        Slotted(1, [2]),
        Derived(1, 2.0, {}, 6),
        [Step(i) for i in range(50)],
        {"t": Step(Step(Step(None)))},
        Typed(1),
        Typed(2, "c"),
    ],
    ids=lambda v: type(v).__name__,
)
def test_dataclass_or_namedtuple_round_trips_without_pickle(value: object) -> None:
    assert_same(through(value), value)


def test_dataclass_is_rebuilt_without_its_constructor() -> None:
    value = Counted(3)
    before = Counted.made
    assert through(value) == value
    assert Counted.made == before


def test_attributes_beyond_the_fields_round_trip() -> None:
    value = Step(1)
    value.note = "extra"  # type: ignore[attr-defined]
    assert through_pickle(value).__dict__ == value.__dict__


def test_missing_field_stays_missing() -> None:
    value = Step(1)
    del value.info
    got = through_pickle(value)
    assert "info" not in got.__dict__ and got.obs == 1


class Base:
    __slots__ = ("a",)


@dataclasses.dataclass
class SlotAndDict(Base):
    a: int


@dataclasses.dataclass
class SlotTwice(Base):
    __slots__ = ("a",)
    a: int


def test_slot_repeated_from_a_base_round_trips() -> None:
    assert through(SlotTwice(1)) == SlotTwice(1)


def test_dict_entry_named_like_a_slot_goes_through_pickle() -> None:
    value = SlotAndDict(1)
    assert through(value) == value
    value.__dict__["a"] = 2
    got = through_pickle(value)
    assert got.a == 1 and got.__dict__ == {"a": 2}
    with pytest.raises(shmtree.PickleRefused, match="SlotAndDict"):
        shmtree.pack(value, allow_pickle=False)


def test_dataclass_with_its_own_state_goes_through_pickle() -> None:
    assert through_pickle(WithState(1)).x == 2
    with pytest.raises(shmtree.PickleRefused, match="WithState"):
        shmtree.pack(WithState(1), allow_pickle=False)


class Stamp(dt.datetime):
    pass


class Ordered(collections.OrderedDict):
    pass


class Grouped(collections.defaultdict):
    pass


class Ring(collections.deque):
    pass


class Roomy(collections.namedtuple("Roomy", "x y")):
    """A namedtuple with an instance dict."""


class OwnNamespace(types.SimpleNamespace):
    pass


def with_attribute(value: Any) -> Any:
    value.note = 3
    return value


PICKLED = {
    "a subclass of a native type": [Loud([1, 2]), Text("x"), Number(3), Real(1.5), Table(a=1), Plain([1])],
    "a subclass of a library type": [Stamp(2024, 1, 1), Ordered(a=1), Grouped(list, a=[1]), Ring([1, 2], 5)],
    "a subclass of a class": [OwnNamespace(x=1), with_attribute(Roomy(1, 2))],
    "an array": [np.array([1, "x", None, [2]], dtype=object), np.array([(1, "x")], dtype=[("a", "i4"), ("o", object)])],
    "a record": [np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])],
    "a callable": [len, Plain],
}


@pytest.mark.parametrize("value", cases(PICKLED))
def test_value_that_needs_a_pickle_keeps_its_type(value: object) -> None:
    frame = shmtree.pack(value)
    for got in (through_pickle(value), through_pickle({"deep": [value]})["deep"][0], shmtree.unpack(frame)):
        assert_same(got, value)
        assert getattr(got, "__dict__", None) == getattr(value, "__dict__", None)
    with pytest.raises(shmtree.PickleRefused):
        shmtree.unpack(bytes(frame))  # another process may have written it
    with pytest.raises(shmtree.PickleRefused, match=type(value).__name__):
        shmtree.pack(value, allow_pickle=False)


class Celsius:
    def __init__(self, degrees: object) -> None:
        self.degrees = degrees


def test_registered_class_is_sent_natively() -> None:
    shmtree.register(Celsius, lambda c: {"degrees": c.degrees}, lambda d: Celsius(d["degrees"]))
    got = through([Celsius(np.arange(3)), Celsius({"nested": Celsius(1)})])
    assert type(got[0]) is Celsius and got[0].degrees.tolist() == [0, 1, 2]
    assert got[1].degrees["nested"].degrees == 1


def test_registered_class_round_trips_beside_a_pickle() -> None:
    shmtree.register(Celsius, lambda c: {"degrees": c.degrees}, lambda d: Celsius(d["degrees"]))
    got = shmtree.unpack(shmtree.pack([Celsius(7), Plain(1)]))
    assert type(got[0]) is Celsius and got[0].degrees == 7 and got[1].value == 1


def test_register_rejects_invalid_arguments() -> None:
    for arguments in (("Celsius", str, str), (Celsius, None, str)):
        with pytest.raises(TypeError):
            shmtree.register(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        shmtree.register(dict, dict, dict)


def test_error_in_flatten_reaches_the_caller() -> None:
    class Bad:
        pass

    def fail(_: object) -> Any:
        raise LookupError("flatten")

    shmtree.register(Bad, fail, fail)
    with pytest.raises(LookupError, match="flatten"):
        shmtree.pack([Bad()])


def test_local_class_raises_in_pack() -> None:
    @dataclasses.dataclass
    class Local:
        x: int

    class Hue(enum.Enum):
        RED = 1

    for value in (Local(1), Hue.RED):
        with pytest.raises((AttributeError, TypeError, Exception)) as caught:
            shmtree.pack(value)
        assert "local" in str(caught.value).lower()


def _module_with(name: str, **members: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    return module


MADE: dict[str, Callable[[], Any]] = {
    "dataclass": lambda: dataclasses.make_dataclass("Made", ["x"])(1),
    "namedtuple": lambda: collections.namedtuple("Made", "x")(1),
    "enum": lambda: enum.Enum("Made", "DARK").DARK,
}


@pytest.mark.parametrize("kind", MADE)
def test_class_of_a_module_that_is_not_imported_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MADE[kind]()
    cls = type(made)
    cls.__module__ = "shmtree_test_elsewhere"
    module = _module_with("shmtree_test_elsewhere", Made=cls)
    monkeypatch.setitem(sys.modules, "shmtree_test_elsewhere", module)
    frame = bytes(shmtree.pack(made, allow_pickle=False))
    assert type(shmtree.unpack(frame)) is cls
    monkeypatch.delitem(sys.modules, "shmtree_test_elsewhere")
    with pytest.raises(shmtree.PickleRefused, match="shmtree_test_elsewhere"):
        shmtree.unpack(frame)


class ImportingThread(threading.Thread):
    MODULE = "shmtree_test_half_imported"
    SOURCE = (
        "import dataclasses, sys\n"
        "sys.shmtree_test_importing.runs += 1\n"
        "sys.shmtree_test_importing.began.set()\n"
        "sys.shmtree_test_importing.may_go_on.wait(60)\n"
        "if sys.shmtree_test_importing.fails: raise ImportError('as the test wants')\n"
        "@dataclasses.dataclass\n"
        "class Point:\n"
        "    x: int\n"
    )

    def __init__(self) -> None:
        super().__init__()
        self.began, self.may_go_on = threading.Event(), threading.Event()
        self.runs, self.fails = 0, False  # number of runs of the module, and True if a run fails

    def run(self) -> None:
        with contextlib.suppress(ImportError):
            importlib.import_module(self.MODULE)

    def result_of(self, call: Callable[[], Any]) -> Any:
        """Returns the result of `call` in another thread. Starts it before the class exists."""
        bootstrap = importlib.import_module("_frozen_importlib")  # its locks list the threads that wait for an import
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            caller = pool.submit(threading.get_ident).result(60)
            result = pool.submit(call)
            while not result.done() and bootstrap._blocking_on.get(caller) is None:
                time.sleep(0.001)
            self.may_go_on.set()
            return result.result(60)


@pytest.fixture
def importing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ImportingThread]:
    """Yields a thread that is importing a module, and has not reached the class in it."""
    (tmp_path / f"{ImportingThread.MODULE}.py").write_text(ImportingThread.SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, ImportingThread.MODULE, raising=False)
    thread = ImportingThread()
    monkeypatch.setattr(sys, "shmtree_test_importing", thread, raising=False)
    thread.start()
    assert thread.began.wait(60)
    yield thread
    thread.may_go_on.set()
    thread.join()
    sys.modules.pop(ImportingThread.MODULE, None)


@pytest.mark.parametrize("allow_pickle", [True, False])
def test_unpack_waits_if_another_thread_imports_the_module(allow_pickle: bool, importing: ImportingThread) -> None:
    frame = Writer().kind(fw.DATACLASS).name(f"{importing.MODULE}:Point").length(1).name("x").value(3).frame()
    got = importing.result_of(lambda: shmtree.unpack(frame, allow_pickle=allow_pickle))
    assert type(got) is sys.modules[importing.MODULE].Point and got.x == 3


def test_lookup_of_an_optional_package_waits_for_its_import(importing: ImportingThread) -> None:
    assert importing.result_of(lambda: hasattr(optional._package(importing.MODULE, False), "Point"))


@pytest.mark.parametrize("what", ["package", "class"])
def test_lookup_does_not_repeat_an_import_that_fails(what: str, importing: ImportingThread) -> None:
    importing.fails = True
    if what == "class":
        frame = Writer().kind(fw.DATACLASS).name(f"{importing.MODULE}:Point").length(1).name("x").value(3).frame()
        with pytest.raises(shmtree.PickleRefused, match="that this process has not imported"):
            importing.result_of(lambda: shmtree.unpack(frame))
    else:
        assert importing.result_of(lambda: optional._package(importing.MODULE, False)) is None
    assert importing.runs == 1


def test_replaced_class_arrives_as_its_newest_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = _module_with("shmtree_test_replaced")
    monkeypatch.setitem(sys.modules, "shmtree_test_replaced", module)
    for _ in range(3):
        cls = collections.namedtuple("Replaced", "x")
        cls.__module__ = "shmtree_test_replaced"
        module.__dict__["Replaced"] = cls
        frame = shmtree.pack(cls(1))
        assert all(type(shmtree.unpack(frame)) is cls for _ in range(3))
    del module.__dict__["Replaced"]
    with pytest.raises(shmtree.PickleRefused, match="which its module does not contain"):
        shmtree.unpack(bytes(frame))


@pytest.mark.parametrize("impostor", [print, type("Fake", (), {}), 7, dict, Plain])
@pytest.mark.parametrize("kind", MADE)
def test_class_name_that_finds_another_object_is_refused(
    kind: str, impostor: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MADE[kind]()
    type(made).__module__ = "shmtree_test_trick"
    monkeypatch.setitem(sys.modules, "shmtree_test_trick", _module_with("shmtree_test_trick", Made=type(made)))
    frame = bytes(shmtree.pack(made, allow_pickle=False))
    monkeypatch.setitem(sys.modules, "shmtree_test_trick", _module_with("shmtree_test_trick", Made=impostor))
    with pytest.raises((shmtree.CorruptMessage, shmtree.PickleRefused)):
        shmtree.unpack(frame)


def test_class_registered_during_its_first_pack_stays_registered() -> None:
    entered, registered = threading.Event(), threading.Event()

    class Slow(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            if threading.current_thread() is not threading.main_thread():
                entered.set()
                registered.wait(30)
            return __name__

    class Met(metaclass=Slow):
        pass

    def meet() -> None:
        with contextlib.suppress(Exception):  # the result does not matter
            shmtree.pack(Met())

    other = threading.Thread(target=meet)
    other.start()
    assert entered.wait(30)
    shmtree.register(Met, lambda met: 1, lambda flat: Met())
    registered.set()
    other.join()
    shmtree.pack(Met(), allow_pickle=False)


REGISTERS = """
import multiprocessing as mp
import sys

import shmtree


class Tag:
    def __init__(self, text):
        self.text = text


shmtree.register(Tag, lambda tag: tag.text, Tag)


def answer(requests, replies):
    tag = requests.get()
    replies.put(tag)
    replies.put([tag, print])  # and in a pickle


if __name__ == "__main__":
    requests, asked = shmtree.create_pair()
    replies, answers = shmtree.create_pair()
    process = mp.get_context(sys.argv[1]).Process(target=answer, args=(asked, replies))
    process.start()
    requests.put(Tag("there and back"))
    print(answers.get(timeout=60).text, answers.get(timeout=60)[0].text, sep=", ")
    process.join()
"""


@pytest.mark.parametrize("method", START_METHODS)
def test_class_registered_by_the_main_program_works_in_children(method: str, tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(REGISTERS)
    ran = subprocess.run([sys.executable, str(program), method], capture_output=True, text=True, timeout=200)
    assert ran.stdout == "there and back, there and back\n", ran.stderr
