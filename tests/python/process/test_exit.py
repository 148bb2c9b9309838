"""A program exits at once, silently and with its own exit code, whatever it was doing with channels."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import pytest
from starts import START_METHODS

PROLOGUE = """
import asyncio, atexit, multiprocessing as mp, os, sys, threading, time
import numpy as np
import shmtree

sender, receiver = shmtree.create_pair(capacity=1)
full, other_end = shmtree.create_pair(capacity=1)
full.put("no more room")
queue, full_queue = shmtree.JoinableQueue(), shmtree.Queue(1)
full_queue.put("no more room")
small = shmtree.Arena(4 << 20).Queue()

def ready():
    pass

async def within(function, *arguments):
    ready()  # only now does asyncio have its own way with SIGINT
    await function(*arguments)

def daemon(function, *arguments):
    started = threading.Event()
    def run():
        started.set()
        function(*arguments)
    threading.Thread(target=run, daemon=True).start()
    started.wait()
"""


def run(program: str, *options: str) -> tuple[int, str, str]:
    source = PROLOGUE + textwrap.dedent(program)
    ran = subprocess.run([sys.executable, *options, "-c", source], capture_output=True, text=True, timeout=60)
    return ran.returncode, ran.stdout, ran.stderr


KEPT = {
    "a view": "sender.put(np.ones(100_000)); kept = receiver.get()",
    "an array for a put": "kept = sender.new_zeros(100_000)",
    "a shared array": "kept = shmtree.Arena(8 << 20).array((1000,))",
    "a delivery": "sender.put(np.ones(100_000)); kept = receiver.take()",
    "a view in a cycle": "sender.put(np.ones(100_000)); kept = [receiver.get()]; kept.append(kept)",
    "a view in a frame": "kept = shmtree.unpack(shmtree.pack(np.ones(100_000)))",
    "an iterator": "kept = iter(receiver)",
    "a descriptor": "kept = receiver.fileno()",
    "a half of a queue": "kept = queue._reader, queue._reader.fileno(), queue._rlock.acquire()",
    "a full queue": "kept = full_queue; kept.close(); kept.join_thread()",
}


@pytest.mark.guarantee("silent-exit")
@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT.keys())
def test_program_exits_silently_with_objects_alive(kept):
    assert run(kept, "-X", "dev") == (0, "", "")


WAITS = {
    "get": "receiver.get()",
    "get with a timeout": "receiver.get(timeout=50)",
    "get_many": "receiver.get_many(3)",
    "take": "receiver.take()",
    "iteration": "list(receiver)",
    "put": "full.put(1)",
    "put_many": "full.put_many(range(3))",
    "wait_for_all_ack": "full.wait_for_all_ack()",
    "wait_for_ack": "full.wait_for_ack(0)",
    "wait": "shmtree.wait([receiver])",
    "get_async": "asyncio.run(within(receiver.get_async))",
    "get of a queue": "queue.get()",
    "put of a queue": "full_queue.put(1)",
    "put_async of a queue": "asyncio.run(within(full_queue.put_async, 1))",
    "iteration of a queue": "list(queue)",
    "join of a queue": "queue.put(1); queue.join()",
    "poll of a queue": "queue._reader.poll(None)",
    "wait of connections": "from multiprocessing.connection import wait; wait([queue._reader])",
    "a put that waits for bytes": "[small.put(b'x' * 3_000_000) for _ in range(3)]",
}


@pytest.mark.guarantee("silent-exit")
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_program_exits_while_daemon_threads_wait(wait):
    program = f"def forever():\n    {wait}\ndaemon(forever)\ndaemon(forever)\nprint('done')\nsys.exit(7)"
    assert run(program) == (7, "done\n", "")


CODE_OF_MESSAGES = """
import time

def forever():
    began.set()
    while True:
        time.sleep(0)  # lets the interpreter shut down, and finds out that it did

class Pickled:
    def __reduce__(self): forever()
class Loaded:
    def __reduce__(self): return forever, ()
class Registered:
    pass
class Items:
    def __iter__(self):
        forever()
        yield

began = threading.Event()
sent, taken = shmtree.create_pair()
"""
CODE = {
    "a pickled object": "shmtree.pack(Pickled())",
    "a pickle that is loaded": "shmtree.unpack(shmtree.pack(Loaded()), allow_pickle=True)",
    "a pickle that is received": "sent.put(Loaded()); taken.get()",
    "items for a Broadcast": "shmtree.Broadcast().put_many(Items())",
    "items for a queue": "queue.put_many(Items())",
    "a registered class": "shmtree.register(Registered, lambda _: forever(), id); shmtree.pack(Registered())",
    "a registered class that is loaded": "shmtree.register(Registered, lambda _: 0, lambda _: forever());"
    " shmtree.unpack(shmtree.pack(Registered()))",
}


@pytest.mark.guarantee("silent-exit")
@pytest.mark.parametrize("code", CODE.values(), ids=CODE.keys())
def test_program_exits_while_a_thread_runs_code_of_a_message(code):
    program = f"def work():\n    {code}\ndaemon(work)\nbegan.wait()\nprint('done')\nsys.exit(7)"
    assert run(CODE_OF_MESSAGES + program) == (7, "done\n", "")


@pytest.mark.guarantee("silent-exit")
@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS.keys())
def test_ctrl_c_ends_a_waiting_program(wait):
    # If the test runner was started with SIGINT ignored, Python keeps that setting.
    program = f"""
def forever():
    {wait}
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
def ready():
    print("ready", flush=True)
{"" if "within" in wait else "ready()"}
forever()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", PROLOGUE + program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "ready\n"
    while child.poll() is None:  # a first signal that arrives before the wait ends the process as well
        child.send_signal(signal.SIGINT)
        try:
            child.wait(30)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
    out, errors = child.communicate()
    assert (child.returncode, out) == (-signal.SIGINT, "")
    lines = errors.strip().splitlines()
    assert lines[0].startswith("Traceback") and lines[-1] == "KeyboardInterrupt"


POOL = """
from shmtree import multiprocessing as mp
import os, signal, time

def sleep(seconds):
    os.write(1, b"at work\\n")  # whole: another writes at the same time
    time.sleep(seconds)

def quiet():
    signal.signal(signal.SIGINT, signal.SIG_IGN)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with mp.get_context("fork").Pool(2, quiet) as pool:
        pool.map(sleep, [100, 100])
"""


def test_ctrl_c_ends_a_program_that_waits_for_a_pool():
    child = subprocess.Popen(
        [sys.executable, "-c", POOL],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert [child.stdout.readline() for _ in range(2)] == ["at work\n"] * 2
    os.killpg(child.pid, signal.SIGINT)
    out, errors = child.communicate(timeout=60)
    assert (child.returncode, out) == (-signal.SIGINT, "")
    assert errors.count("Traceback") == 1 and errors.rstrip().endswith("KeyboardInterrupt")


WORKER = """
import multiprocessing as mp, os, sys, threading
import numpy as np
import shmtree

def work(how, sender, receiver, queue, held):
    kept = receiver.get(timeout=60), queue.get(timeout=60), sender.new_zeros(50_000), held
    threading.Thread(target=receiver.get, daemon=True).start()
    sender.put("at work")
    queue.put("at work")
    if how == "exit":
        sys.exit(5)
    if how == "raise":
        raise ValueError("as it should")
    if how == "os._exit":
        os._exit(5)

if __name__ == "__main__":
    method, how, code = sys.argv[1], sys.argv[2], int(sys.argv[3])
    arena = shmtree.Arena(64 << 20)
    to_worker, from_parent = arena.create_pair()
    to_parent, from_worker = arena.create_pair()
    queue, held = arena.Queue(), arena.array((1000,))
    to_worker.put(np.ones(100_000))
    queue.put(np.ones(100_000))
    arguments = (how, to_parent, from_parent, queue, held)
    process = mp.get_context(method).Process(target=work, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == code, process.exitcode
    assert from_worker.get(timeout=60) == "at work" and queue.get(timeout=60) == "at work"
    try:
        from_worker.get(timeout=60)
    except (shmtree.ChannelClosed, shmtree.WorkerFailed) as error:
        print(type(error).__name__)
    del held, arguments, process
    print(arena.holders(), arena.stats()["participants"])
"""


@pytest.mark.parametrize("method", START_METHODS)
@pytest.mark.parametrize(("how", "code", "end"), [("exit", 5, "WorkerFailed"), ("return", 0, "ChannelClosed")])
def test_exiting_worker_releases_its_memory(method, how, code, end, tmp_path):
    assert run_worker(tmp_path, method, how, code) == (f"{end}\n[] 1\n", "")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_failing_worker_prints_only_its_own_error(method, tmp_path):
    out, errors = run_worker(tmp_path, method, "raise", 1)
    assert out == "WorkerFailed\n[] 1\n"
    assert errors.count("Traceback") == 1 and errors.endswith("ValueError: as it should\n")


def run_worker(folder, *arguments: object) -> tuple[str, str]:
    program = folder / "program.py"
    program.write_text(WORKER)
    command = [sys.executable, str(program), *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout, ran.stderr


def test_message_put_by_an_exit_function_arrives():
    program = """
        child = os.fork()
        if child == 0:
            atexit.register(sender.put, "put at exit")
            sys.exit(0)
        os.waitpid(child, 0)
        print(receiver.get(timeout=30))
        """
    assert run(program) == (0, "put at exit\n", "")


def test_exit_functions_that_run_after_ours_may_use_ends():
    program = """
        import atexit
        def late():
            sender.put("late")
            print(receiver.get(timeout=30), receiver.qsize())
        atexit.register(late)
        import shmtree
        sender, receiver = shmtree.create_pair()
        """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "late 0\n", "")


def test_non_daemon_thread_finishes_first():
    program = """
        def finish():
            threading.Event().wait(0.2)
            sender.put("finished")
            print(receiver.get(timeout=30))
        threading.Thread(target=finish).start()
        """
    assert run(program) == (0, "finished\n", "")


def test_object_collected_at_exit_may_use_its_ends():
    program = """
        class Last:
            def __init__(self): self.receiver, self.sender, self.view = receiver, sender, receiver.get()
            def __del__(self):
                try:
                    self.sender.put(1)
                except Exception:
                    pass
        sender.put(np.ones(100_000))
        last = Last()
        sys.modules["keeps it to the end"] = last
        """
    assert run(program) == (0, "", "")
