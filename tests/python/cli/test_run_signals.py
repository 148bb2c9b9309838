"""Signals under `shmtree run`: they reach the program, and the program decides on their effect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from run_programs import LIMIT_S, command
from terminals import pseudo_terminal

SLEEPER = """
    import signal, sys
    try:
        print("ready", flush=True)
        signal.pause()
    finally:
        print("cleaned up", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_run_passes_a_signal_on_and_ends_by_that_signal(program: Callable[[str], Path], number: signal.Signals) -> None:
    target = "os.kill(os.getpid(), 9)" if number == signal.SIGKILL else SLEEPER
    path = program("import os\n" + textwrap.dedent(target))
    with subprocess.Popen(command(str(path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        if number != signal.SIGKILL:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == -number
    assert f"killed by signal {number.value}" in err
    assert ("cleaned up" in out) == (number == signal.SIGINT)


def test_a_handler_of_the_program_decides_on_a_signal(program: Callable[[str], Path]) -> None:
    path = program(
        """
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        print("ready", flush=True)
        signal.pause()
        """
    )
    with subprocess.Popen(command(str(path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        process.communicate(timeout=LIMIT_S)
    assert process.returncode == 5


#: Starts a program in a session of its own, with the terminal argv[1].
WITH_TERMINAL = """
import os, sys
os.setsid()
os.close(os.open(sys.argv[1], os.O_RDWR))
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


def test_interrupt_from_the_terminal_reaches_all_processes_once(program: Callable[[str], Path]) -> None:
    path = program(
        """
        import multiprocessing as mp, queue, sys, time

        def work(items, ready):
            try:
                ready.put(None)
                while True:
                    try:
                        items.get(timeout=0.5)
                    except queue.Empty:
                        pass
            except KeyboardInterrupt:
                sys.exit(4)

        if __name__ == "__main__":
            items, ready = mp.Queue(), mp.Queue()
            process = mp.Process(target=work, args=(items, ready))
            process.start()
            ready.get()
            try:
                print("ready", flush=True)
                while True:
                    time.sleep(0.1)
            except KeyboardInterrupt:
                process.join()  # a second signal would interrupt it
                print(process.exitcode, flush=True)
                raise
        """
    )
    with pseudo_terminal() as (ours, theirs):
        start = [sys.executable, "-c", WITH_TERMINAL, os.ttyname(theirs), *command(str(path))[1:]]
        with subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            os.write(ours, b"\x03")
            out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (-signal.SIGINT, "4\n"), err
    assert "KeyboardInterrupt" in err and "killed by signal 2" in err
