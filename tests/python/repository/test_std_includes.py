"""A file that uses a name of the standard library includes its header, or one of our headers that does.

Which other headers a standard header includes depends on the library and its version. So a file that compiles here
without the include may not compile elsewhere.
"""

import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ["include", "src", "python/bindings", "tests/cpp", "tests/fuzz", "bench/cpp"]
INCLUDED_FROM = ["include", "src", "python", "tests/cpp", "."]

#: Header that must be included, and a pattern of its names. Other standard headers often declare these names too.
NAMES = {
    "algorithm": r"(min|max|sort|find|find_if|copy|fill|any_of|all_of|clamp|lower_bound)\b",
    "array": r"array\b",
    "atomic": r"(atomic|memory_order)",
    "bit": r"(bit_cast|popcount|countr_zero|bit_width|bit_ceil|has_single_bit)\b",
    "cstddef": r"(size_t|byte|ptrdiff_t|max_align_t|nullptr_t)\b",
    "cstdint": r"u?int(_fast|_least)?\d+_t\b|u?int(ptr|max)_t\b",
    "cstdlib": r"(malloc|free|calloc|realloc|abort|getenv)\(",
    "cstring": r"(mem(cpy|move|set|cmp|chr)|str(len|cmp|ncmp|error|chr))\(",
    "functional": r"function\b",
    "limits": r"numeric_limits\b",
    "memory": r"(unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared)\b",
    "mutex": r"(mutex|lock_guard|unique_lock|scoped_lock|once_flag)\b",
    "new": r"(bad_alloc|nothrow)\b",
    "optional": r"(optional|nullopt)\b",
    "span": r"span\b",
    "string": r"(string|to_string)\b",
    "string_view": r"string_view\b",
    "tuple": r"(tuple|tie)\b",
    "type_traits": r"(is_\w+_v|enable_if_t|decay_t|remove_\w+_t|conditional_t)\b",
    "unordered_map": r"unordered_map\b",
    "utility": r"(move|forward|pair|exchange|swap)\b",
    "variant": r"variant\b",
    "vector": r"vector\b",
}


@functools.cache
def foreign_headers(file: Path, root: Path) -> frozenset[str]:
    """Returns the foreign headers that a file, or one of our headers that it includes, names itself."""
    found: set[str] = set()
    for name in re.findall(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"]+)[>"]', file.read_text(), re.MULTILINE):
        places = [file.parent, *(root / each for each in INCLUDED_FROM)]
        ours = next((place / name for place in places if (place / name).is_file()), None)
        found |= foreign_headers(ours, root) if ours else {name}
    return frozenset(found)


def missing(root: Path) -> Iterator[str]:
    for file in (each for top in SOURCES for each in sorted((root / top).rglob("*"))):
        if file.suffix not in {".h", ".cpp"}:
            continue
        code = re.sub(r"//.*", "", file.read_text())
        for header, names in NAMES.items():
            used = re.search(rf"\bstd::({names})", code)
            if used and header not in foreign_headers(file, root):
                yield f"{file.relative_to(root)}: {used[0]} without <{header}>"


def test_names_of_the_standard_library_come_with_their_headers() -> None:
    assert list(missing(ROOT)) == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("#include <string>\nstd::uint8_t x;", True),
        ("#include <cstdint>\nstd::uint8_t x;", False),
        ('#include "ours.h"\nstd::uint8_t x;', False),
        ("// std::uint8_t", False),
    ],
)
def test_a_name_without_its_header_is_found(tmp_path: Path, line: str, wrong: bool) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "ours.h").write_text("#include <cstdint>\n")
    (tmp_path / "src" / "x.cpp").write_text(line + "\n")
    assert bool(list(missing(tmp_path))) is wrong
