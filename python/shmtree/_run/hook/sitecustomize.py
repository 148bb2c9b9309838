"""Starts the hook of `shmtree run` in a process of its Python, and then executes the program's own sitecustomize.

Python executes this file at the start of each process, because `shmtree run` puts its folder on PYTHONPATH. Python
of any version does so. Therefore, the syntax is that of Python 2.7, and a Python other than the command's imports
nothing here.

Children that multiprocessing starts execute this file again from their preparation data, for programs that change
PYTHONPATH.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_directory = os.environ.get("SHMTREE_RUN", "")
if _directory and not hasattr(sys, "_shmtree_run"):
    try:
        with open(os.path.join(_directory, "settings")) as _file:
            _tag, _prefix, _profile = _file.read().split("\n")
        if (getattr(getattr(sys, "implementation", None), "cache_tag", None), repr(sys.prefix)) == (_tag, _prefix):
            sys.path.insert(0, _here)
            import shmtree_run_hook  # type: ignore[import-not-found]

            shmtree_run_hook.start(_directory, bool(_profile))
        else:
            with open(os.path.join(_directory, "notes"), "a") as _file:
                _file.write(sys.executable + "\t\tit is another Python than that of shmtree\n")
    except Exception:  # the run is over, or this process cannot read its files
        pass
sys.path[:] = [each for each in sys.path if os.path.abspath(each) != _here]
if __name__ == "sitecustomize":
    _hidden = sys.modules.pop(__name__)  # keeps this module, which Python 2 would clear
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # Python expects this error if there is none
