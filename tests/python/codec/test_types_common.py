"""Classes that many programs send arrive unchanged, natively or with a small pickle."""

from __future__ import annotations

import array
import copyreg
import gc
import importlib
import io
import subprocess
import sys
import types
from typing import Any

import numpy as np
import pytest
from test_types_packages import check_sent, pickled_bytes

import shmtree

LARGE = 100_000


def through(value: object) -> Any:
    return shmtree.unpack(bytes(shmtree.pack(value, allow_pickle=False)))


@pytest.mark.parametrize("code", [code for code in array.typecodes if code not in "uw"])
def test_python_arrays_are_native(code: str) -> None:
    for values in ([], [1, 2, 3], range(100)):
        value = array.array(code, values)
        got = through({"x": value})["x"]
        assert type(got) is array.array and got.typecode == code and got == value
        got.append(1)  # the copy has its own memory


def test_python_arrays_of_text_are_native() -> None:
    value = array.array("w" if "w" in array.typecodes else "u", "äß")
    assert through([value]) == [value]


def test_python_array_is_not_part_of_the_pickle(arena: shmtree.Arena) -> None:
    value = array.array("d", range(LARGE))
    sender, receiver = arena.create_pair(capacity=2)
    assert pickled_bytes([value, print]) < 1024
    sender.put([value, print])
    assert receiver.get() == [value, print]


@pytest.mark.parametrize(
    "flat", [("d", np.zeros(7, np.uint8)), ("no", np.zeros(8, np.uint8)), ("d", b"x"), [1]], ids=str
)
def test_forged_python_array_raises_corrupt_message(flat: object) -> None:
    with pytest.raises(shmtree.CorruptMessage):
        shmtree.unpack(forged("array:array", flat))
    with pytest.raises(shmtree.CorruptMessage):
        shmtree.unpack(forged("types:SimpleNamespace", flat))


def forged(name: str, flat: object) -> bytes:
    """Returns the frame of a registered class with `name` in place of its name, which must be of the same length."""

    class Forged:
        pass

    Forged.__module__, Forged.__qualname__ = name.split(":")
    shmtree._core._register(Forged, lambda value: flat, lambda flat: None)
    frame = bytes(shmtree.pack(Forged()))
    importlib.import_module("shmtree._codec.standard_library").add()
    return frame


def test_namespaces_are_native() -> None:
    value = types.SimpleNamespace(obs=np.arange(5), reward=1.0, inner=types.SimpleNamespace(), text="é")
    got = through([value])[0]
    assert type(got) is types.SimpleNamespace and type(got.inner) is types.SimpleNamespace
    assert got.obs.tolist() == value.obs.tolist() and got.text == "é" and vars(got.inner) == {}
    got.more = 1
    odd = types.SimpleNamespace()
    vars(odd)[3] = 4
    assert vars(through(odd)) == {3: 4}


def test_shared_and_cyclic_namespaces_keep_their_identity() -> None:
    value = types.SimpleNamespace(n=1)
    value.me = value
    got = shmtree.unpack(shmtree.pack(value))
    assert got.me is got and got.n == 1
    got = shmtree.unpack(shmtree.pack([value, vars(value)]))
    assert got[0].me is got[0] and got[1]["n"] == 1


# --- attrs ---------------------------------------------------------------------------------------------------------

try:
    import attr
    import attrs
except ImportError:
    attrs = None
else:

    @attr.s(auto_attribs=True)
    class Plain:
        obs: Any
        _hidden: int = 3
        made: list = attr.ib(factory=list, init=False)

    @attrs.define
    class Slotted:
        obs: Any
        reward: float = attrs.field(default=0.0, validator=attrs.validators.ge(0.0))

    @attrs.frozen
    class Frozen:
        key: str
        inner: Any = None

    @attrs.define
    class Derived(Slotted):
        more: int = 1

    @attrs.define
    class Stateful:
        x: int

        def __getstate__(self) -> object:
            return {"x": self.x + 1}

        def __setstate__(self, state: Any) -> None:
            self.x = state["x"]

    class NotOfAttrs(Slotted):
        pass


needs_attrs = pytest.mark.skipif(attrs is None, reason="could not import 'attrs'")


@needs_attrs
def test_attrs_classes_are_native() -> None:
    values = [Plain(1), Slotted([2], 0.5), Frozen("k", Frozen("i")), Derived(1, 2.0, 3), Plain({"deep": Slotted(None)})]
    for value in values:
        got = through({"v": value})["v"]
        assert type(got) is type(value) and got == value
    assert through(Slotted(np.arange(4))).obs.tolist() == [0, 1, 2, 3]
    unset = Slotted.__new__(Slotted)
    with pytest.raises(AttributeError, match="obs"):  # raised by the reduction that attrs defines
        shmtree.pack(unset)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        through(Frozen("k")).key = "other"


@needs_attrs
def test_attrs_classes_with_extra_state_go_through_pickle() -> None:
    extended = Plain(1)
    extended.extra = 2
    for value in (extended, Stateful(1), NotOfAttrs(1)):
        with pytest.raises(shmtree.PickleRefused, match=type(value).__name__):
            shmtree.pack(value, allow_pickle=False)
    assert shmtree.unpack(shmtree.pack(extended)).extra == 2
    assert shmtree.unpack(shmtree.pack(Stateful(1))).x == 2
    assert shmtree.unpack(shmtree.pack(NotOfAttrs(1))).obs == 1


@needs_attrs
def test_refusal_inside_an_attrs_class_names_the_attribute() -> None:
    with pytest.raises(shmtree.PickleRefused) as caught:
        shmtree.pack([Slotted({"fn": print})], allow_pickle=False)
    assert caught.value.path == '[0].obs["fn"]'


# --- pydantic ------------------------------------------------------------------------------------------------------

try:
    import pydantic
except ImportError:
    pydantic = None
else:

    class Inner(pydantic.BaseModel):
        x: int = 1

    class Model(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, extra="allow")
        obs: Any
        inner: Inner = Inner()
        tags: set[str] = pydantic.Field(default_factory=set)
        _secret: int = pydantic.PrivateAttr(default=5)

    class FrozenModel(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(frozen=True)
        x: int

    class StatefulModel(pydantic.BaseModel):
        x: int = 1

        def __getstate__(self) -> Any:
            return super().__getstate__()

    class Root(pydantic.RootModel[list[int]]):
        pass


def model_build(cls: type, state: Any) -> Any:
    return importlib.import_module("shmtree._codec.models").model_build(cls, state)


needs_pydantic = pytest.mark.skipif(pydantic is None, reason="could not import 'pydantic'")


@needs_pydantic
def test_pydantic_models_are_native() -> None:
    value = Model(obs=[1, 2], inner=Inner(x=4), tags={"a"}, additional="kept")
    value._secret = 7
    got = through({"m": value})["m"]
    assert type(got) is Model and got == value
    assert got.model_fields_set == value.model_fields_set and got.model_extra == {"additional": "kept"}
    assert got._secret == 7 and type(got.inner) is Inner
    assert got.model_dump() == value.model_dump()
    got.inner.x = 9
    frozen = through(FrozenModel(x=3))
    with pytest.raises(pydantic.ValidationError):
        frozen.x = 4
    assert through(Model(obs=np.arange(3))).obs.tolist() == [0, 1, 2]


@needs_pydantic
def test_models_with_their_own_reduction_go_through_pickle() -> None:
    for value in (StatefulModel(x=2), Root([1, 2])):
        with pytest.raises(shmtree.PickleRefused, match=type(value).__name__):
            shmtree.pack(value, allow_pickle=False)
        assert shmtree.unpack(shmtree.pack(value)) == value


@needs_pydantic
def test_models_of_modules_that_are_not_imported_are_refused() -> None:
    program = (
        "import sys, types, pydantic, shmtree\n"
        "elsewhere = types.ModuleType('shmtree_test_models')\n"
        "sys.modules[elsewhere.__name__] = elsewhere\n"
        "elsewhere.M = type('M', (pydantic.BaseModel,), {'__module__': elsewhere.__name__, '__qualname__': 'M'})\n"
        "sys.stdout.buffer.write(shmtree.pack([elsewhere.M()], allow_pickle=False))\n"
    )
    frame = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout
    with pytest.raises(shmtree.PickleRefused, match="shmtree_test_models:M"):
        shmtree.unpack(frame)


@needs_pydantic
def test_malformed_model_state_raises_corrupt_message() -> None:
    frame = bytes(shmtree.pack(Inner(x=1)))
    inside = b"Inner"
    assert inside in frame
    names = [({"x": 1, 5: 2}, None, set(), None), ({"x": 1}, {5: 1}, set(), None)]
    names += [({"x": 1}, None, {5}, None), ({"x": 1}, None, set(), {5: 1})]
    for state in ({}, (1, 2, 3, 4), ({}, None, [], None), *names):
        with pytest.raises(shmtree.CorruptMessage):
            model_build(Inner, state)


@needs_pydantic
@pytest.mark.parametrize("name", ["model_dump", "__class__", "model_fields_set", "_secret", "\x1b[31m", "x" * 10_000])
def test_model_state_with_an_unknown_name_is_incompatible(name: str) -> None:
    for state in (({"x": 1, name: 2}, None, set(), None), ({"x": 1}, None, set(), {name: 2})):
        with pytest.raises(shmtree.IncompatibleMessage) as caught:
            model_build(Inner, state)
        assert str(caught.value).isprintable() and len(str(caught.value)) < 1000


@needs_pydantic
def test_error_for_a_model_lists_at_most_20_fields() -> None:
    state = ({f"field_{number}": 1 for number in range(10_000)}, None, set(), None)
    with pytest.raises(shmtree.IncompatibleMessage, match="field_19, and 9980 more; fields here: x") as caught:
        model_build(Inner, state)
    assert len(str(caught.value)) < 1000


@needs_pydantic
def test_model_with_an_extra_instance_attribute_is_pickled() -> None:
    value = Inner(x=1)
    value.__dict__["model_dump"] = 2
    with pytest.raises(shmtree.PickleRefused, match="Inner"):
        shmtree.pack(value, allow_pickle=False)


@needs_pydantic
def test_refusal_inside_a_model_names_the_attribute() -> None:
    with pytest.raises(shmtree.PickleRefused) as caught:
        shmtree.pack([Model(obs=1, additional=[print])], allow_pickle=False)
    assert caught.value.path == "[0].additional[0]"


# --- packages with memory that stays out of the pickle-------------------------------------------------------------


@pytest.mark.guarantee("no-copy-in-pickles")
def test_scipy_sparse_matrices_arrive_with_views_as_arrays(arena: shmtree.Arena) -> None:
    sparse = pytest.importorskip("scipy.sparse")
    dense = np.random.default_rng(0).random((400, 400)) * (np.arange(400) % 3 == 0)
    for form in ("csr", "csc", "coo", "bsr"):
        for kind in (sparse.csr_matrix, sparse.csr_array):
            value = kind(dense).asformat(form)
            check_sent(value, arena, lambda got, want: got.format == want.format and bool((got != want).nnz == 0))
            got = shmtree.unpack(shmtree.pack(value))  # read-only views
            assert (got @ np.ones(400)).sum() == pytest.approx(dense.sum())
            assert (got * 2 - value).sum() == pytest.approx(dense.sum())


def images() -> list[Any]:
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 255, (200, 200, 4), dtype=np.uint8)
    made = [image.fromarray(pixels).convert(mode) for mode in ("RGB", "RGBA", "L", "P", "LA", "F", "I", "1", "CMYK")]
    made[0].info["text"] = "kept"
    return made


def same_image(got: Any, want: Any) -> bool:
    same = got.mode == want.mode and got.size == want.size and got.info == want.info
    return same and got.getpalette() == want.getpalette() and got.tobytes() == want.tobytes()


@pytest.mark.guarantee("no-copy-in-pickles")
def test_images_round_trip_with_pixels_outside_the_pickle(arena: shmtree.Arena) -> None:
    for value in images():
        assert pickled_bytes(value) < 4096
        sender, receiver = arena.create_pair(capacity=2)
        sender.put({"image": value})
        got = receiver.get()["image"]
        assert type(got) is type(value) and same_image(got, value)
        got.putpixel((0, 0), got.getpixel((1, 1)))  # the copy has its own memory
        del got
        gc.collect()
        assert arena.holders() == []


def test_images_of_files_round_trip_as_with_pickle(arena: shmtree.Arena) -> None:
    image = pytest.importorskip("PIL.Image")
    for form in ("png", "jpeg", "gif"):
        file = io.BytesIO()
        images()[0].save(file, form)
        value = image.open(file)
        assert pickled_bytes(value) < 4096
        got = shmtree.unpack(shmtree.pack(value))
        assert type(got) is type(value) and same_image(got, value)


def test_reducer_of_the_program_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setitem(copyreg.dispatch_table, image.Image, lambda value: (str, ("as the program has it",)))
    assert shmtree.unpack(shmtree.pack(images()[0])) == "as the program has it"


@pytest.mark.guarantee("no-copy-in-pickles")
def test_polars_data_round_trips_outside_the_pickle(arena: shmtree.Arena) -> None:
    polars = pytest.importorskip("polars")
    columns = {
        "number": np.arange(LARGE),
        "half": np.arange(LARGE) / 2,
        "text": [f"row {row}" if row % 5 else None for row in range(LARGE)],
        "list": [[row, row + 1] for row in range(LARGE)],
    }
    frame = polars.DataFrame(columns)
    sender, receiver = arena.create_pair(capacity=2)
    for value in (frame, frame["text"], frame["number"], frame[:0], polars.Series("empty", [], polars.Int8)):
        assert pickled_bytes(value) < 4096
        sender.put([value])
        got = receiver.get()[0]
        assert type(got) is type(value) and got.equals(value)
    assert shmtree.unpack(shmtree.pack(frame)).schema == frame.schema
    assert shmtree.unpack(shmtree.pack(frame["half"])).name == "half"


def test_xarray_data_arrives_with_views_as_arrays(arena: shmtree.Arena) -> None:
    xarray = pytest.importorskip("xarray")
    values = np.random.default_rng(0).random((1000, 10))
    array = xarray.DataArray(values, dims=("t", "x"), coords={"t": np.arange(1000)}, name="v", attrs={"unit": "m"})
    check_sent(array, arena, lambda got, want: bool(got.identical(want)))
    check_sent(array.to_dataset(), arena, lambda got, want: bool(got.identical(want)))


@pytest.mark.guarantee("no-copy-in-pickles")
def test_pack_imports_no_optional_package() -> None:
    program = (
        "import sys, shmtree, collections\n"
        "shmtree.unpack(shmtree.pack([print, collections.Counter()]))\n"
        "print(*{'polars', 'PIL', 'scipy', 'attr', 'attrs', 'pydantic', 'pandas', 'xarray'} & set(sys.modules))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
