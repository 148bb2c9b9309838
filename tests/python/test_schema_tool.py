"""The metadata of a frame is a plain Cap'n Proto message: its stock tool reads it by the schema."""

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import shmtree

SCHEMA = Path(__file__).resolve().parents[2] / "schema" / "shmtree.capnp"


@pytest.mark.skipif(shutil.which("capnp") is None, reason="there is no capnp here")
def test_capnp_decode_reads_the_metadata_of_a_message() -> None:
    frame = bytes(shmtree.pack({"id": 7, "x": np.array([1, 2], "float32")}))
    (size,) = struct.unpack_from("<I", frame, 4)
    command = ["capnp", "decode", "--flat", "--short", str(SCHEMA), "Frame"]
    decoded = subprocess.run(command, input=frame[16 : 16 + size], stdout=subprocess.PIPE, check=True).stdout.decode()
    assert decoded == (
        r'(kinds = "\037\004F", lengths = "\002\000\002\000\001\002", text = "idx", ints = [7], '
        "arrays = (arrays = [(dtype = 11, flags = 0, ndim = 1, buffer = 0)], buffers = [8]))\n"
    )
