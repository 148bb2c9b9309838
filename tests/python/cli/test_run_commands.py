"""`shmtree run` in place of `python`: Python's own options, and commands on PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from run_programs import LIMIT_S, command

QUEUE = "import multiprocessing as m; q = m.Queue(); q.put(1); q.get(); print(type(q).__module__)"
REPLACED = "shmtree._run.queues\n"


def run_command(
    folder: Path, *words: str, stdin: str = "", path: Path | None = None
) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": os.pathsep.join([*([str(path)] if path else []), os.environ["PATH"]])}
    return subprocess.run(
        command(*words), cwd=folder, input=stdin, env=env, capture_output=True, text=True, timeout=LIMIT_S
    )


def executable(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return folder / name


def test_options_of_python_come_before_the_script(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import sys; print(sys.argv, sys.flags.optimize, sys.warnoptions, sys._xoptions, sys.stdout.write_through)"
    )
    ran = run_command(tmp_path, "-uOO", "-Wdefault", "-W", "ignore", "-X", "dev", "program.py", "-u", "--report")
    assert (ran.returncode, ran.stdout) == (
        0,
        "['program.py', '-u', '--report'] 2 ['default', 'ignore'] {'dev': True} True\n",
    )


@pytest.mark.parametrize("words", [["-c", QUEUE], ["-uc", QUEUE], ["-"], ["-u", "-"]])
def test_code_and_standard_input_are_programs(tmp_path: Path, words: list[str]) -> None:
    ran = run_command(tmp_path, *words, "-x", stdin=QUEUE)
    assert (ran.returncode, ran.stdout) == (0, REPLACED), ran.stderr
    assert "1 process used queues" in ran.stderr


@pytest.mark.parametrize(
    "words",
    [[], ["-u"], ["-X"], ["-E", "program.py"], ["-uI", "program.py"], ["-S", "-c", "0"], ["-u", "true"]],
)
def test_words_without_a_program_are_an_error(tmp_path: Path, words: list[str]) -> None:
    ran = run_command(tmp_path, *words)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("shmtree: ") and ran.stderr.count("\n") == 1


def test_a_missing_script_is_reported_by_python(tmp_path: Path) -> None:
    ran = run_command(tmp_path, "missing.py")
    assert ran.returncode == 2
    assert "missing.py" in ran.stderr and "Traceback" not in ran.stderr


@pytest.mark.parametrize("interpreter", [sys.executable, "/usr/bin/env python"])
def test_a_python_command_on_path_is_covered(tmp_path: Path, interpreter: str) -> None:
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    executable(bin_folder, "python", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')  # a link would leave its prefix
    executable(bin_folder, "mytool", f"#!{interpreter}\nimport sys\n{QUEUE}\nprint(sys.argv[1:])\n")
    ran = run_command(tmp_path, "mytool", "-u", "x", path=bin_folder)
    assert (ran.returncode, ran.stdout) == (0, f"{REPLACED}['-u', 'x']\n"), ran.stderr


def test_options_of_python_apply_to_a_command_of_this_python(tmp_path: Path) -> None:
    executable(tmp_path, "mytool", f"#!{sys.executable}\nimport sys\nprint(sys.flags.optimize)\n")
    (tmp_path / "work").mkdir()
    ran = run_command(tmp_path / "work", "-O", "mytool", path=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr


@pytest.mark.parametrize("name", ["mytool", "./mytool"])
def test_python_children_of_a_shell_script_are_covered(tmp_path: Path, name: str) -> None:
    executable(tmp_path, "mytool", f'#!/bin/sh\n"{sys.executable}" -c "{QUEUE}"\nexit 3\n')
    ran = run_command(tmp_path, name, path=tmp_path)
    assert (ran.returncode, ran.stdout) == (3, REPLACED), ran.stderr


def test_a_file_that_is_not_executable_is_one_error_line(tmp_path: Path) -> None:
    (tmp_path / "mytool").write_text("#!/bin/sh\n")
    ran = run_command(tmp_path, "./mytool")
    assert ran.returncode == 1
    assert ran.stderr.startswith("shmtree: ") and "mytool" in ran.stderr


@pytest.mark.parametrize("version", ["2.7", "3.6", "3.7", "3.8"])
def test_other_pythons_execute_only_their_own_sitecustomize(tmp_path: Path, version: str) -> None:
    other = next(iter(Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python")), None)
    other = other or next(map(Path, filter(None, [shutil.which(f"python{version}")])), None)
    if other is None or subprocess.run([other, "-c", ""], capture_output=True).returncode != 0:
        pytest.skip(f"there is no Python {version}")
    own = "import sys\nif sys.version_info < (3, 9): sys.stdout.write('own ')\n"  # not in that of the command
    (tmp_path / "sitecustomize.py").write_text(own)
    shown = "import sys, multiprocessing as m; q = m.Queue(); q.put(1); q.get(); print(sorted(set(sys.modules) & mine))"
    code = f"mine = {{'numpy', 'shmtree', 'shmtree_run_hook', 'json'}}; {shown}"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    plain = subprocess.run([other, "-c", code], env=env, capture_output=True, text=True, timeout=LIMIT_S)
    ran = subprocess.run(command(str(other), "-c", code), env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert (ran.returncode, ran.stdout) == (0, "own []\n") == (plain.returncode, plain.stdout), ran.stderr
    assert f"Not replaced: {other}: it is another Python" in ran.stderr


def test_without_a_sitecustomize_of_its_own_a_program_sees_none(tmp_path: Path) -> None:
    code = "import sys; print('sitecustomize' in sys.modules, [each for each in sys.path if 'hook' in each])"
    plain = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert run_command(tmp_path, "-c", code).stdout == plain.stdout


@pytest.mark.parametrize(
    "use", ["import multiprocessing.queues, multiprocessing.pool", "from concurrent.futures import ProcessPoolExecutor"]
)
def test_numpy_is_not_imported_without_a_queue(tmp_path: Path, use: str) -> None:
    code = f"{use}; import sys; print('numpy' in sys.modules, 'typing' in sys.modules, 'shmtree' in sys.modules)"
    plain = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT_S)
    assert run_command(tmp_path, "-c", code).stdout == plain.stdout


@pytest.mark.parametrize("module", ["numpy", "shmtree._core"])
def test_the_command_itself_imports_no_numpy(tmp_path: Path, module: str) -> None:
    start = [sys.executable, "-X", "importtime", "-m", "shmtree", "run", "true"]
    ran = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}.isdisjoint({module})


KILLED_AT = """
import os, shutil, signal, sys
from shmtree._run import launch

def kill(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

name = sys.argv[1]
if name == "cleanup":
    launch.shutil.rmtree = lambda path, **_: (os.unlink(os.path.join(path, "settings")), kill())
else:
    module, _, function = name.rpartition(".")
    setattr(getattr(launch, module), function, kill)
with launch.directory(False):
    pass
"""


@pytest.mark.parametrize("point", ["fcntl.flock", "os.stat", "cleanup"])
def test_directory_of_a_run_killed_at_any_point_is_removed(tmp_path: Path, point: str) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED_AT, point]) as killed:
        assert killed.wait(timeout=LIMIT_S) == -9
    run_command(tmp_path, "-c", "0")  # or a run of another test
    assert [name for name in os.listdir("/dev/shm") if f"shmtree-run.{killed.pid}-" in name] == []
