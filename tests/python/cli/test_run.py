"""`shmtree run`: the program runs as without it, its queues and pipes are replaced in each process, and are counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from forks import NOT_BESIDE_THREADS, WITHOUT_GIL
from run_programs import LIMIT_S, Run, command
from starts import START_METHODS

PACKAGE = Path(__import__("shmtree").__file__).parents[1]

#: Sends arrays to a child and back through each kind, and prints the modules of the classes in both processes.
EXCHANGE = """
    import multiprocessing as mp, sys
    import numpy as np

    def name(thing):
        return type(thing).__module__

    def work(queue, joinable, simple, connection):
        for _ in range(20):
            connection.send(queue.get() + joinable.get() + simple.get())
            joinable.task_done()
        connection.send([name(each) for each in (queue, joinable, simple, connection)])

    if __name__ == "__main__":
        context = mp.get_context(sys.argv[1])
        queue, joinable, simple = context.Queue(), context.JoinableQueue(), context.SimpleQueue()
        here, there = context.Pipe()
        process = context.Process(target=work, args=(queue, joinable, simple, there))
        process.start()
        for number in range(20):
            for each in (queue, joinable, simple):
                each.put(np.full(1000, float(number)))
            assert here.recv().sum() == 3000 * number
        joinable.join()
        print([name(each) for each in (queue, joinable, simple, here)] == here.recv())
        print(name(queue), name(here))
        process.join()
"""


@pytest.mark.parametrize("method", START_METHODS)
def test_queues_and_pipes_are_replaced_in_all_processes(run: Run, method: str) -> None:
    if WITHOUT_GIL and method == "fork":
        pytest.skip(NOT_BESIDE_THREADS)
    ran = run(EXCHANGE, method)

    assert (ran.code, ran.out.split()) == (0, ["True", "shmtree._run.queues", "shmtree._run.pipes"]), ran.err
    for kind in ("Queue", "JoinableQueue", "SimpleQueue"):
        (row,) = ran.rows(kind)
        assert (row["messages"], row["processes"], row["objects"]) == (20, 2, 1)
        assert row["bytes"] == pytest.approx(20 * 8000, rel=0.1)
        assert min(row["put_s"], row["get_s"], row["cpu_s"]) > 0
        assert row["place"].endswith("program.py:16")
    (pipe,) = ran.rows("Pipe")
    assert pipe["messages"] == 21
    assert ran.report["not_replaced"] == []


def test_program_sees_its_own_arguments_path_and_main_module(run: Run, tmp_path: Path) -> None:
    ran = run(
        """
        import os, sys
        print(sys.argv[1:], __name__, os.path.basename(__file__), __spec__, sys.path[0])
        print(any("_run" in each for each in sys.path), sys.modules["__main__"].__dict__ is globals())
        sys.exit(7)
        """,
        "--profile",
        "-m",
        "x",
    )
    assert ran.code == ran.report["exit_code"] == 7
    first, second = ran.out.splitlines()
    assert first == f"['--profile', '-m', 'x'] __main__ program.py None {tmp_path}"
    assert second == "False True"


def test_a_module_runs_with_dash_m(program: Callable[[str], Path], tmp_path: Path) -> None:
    program("import sys; print(__spec__.name, sys.argv[1:])")
    ran = subprocess.run(
        command("-m", "program", "--report", "x"), cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (ran.returncode, ran.stdout) == (0, "program ['--report', 'x']\n")
    assert "exit code 0" in ran.stderr


def test_run_without_a_program_is_an_error() -> None:
    ran = subprocess.run(command(), capture_output=True, text=True, timeout=LIMIT_S)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "run needs a program" in ran.stderr


def test_unwritable_report_stops_before_the_program(program: Callable[[str], Path], tmp_path: Path) -> None:
    path = program("print('started')")
    report = str(tmp_path / "none" / "report.json")
    ran = subprocess.run(command("--report", report, str(path)), capture_output=True, text=True, timeout=LIMIT_S)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert report in ran.stderr


def test_a_python_that_ignores_the_environment_is_an_error(program: Callable[[str], Path]) -> None:
    code = (
        f"import sys; sys.path[:0] = {[str(PACKAGE), *sys.path]!r}; from shmtree.cli.main import main; sys.exit(main())"
    )
    ran = subprocess.run(
        [sys.executable, "-E", "-c", code, "run", str(program(""))], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert ran.returncode == 1
    assert "without -I, -E and -S" in ran.stderr


def test_standard_input_and_output_are_those_of_the_program(program: Callable[[str], Path]) -> None:
    path = program("import sys; print(sys.stdin.read().upper())")
    ran = subprocess.run(command(str(path)), input="abc", capture_output=True, text=True, timeout=LIMIT_S)
    assert (ran.returncode, ran.stdout) == (0, "ABC\n")


def test_a_child_that_executes_a_new_interpreter_is_covered(run: Run) -> None:
    ran = run(
        """
        import subprocess, sys
        code = "import multiprocessing as m; q = m.Queue(); q.put(1); q.get(); print(type(q).__module__)"
        sys.exit(subprocess.run([sys.executable, "-c", code]).returncode)
        """
    )
    assert (ran.code, ran.out) == (0, "shmtree._run.queues\n")
    assert ran.rows("Queue")[0]["messages"] == 1


def test_a_spawned_child_is_covered_without_its_environment(run: Run) -> None:
    ran = run(
        """
        import multiprocessing as mp, os

        def work(connection):
            queue = mp.Queue()
            queue.put(1)
            connection.send((queue.get(), type(queue).__module__))

        if __name__ == "__main__":
            for name in ("PYTHONPATH", "SHMTREE_RUN"):
                del os.environ[name]
            here, there = mp.Pipe()
            process = mp.get_context("spawn").Process(target=work, args=(there,))
            process.start()
            print(here.recv())
            process.join()
        """,
        env={"PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])},
    )
    assert (ran.code, ran.out) == (0, "(1, 'shmtree._run.queues')\n"), ran.err
    assert {row["messages"] for row in ran.rows("Queue")} == {1}


@pytest.mark.parametrize("method", START_METHODS)
def test_program_may_change_its_directory_and_environment(run: Run, tmp_path: Path, method: str) -> None:
    if WITHOUT_GIL and method == "fork":
        pytest.skip(NOT_BESIDE_THREADS)
    ran = run(
        """
        import multiprocessing as mp, os, sys

        def work(queue, results):
            results.put((queue.get(), os.getcwd(), os.environ.get("MINE"), type(queue).__module__))

        if __name__ == "__main__":
            os.chdir("/")
            os.environ.clear()
            os.environ["MINE"] = "set"
            context = mp.get_context(sys.argv[1])
            queue, results = context.Queue(), context.Queue()
            process = context.Process(target=work, args=(queue, results))
            process.start()
            queue.put(1)
            print(*results.get())
            process.join()
        """,
        method,
        # A child without PYTHONPATH has to find shmtree, too.
        env={"PYTHONPATH": os.pathsep.join([str(PACKAGE), os.environ.get("PYTHONPATH", "")])},
    )
    assert (ran.code, ran.out) == (0, "1 / set shmtree._run.queues\n"), ran.err
    assert {row["place"] for row in ran.rows("Queue")} == {f"{tmp_path / 'program.py'}:12"}


def test_row_names_the_line_of_an_installed_program(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages"
    installed.mkdir()
    tool = """
        from concurrent.futures import ProcessPoolExecutor

        if __name__ == "__main__":
            with ProcessPoolExecutor(1) as executor:
                executor.submit(int).result()
    """
    (installed / "tool.py").write_text(textwrap.dedent(tool))
    report = tmp_path / "report.json"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", "")])}
    subprocess.run(command("--report", str(report), "-m", "tool"), env=env, timeout=LIMIT_S, check=True)
    rows = json.loads(report.read_text())["rows"]
    assert {row["place"] for row in rows} == {f"{installed / 'tool.py'}:5"}
    assert {row["via"].rpartition(":")[0][-19:] for row in rows} == {"/futures/process.py"}


def test_the_programs_own_sitecustomize_is_executed(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("VALUE = 5\nprint('own')\n")
    ran = run(
        "import sitecustomize; print(sitecustomize.VALUE, sitecustomize.__file__)",
        env={"PYTHONPATH": os.pathsep.join([str(folder), str(PACKAGE)])},
    )
    assert ran.out.splitlines()[-2:] == ["own", f"5 {folder / 'sitecustomize.py'}"]


def test_numpy_is_not_imported_before_the_first_queue(run: Run) -> None:
    ran = run(
        """
        import multiprocessing, multiprocessing.pool, concurrent.futures, sys
        print("numpy" in sys.modules)
        multiprocessing.Queue()
        print("numpy" in sys.modules)
        """
    )
    assert ran.out.split() == ["False", "True"]


def test_report_has_the_figures_of_a_killed_child_and_others(run: Run) -> None:
    ran = run(
        """
        import multiprocessing as mp, os, signal

        def work(queue, results):
            while (item := queue.get()) is not None:
                results.put(item)
            os.kill(os.getpid(), signal.SIGKILL)

        if __name__ == "__main__":
            queue = mp.Queue()
            results = mp.Queue()
            process = mp.Process(target=work, args=(queue, results))
            process.start()
            for number in range(50):
                queue.put(number)
                assert results.get() == number
            queue.put(None)
            process.join()
            print(process.exitcode)
        """
    )
    assert ran.out == "-9\n", ran.err
    assert [row["messages"] for row in sorted(ran.rows("Queue"), key=lambda row: row["place"])] == [51, 50]
    assert {row["processes"] for row in ran.rows("Queue")} == {2}


def test_isinstance_and_subclasses_work_as_with_standard_classes(run: Run) -> None:
    ran = run(
        """
        import abc
        import multiprocessing as mp
        from multiprocessing import connection, queues

        class Source(abc.ABC):
            @abc.abstractmethod
            def put(self, *arguments, **options): ...

        class Counting(queues.Queue, Source):
            def __init__(self, maxsize=0, *, ctx=None):
                super().__init__(maxsize, ctx=ctx or mp.get_context())
                self.count = 0

            def put(self, *arguments, **options):
                self.count += 1
                super().put(*arguments, **options)

        here, there = mp.Pipe()
        queue = Counting()
        queue.put_nowait(1)
        print(queue.get(), queue.count, isinstance(queue, queues.Queue), isinstance(mp.JoinableQueue(), queues.Queue))
        print(isinstance(here, connection.Connection), isinstance(mp.SimpleQueue(), queues.SimpleQueue))
        print(isinstance(mp.SimpleQueue(), queues.Queue), issubclass(queues.JoinableQueue, queues.Queue))
        """
    )
    assert ran.out.split() == ["1", "1", *["True"] * 4, "False", "True"], ran.err


def test_queues_made_by_the_classes_stay_standard_and_are_named(run: Run) -> None:
    ran = run(
        """
        import multiprocessing as mp
        from multiprocessing import queues

        class Peeking(queues.JoinableQueue):
            def waiting(self):
                return len(self._buffer)

        queue = Peeking(ctx=mp.get_context())
        queue.put(1)
        print(queue.get(), queue.waiting(), isinstance(queue, queues.Queue))
        queue.task_done()
        queue.join()
        print(type(queues.SimpleQueue(ctx=mp.get_context())).__module__)
        """
    )
    assert (ran.code, ran.out) == (0, "1 0 True\nmultiprocessing.queues\n"), ran.err
    notes = sorted((note["what"], note["where"].rpartition(os.sep)[2]) for note in ran.report["not_replaced"])
    assert notes == [("__main__.Peeking", "program.py:9"), ("multiprocessing.queues.SimpleQueue", "program.py:14")]


def test_queue_of_a_manager_stays_standard_and_is_named(run: Run) -> None:
    ran = run(
        """
        import multiprocessing as mp

        if __name__ == "__main__":
            with mp.Manager() as manager:
                queue = manager.Queue()
                queue.put(1)
                print(queue.get())
        """
    )
    assert (ran.code, ran.out) == (0, "1\n"), ran.err
    (note,) = ran.report["not_replaced"]
    assert note["what"] == "Manager().Queue"
    assert note["where"].endswith("program.py:6")


@pytest.mark.parametrize("options", [(), ("--profile",)])
@pytest.mark.parametrize("method", START_METHODS)
def test_pool_and_executor_have_a_row_for_tasks_and_results(run: Run, method: str, options: tuple[str, ...]) -> None:
    if WITHOUT_GIL and method == "fork":
        pytest.skip(NOT_BESIDE_THREADS)
    ran = run(
        """
        import multiprocessing as mp, os, sys
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        def double(number):
            return number * 2

        def fail(number):
            raise KeyError(number)

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            with context.Pool(2) as pool:
                print(sum(pool.map(double, range(10))))
            with ProcessPoolExecutor(2, mp_context=context) as executor:
                print(sum(executor.map(double, range(10))))
                print(repr(executor.submit(fail, 1).exception()))
                print(executor.submit(lambda: 1).exception() is not None)
                print(executor.submit(double, 4).result())
            try:
                with ProcessPoolExecutor(1, mp_context=context) as executor:
                    executor.submit(os._exit, 1).result()
            except BrokenProcessPool:
                print("broken")
        """,
        method,
        options=options,
    )
    assert ran.out.splitlines() == ["90", "90", "KeyError(1)", "True", "8", "broken"], ran.err
    kinds = {row["kind"] for row in ran.report["rows"]}
    assert kinds == {"Pool tasks", "Pool results", "Executor calls", "Executor results"}


def test_the_table_names_places_and_goes_to_standard_error(program: Callable[[str], Path], tmp_path: Path) -> None:
    path = program("import multiprocessing as mp\nqueue = mp.Queue()\nqueue.put(1)\nprint(queue.get())")
    ran = subprocess.run(command(str(path)), capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "1\n")
    summary, head, row = ran.stderr.splitlines()
    assert summary.startswith("shmtree run: ") and "1 process used" in summary
    assert head.split()[:3] == ["KIND", "CREATED", "AT"]
    assert row.split()[:4] == ["Queue", "program.py:2", "-", "1"]


def test_number_of_counter_rows_is_limited(run: Run) -> None:
    ran = run(
        """
        import multiprocessing as mp
        text = "\\n".join(f"q = mp.Queue(); q.put({number}); q.get()" for number in range(300))
        exec(compile(text, "many.py", "exec"))
        """
    )
    assert len(ran.report["rows"]) == 255
    (other,) = ran.rows("other")
    assert other["messages"] == other["objects"] == 300 - 254


def test_files_of_a_killed_run_are_removed_by_the_next(run: Run, program: Callable[[str], Path]) -> None:
    path = program("import os, signal; print(os.environ['SHMTREE_RUN'], os.getpid(), flush=True); signal.pause()")
    with subprocess.Popen(command(str(path)), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        directory, pid = process.stdout.readline().split()
        run("")
        assert Path(directory).is_dir()  # it still runs
        process.kill()
        os.kill(int(pid), signal.SIGKILL)
    run("")
    assert not Path(directory).exists()


def test_files_of_the_run_are_removed(run: Run) -> None:
    ran = run("import os; print(os.environ['SHMTREE_RUN'])")
    assert not Path(ran.out.strip()).exists()
