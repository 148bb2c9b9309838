"""The metadata of a frame is a plain Cap'n Proto message: the standard tool reads it with the schema."""

import contextlib
import importlib.util
import io
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shmtree

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = ROOT / "schema" / "shmtree.capnp"
PROGRAMS = os.environ.get("SHMTREE_PROGRAMS")
needs_tool = pytest.mark.skipif(shutil.which("capnp") is None, reason="there is no capnp here")


def test_pycapnp_reads_the_metadata_as_the_page_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("capnp", reason="pycapnp is not installed")
    monkeypatch.chdir(SCHEMA.parents[1])
    page = Path("docs/internals/frame.md").read_text()
    program, _, rest = page.partition("```python\n")[2].partition("```\n")
    printed = rest.partition("```\n")[2].partition("```\n")[0]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(program, {})
    assert out.getvalue() == printed


@needs_tool
def test_shell_command_of_the_page_prints_the_metadata(tmp_path: Path) -> None:
    command = (SCHEMA.parents[1] / "docs/internals/frame.md").read_text().partition("```sh\n")[2].partition("```")[0]
    shmtree.dump({"id": 7}, str(tmp_path / "message.shm"))
    (tmp_path / "schema").symlink_to(SCHEMA.parent)
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert 'text = "id"' in done.stdout and "ints = [7]" in done.stdout


@pytest.mark.guarantee("capnp-tools")
@needs_tool
def test_capnp_decode_reads_the_metadata_of_a_message() -> None:
    frame = bytes(shmtree.pack({"id": 7, "x": np.array([1, 2], "float32")}))
    (size,) = struct.unpack_from("<I", frame, 4)
    command = ["capnp", "decode", "--flat", "--short", str(SCHEMA), "Frame"]
    decoded = subprocess.run(command, input=frame[16 : 16 + size], stdout=subprocess.PIPE, check=True).stdout.decode()
    assert decoded == (
        r'(kinds = "\037\004F", lengths = "\002\000\002\000\001\002", text = "idx", ints = [7], '
        "arrays = (arrays = [(dtype = 11, flags = 0, ndim = 1, buffer = 0)], buffers = [8]))\n"
    )


@needs_tool
@pytest.mark.skipif(not PROGRAMS, reason="SHMTREE_PROGRAMS does not say where the C++ programs were built")
def test_readers_agree_on_the_metadata_of_random_frames() -> None:
    """Compares 400 frames, with a new seed each time. tests/capnp_readers/compare.py can compare more."""
    command = [
        sys.executable,
        ROOT / "tests/capnp_readers/compare.py",
        "--columns",
        f"{PROGRAMS}/columns",
        "--frames",
        "400",
    ]
    if importlib.util.find_spec("capnp") is not None:
        command += ["--pycapnp", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agree on 400 frames" in done.stdout
