"""Objects that are sent by name, although the name does not lead back to them."""

from __future__ import annotations

import datetime as dt
import enum
import io
import pickle
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frame_writer as fw
import numpy as np
import pytest
import tzdata  # noqa: F401  (the zones that tests read)
from frame_writer import Writer

import shmtree


@pytest.fixture
def pair() -> Iterator[tuple[Any, Any]]:
    sender, receiver = shmtree.create_pair()
    with sender, receiver:
        yield sender, receiver


def data_of_zone() -> bytes:
    import importlib.resources

    return (importlib.resources.files("tzdata") / "zoneinfo" / "Asia" / "Tokyo").read_bytes()


def zone_of_a_file(key: str | None) -> zoneinfo.ZoneInfo:
    return zoneinfo.ZoneInfo.from_file(io.BytesIO(data_of_zone()), key=key)


@pytest.mark.parametrize("key", ["Europe/Paris", "Asia/Tokyo", "local", None])
def test_zone_from_a_file_is_refused_as_by_pickle(key: str | None, pair: tuple[Any, Any]) -> None:
    zone = zone_of_a_file(key)
    at = dt.datetime(2024, 7, 1, 12, tzinfo=zone)
    for value in (zone, at, dt.time(12, tzinfo=zone), {"at": [at]}):
        with pytest.raises(pickle.PicklingError):
            pickle.dumps(value)
        with pytest.raises(pickle.PicklingError):
            pair[0].put(value)
        with pytest.raises(shmtree.PickleRefused, match="ZoneInfo"):
            shmtree.pack(value, allow_pickle=False)


def test_zone_arrives_as_with_pickle() -> None:
    cached, own = zoneinfo.ZoneInfo("Europe/Paris"), zoneinfo.ZoneInfo.no_cache("Europe/Paris")
    assert shmtree.unpack(shmtree.pack(cached, allow_pickle=False)) is cached
    got = shmtree.unpack(shmtree.pack(own))
    assert got is not cached and got is not own and got.key == "Europe/Paris"
    ats = [dt.datetime(2024, month, 1, tzinfo=cached) for month in range(1, 13)]
    assert shmtree.unpack(shmtree.pack(ats, allow_pickle=False)) == ats


def test_zone_whose_key_receivers_refuse_is_pickled(tmp_path: Path) -> None:
    (tmp_path / "my.zone").write_bytes(data_of_zone())
    zoneinfo.reset_tzpath([tmp_path])
    try:
        zone = zoneinfo.ZoneInfo("my.zone")
        with pytest.raises(shmtree.PickleRefused, match="ZoneInfo"):
            shmtree.pack(zone, allow_pickle=False)
        for value in (zone, dt.datetime(2024, 7, 1, tzinfo=zone)):
            assert shmtree.unpack(shmtree.pack(value)) == value
    finally:
        zoneinfo.reset_tzpath()
        zoneinfo.ZoneInfo.clear_cache(only_keys=["my.zone"])


def test_error_names_a_zone_that_is_not_installed(pair: tuple[Any, Any]) -> None:
    frame = bytes(shmtree.pack({"at": zoneinfo.ZoneInfo("Europe/Paris")}))
    pair[0].put_frame(frame.replace(b"Europe/Paris", b"Europe/Parix"))
    with pytest.raises(shmtree.IncompatibleMessage, match=r"time zone 'Europe/Parix'.*\[\"at\"\]") as caught:
        pair[1].get()
    assert caught.value.frame is not None


def structured() -> Any:
    return np.zeros(3, np.dtype([("a", "i4"), ("b", [("x", "f4"), ("y", "f4")])]))


@pytest.mark.parametrize("where", ["top", "inner"])
def test_renamed_fields_of_a_dtype_arrive_renamed(where: str, pair: tuple[Any, Any]) -> None:
    array = structured()
    for names in (("p", "q"), ("r", "s"), ("a", "b")):
        for value in (array, array.dtype, array[0]):
            pair[0].put([value])
            got = pair[1].get()[0]
            assert (got if isinstance(got, np.dtype) else got.dtype) == array.dtype
        dtype = array.dtype if where == "top" else array.dtype[1]
        dtype.names = names


@pytest.mark.parametrize("where", ["top", "inner"])
def test_renaming_fields_does_not_change_later_arrays(where: str, pair: tuple[Any, Any]) -> None:
    array = structured()
    kept = None
    for _ in range(3):
        pair[0].put([array])
        got = pair[1].get()[0]
        assert got.dtype == structured().dtype
        (got.dtype if where == "top" else got.dtype[1]).names = ("p", "q")
        assert kept is None or where == "inner" or kept.dtype.names == ("p", "q")
        kept = got


def test_renaming_fields_does_not_change_other_arrays(pair: tuple[Any, Any]) -> None:
    pair[0].put([structured(), structured(), structured()[0], structured().dtype])
    first, second, scalar, dtype = pair[1].get()
    first.dtype.names = ("p", "q")
    assert second.dtype == scalar.dtype == dtype == structured().dtype


class Access(enum.Flag):
    R = 1
    W = 2


class Rights(enum.IntFlag):
    R = 4
    W = 2


@pytest.mark.parametrize("value", [6, 9, 1 << 40])
def test_received_intflag_can_be_sent_on_without_pickle(value: int) -> None:
    frame = Writer().kind(fw.ENUM_VALUE).name(f"{__name__}:Rights").value(value).frame()
    received = shmtree.unpack(frame)
    for _ in range(2):
        sent_on = shmtree.unpack(shmtree.pack(received, allow_pickle=False))
        assert type(sent_on) is Rights and sent_on == received == value
        Rights(value)  # now the class keeps a member of its own


def test_combined_flag_unknown_to_its_class_is_pickled() -> None:
    assert shmtree.unpack(shmtree.pack(Access.R | Access.W, allow_pickle=False)) is Access.R | Access.W
    stray = object.__new__(Access)
    stray._name_, stray._value_ = None, 3
    with pytest.raises(shmtree.PickleRefused):
        shmtree.pack(stray, allow_pickle=False)
    assert shmtree.unpack(shmtree.pack(stray)) is Access.R | Access.W
