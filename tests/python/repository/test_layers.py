"""Every `#include` points downward, and only one layer uses each foreign library."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

# Layers that each layer may include. `base` are the public headers that every layer may use (results, kinds, observer
# snapshots); `public` the other ones.
ALLOWED = {
    "base": {"base"},
    "platform": {"base", "platform"},
    "memory": {"base", "platform", "memory"},
    "shared_array": {"base", "platform", "memory", "shared_array"},  # counted writes of plain memory
    "format": {"base", "platform", "format"},  # works on plain bytes, wherever they are stored
    # moves block numbers, and knows nothing of the contents of the blocks
    "channel": {"base", "platform", "memory", "channel"},
    "public": {"base", "public"},
    "discovery": {"base", "platform", "memory", "discovery"},
    "replay": {"base", "platform", "memory", "replay"},  # rows of bytes, and their types
    "broadcast": {"base", "platform", "memory", "broadcast"},  # messages of bytes
    "latest": {"base", "platform", "memory", "broadcast", "latest"},  # versions of bytes
    "observe": {"base", "platform", "memory", "channel", "discovery", "replay", "latest", "broadcast", "observe"},
    "recording": {"base", "platform", "recording"},  # files of messages, as bytes
    "shared_list": {"base", "platform", "shared_list"},  # lists of frames, as bytes
    # The ends of channels in every language. They contain no values of a language.
    "endpoint": {"base", "platform", "memory", "format", "channel", "discovery", "latest", "broadcast", "endpoint"},
    "value": {"base", "platform", "format", "public", "value"},  # C++ values as frames, and back
}
ALLOWED["service"] = ALLOWED["endpoint"] | {"service"}  # requests and replies, without their values
ALLOWED["api"] = ALLOWED["service"] | {"replay", "observe", "recording", "shared_list", "public", "value", "api"}
# The wings of the extension. Each may include those before it: Python's API, state behind Python objects, conversion of
# Python objects, replay buffers, the ends. They may include all of the core except the classes of C++ users.
WINGS = ["cpython", "objects", "codec", "replay", "endpoint"]
CORE = {"base", "platform", "memory", "format", "channel", "discovery", "endpoint", "bindings"}
CORE |= {"shared_array", "replay", "latest", "broadcast", "observe", "recording", "shared_list", "service"}
for number, wing in enumerate(WINGS):
    ALLOWED[f"bindings/{wing}"] = CORE | {f"bindings/{lower}" for lower in WINGS[: number + 1]}
ALLOWED["bindings"] = CORE | {f"bindings/{wing}" for wing in WINGS}  # module.cpp, and bind.h, which all wings share

# Parts of an arena and of a channel. Each may include only those before it.
PARTS = {
    "memory": """
        held_locks deaths layout mapping participants publishers transfer_table wake_table event robust_lock
        block_pool reclaimer inspector reconciler holder_table allocator arena control_block transfers
    """.split(),
    "channel": """
        layout wake_hub control message tap_notes ring ends records peer_wait watchers
        membership acks tasks tap receiving sending recovery channel
        """.split(),
}

# Folders of a layer. Each may include only its own files and those of the folders before it.
FOLDERS = {"replay": ["rows", "rate_limiter", "sampling", "buffer", "files"]}

# Restricted headers: pattern of the headers, and pattern of the only files that may include them.
FOREIGN = [
    ("Cap'n Proto", re.compile(r"(capnp|kj)/|schema/.*\.h$"), re.compile(r"src/format/|include/shmtree/capnp\.h$")),
    ("xtensor", re.compile(r"(xtensor|xtl|xsimd)/|shmtree/array\.h$"), re.compile(r"include/shmtree/array\.h$")),
    (
        "Python",
        re.compile(r"Python\.h$|pybind11/|numpy/|datetime\.h$|structmember\.h$"),
        re.compile(r"python/bindings/"),
    ),
]

STANDARD = set(
    """
    algorithm any array atomic barrier bit bitset cassert cctype cerrno cfenv cfloat charconv chrono cinttypes climits
    clocale cmath codecvt compare complex concepts condition_variable coroutine csetjmp csignal cstdarg cstddef cstdint
    cstdio cstdlib cstring ctime cuchar cwchar cwctype deque exception execution filesystem format forward_list fstream
    functional future initializer_list iomanip ios iosfwd iostream istream iterator latch limits list locale map memory
    memory_resource mutex new numbers numeric optional ostream queue random ranges ratio regex scoped_allocator
    semaphore set shared_mutex source_location span sstream stack stdexcept stop_token streambuf string string_view
    strstream syncstream system_error thread tuple type_traits typeindex typeinfo unordered_map unordered_set utility
    valarray variant vector version cxxabi.h
    """.split()
)

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)


def layer_of_file(path: str) -> str | None:
    """Returns the layer of a source file, given its path from the root of the tree."""
    parts = path.split("/")
    if parts[:2] == ["include", "shmtree"]:
        return "base" if parts[2] == "base" else "public"
    if parts[0] == "src" and len(parts) > 2:
        return parts[1]
    if parts[:2] == ["python", "bindings"]:
        return "/".join(parts[1:-1])
    return None


def layer_of_include(name: str, own: str, folder: Path) -> str | None:
    """Returns the layer of one of our own headers, or None for any other header."""
    first, _, rest = name.partition("/")
    if first == "bindings":
        return layer_of_file(f"python/{name}")
    if first == "shmtree" and rest:
        return layer_of_file(f"include/{name}")
    if rest and first in ALLOWED:
        return first
    if not rest and (folder / name).exists():
        return own
    return None


def violations(root: Path) -> Iterator[str]:
    files = [p for top in ("include", "src", "python/bindings") for p in sorted((root / top).rglob("*")) if p.is_file()]
    for file in files:
        path = file.relative_to(root).as_posix()
        if file.suffix not in {".h", ".cpp"}:
            continue
        own = layer_of_file(path)
        if own not in ALLOWED:
            yield f"{path}: belongs to no layer"
            continue
        for bracket, name in INCLUDE.findall(file.read_text()):
            problem = problem_with(path, own, bracket, name, file.parent)
            if problem:
                yield f"{path}: {problem}"


def problem_with(path: str, own: str, bracket: str, name: str, folder: Path) -> str | None:
    for library, pattern, home in FOREIGN:
        if pattern.match(name):
            return None if home.match(path) else f"includes {name}: {library} stays in {home.pattern}"
    layer = layer_of_include(name, own, folder)
    if layer is not None:
        return None if layer in ALLOWED[own] else f"includes {name}: {own} may not see {layer}"
    if bracket == '"':
        return f'includes "{name}": no such header of ours'
    if name in STANDARD or own == "platform":
        return None
    return f"includes <{name}>: headers of the operating system stay in src/platform"


def test_includes_point_downward_and_libraries_stay_in_one_layer():
    assert list(violations(ROOT)) == []


@pytest.mark.parametrize("layer", PARTS)
def test_facade_parts_include_only_parts_below_them(layer):
    parts = PARTS[layer]
    headers = sorted((ROOT / "src" / layer).glob("*.h"))
    assert {header.stem for header in headers} == set(parts)
    for header in headers:
        above = parts[parts.index(header.stem) :]
        names = [name for _, name in INCLUDE.findall(header.read_text())]
        included = {name.removeprefix(f"{layer}/").removesuffix(".h") for name in names if name.startswith(layer)}
        assert included.isdisjoint(above), f"{header.name} includes {included & set(above)}"


def upward_includes(root: Path, layer: str) -> Iterator[str]:
    """Yields the files of a layer that include a folder above their own, or that are in none of its folders."""
    folders = FOLDERS[layer]
    for file in sorted((root / "src" / layer).rglob("*.*")):
        path = file.relative_to(root / "src" / layer)
        if len(path.parts) != 2 or path.parts[0] not in folders:
            yield f"{path}: belongs to no folder of {layer}"
            continue
        below = folders[: folders.index(path.parts[0]) + 1]
        for _, name in INCLUDE.findall(file.read_text()):
            if name.startswith(f"{layer}/") and name.split("/")[1] not in below:
                yield f"{path}: includes {name}"


@pytest.mark.parametrize("layer", FOLDERS)
def test_folders_include_only_folders_below_them(layer: str) -> None:
    assert list(upward_includes(ROOT, layer)) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        pytest.param("rows/store.cpp", '#include "replay/sampling/tables.h"', id="a folder above"),
        pytest.param("rows/store.cpp", '#include "replay/store.h"', id="no folder"),
        pytest.param("store.cpp", "", id="a file beside the folders"),
        pytest.param("other/store.cpp", "", id="a folder that is not listed"),
    ],
)
def test_wrong_include_between_folders_is_found(tmp_path: Path, path: str, line: str) -> None:
    found = list(upward_includes(tree(tmp_path, {f"src/replay/{path}": line + "\n"}), "replay"))
    assert len(found) == 1
    assert found[0].startswith(path)


def test_the_check_reads_every_layer_that_the_tree_has():
    seen = {layer_of_file(p.relative_to(ROOT).as_posix()) for p in (ROOT / "src").rglob("*.cpp")}
    assert {"platform", "memory", "format", "channel"} <= seen


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_downward_tree_passes(tmp_path):
    files = {
        "include/shmtree/base/result.h": "#include <variant>\n",
        "include/shmtree/array.h": "#include <shmtree/base/result.h>\n#include <xtensor/xadapt.hpp>\n",
        "src/platform/clock.h": "#include <sys/mman.h>\n",
        "src/memory/arena.cpp": '#include "arena.h"\n#include "platform/clock.h"\n#include "shmtree/base/result.h"\n',
        "src/memory/arena.h": "#pragma once\n",
        "src/format/frame.cpp": '#include <capnp/message.h>\n#include "schema/shmtree.capnp.h"\n',
        "python/bindings/module.cpp": '#include <pybind11/pybind11.h>\n#include "bindings/codec/encode.h"\n',
    }
    assert list(violations(tree(tmp_path, files))) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        pytest.param("src/platform/clock.cpp", '#include "memory/arena.h"', id="platform reaches up to memory"),
        pytest.param("src/memory/arena.cpp", '#include "channel/ring.h"', id="memory reaches up to channel"),
        pytest.param("src/memory/arena.cpp", "#include <shmtree/value.h>", id="memory reaches up to the public API"),
        pytest.param("src/format/frame.cpp", '#include "memory/arena.h"', id="format looks into memory"),
        pytest.param("src/channel/ring.cpp", '#include "format/frame.h"', id="channel looks into frames"),
        pytest.param("src/value/x.cpp", '#include "bindings/codec/encode.h"', id="values reach up to the bindings"),
        pytest.param("src/value/x.cpp", '#include "memory/arena.h"', id="values know where frames lie"),
        pytest.param("src/discovery/x.cpp", '#include "endpoint/end.h"', id="discovery reaches up to the ends"),
        pytest.param(
            "python/bindings/codec/x.h", '#include "bindings/endpoint/x.h"', id="codec reaches up to the ends"
        ),
        pytest.param("python/bindings/cpython/x.h", '#include "bindings/objects/view_owner.h"', id="a wing reaches up"),
        pytest.param("python/bindings/x/x.h", "", id="a folder that is no wing"),
        pytest.param("src/endpoint/x.cpp", '#include "api/state.h"', id="ends know the classes of C++"),
        pytest.param("src/endpoint/x.cpp", '#include "shmtree/value.h"', id="ends know what is in a message"),
        pytest.param("src/channel/ring.cpp", "  #  include <capnp/message.h>", id="Cap'n Proto outside format"),
        pytest.param("include/shmtree/value.h", "#include <kj/common.h>", id="Cap'n Proto in a public header"),
        pytest.param("src/value/x.cpp", '#include "schema/shmtree.capnp.h"', id="the schema outside format"),
        pytest.param("include/shmtree/value.h", "#include <xtensor/xarray.hpp>", id="xtensor outside the array leaf"),
        pytest.param("include/shmtree/shmtree.h", '#include "shmtree/array.h"', id="xtensor for every program"),
        pytest.param("src/value/x.cpp", "#include <Python.h>", id="Python outside the bindings"),
        pytest.param("src/format/frame.h", "#include <pybind11/pybind11.h>", id="pybind11 outside the bindings"),
        pytest.param("src/memory/arena.cpp", "#include <sys/mman.h>", id="an OS header outside platform"),
        pytest.param("include/shmtree/item.h", "#include <unistd.h>", id="an OS header in a public header"),
        pytest.param("src/memory/arena.cpp", '#include "gone.h"', id="a header that is not there"),
        pytest.param("src/extra/x.cpp", "", id="a folder that is no layer"),
    ],
)
def test_a_tree_with_one_wrong_include_is_refused(tmp_path, path, line):
    found = list(violations(tree(tmp_path, {path: line + "\nint x;\n"})))
    assert len(found) == 1
    assert found[0].startswith(path)
