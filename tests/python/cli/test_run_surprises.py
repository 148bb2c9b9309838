"""`shmtree run` with programs and machines that it does not support: the program behaves as without it."""

from __future__ import annotations

import fcntl
import os
import re
import struct
import subprocess
import termios
from pathlib import Path

import pytest
from run_programs import LIMIT_S, Run, command
from terminals import pseudo_terminal


def test_program_continues_if_notes_cannot_be_written(run: Run) -> None:
    ran = run(
        """
        import multiprocessing as mp, resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))  # a semaphore fits, a note does not
        queue, (here, there) = mp.Queue(), mp.Pipe()
        here.send(1)
        queue.put(2)
        print(there.recv(), queue.get())
        """
    )
    assert (ran.code, ran.out) == (0, "1 2\n"), ran.err


def test_program_named_shmtree_is_executed_once(tmp_path: Path) -> None:
    program = tmp_path / "shmtree.py"
    program.write_text("import multiprocessing as mp\nqueue = mp.Queue()\nqueue.put(1)\nprint(__name__, queue.get())\n")
    ran = subprocess.run(command(str(program)), capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert ran.stdout == "__main__ 1\n"
    assert f"the program has another module of the name shmtree, {program}" in ran.stderr


@pytest.mark.parametrize("name", ["numbers", "uuid", "inspect", "ast"])
@pytest.mark.parametrize("options", [[], ["--profile"]])
def test_program_named_as_a_standard_module_runs_once(tmp_path: Path, name: str, options: list[str]) -> None:
    program = tmp_path / f"{name}.py"
    program.write_text(
        "import multiprocessing as mp\nprint('start', flush=True)\n"
        "queue = mp.Queue()\nqueue.put(1)\nprint(queue.get())\n"
    )
    ran = subprocess.run(command(*options, str(program)), capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert ran.stdout == "start\n1\n"


def test_spawned_worker_of_a_program_named_numbers_runs_once(tmp_path: Path) -> None:
    program = tmp_path / "numbers.py"
    program.write_text(
        "import multiprocessing as mp\nprint('start', __name__, flush=True)\n"
        "def work(queue):\n    queue.put(1)\n"
        "if __name__ == '__main__':\n"
        "    context = mp.get_context('spawn')\n    queue = context.Queue()\n"
        "    worker = context.Process(target=work, args=(queue,))\n"
        "    worker.start()\n    print(queue.get())\n    worker.join()\n"
    )
    ran = subprocess.run(command(str(program)), capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert ran.stdout == "start __main__\nstart __mp_main__\n1\n"


@pytest.mark.parametrize("options", [[], ["--profile"]])
def test_program_imports_its_own_module_of_a_standard_name(tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "uuid.py").write_text("print('own uuid')\n")
    program = tmp_path / "program.py"
    program.write_text(
        "import multiprocessing as mp\nqueue = mp.Queue()\nqueue.put(1)\nprint(queue.get(), flush=True)\nimport uuid\n"
    )
    ran = subprocess.run(command(*options, str(program)), capture_output=True, text=True, timeout=LIMIT_S, check=True)
    assert ran.stdout == "1\nown uuid\n"


@pytest.mark.parametrize("options", [[], ["--profile"]])
def test_table_keeps_the_places_on_80_columns(tmp_path: Path, options: list[str]) -> None:
    program = tmp_path / "program.py"
    program.write_text("import multiprocessing as mp\nqueue = mp.JoinableQueue()\nqueue.put(1)\nqueue.get()\n")
    env = {**os.environ, "TERM": "xterm"}
    with pseudo_terminal() as (ours, theirs):
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        subprocess.run(
            command(*options, "program.py"),
            cwd=tmp_path,
            env=env,
            stdin=theirs,
            stderr=theirs,
            timeout=LIMIT_S,
            check=True,
        )
        lines = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 1 << 16).decode()).splitlines()
    head, row = lines[1:3]
    assert head.split()[:3] == ["KIND", "CREATED", "AT"]
    assert row.split()[:2] == ["JoinableQueue", "program.py:2"]
    assert max(len(head), len(row)) <= 80
