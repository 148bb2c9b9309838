"""Runs in an environment with only the wheel and NumPy, and checks that the wheel needs nothing else.

    python check_wheel.py             an installed wheel of ./dev wheel, ./dev wheels or cibuildwheel
    python check_wheel.py --built     a package that pip built here, which uses the Cap'n Proto of this machine

Checks that the extension needs no library that a machine may lack, that importing it needs only NumPy, and that data
can be sent between two processes. Checks that the wheel has the licences of all code in it.
"""

import argparse
import importlib.metadata
import multiprocessing
import pathlib
import re
import sys


def check_libraries(core: str) -> None:
    """Checks that the extension loads no library that only the build machine needs."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    mapped = set(re.findall(r"/\S*lib(?:capnp|kj|xtensor)\S*", maps))
    own = pathlib.Path(core).parent.with_name("shmtree.libs")
    others = {path for path in mapped if pathlib.Path(path).parent != own}
    assert not others, f"{core} uses {others}"


def check_dependencies() -> None:
    needs = importlib.metadata.requires("shmtree") or []
    names = {re.split(r"[^\w.-]", need)[0] for need in needs if "extra" not in need}
    assert names == {"numpy"}, names


def check_licenses() -> None:
    """Checks that the installed files have the licence of each work that is compiled in."""
    holders = {
        "LICENSE": "the shmtree authors",
        "licenses/capnproto.txt": "Sandstorm Development Group",
        "licenses/gcc-runtime.txt": "GCC RUNTIME LIBRARY EXCEPTION",
        "licenses/numpy.txt": "NumPy Developers",
        "licenses/pybind11.txt": "Wenzel Jakob",
    }
    texts = {}
    for file in importlib.metadata.files("shmtree") or []:
        _, _, name = str(file).partition(".dist-info/licenses/")
        if name:
            texts[name] = file.read_text()
    missing = [name for name, holder in holders.items() if holder not in texts.get(name, "")]
    assert not missing, f"the wheel lacks {missing}; it has {sorted(texts)}"


def child(sender) -> None:
    import numpy as np

    sender.put({"obs": np.arange(300_000, dtype=np.float32), "info": {"name": "child", "ids": (1, 2, 3)}})
    sender.wait_for_all_ack(timeout=30)


def check_round_trip() -> None:
    import shmtree

    sender, receiver = shmtree.create_pair(capacity=8)
    process = multiprocessing.get_context("spawn").Process(target=child, args=(sender,))
    process.start()
    item = receiver.get(timeout=60)
    assert item["info"] == {"name": "child", "ids": (1, 2, 3)}, item["info"]
    assert item["obs"].dtype == "float32"
    assert float(item["obs"][299_999]) == 299_999.0
    process.join(30)
    assert process.exitcode == 0, process.exitcode


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--built", action="store_true", help="the extension may use the Cap'n Proto of this machine")
    arguments = parser.parse_args()
    before = {name.partition(".")[0] for name in sys.modules}
    import shmtree
    import shmtree._core

    outside = {name.partition(".")[0] for name in sys.modules} - before - set(sys.stdlib_module_names)
    outside = {name for name in outside if not name.startswith("_sysconfigdata_")}  # zoneinfo imports sysconfig's data
    assert outside <= {"shmtree", "numpy"}, f"import shmtree also imported {sorted(outside)}"
    if not arguments.built:
        check_libraries(shmtree._core.__file__)
    check_dependencies()
    check_licenses()
    check_round_trip()
    version = importlib.metadata.version("shmtree")
    print(f"shmtree {version} works as installed: {shmtree._core.__file__}")


if __name__ == "__main__":
    main()
