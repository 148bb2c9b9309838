"""Frames and files that every later release must read. Never change these bytes, only add to them."""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import fractions
import http
import importlib
import pathlib
import queue
import re
import subprocess
import sys
import types
import uuid
import zlib

import numpy as np
import pytest
from exact import assert_same

import shmtree
from shmtree.replay import ReplayBuffer


def sample():
    """Returns values of most kinds of a frame, without pickles, tensors and user classes."""
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


# `pack(sample(), allow_pickle=False)` of 0.2 (frame version 2), compressed.
WRITTEN_BY_0_2 = """
c-rloOKTHR7>2)d=43K$QmZ(@%R+-L0$MMvt(Q>SC=x4Lm9{QKyEv1cv;(=3nL_IY>dqhFRuI<;E?tWF1N;MmOTmpxck!EKf^D>j5kcgA-<;>od}q#
_xn(n9=4WOXHWbmt+r*O8kxdz<XAxcDe9rlZ^Q}WPAc!WoJ>_<cYcE8!zM_M!kd{&jJLwDzrZVZF;hlvGN;s~olyYs`&196bU%3aA%5Wv?sKbtO)S(
f_RqkH3&vBn9waYznR2@60+_6*Rrzg(1ljoJ1a;K-=Vyr90qPRR0&6uV{dO)>AixReI38uw6FNIK)up}pcC`m(tL&=B<DKApeqG3MDG-U*FDZwKWT;
xGgSW=Olk{0oJ2HB3FIX+&?ku51{(2nM9RJ31<&k_|vvle>ZdT0W@R`G){&`W-aslBo;h4tpTx9V3yzZT@9ULBaIZ<)7Hs^}mv!Acl5@-qtyH|Ikgt
_C-*HcfucESt4rMK6cz4HM+&{c59PuIs7^8oFfklIGdM71K1e)v9Nj!RYa^leATdh7MN(eZni{?=I<PQ?Cb8{@CQ~**ljO@8@dKwsQIGot(~%WOH6_
ky)-ct2*qIAFPf>9h2p=?XG&c9PN12b#f#-8kPLeR0IE>;o7-}leflbD!FwJHXiTpeCbUQuP_j2_l^@i*{xgK^owoAZ#Pc<VmrO-?d_>Az8`MqyR}a
rHZRkw&pQS=TCoaOuXXA(xtC(o`0oC^PHjF-AE!I{B~E&?wf=Q_h*{@$ft#TpH6G7liOx(>c9)}LNio}V^Bt_(zZ<?ixD92$pAkFGWSmZW9nro<4(D
LIDk$}n>)Flj`AWy>^knyX?~JptXX~=0{#2>gma_l=000000000000000{8bR1-vIys0000000000006*$_xuimAP9mW2!bF8f*=TjpnqK((fh^){&
3si_N?$5gDn!INVZ=q?o)1|-;u@HKRfd7``P{Ofad0LEA=@(3Bxc9!!QiPFbu;m48t%C!|)$_yXXJ1@Ba_J0c$G~>i
"""


def test_frame_of_0_2_is_readable():
    frame = zlib.decompress(base64.b85decode(WRITTEN_BY_0_2.replace("\n", "")))
    got = shmtree.unpack(frame, copy=True)
    assert_same(got, sample())
    assert got["again"][0] is got["again"][1]


# Five rows and a last observation, saved by 0.2 (file version 2) and compressed.
# test_replay_files_of_0_2_are_readable reads them.
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


def test_replay_files_of_0_2_are_readable(tmp_path):
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
        buffer.sample(100, timeout=0)  # the rate limiter's state was saved: 5 rows x 2, and 100 more


class Holds:
    """A class that needs a pickle."""

    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (np.arange(6.0), "_given"),
        (np.array(["2024-02-29"], "M8[25s]").reshape(1, 1)[::-1], "_given"),
        (types.SimpleNamespace(a=1), None),
    ],
    ids=["numbers", "dates", "namespace"],
)
def test_pickles_in_frames_name_functions_as_in_0_2(value, name):
    frame = bytes(shmtree.pack(Holds(value)))
    names = set(re.findall(rb"shmtree\.[\w.]+", frame))
    assert names <= {b"shmtree._reducers"}, names
    if name is not None:
        assert names and name.encode() in frame
    assert_same(shmtree.unpack(frame, allow_pickle=True).value, value)


@pytest.mark.parametrize("module", ["_reducers", "_out_of_band"])
def test_new_process_finds_the_functions_that_pickles_name(module):
    names = {
        "_reducers": ("_given", "_build_view", "_build_array", "_build_jax", "_unflatten"),
        "_out_of_band": ("_build_frame", "_build_series"),
    }[module]
    pickled = b"".join(f"cshmtree.{module}\n{name}\n0".encode() for name in names) + b"N."
    program = "import pickle, shmtree, sys; pickle.loads(bytes.fromhex(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", program, pickled.hex()], check=True)


def test_registered_classes_keep_their_names_of_0_2():
    leaf = importlib.import_module("shmtree._codec.device_leaf").DeviceLeaf
    assert b"shmtree._leaves:DeviceLeaf" in bytes(shmtree.pack(leaf(((),))))
