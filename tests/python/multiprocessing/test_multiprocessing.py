"""`shmtree.multiprocessing` is `multiprocessing` with our queues: contexts, pools, executors, logging, submodules."""

from __future__ import annotations

import contextlib
import importlib
import logging
import logging.config
import logging.handlers
import multiprocessing as standard
import os
import pickle
import pkgutil
import queue
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.pool import MaybeEncodingError
from typing import Any

import pool_tasks
import pytest
from forks import NOT_BESIDE_THREADS, WITHOUT_GIL
from starts import START_METHODS

import shmtree
from shmtree import multiprocessing as mp

QUEUES = {"Queue": shmtree.Queue, "JoinableQueue": shmtree.JoinableQueue, "SimpleQueue": shmtree.SimpleQueue}
CONTEXTS = {
    "fork": standard.context.ForkContext,
    "spawn": standard.context.SpawnContext,
    "forkserver": standard.context.ForkServerContext,
}

#: Seconds after which a call counts as hung. No passing test waits for that long.
SOON = 60


@pytest.fixture
def start_method() -> Iterator[None]:
    """Restores the start method after the test."""
    before = standard.get_start_method(allow_none=True)
    yield
    standard.set_start_method(before, force=True)


@pytest.fixture(params=START_METHODS)
def context(request: pytest.FixtureRequest) -> Any:
    return mp.get_context(request.param)


@pytest.fixture
def replaced(context: Any) -> None:
    """Skips pools that start workers while their own threads run, unless that is safe here."""
    if WITHOUT_GIL and context.get_start_method() == "fork":
        pytest.skip(NOT_BESIDE_THREADS)


# ---------------------------------------------------------------- names and submodules


def test_every_public_name_of_the_standard_module_exists():
    assert mp.__all__ == standard.__all__
    public = {name for name in vars(standard) if not name.startswith("_")}
    assert public - set(vars(mp)) == set()


def test_other_names_are_those_of_the_standard_module():
    for name in ("Process", "current_process", "TimeoutError", "AuthenticationError", "reducer"):
        assert getattr(mp, name) is getattr(standard, name)


@pytest.mark.parametrize("name", QUEUES)
def test_module_and_contexts_create_shmtree_queues(name):
    assert getattr(mp.queues, name) is QUEUES[name]
    for maker in (mp, mp.get_context(), *map(mp.get_context, START_METHODS)):
        assert type(getattr(maker, name)()) is QUEUES[name]


def test_queue_constructors_apply_maxsize():
    for limited in (mp.get_context("spawn").Queue(1), mp.JoinableQueue(maxsize=1)):
        limited.put_nowait("fits")
        with pytest.raises(queue.Full):
            limited.put_nowait("does not fit")


def test_the_standard_module_keeps_its_own_queues():
    with contextlib.closing(standard.Queue()) as theirs:
        assert type(theirs) is standard.queues.Queue


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(standard.__path__)])
def test_submodules_are_attributes_and_can_be_imported(name):
    try:
        theirs = importlib.import_module(f"multiprocessing.{name}")
    except ImportError:
        pytest.skip(f"multiprocessing.{name} is not for this system")

    ours = importlib.import_module(f"shmtree.multiprocessing.{name}")

    assert getattr(mp, name) is ours
    assert (ours is theirs) == (name != "queues")


def test_statements_that_import_from_submodules_work():
    from shmtree.multiprocessing.dummy.connection import Listener
    from shmtree.multiprocessing.pool import ThreadPool

    from shmtree.multiprocessing.queues import Empty, Full, JoinableQueue

    assert Listener is standard.dummy.connection.Listener
    assert ThreadPool is standard.pool.ThreadPool
    assert (Empty, Full) == (queue.Empty, queue.Full)
    assert JoinableQueue is shmtree.JoinableQueue


# ---------------------------------------------------------------- contexts and the start method


@pytest.mark.parametrize("method", START_METHODS)
def test_a_context_is_an_instance_of_the_standard_one(method):
    context = mp.get_context(method)
    assert isinstance(context, CONTEXTS[method])
    assert context.get_start_method() == method
    assert context.Process is standard.get_context(method).Process
    assert context is mp.get_context(method) is mp.get_context("fork").get_context(method) is context.get_context()


def test_a_concrete_context_keeps_its_start_method():
    with pytest.raises(ValueError, match="concrete context"):
        mp.get_context("spawn").set_start_method("fork")
    with pytest.raises(ValueError, match="cannot find context"):
        mp.get_context("none")
    with pytest.raises(ValueError, match="cannot find context"):
        mp.get_context("spawn").get_context("none")


@pytest.mark.parametrize("method", START_METHODS)
def test_both_modules_share_one_start_method(start_method, method):
    for setter in (mp, standard):
        standard.set_start_method(None, force=True)
        assert mp.get_start_method(allow_none=True) is None
        setter.set_start_method(method)
        assert mp.get_start_method() == standard.get_start_method() == method
        assert isinstance(mp.get_context(), CONTEXTS[method])
        for other in (mp, standard):
            with pytest.raises(RuntimeError, match="already been set"):
                other.set_start_method("fork")


def test_get_start_method_fixes_the_default_in_both_modules(start_method):
    mp.set_start_method(None, force=True)
    default = mp.get_start_method()
    assert standard.get_start_method(allow_none=True) == default
    assert mp.get_all_start_methods() == standard.get_all_start_methods()


def test_context_of_another_library_is_returned_unchanged(monkeypatch):
    class Theirs(standard.context.SpawnContext):
        _name = "theirs"

    theirs = Theirs()
    monkeypatch.setitem(standard.context._concrete_contexts, "theirs", theirs)
    assert mp.get_context("theirs") is theirs


def test_contexts_and_queue_factories_can_be_pickled():
    context = pickle.loads(pickle.dumps(mp.get_context("spawn")))
    assert context.get_start_method() == "spawn" and type(context.Queue()) is shmtree.Queue
    assert type(pickle.loads(pickle.dumps(mp.Queue))()) is shmtree.Queue


def test_children_have_the_start_method_and_our_queues(context):
    answers = context.SimpleQueue()
    process = context.Process(target=pool_tasks.start_method_and_queue, args=(answers,))
    process.start()
    process.join(SOON)
    assert answers.get(timeout=SOON) == (context.get_start_method(),) * 2 + ("shmtree",)


@pytest.mark.parametrize("method", START_METHODS)
def test_any_queue_works_under_any_start_method(context, method):
    answers = context.Queue()
    process = mp.get_context(method).Process(target=answers.put, args=("it works",))
    process.start()
    process.join(SOON)
    assert answers.get(timeout=SOON) == "it works"


# ---------------------------------------------------------------- pools


def test_pool_methods_return_correct_results(context):
    with context.Pool(2) as pool:
        numbers = range(50)
        squares = [n * n for n in numbers]
        assert pool.map(pool_tasks.square, numbers, chunksize=3) == squares
        assert list(pool.imap(pool_tasks.square, numbers)) == squares
        assert sorted(pool.imap_unordered(pool_tasks.square, numbers, chunksize=4)) == squares
        assert pool.starmap(divmod, [(7, 2), (9, 4)]) == [(3, 1), (2, 1)]
        assert pool.apply(pool_tasks.square, (7,)) == 49
        assert pool.apply_async(pool_tasks.square, (8,)).get(SOON) == 64
        pool.close()
        pool.join()


def test_pool_transfers_tasks_and_results_through_our_queues(context):
    with context.Pool(1) as pool:
        arrays = pool.map(pool_tasks.filled, range(4), chunksize=1)
        assert pool.map(pool_tasks.total, arrays, chunksize=1) == [0, 100_000, 200_000, 300_000]
        tasks, results = pool._inqueue.stats(), pool._outqueue.stats()
    assert tasks["put"] == tasks["received"] == 8
    assert results["put"] == results["received"] == 8


def test_pool_results_are_writable_arrays(context):
    with context.Pool(1) as pool:
        array = pool.apply(pool_tasks.filled, (1,))
        array += 1
        pool.close()
        pool.join()
    assert array.sum() == 200_000


def test_the_pool_of_the_module_has_our_queues(start_method):
    mp.set_start_method("spawn", force=True)
    with mp.Pool(1) as pool:
        assert pool.apply(pool_tasks.square, (5,)) == 25
        assert type(pool._outqueue) is shmtree.SimpleQueue


def test_exceptions_come_back_from_a_pool(context):
    with context.Pool(1) as pool:
        with pytest.raises(LookupError, match="no such thing"):
            pool.apply(pool_tasks.fail, ("no such thing",))
        with pytest.raises(MaybeEncodingError, match="it does not want to"):
            pool.apply(pool_tasks.unpicklable, (0,))
        with pytest.raises(RuntimeError, match="it does not want to"):
            pool.apply(pool_tasks.square, (pool_tasks.Unpicklable(),))
        assert pool.apply(pool_tasks.square, (3,)) == 9


@pytest.mark.usefixtures("replaced")
def test_pool_replaces_workers_after_maxtasksperchild(context):
    with context.Pool(2, maxtasksperchild=1) as pool:
        pids = pool.map(pool_tasks.pid_of, range(4), chunksize=1)
        pool.close()
        pool.join()
    assert len(set(pids)) == 4


def test_an_initializer_of_a_pool_gets_a_queue(context):
    queue = context.Queue()
    with context.Pool(2, pool_tasks.remember, (queue,)) as pool:
        assert pool.map(pool_tasks.put_remembered, range(20)) == [shmtree.Queue] * 20
    assert sorted(queue.get(timeout=SOON) for _ in range(20)) == list(range(20))


def test_terminate_ends_idle_and_blocked_workers(context):
    never = context.Event()
    pool = context.Pool(3, pool_tasks.remember, (never,))
    assert pool.apply(pool_tasks.square, (2,)) == 4
    pool.map_async(pool_tasks.wait_for_remembered, range(2), chunksize=1)
    workers = list(pool._pool)
    pool.terminate()
    pool.join()
    # A worker without a task may have received the request to finish before it was terminated.
    assert {worker.exitcode for worker in workers} <= {-signal.SIGTERM, 0}


@pytest.mark.usefixtures("replaced")
def test_pool_continues_after_a_worker_is_killed(context):
    with context.Pool(2) as pool:
        pool.apply_async(pool_tasks.kill_self, (0,))
        assert pool.map(pool_tasks.square, range(100), chunksize=1) == [n * n for n in range(100)]


@pytest.mark.usefixtures("replaced")
def test_pool_continues_after_an_idle_worker_is_killed(context):
    with context.Pool(1) as pool:
        worker = pool._pool[0]
        assert pool.apply(pool_tasks.pid_of, (0,)) == worker.pid
        os.kill(worker.pid, signal.SIGKILL)
        worker.join(SOON)
        assert pool.apply_async(pool_tasks.square, (6,)).get(SOON) == 36


# ---------------------------------------------------------------- executors


def test_executor_returns_results_through_our_queue(context):
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        arrays = list(executor.map(pool_tasks.filled, range(10)))
        stats = executor._result_queue.stats()
    assert [int(array[0]) for array in arrays] == list(range(10))
    assert stats["put"] == stats["received"] == 10


def test_exceptions_come_back_from_an_executor(context):
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        failing = executor.submit(pool_tasks.fail, "no such thing")
        refusing = executor.submit(pool_tasks.unpicklable, 0)
        working = executor.submit(pool_tasks.square, 4)
        with pytest.raises(LookupError, match="no such thing"):
            failing.result(SOON)
        with pytest.raises(RuntimeError, match="it does not want to"):
            refusing.result(SOON)
        assert working.result(SOON) == 16


def test_an_executor_whose_worker_is_killed_is_broken(context):
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        killed = executor.submit(pool_tasks.kill_self, 0)
        with pytest.raises(BrokenProcessPool):
            killed.result(SOON)
        with pytest.raises(BrokenProcessPool):
            executor.submit(pool_tasks.square, 4)


def test_an_initializer_of_an_executor_gets_a_queue(context):
    queue = context.JoinableQueue()
    with ProcessPoolExecutor(2, mp_context=context, initializer=pool_tasks.remember, initargs=(queue,)) as executor:
        assert set(executor.map(pool_tasks.put_remembered, range(10))) == {shmtree.JoinableQueue}
    assert sorted(queue.get(timeout=SOON) for _ in range(10)) == list(range(10))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="executors replace their workers since 3.11")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_executor_replaces_workers_after_max_tasks_per_child(method):
    with ProcessPoolExecutor(1, mp_context=mp.get_context(method), max_tasks_per_child=1) as executor:
        assert len(set(executor.map(pool_tasks.pid_of, range(3)))) == 3


# ---------------------------------------------------------------- logging


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_log_records_of_children_arrive_at_a_listener(context, kind):
    queue = getattr(context, kind)()
    records = Records()
    listener = logging.handlers.QueueListener(queue, records)
    listener.start()
    processes = [
        context.Process(target=pool_tasks.log_and_leave, args=(queue, 3), name=name) for name in ("first", "second")
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SOON)
    listener.stop()
    assert sorted(records.messages) == [f"record {n} of {name}" for n in range(3) for name in ("first", "second")]


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue", "SimpleQueue"])
def test_a_configured_handler_logs_to_our_queue(kind):
    given = records = getattr(mp, kind)()
    handler = {"class": "logging.handlers.QueueHandler", "queue": given}
    if sys.version_info[:2] == (3, 12):  # 3.12 also asks for handlers behind the queue
        handler["handlers"] = ["none"]
    handlers = {"none": {"class": "logging.NullHandler"}, "queue": handler}
    config = {"handlers": handlers, "loggers": {"shmtree-test-configured": {"handlers": ["queue"]}}}
    logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, **config})
    logger = logging.getLogger("shmtree-test-configured")
    logger.error("configured")
    logger.handlers.clear()
    assert records.get(timeout=SOON).getMessage() == "configured"
