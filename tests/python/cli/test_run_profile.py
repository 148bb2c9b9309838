"""`shmtree run --profile`: the standard queues and pipes are measured, and it estimates what shmtree would save."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from forks import NOT_BESIDE_THREADS, WITHOUT_GIL
from run_programs import LIMIT_S, Run, command
from starts import START_METHODS

#: Sends arrays to a child and back through each kind, and prints the modules of the classes.
EXCHANGE = """
    import multiprocessing as mp, sys
    import numpy as np

    def work(queue, joinable, simple, connection):
        for _ in range(20):
            connection.send(queue.get() + joinable.get() + simple.get())
            joinable.task_done()

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
        print({type(each).__module__ for each in (queue, joinable, simple)}, type(here).__module__)
        process.join()
"""


@pytest.mark.parametrize("method", START_METHODS)
def test_profile_leaves_the_standard_classes_and_times_pickling(run: Run, method: str) -> None:
    if WITHOUT_GIL and method == "fork":
        pytest.skip(NOT_BESIDE_THREADS)
    ran = run(EXCHANGE, method, options=("--profile",))

    assert (ran.code, ran.out) == (0, "{'multiprocessing.queues'} multiprocessing.connection\n"), ran.err
    assert ran.report["not_replaced"] == []
    for kind in ("Queue", "JoinableQueue", "SimpleQueue", "Pipe"):
        (row,) = ran.rows(kind)
        assert (row["messages"], row["processes"]) == (20, 2)
        assert row["bytes"] == pytest.approx(20 * 8000, rel=0.1)
        assert row["pickle_s"] > 0
        assert row["saved_cpu_s"] is not None
    assert set(ran.report["savings"]) == {"seconds", "cpu_seconds"}


@pytest.mark.parametrize("class_line", ["class Sample:", "@dataclass(init=False)\n    class Sample:"])
def test_arrays_in_objects_of_user_classes_save_time(run: Run, class_line: str) -> None:
    ran = run(
        f"""
    import multiprocessing as mp
    from dataclasses import dataclass
    import numpy as np

    {class_line}
        def __init__(self):
            self.matrix = np.ones((1000, 1000))

    if __name__ == "__main__":
        queue = mp.JoinableQueue()
        for _ in range(40):
            queue.put(Sample())
            queue.get()
            queue.task_done()
    """,
        options=("--profile",),
    )
    (row,) = ran.rows("JoinableQueue")
    assert row["saved_cpu_s"] > row["cpu_s"] / 2, row


def test_a_program_without_queues_gains_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        command("--profile", "-c", "sum(range(1000))"),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
        check=True,
    )
    assert ran.stderr.splitlines()[-1].startswith("Nothing is gained. With shmtree, the program would take about ")


@pytest.mark.parametrize("options", [(), ("--profile",)])
def test_child_without_the_folder_of_the_run_exchanges_messages(run: Run, options: tuple[str, ...]) -> None:
    ran = run(
        """
        import multiprocessing as mp, os, shutil

        def work(queue, connection):
            connection.send(queue.get() + 1)
            print(queue.get(), flush=True)

        if __name__ == "__main__":
            context = mp.get_context("spawn")
            queue, (here, there) = context.Queue(), context.Pipe()
            shutil.rmtree(os.environ["SHMTREE_RUN"])  # as for a process with another root, or after the command's end
            process = context.Process(target=work, args=(queue, there))
            process.start()
            queue.put(1)
            print(here.recv(), flush=True)
            queue.put("done")
            process.join()
            print(process.exitcode)
        """,
        options=options,
    )
    assert (ran.code, ran.out) == (0, "2\ndone\n0\n"), ran.err


@pytest.mark.parametrize("options", [(), ("--profile",)])
@pytest.mark.parametrize("method", START_METHODS)
def test_child_of_another_user_exchanges_messages(run: Run, method: str, options: tuple[str, ...]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can run processes of other users")
    if WITHOUT_GIL and method == "fork":
        pytest.skip(NOT_BESIDE_THREADS)
    ran = run(
        """
        import multiprocessing as mp, os, sys

        def work(queue, results):
            os.setuid(65534)
            for _ in range(100):
                results.put(queue.get())

        if __name__ == "__main__":
            context = mp.get_context(sys.argv[1])
            queue, results = context.Queue(), context.Queue()
            process = context.Process(target=work, args=(queue, results))
            process.start()
            for number in range(100):
                queue.put([number] * number)
            print(sum(len(results.get()) for _ in range(100)))
            process.join()
            print(process.exitcode)
        """,
        method,
        options=options,
    )
    assert (ran.code, ran.out) == (0, "4950\n0\n"), ran.err


@pytest.mark.parametrize("options", [(), ("--profile",)])
def test_daemon_that_outlives_the_command_goes_on(tmp_path: Path, options: tuple[str, ...]) -> None:
    program = tmp_path / "daemon.py"
    program.write_text(
        """
import multiprocessing as mp, os, sys

def work(queue, results):
    results.put(queue.get() + 1)

if __name__ == "__main__":
    os.mkfifo("over")
    if os.fork() == 0:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        queue, results = mp.Queue(), mp.Queue()
        queue.put(1)
        before = queue.get()
        open("over").read()
        context = mp.get_context("spawn")
        late, later = context.Queue(), context.Queue()
        process = context.Process(target=work, args=(late, later))
        process.start()
        late.put(before)
        answer = later.get()
        process.join()
        os.mkfifo("answer.part")
        os.rename("answer.part", "answer")
        with open("answer", "w") as out:
            print(answer, process.exitcode, file=out)
"""
    )
    subprocess.run(command(*options, program.name), timeout=LIMIT_S, cwd=tmp_path, check=True)
    (tmp_path / "over").open("w").close()
    waiting = "import os, time\nwhile not os.path.exists('answer'): time.sleep(0.01)\nprint(open('answer').read())"
    ran = subprocess.run(
        ["python3", "-c", waiting], capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path, check=True
    )
    assert ran.stdout.split() == ["2", "0"]
