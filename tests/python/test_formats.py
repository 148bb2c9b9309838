"""Frames and files written once are read by every later release: these bytes are never changed, only added to."""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fractions
import http
import pathlib
import queue
import re
import types
import uuid
import zlib

import numpy as np
import pytest
from exact import assert_same

import shmtree
from shmtree.replay import ReplayBuffer


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


# Five rows and a last observation, as test_files_of_a_replay_buffer_of_0_2_are_loaded reads them, saved by 0.2 (version
# 2 of the files), compressed.
SAVED_BY_0_2 = {
    "manifest": """
c-kw@Eh$bcOHE;7U|={HeU4!tGXoefLMVo9{bjc#`WUPiPd{Nl+y6AD00XK#jAn<@5)2F|GOR$%1m%I~dr%EbaGhY_0HGosV4|!H!~rHK%>kuZ(A
>p=rVau=*rU=gAmYG)rXL2F@wx(+c?=Bb=AD2#Wb;~CHDqy^#UIerv*GZs0aU>ZG>5{}8zz<=1<}R1C3*QJsc?OaIKm0$zx<?P1{_XEOfJdH&%-5
Klv<uxl)`|+nw0#!RP>;%DK$h-MNDW)Y%(o4a72Vnnh6UIshT81MjXM<fHgThu*a3Gm~rq6Qj3^~OaU-gre&t(6PJoGoa=zfkA$aE02y8~m;
""",
    "data-0000000000000001": """
c-kv2&Mhg*FE3_dU|^_we$auD0Rp!5m)(-+W3XO4{e=B&|I?fdH~=FW&4k8hM&q-f@mbOMY-oH2G;?5*j2Pk#_KZvj`;pW;Ffk+e2yq7oW)_5dkj
!ylVa4uORyIs`5dsG$bY?Ij>0-hWZp7+mMl*+rME&UgWhPNSE1EehIQ+qgLq8juIjlJJ;j$kT&!ETy#UCiH7#J2ffJ6cJY9Q|
""",
}


def test_files_of_a_replay_buffer_of_0_2_are_loaded(tmp_path):
    for name, text in SAVED_BY_0_2.items():
        (tmp_path / name).write_bytes(zlib.decompress(base64.b85decode(text.replace("\n", ""))))
    buffer = ReplayBuffer.load(tmp_path)

    batch = buffer.sample(5, sampler="fifo", timeout=0)
    assert batch.data["obs"].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert batch.data["next"]["obs"].tolist() == [[2, 3], [3, 4], [4, 5], [5, 6], [5, 6]]
    assert batch.data["action"].tolist() == [0, 1, 2, 3, 4]
    assert batch.data["reward"].tolist() == [0.5, 2.0, 3.5, 5.0, 4.0]
    assert batch.discount.tolist() == [0.25, 0.25, 0.25, 0.25, 0.5]
    assert not batch.data["done"].any()
    assert batch.version.tolist() == [3] * 5 and batch.step.tolist() == [0, 1, 2, 3, 4]
    drawn = buffer.sample(90, sampler="per", timeout=0)
    assert np.allclose(drawn.probability, (drawn.data["action"] + 1) / 15)
    assert buffer.stats()["inserted"] == 5 and buffer.stats()["capacity"] == 16
    with pytest.raises(queue.Empty):
        buffer.sample(100, timeout=0)  # its limit goes on: 5 rows x 2, and 100 more
