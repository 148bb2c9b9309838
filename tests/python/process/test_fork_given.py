"""Ends to which a forked process attaches: the ends that are passed to it, and the ends that it uses."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing as standard
import os
import queue
import signal
import sys
import threading
import time
import types
import weakref
from pathlib import Path
from typing import Any

import forks
import numpy as np
import pytest

import shmtree
from shmtree import multiprocessing as mp

sys.path.insert(0, str(Path(__file__).parents[2]))
import forked_programs

FORK = standard.get_context("fork")

WAYS: dict[str, Any] = {}


def way(make: Any) -> Any:
    """Registers a way to give a sender to a process. `make` returns the process, which reports its start and stays."""
    WAYS[make.__name__] = make
    return make


def stay(told: Any, *_ends: Any, **_more: Any) -> None:
    """Reports that it has started, and runs until its parent exits."""
    parent = os.getppid()
    told.send("here")
    while os.getppid() == parent:
        time.sleep(0.05)


class Holder:
    """Has an end deep inside. Every special method exits the process, so that a search must call none."""

    def __init__(self, end: Any) -> None:
        self.__dict__["inside"] = [({"end": [end]},)]

    def __getattr__(self, name: str) -> Any:
        os._exit(77)

    def __eq__(self, other: object) -> bool:
        os._exit(77)

    def __hash__(self) -> int:
        os._exit(77)


class Slots:
    __slots__ = ("__weakref__", "end", "told")

    def __init__(self, told: Any, end: Any) -> None:
        self.told, self.end = told, end

    def run(self) -> None:
        stay(self.told)

    def __call__(self) -> None:
        stay(self.told)


class Worker(FORK.Process):  # type: ignore[name-defined, misc]
    def __init__(self, told: Any, end: Any) -> None:
        super().__init__()
        self.told, self.end = told, end

    def run(self) -> None:
        stay(self.told)


kept: list[Any] = []


def module_of(told: Any, end: Any, code: str) -> Any:
    module = types.ModuleType("a_program")
    vars(module).update(told=told, end=end, stay=stay, decorator=contextlib.contextmanager)
    exec(code, vars(module))
    return module


@way
def an_argument(told: Any, end: Any) -> Any:
    return FORK.Process(target=stay, args=(told, end))


@way
def a_keyword(told: Any, end: Any) -> Any:
    return FORK.Process(target=stay, args=(told,), kwargs={"end": end})


@way
def deep_in_an_argument(told: Any, end: Any) -> Any:
    return FORK.Process(target=stay, args=(told, Holder(end)))


@way
def a_connection(told: Any, end: Any) -> Any:
    return FORK.Process(target=stay, args=(told, shmtree.multiprocessing.Pipe, _connection(end)))


def _connection(end: Any) -> Any:
    from shmtree._ipc.pipe import Connection

    return Connection._of(None, end)


@way
def a_closure(told: Any, end: Any) -> Any:
    return FORK.Process(target=lambda: stay(told, end))


@way
def a_closure_within_a_closure(told: Any, end: Any) -> Any:
    def outer() -> None:
        def inner() -> None:
            stay(told, end)

        inner()

    return FORK.Process(target=outer)


@way
def a_default(told: Any, end: Any) -> Any:
    def run(*, end: Any = end) -> None:
        stay(told, end)

    return FORK.Process(target=run)


@way
def a_partial(told: Any, end: Any) -> Any:
    return FORK.Process(target=functools.partial(stay, told, end))


@way
def a_bound_method(told: Any, end: Any) -> Any:
    return FORK.Process(target=Slots(told, end).run)


@way
def a_callable_object(told: Any, end: Any) -> Any:
    return FORK.Process(target=Slots(told, end))


@way
def an_attribute_of_the_process(told: Any, end: Any) -> Any:
    return Worker(told, end)


@way
def an_attribute_of_its_class(told: Any, end: Any) -> Any:
    return type("WithEnd", (Worker,), {"shared": end, "__module__": __name__})(told, None)


@way
def a_global(told: Any, end: Any) -> Any:
    return FORK.Process(target=module_of(told, end, "def run():\n    stay(told, end)").run)


@way
def a_global_that_another_function_names(told: Any, end: Any) -> Any:
    code = """def run():
    first()
def first():
    second()
def second():
    stay(told)
    return [end for _ in ()]
"""
    return FORK.Process(target=module_of(told, end, code).run)


@way
def a_global_of_a_module_that_is_named(told: Any, end: Any) -> Any:
    module = module_of(told, None, "def run():\n    stay(told)\n    return config.inner.chosen")
    module.config = types.ModuleType("config")
    module.config.inner = types.ModuleType("config.inner")
    module.config.inner.chosen = end
    return FORK.Process(target=module.run)


@way
def an_import_in_the_function(told: Any, end: Any) -> Any:
    module = module_of(
        told, None, "def run():\n    stay(told)\n    import config_of_a_program as c\n    return c.chosen"
    )
    sys.modules["config_of_a_program"] = types.ModuleType("config_of_a_program")
    sys.modules["config_of_a_program"].chosen = end
    return FORK.Process(target=module.run)


@way
def an_import_from_the_own_package(told: Any, end: Any) -> Any:
    module = module_of(told, None, "def run():\n    stay(told)\n    from ..config import chosen\n    return chosen")
    module.__package__ = "a_package.inner"
    sys.modules["a_package.config"] = types.ModuleType("a_package.config")
    sys.modules["a_package.config"].chosen = end
    return FORK.Process(target=module.run)


@way
def a_function_in_a_decorator_of_a_library(told: Any, end: Any) -> Any:
    module = module_of(told, end, "@decorator\ndef other():\n    return end\ndef run():\n    stay(told)\n    other()")
    return FORK.Process(target=module.run)


@way
def an_array_of_objects(told: Any, end: Any) -> Any:
    return FORK.Process(target=stay, args=(told, np.array([[None, None], [None, {"end": end}]], dtype=object)[:, 1:]))


@way
def a_weak_reference(told: Any, end: Any) -> Any:
    kept.append(Slots(told, end))
    return FORK.Process(target=stay, args=(told, weakref.ref(kept[-1])))


@way
def a_module_as_an_argument(told: Any, end: Any) -> Any:
    return FORK.Process(target=stay, args=(told, module_of(told, end, "")))


@way
def a_function_of_two_modules(told: Any, end: Any) -> Any:
    """Two functions with the same code and different globals."""
    code = "def run():\n    stay(told)\n    return end, other()"
    inner = module_of(told, end, code).run
    outer = module_of(told, None, "")
    outer.other = inner
    return FORK.Process(target=types.FunctionType(inner.__code__, vars(outer)))


@way
def a_global_that_a_method_names(told: Any, end: Any) -> Any:
    code = """class Task:
    @staticmethod
    def other():
        return end
    def run(self):
        stay(told)
        return self.other()
"""
    return FORK.Process(target=module_of(told, end, code).Task().run)


@way
def a_local_of_a_generator(told: Any, end: Any) -> Any:
    def generate() -> Any:
        yield 1
        yield end

    made = generate()
    next(made)
    return FORK.Process(target=stay, args=(told, made))


@pytest.fixture
def started():
    """Returns a function that starts a process and waits for its report. The process is killed after the test."""
    processes = []

    def start(make: Any, end: Any) -> Any:
        ours, theirs = standard.Pipe()
        process = make(theirs, end)
        process.start()
        processes.append(process)
        theirs.close()
        assert ours.recv() == "here"
        return process

    yield start
    for process in processes:
        process.kill()
        process.join()


def senders(receiver: shmtree.Receiver) -> int:
    return int(receiver.stats()["senders"])


@pytest.mark.guarantee("multiprocessing-fork")
@pytest.mark.parametrize("make", WAYS.values(), ids=WAYS)
def test_forked_process_attaches_only_to_the_ends_it_was_given(arena, started, make):
    given, receiver = arena.create_pair()
    other, of_other = arena.create_pair()
    queue_of_others = shmtree.Queue(arena=arena)
    started(make, given)
    assert senders(receiver) == 2
    assert senders(of_other) == 1
    assert queue_of_others.stats()["receivers"] == 1
    other.close()
    with pytest.raises(shmtree.ChannelClosed):
        of_other.get(timeout=60)


@pytest.mark.parametrize(
    "code",
    [
        "def run():\n    stay(told)\n    return stay.end, stay.end()",
        "def main():\n    return end\ndef run():\n    stay(told)",
    ],
    ids=["attributes of the same name", "a function that the target does not name"],
)
def test_end_that_the_target_cannot_reach_is_not_given(arena, started, code):
    given, receiver = arena.create_pair()
    started(lambda told, end: FORK.Process(target=module_of(told, end, code).run), given)
    assert senders(receiver) == 1


def start_in_package(started: Any, package: str, end: Any = None) -> None:
    """Starts a process with a target in an installed package. Its code names `end`."""
    module = module_of(None, end, "def run(told):\n    stay(told)\n    return end")
    vars(module).update(__name__=f"{package}.workers", __file__=f"/site-packages/{package}/workers.py")
    started(lambda told, _: FORK.Process(target=module.run, args=(told,)), None)


@pytest.mark.parametrize(("package", "attached"), [("a_library", 2), ("torch", 1)])
def test_search_follows_the_package_of_the_target_except_torch(arena, started, package, attached):
    given, receiver = arena.create_pair()
    start_in_package(started, package, given)
    assert senders(receiver) == attached


@pytest.mark.parametrize(
    ("module", "variable"),
    [
        ("torch.utils.data._utils.collate", "default_collate_fn_map"),
        ("torch.nn.modules.module", "_global_forward_hooks"),
    ],
)
def test_search_follows_functions_that_are_registered_with_torch(arena, started, monkeypatch, module, variable):
    given, receiver = arena.create_pair()
    registry = types.ModuleType(module)
    vars(registry)[variable] = {Slots: module_of(None, given, "def collate(batch):\n    return end").collate}
    monkeypatch.setitem(sys.modules, module, registry)
    start_in_package(started, "torch")
    assert senders(receiver) == 2


def test_process_with_too_much_to_search_attaches_to_all_ends(arena, started):
    _, receiver = arena.create_pair()
    many = [[[i] for i in range(1000)] for _ in range(1200)]
    started(lambda told, end: FORK.Process(target=stay, args=(told, [many[:600], many[600:]])), None)
    assert senders(receiver) == 2


def large(kind: str, item: Any) -> Any:
    """Returns a container of 300,000 lists, and `item` in the middle."""
    items = [[{"label": i}, [i]] for i in range(300_000)]
    items[len(items) // 2] = item
    return {"list": list, "tuple": tuple, "dict": lambda each: dict(enumerate(each))}[kind](items)


@pytest.mark.guarantee("multiprocessing-fork")
@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_large_data_does_not_attach_a_process_to_ends(arena, started, kind):
    _, receiver = arena.create_pair()
    data = [large(kind, None) for _ in range(8)]
    started(lambda told, end: FORK.Process(target=stay, args=(told, data)), None)
    assert senders(receiver) == 1


@pytest.mark.guarantee("multiprocessing-fork")
@pytest.mark.parametrize("kind", ["list", "tuple", "dict"])
def test_search_finds_an_end_among_thousands_of_like_items(arena, started, kind):
    given, receiver = arena.create_pair()
    other, _ = arena.create_pair()
    items = [("worker", {"end": other}) for _ in range(5000)]
    items[1234] = ("worker", {"end": given})
    build: Any = {"list": list, "tuple": tuple, "dict": lambda each: dict(enumerate(each))}[kind]
    started(lambda told, end: FORK.Process(target=stay, args=(told, build(items))), given)
    assert senders(receiver) == 2


class Node:
    """Refers to its parent weakly: a search that follows weak references meets it again."""

    def __init__(self, parent: Any, depth: int) -> None:
        self.parent = None if parent is None else weakref.ref(parent)
        self.children = [Node(self, depth - 1) for _ in range(2)] if depth else []


def test_search_ends_among_weak_references_and_cycles(arena, started):
    _, receiver = arena.create_pair()
    cycle: list[Any] = [[{}]]
    cycle[0][0]["back"] = cycle
    started(lambda told, end: FORK.Process(target=stay, args=(told, Node(None, 12), cycle)), None)
    assert senders(receiver) == 1


def stop_now(*_: object) -> None:
    raise RuntimeError("deadline")


def test_signal_handler_that_raises_in_the_search_ends_the_child(arena, monkeypatch, started):
    from shmtree._ipc import inherited_ends

    find = inherited_ends._own_packages

    def interrupted(process: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return find(process)

    monkeypatch.setattr(inherited_ends, "_own_packages", interrupted)
    _pair = arena.create_pair()
    previous = signal.signal(signal.SIGTERM, stop_now)
    try:
        process = FORK.Process(target=signal.pause)
        process.start()
    finally:
        signal.signal(signal.SIGTERM, previous)
    try:
        process.join(60)
        assert process.exitcode == 1
    finally:
        process.kill()
        process.join()


def test_search_keeps_a_run_that_the_program_assigned(arena):
    _pair = arena.create_pair()
    ours, theirs = standard.Pipe()
    process = FORK.Process()
    process.run = lambda: theirs.send("run")  # type: ignore[method-assign]
    process.start()
    assert ours.recv() == "run"
    process.join(60)
    assert process.exitcode == 0


def end_of_pool() -> Any:
    return kept_by_pool.stats()["senders"]


kept_by_pool: Any = None


@pytest.mark.parametrize("context", [standard, mp], ids=["standard", "shmtree"])
def test_pool_workers_attach_to_all_ends_until_keep_only(arena, context):
    global kept_by_pool
    _sender, kept_by_pool = arena.create_pair()
    with context.get_context("fork").Pool(2) as pool:
        assert pool.apply(end_of_pool) == 3
    with context.get_context("fork").Pool(2, shmtree.keep_only) as pool:
        pool.map(abs, range(64))  # both workers have started
        assert pool.apply(end_of_pool) < 3
    kept_by_pool = None


def test_bare_fork_attaches_to_all_ends_until_keep_only(arena):
    given, receiver = arena.create_pair()
    _, of_other = arena.create_pair()
    ours, theirs = standard.Pipe()

    def child() -> None:
        theirs.send((senders(receiver), senders(of_other)))
        shmtree.keep_only(given)
        theirs.send((senders(receiver), senders(of_other)))
        shmtree.keep_only()
        theirs.send((senders(receiver), senders(of_other)))

    pid = forks.fork(child)
    assert [ours.recv() for _ in range(3)] == [(2, 2), (2, 1), (1, 1)]
    forks.join(pid)


def test_keep_only_accepts_a_connection_and_a_queue(arena):
    here, there = mp.Pipe()
    q = shmtree.Queue(arena=arena)

    def child() -> None:
        shmtree.keep_only(there, q)
        assert q.stats()["senders"] == 2
        there.send(q.get(timeout=60))

    pid = forks.fork(child)
    q.put("x")
    assert here.recv() == "x"
    forks.join(pid)


@pytest.mark.parametrize("wrong", [None, "sender", (), [1]])
def test_keep_only_rejects_other_objects(wrong):
    with pytest.raises(TypeError, match="keep_only.. takes Senders, Receivers, queues and Connections"):
        shmtree.keep_only(wrong)


def test_keep_only_changes_nothing_in_an_unforked_process(arena):
    _sender, receiver = arena.create_pair()
    shmtree.keep_only()
    assert senders(receiver) == 1


def run(function: Any, *arguments: Any) -> Any:
    """Forks a process with multiprocessing, and gives it the function and its arguments only through `fork_only`."""
    global fork_only
    fork_only = function, arguments
    process = FORK.Process(target=_run)
    process.start()
    return process


fork_only: Any = None


def _run() -> None:
    function, arguments = globals()["fork_only"]  # hidden from the search for ends in globals
    function(*arguments)


def finish(process: Any) -> None:
    process.join(120)
    assert process.exitcode == 0


@pytest.mark.guarantee("multiprocessing-fork")
def test_first_use_of_a_passive_end_attaches(arena):
    sender, receiver = arena.create_pair()
    sender.put(1)  # now this process counts as a sender, even when it receives
    process = run(sender.put, "x")
    assert [receiver.get(timeout=60), receiver.get(timeout=60)] == [1, "x"]
    finish(process)


def late(end: Any, name: str, told: Any) -> None:
    told.send("here")
    assert told.recv() == "go"
    try:
        getattr(end, name)(*(["x"] if name.startswith("put") else []))
    except shmtree.ChannelClosed as error:
        assert "inherited sender" in str(error), error
    else:
        raise AssertionError("the stream had ended")


@pytest.mark.guarantee("multiprocessing-fork")
@pytest.mark.parametrize("use", ["put", "put_many", "_fileno_to_put", "__reduce__"])
def test_first_use_after_the_end_of_the_stream_raises(arena, use):
    sender, receiver = arena.create_pair()
    ours, theirs = standard.Pipe()
    process = run(late, sender, use, theirs)
    assert ours.recv() == "here"
    sender.close()
    with pytest.raises(shmtree.ChannelClosed):
        receiver.get(timeout=60)
    ours.send("go")
    finish(process)


def receive_late(receiver: Any, told: Any) -> None:
    told.send("here")
    assert told.recv() == "go"
    assert list(receiver) == [1, 2]


def test_late_receiver_gets_queued_messages_after_others_left(arena):
    sender, receiver = arena.create_pair()
    ours, theirs = standard.Pipe()
    process = run(receive_late, receiver, theirs)
    assert ours.recv() == "here"
    sender.put_many([1, 2])
    sender.close()
    receiver.close()
    ours.send("go")
    finish(process)


def give_on(told: Any) -> None:
    """Passes to a child an end that this process itself was not given."""
    (end,) = globals()["fork_only"][1]
    child = FORK.Process(target=stay, args=(told, end))
    child.start()
    child.join()


def test_passive_end_can_be_given_to_a_child(arena, started):
    global fork_only
    sender, receiver = arena.create_pair()
    fork_only = None, (sender,)
    started(lambda told, end: FORK.Process(target=give_on, args=(told,)), None)
    assert senders(receiver) == 2  # this process and the grandchild


def test_keep_only_attaches_a_released_end_again(arena):
    sender, receiver = arena.create_pair()

    def child() -> None:
        shmtree.keep_only()
        assert senders(receiver) == 1
        shmtree.keep_only(sender)
        assert senders(receiver) == 2

    forks.join(forks.fork(child))


def test_death_of_a_process_without_the_end_is_not_reported(arena, started):
    sender, receiver = arena.create_pair()
    process = started(lambda told, end: FORK.Process(target=stay, args=(told,)), sender)
    process.kill()
    process.join()
    sender.close()
    with pytest.raises(shmtree.ChannelClosed):  # not PeerDied
        receiver.get(timeout=60)


def pids_of(name: str) -> list[tuple[int, ...]]:
    return [known.pids for known in shmtree.list_names() if known.name == name]


@pytest.mark.guarantee("multiprocessing-fork")
def test_process_without_the_end_does_not_keep_its_name(runtime_directory, name, started):
    sender, receiver = shmtree.create_pair(name=name)
    started(lambda told, end: FORK.Process(target=stay, args=(told,)), sender)
    assert pids_of(name) == [(os.getpid(),)]
    sender.close()
    receiver.close()
    assert pids_of(name) == []


def grandchild(told: Any) -> None:
    stay(told)


def child_with_child(told: Any) -> None:
    process = FORK.Process(target=grandchild, args=(told,))
    process.start()
    process.join()


def test_grandchildren_do_not_attach_to_ends_their_parent_lacks(arena, started):
    _sender, receiver = arena.create_pair()
    started(lambda told, end: FORK.Process(target=child_with_child, args=(told,)), None)
    assert senders(receiver) == 1


def relay(inputs: Any, outputs: Any) -> None:
    for message in inputs:
        outputs.put(message)


def three_stages_that_keep_everything(close: bool) -> None:
    pairs = [shmtree.create_pair() for _ in range(3)]
    children = [forks.fork(lambda: pairs[0][0].put_many(range(3)))]
    for i in (0, 1):
        children.append(forks.fork(lambda i=i: relay(pairs[i][1], pairs[i + 1][0])))
    if close:
        for sender, receiver in pairs[:2]:
            sender.close()
            receiver.close()
        pairs[2][0].close()
    assert [pairs[2][1].get(timeout=60) for _ in range(3)] == [0, 1, 2]
    with pytest.raises((shmtree.ChannelClosed, shmtree.PeerDied)):  # the children exit without closing
        pairs[2][1].get()
    for child in children:
        os.waitpid(child, 0)


@pytest.mark.guarantee("deadlock-ends")
@pytest.mark.skipif(forks.WITHOUT_GIL, reason="the threads of a Python without a GIL are not counted")
@pytest.mark.parametrize("close", [True, False], ids=["closed", "forgotten"])
def test_pipeline_whose_stages_wait_for_each_other_ends(close):
    forks.join(forks.fork_alone(lambda: three_stages_that_keep_everything(close)))


def wait_beside_a_thread() -> None:
    """No end is reported as unused while a thread may still put."""
    here, there = mp.Pipe()
    threading.Timer(1.5, there.send, ("late",)).start()
    assert here.recv() == "late"


def test_end_that_a_thread_may_still_use_is_not_reported():
    forks.join(forks.fork(wait_beside_a_thread))


def beat(status: Any, commands: Any) -> None:
    """Sends from a signal handler, while its only thread blocks forever."""
    signal.signal(signal.SIGALRM, lambda *_: status.put("alive"))
    signal.setitimer(signal.ITIMER_REAL, 1.5, 1.5)
    list(commands)


def test_process_with_a_signal_handler_may_still_send():
    def parent() -> None:
        (status, statuses), (_command, commands) = shmtree.create_pair(), shmtree.create_pair()
        process = FORK.Process(target=beat, args=(status, commands))
        process.start()
        status.close()
        assert [statuses.get(), statuses.get()] == ["alive", "alive"]
        process.kill()
        process.join()

    forks.join(forks.fork(parent))


def find_late(told: Any) -> None:
    """Uses an end that it was not given, some time after its start. Until then its parent keeps the stream open."""
    (end,) = globals()["fork_only"][1]
    time.sleep(1.5)
    end.put("late")


def test_process_that_may_reach_a_passive_end_may_still_send():
    global fork_only

    def parent() -> None:
        global fork_only
        sender, receiver = shmtree.create_pair()
        other, others = shmtree.create_pair()
        fork_only = None, (sender,)
        processes = [
            FORK.Process(target=find_late, args=(None,)),
            FORK.Process(target=list_all, args=(receiver, other)),
        ]
        for process in processes:
            process.start()
        other.close()
        assert others.get() == ["late"]
        sender.close()

    forks.join(forks.fork(parent))


def list_all(receiver: Any, results: Any) -> None:
    results.put([receiver.get()])


def test_fork_does_not_replace_a_killed_sender(arena, started):
    sender, receiver = arena.create_pair(on_peer_death="wait")
    worker = started(lambda told, end: FORK.Process(target=stay, args=(told, end)), sender)
    sender.close()
    worker.kill()
    worker.join()
    started(lambda told, end: FORK.Process(target=stay, args=(told,)), None)  # was not given the end
    with pytest.raises(queue.Empty):
        receiver.get(timeout=0.5)


@pytest.mark.guarantee("multiprocessing-fork")
def test_random_forking_programs_end_and_lose_nothing():
    assert forked_programs.run(list(range(40)), 6, verbose=False) == []
