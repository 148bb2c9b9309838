"""Replaces the queues and pipes of `multiprocessing` in a process of `shmtree run`, when the process first needs them.

`sitecustomize` starts this hook in each process. At the start, it imports neither shmtree nor NumPy, because a program
may set variables such as OMP_NUM_THREADS before its first import. It changes the modules of `multiprocessing` right
after their import, and imports shmtree with the first queue or pipe.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import os
import sys
import time

TYPE_CHECKING = False  # an import of typing takes as long as the rest of this file
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))  # the folder of the package

_settings: dict[str, Any] = {}
#: Modules that keep the standard pipes, because their pipes wake up threads, or are inside a standard queue.
_INTERNAL = ("multiprocessing.", "concurrent.futures.", "joblib.externals.loky", "loky.")
_QUEUES = ("Queue", "JoinableQueue", "SimpleQueue")


def _library(name: str) -> Any:
    """Imports a module of `shmtree._run`, which replaces standard classes, or the one that profiles all of them.

    Raises ImportError, and imports nothing, if the program has another module of that name. That module may be the
    program's script.
    """
    known = sys.modules.get("shmtree")
    found = known.__spec__ if known is not None else importlib.machinery.PathFinder.find_spec("shmtree")
    if found is None:
        sys.path.append(_ROOT)
    elif found.origin is None or not os.path.samefile(found.origin, os.path.join(_ROOT, "shmtree", "__init__.py")):
        raise ImportError(f"the program has another module of the name shmtree, {found.origin}")
    began = time.process_time_ns()
    module = importlib.import_module(f"shmtree._run.{'profiled' if _settings['profile'] else name}")
    counters = sys.modules["shmtree._run.counters"]
    counters.cells[counters.IMPORT_NS] += time.process_time_ns() - began
    return module


def _with_standard_modules(function: Callable[[Any], None], argument: Any) -> None:
    """Calls `function`. Its imports find standard modules, even if the program has modules of the same names.

    Afterwards, removes those standard modules from `sys.modules`, so that the program finds its own.
    """
    library, before, loaded = os.path.dirname(os.__file__), sys.path[:], set(sys.modules)
    known = (library, os.path.join(library, "lib-dynload"))
    standard = [path for path in before if path.endswith(".zip") or path in known]
    first = before[: next((number for number, path in enumerate(before) if path in standard), len(before))]
    sys.path[:] = ordered = standard + [path for path in before if path not in standard]
    try:
        function(argument)
    finally:
        if sys.path == ordered:
            sys.path[:] = before
        for name in sys.stdlib_module_names.intersection(sys.modules).difference(loaded, sys.builtin_module_names):
            if importlib.machinery.PathFinder.find_spec(name, first) is not None:
                del sys.modules[name]


def _guarded(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function. After an error, notes it, and the program continues with the standard objects."""
    try:
        return function(*arguments)
    except Exception as error:
        return _note(what, f"{type(error).__name__}: {error}")


def _note(what: str, reason: str, where: str = "") -> None:
    try:
        with open(os.path.join(_settings["directory"], "notes"), "a") as notes:
            notes.write(f"{what}\t{where}\t{' '.join(reason.split())}\n")
    except OSError:
        pass


def _change_connection(module: Any) -> None:
    standard = module.Pipe

    def Pipe(duplex: bool = True) -> Any:
        frame = sys._getframe(1)
        if frame.f_globals.get("__name__") == "multiprocessing.context" and frame.f_back is not None:
            frame = frame.f_back
        if str(frame.f_globals.get("__name__")).startswith(_INTERNAL):
            return standard(duplex)
        library = _guarded("Pipe", _library, "pipes")
        return library.make_pipe(standard, duplex) if library else standard(duplex)

    Pipe.__doc__ = standard.__doc__
    module.Pipe = Pipe


def _change_context(module: Any) -> None:
    """Replaces the methods that make queues. `multiprocessing` has those of its default context as functions."""
    for name in _QUEUES:
        standard = getattr(module.BaseContext, name)

        def make(self: Any, *arguments: Any, _standard: Any = standard, **options: Any) -> Any:
            library = _guarded(f"multiprocessing.{_standard.__name__}", _library, "queues")
            return (library.make_queue if library else _call)(_standard, self, *arguments, **options)

        make.__name__, make.__qualname__, make.__doc__ = name, standard.__qualname__, standard.__doc__
        setattr(module.BaseContext, name, make)
        if hasattr(
            multiprocessing := sys.modules["multiprocessing"], name
        ):  # the module was imported before the hook was installed
            setattr(multiprocessing, name, getattr(module._default_context, name))


def _call(standard: Any, *arguments: Any, **options: Any) -> Any:
    return standard(*arguments, **options)


def _change_queues(module: Any) -> None:
    """Reports queues that a program makes of the classes, or of its own subclasses. `--profile` counts them, too."""
    if _settings["profile"]:
        if "shmtree._run" not in sys.modules:  # otherwise it imports this module in order to profile it
            _guarded(module.__name__, _library, "queues")
        return
    for cls in (module.Queue, module.SimpleQueue):

        def initialize(self: Any, *arguments: Any, _standard: Any = cls.__init__, **options: Any) -> None:
            _standard(self, *arguments, **options)
            frame: Any = sys._getframe(1)
            while frame.f_code.co_filename == module.__file__:
                frame = frame.f_back
            if frame.f_globals.get("__name__") != "multiprocessing.context":
                what = f"{type(self).__module__}.{type(self).__qualname__}"
                reason = "the program makes it of a class, and not with a method of multiprocessing or of a context"
                _note(what, reason, f"{frame.f_code.co_filename}:{frame.f_lineno}")

        cls.__init__ = initialize


def _change_executors(module: Any) -> None:
    """Replaces the class of an executor's queue of calls, when the first executor is made. `--profile` keeps it."""
    if _settings["profile"]:
        return  # children load the parent's queue by the name of the class
    standard = module._SafeQueue

    def make(*arguments: Any, **options: Any) -> Any:
        _guarded(module.__name__, _library, "executors")
        if module._SafeQueue is make:
            module._SafeQueue = standard
        return module._SafeQueue(*arguments, **options)

    make.standard = standard  # type: ignore[attr-defined]
    module._SafeQueue = make


def _change_managers(module: Any) -> None:
    """Reports a manager's queues, which stay as they are."""

    manager = module.SyncManager
    for name, standard in (("Queue", manager.Queue), ("JoinableQueue", manager.JoinableQueue)):

        def make(*arguments: Any, _name: str = name, _make: Any = standard, **options: Any) -> Any:
            frame = sys._getframe(1)
            where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            _note(f"Manager().{_name}", "it is a queue.Queue inside the process of the manager", where)
            return _make(*arguments, **options)

        setattr(manager, name, make)


class _Preparation:
    """An entry of the preparation data that starts the hook in a child when the data is loaded."""

    _CODE = (
        "import os\n"
        "try:\n"
        "    os.environ['SHMTREE_RUN'] = {directory!r}\n"
        "    with open({file!r}) as opened: exec(opened.read(), {{'__file__': {file!r}, '__name__': 'shmtree run'}})\n"
        "except Exception: pass\n"
    )

    def __reduce__(self) -> Any:
        file = os.path.join(HERE, "sitecustomize.py")
        return exec, (self._CODE.format(file=file, directory=_settings["directory"]), {})


def _change_spawn(module: Any) -> None:
    standard = module.get_preparation_data

    def get_preparation_data(name: str) -> Any:
        return {"shmtree_run": _Preparation(), **standard(name)}

    module.get_preparation_data = get_preparation_data


_CHANGES: dict[str, Callable[[Any], None]] = {
    "multiprocessing.connection": _change_connection,
    "multiprocessing.context": _change_context,
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
                _guarded(name, _CHANGES[name], module)
            else:
                _with_standard_modules(execute, module)

        loader.exec_module = exec_module
        return spec


def start(directory: str, profile: bool) -> None:
    """Prepares this process."""
    _settings.update(directory=directory, profile=profile)
    vars(sys)["_shmtree_run"] = _settings
    sys.meta_path.insert(0, _Finder)
    for name in _CHANGES:
        if name in sys.modules:
            _guarded(name, _CHANGES[name], sys.modules[name])
