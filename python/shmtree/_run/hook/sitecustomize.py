"""Replaces the queues and pipes of `multiprocessing` in a process of `shmtree run`, when the process first needs them.

Python executes this file at the start of each process, because `shmtree run` puts its folder on PYTHONPATH. It imports
neither shmtree nor NumPy: a program may set variables such as OMP_NUM_THREADS before its first import. An import of
`multiprocessing` is followed by changes to its modules; shmtree itself is imported with the first queue or pipe.

Children that multiprocessing starts execute this file again from their preparation data, for programs that change
PYTHONPATH.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.machinery
import importlib.util
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))  # the folder of the package

#: Modules with pipes that stay standard: those pipes wake up threads, or are inside a standard queue.
_INTERNAL = ("multiprocessing.", "concurrent.futures.", "joblib.externals.loky", "loky.")


def _library(name: str) -> Any:
    """Imports a module of `shmtree._run`. Those with classes replace the standard ones when they are imported.

    Raises ImportError, and imports nothing, if the program has another module of the name: it may be its script.
    """
    found = importlib.util.find_spec("shmtree")
    if found is None:
        sys.path.append(_ROOT)
    elif found.origin is None or not os.path.samefile(found.origin, os.path.join(_ROOT, "shmtree", "__init__.py")):
        raise ImportError(f"the program has another module of the name shmtree, {found.origin}")
    return importlib.import_module(f"shmtree._run.{name}")


@contextlib.contextmanager
def _standard_modules_first() -> Iterator[None]:
    """Imports in the block find standard modules, even if the program has modules of the same names.

    After the block, the program finds its own modules: those standard ones are removed from `sys.modules`.
    """
    library, before, loaded = os.path.dirname(os.__file__), sys.path[:], set(sys.modules)
    standard = [
        path for path in before if path.endswith(".zip") or path in (library, os.path.join(library, "lib-dynload"))
    ]
    first = list(itertools.takewhile(lambda path: path not in standard, before))
    sys.path[:] = ordered = standard + [path for path in before if path not in standard]
    try:
        yield
    finally:
        if sys.path == ordered:
            sys.path[:] = before
        for name in sys.stdlib_module_names.intersection(sys.modules).difference(loaded, sys.builtin_module_names):
            if importlib.machinery.PathFinder.find_spec(name, first) is not None:
                del sys.modules[name]


def _settings() -> dict[str, Any]:
    settings: dict[str, Any] = vars(sys)["_shmtree_run"]
    return settings


def _is_profiling() -> bool:
    return bool(_settings()["profile"])


def _guarded(change: Callable[[Any], None], module: Any) -> None:
    """Calls `change`. After an error, the program continues with what the standard module has."""
    try:
        change(module)
    except Exception as error:
        _note(module.__name__, f"{type(error).__name__}: {error}")


def _note(what: str, reason: str) -> None:
    line = json.dumps({"what": what, "where": "", "reason": reason}) + "\n"
    directory = vars(sys).get("_shmtree_run", {}).get("directory") or os.environ.get("SHMTREE_RUN", "")
    try:
        with open(os.path.join(directory, "notes"), "a") as notes:
            notes.write(line)
    except OSError:
        pass


def _change_connection(module: Any) -> None:
    standard = module.Pipe

    @functools.wraps(standard)
    def Pipe(duplex: bool = True) -> Any:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") == "multiprocessing.context" and frame.f_back is not None:
            frame = frame.f_back
        if str(frame.f_globals.get("__name__")).startswith(_INTERNAL):
            return standard(duplex)
        try:
            importlib.import_module("multiprocessing.queues")  # first: changing its classes imports pipes, too
            library = _library("profiled" if _is_profiling() else "pipes")
        except Exception as error:
            _note("Pipe", f"{type(error).__name__}: {error}")
            return standard(duplex)
        return library.make_pipe(standard, duplex)

    module.Pipe = Pipe


def _change_queues(module: Any) -> None:
    _library("profiled" if _is_profiling() else "queues")


def _change_executors(module: Any) -> None:
    if not _is_profiling():  # its queue is a subclass of the standard one, which is replaced
        _library("executors")


def _change_managers(module: Any) -> None:
    """Reports a manager's queues, which stay as they are."""

    def reported(name: str, standard: Any) -> Any:
        @functools.wraps(standard)
        def make(*arguments: Any, **options: Any) -> Any:
            _library("notes").add(f"Manager().{name}", "it is a queue.Queue inside the process of the manager")
            return standard(*arguments, **options)

        return make

    for name in ("Queue", "JoinableQueue"):
        setattr(module.SyncManager, name, reported(name, getattr(module.SyncManager, name)))


class _Preparation:
    """An entry of the preparation data that starts this file in a child when the data is loaded."""

    _CODE = (
        "import importlib.util as u, sys\n"
        "try:\n"
        "    s = u.spec_from_file_location('_shmtree_run_hook', {file!r}); m = u.module_from_spec(s)\n"
        "    s.loader.exec_module(m); m.start({directory!r})\n"
        "except Exception: pass\n"
    )

    def __reduce__(self) -> Any:
        file = os.path.join(HERE, "sitecustomize.py")
        return exec, (self._CODE.format(file=file, directory=_settings()["directory"]), {})


def _change_spawn(module: Any) -> None:
    standard = module.get_preparation_data

    @functools.wraps(standard)
    def get_preparation_data(name: str) -> Any:
        return {"shmtree_run": _Preparation(), **standard(name)}

    module.get_preparation_data = get_preparation_data


_CHANGES: dict[str, Callable[[Any], None]] = {
    "multiprocessing.connection": _change_connection,
    "multiprocessing.queues": _change_queues,
    "multiprocessing.managers": _change_managers,
    "multiprocessing.spawn": _change_spawn,
    "concurrent.futures.process": _change_executors,
}


class _Finder:
    """Finds the modules of `_CHANGES`, and changes each right after its import. Also finds the modules of shmtree."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _CHANGES and name.partition(".")[0] != "shmtree":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = spec and spec.loader
        if loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            if name in _CHANGES:
                execute(module)
                _guarded(_CHANGES[name], module)
            else:
                with _standard_modules_first():
                    execute(module)

        loader.exec_module = exec_module
        return spec


def start(directory: str) -> None:
    """Prepares this process, unless it is prepared already or the run is over."""
    if hasattr(sys, "_shmtree_run") or not directory or not os.path.isdir(directory):
        return
    with open(os.path.join(directory, "settings")) as file:
        settings = json.load(file)
    if settings["python"] != [sys.implementation.cache_tag, sys.prefix]:
        _note(sys.executable, "it is another Python than that of shmtree")
        return
    os.environ["SHMTREE_RUN"] = directory
    vars(sys)["_shmtree_run"] = {**settings, "directory": directory}
    sys.meta_path.insert(0, _Finder)
    for name in _CHANGES:
        if name in sys.modules:
            _guarded(_CHANGES[name], sys.modules[name])


def _execute_next() -> None:
    """Executes the program's own sitecustomize, which this one hides."""
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != HERE]
    try:
        start(os.environ.get("SHMTREE_RUN", ""))
    except Exception as error:
        _note(sys.executable, f"{type(error).__name__}: {error}")
    _execute_next()
