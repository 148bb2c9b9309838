"""Prints the metadata of frames as pycapnp reads it. Input and output are those of tests/cpp/programs/columns.cpp.

python pycapnp_columns.py SCHEMA < messages
"""

from __future__ import annotations

import json
import pathlib
import struct
import sys
from typing import Any

import capnp

MAX_WORDS = 1 << 40  # maximum size of a message: practically unlimited


def columns(frame: Any) -> dict[str, Any]:
    arrays = frame.arrays
    return {
        "kinds": frame.kinds.hex(),
        "lengths": frame.lengths.hex(),
        "text": frame.text.hex(),
        "ints": list(frame.ints),
        "floats": [struct.unpack("<Q", struct.pack("<d", number))[0] for number in frame.floats],
        "arrays": [[each.dtype, each.flags, each.ndim, each.buffer] for each in arrays.arrays],
        "buffers": list(arrays.buffers),
        "views": list(arrays.views),
        "externals": [[each.reference, each.offset, each.bytes] for each in arrays.externals],
    }


def main() -> None:
    # The package contains c++.capnp, which the schema imports as /capnp/c++.capnp.
    schema = capnp.load(sys.argv[1], imports=[str(pathlib.Path(capnp.__file__).parents[1])])
    while size := sys.stdin.buffer.read(8):
        metadata = sys.stdin.buffer.read(int.from_bytes(size, "little"))
        message = struct.pack("<II", 0, len(metadata) // 8) + metadata
        with schema.Frame.from_bytes(message, traversal_limit_in_words=MAX_WORDS) as frame:
            print(json.dumps(columns(frame)))


if __name__ == "__main__":
    main()
