"""Frames that were written once are read by every later release: these bytes are never changed, only added to."""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fractions
import http
import pathlib
import re
import types
import uuid
import zlib

import numpy as np
from exact import assert_same

import shmtree


def sample():
    """Values of most kinds that a frame has: pickles, tensors and classes of a program are left out."""
    shared = [1, 2]
    return {
        "plain": [None, False, True, 7, -(2**63), 2**70, 0.5, 1 - 2j, "text", "long " * 1000, b"b", b"long " * 1000],
        "bytes": (bytearray(b"a"), bytearray(5000), ..., NotImplemented, range(1, 9, 2), slice(1, None, "x")),
        "lists": [[1, 2, 3], [0.5, 1.5], [], (), (1, "a"), collections.deque([1], maxlen=3)],
        "dicts": [{1: 2, (1, 2): 3}, collections.OrderedDict(a=1), collections.Counter("aab")],
        "factory": collections.defaultdict(list, a=[1]),
        "sets": [{1}, frozenset({"a"})],
        "again": [shared, shared],
        "classes": [http.HTTPStatus.OK, re.MULTILINE | re.DOTALL, types.SimpleNamespace(a=1)],
        "dates": [
            datetime.date(2024, 2, 29),
            datetime.time(1, 2, 3, 4),
            datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone.utc),
            datetime.timedelta(-1, 5),
            datetime.timezone(datetime.timedelta(hours=2), "there"),
        ],
        "numbers": [decimal.Decimal("1.20"), fractions.Fraction(1, 3), uuid.UUID(int=5)],
        "paths": [pathlib.PurePosixPath("a/b"), pathlib.PureWindowsPath("c:/d")],
        "arrays": [
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.asfortranarray(np.arange(6, dtype=">i2").reshape(2, 3)),
            np.array(5.0),
            np.zeros((0, 3), np.complex64),
            np.array(["2024-02-29"], "M8[D]"),
            np.array([(1, 2.0)], [("a", "u1"), ("b", "f8")]),
            np.array(["ab", "c"]),
            np.full(3000, 7, np.uint16),
            np.ma.masked_array([1, 2], [True, False]),
            np.float16(1.5),
            np.dtype("i4"),
        ],
    }


# `pack(sample(), allow_pickle=False)` of 0.2 (version 1 of the frame), compressed.
WRITTEN_BY_0_2 = """
c-rlo&1(}u7{=e3olUk)YZW(GJ=my+fYy&zt2NX%io}Xm#nyvp53}i{UC0;NEu?-
xk6yg_2Z(pUquxaP1N;XBkAesuy~TI)LEC5%Qv{Lcc{0Bz`_9hpW-_^K*!kJHg}NfTbeC9yTI!=iOwS^^!})^qDdz-
tAL4eL-;Z&=bBNw>R(Sg>r=g!U;tFXgWyj)9Uw<MwFgUb3dr=9;b(K<XEaoPY$~mCigGwd2l5*4$M>*>7sN*VkSnYS*XG-mHj~-
LUN0d8$`pnshbMDjyrKa7P88_F~)m%<onT^gjK=weNYKR8eG0_lAOA<*T6xo*K<QK(hP;e+2(U$TO#Vr~l$)l5kC&9LPgv~`BB!wjv#S+pY9?z
hdBj|RYAj^>rDXBjeoj1PqW3NBi+j`TT8#COJq^)()Rkyb37u$^AZk+thak}>#?y4_-7;5JG`sa_Ex9QcFUHu%5wzAi*x9YR$mtxcS&h@-
bY@Vi1Gp+pAPI|kw{(Yue)PA|Mdp0!n(DT+p6X<%;55hn%`FW=H3OXNFYHQxAUkv?nkcoPAV4}WdK0>~zgTMqUVOY(~E-
c)d4|TX2+`LvZncHUB)N@6>9IjPOkeT;O)uOqfOD3r5ywOXV&lawjnklcAJW~tCPK=-GTI6<Bhbw_T>E$!`mvpVB*Mez(d}?m;-
sQ!I>2h?ebS8B#t<$5aw3l9F7Am!p4qN3%t7B2eRAI8&RVfsr3y-=^ji$z;k{_B<;6E^2JO6m<&Nxk<Y0s@CS~DDFXFK{16U^qE^9ohX-vwVLx
53oLN{F>H-cF~vk7%w<hqJ#~6_ohJI__j=oeZ?o>B`PJ-
`&pYzOCDmcBW#byqp36000000000000000;I9Jr?*IS*0000000000007|syMG5k5ClOG1VIo4K@bE%(7&$r=y~fbzqqY)d!GG+!4?TpB%6;H_
b4~p>&V>P&OUkP`Se~dKy&lB<$D|-hhZ3oVHk#C7=~dOhG7_nVR*;h?*6~*`Tv6-38E8T
"""


def test_a_frame_of_0_2_is_read():
    frame = zlib.decompress(base64.b85decode(WRITTEN_BY_0_2.replace("\n", "")))
    got = shmtree.unpack(frame, copy=True)
    assert_same(got, sample())
    assert got["again"][0] is got["again"][1]
