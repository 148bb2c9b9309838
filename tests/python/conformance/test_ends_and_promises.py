"""One test for each promise, on every end that makes it. `promises.py` has the ends and the table."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import pathlib
import pickle
import queue
import re
import select
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import numpy as np
import promises
import pytest
from forks import fork, join, wait_until_all_sleep
from promises import ENDS, PROMISES, TITLES, End, cells, promising
from starts import START_METHODS

import shmtree
from shmtree._ipc import wake_hub

LONG_S = 60
WRONG_TIMEOUTS: list[tuple[Any, type[Exception], str]] = [
    ("soon", TypeError, "'soon'"),
    (object(), TypeError, "object"),
    (True, TypeError, "True"),  # a `block` in the wrong place
    (float("nan"), ValueError, "NaN"),
]
FOREVER = (None, float("inf"), 1e300, 10**400)


def each_end(promise: str | None = None) -> Any:
    """Parametrises a test over the ends that make the promise; None: over all ends. test_ray_promises.py has others."""
    return pytest.mark.ends(promise)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for mark in metafunc.definition.iter_markers("ends"):
        metafunc.parametrize("name", promising(*mark.args))


def full(end: End) -> tuple[Any, Any]:
    """Returns a writer and a reader with space for no other message."""
    writer, reader = end.make(**{end.capacity: 1})
    end.put(writer, "first", timeout=LONG_S)
    return writer, reader


# --- the table -------------------------------------------------------------------------------------------------------


def test_every_end_has_a_row_with_every_promise() -> None:
    assert {*(end.row for end in ENDS.values()), "shmtree.ray"} == set(PROMISES)  # see tests/python/ray
    assert all(len(cells(row)) == len(TITLES) for row in PROMISES)


def test_page_shows_the_table_of_promises() -> None:
    assert promises.page() in (pathlib.Path(__file__).parents[3] / "docs/concepts.md").read_text()


@pytest.mark.parametrize(
    ("name", "promise"), [(name, each) for name in ENDS for each in TITLES if name not in promising(each)]
)
def test_end_without_a_promise_refuses_the_call(name: str, promise: str) -> None:
    call, error = ENDS[name].lacks[promise]
    with pytest.raises(error):
        call(*ENDS[name].make())


# --- timeouts --------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("timeouts")
@each_end("get_timeout")
def test_get_raises_empty_after_its_timeout(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    for timeout in (0, -1, -0.5, -(10**400), 0.05):
        began = time.monotonic()
        with pytest.raises(queue.Empty):
            end.get(reader, timeout=timeout)
        assert time.monotonic() - began >= timeout
    for timeout in FOREVER:
        end.put(writer, 1, timeout=timeout)
        assert end.get(reader, timeout=timeout) == 1


@pytest.mark.guarantee("timeouts")
@each_end("put_timeout")
def test_put_raises_full_after_its_timeout_and_sends_nothing(name: str) -> None:
    end = ENDS[name]
    writer, reader = full(end)
    for timeout in (0, -1, 0.05):
        began = time.monotonic()
        with pytest.raises(queue.Full):
            end.put(writer, "second", timeout=timeout)
        assert time.monotonic() - began >= timeout
    assert end.get(reader, timeout=LONG_S) == "first"
    with pytest.raises(queue.Empty):
        end.get(reader, timeout=0)


@each_end("put_timeout")
def test_waiting_put_continues_when_space_frees(name: str) -> None:
    end = ENDS[name]
    writer, reader = full(end)
    thread = threading.Thread(target=end.put, args=(writer, "second"))
    thread.start()
    assert [end.get(reader, timeout=LONG_S) for _ in range(2)] == ["first", "second"]
    thread.join(LONG_S)


GIVEN: dict[str, Any] = {
    "obj": 1,
    "n": 1,
    "ticket": 0,
    "iterable": (),
    "buffer": bytes(shmtree.pack(1)),
    "name": "no-such-name",
}


def timed_calls(made: Any) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yields each option of a public method that is a time, and a call of the method with a value of it."""
    for name, method in inspect.getmembers(made, callable):
        if name.startswith("_") or name == "get_to" or not re.search("timeout|retry", method.__doc__ or ""):
            continue
        parameters = inspect.signature(method).parameters
        needed = {each: GIVEN[each] for each, p in parameters.items() if p.default is p.empty and each in GIVEN}
        for option in {"timeout", "retry"} & set(parameters):
            yield option, lambda value, m=method, o=option, n=needed: finish(m(**n, **{o: value}))


def finish(result: Any) -> Any:
    return asyncio.run(asyncio.wait_for(result, LONG_S)) if inspect.iscoroutine(result) else result


@pytest.mark.guarantee("timeouts")
@each_end()
@pytest.mark.parametrize(("value", "error", "said"), WRONG_TIMEOUTS, ids=[said for *_, said in WRONG_TIMEOUTS])
def test_every_call_refuses_a_wrong_timeout(name: str, value: Any, error: type[Exception], said: str) -> None:
    calls = [call for made in ENDS[name].make() for call in timed_calls(made)]
    assert calls
    for option, call in calls:
        with pytest.raises(error, match=f"{option} is .*{said}"):
            call(value)


@pytest.mark.parametrize("name", ["pair", "queue", "joinable queue", "simple queue", "broadcast"])
def test_block_false_ignores_the_timeout(name: str) -> None:
    writer, reader = ENDS[name].make()
    for call in (reader.get_nowait, lambda: reader.get(False), lambda: reader.get(False, 1000)):
        with pytest.raises(queue.Empty):
            call()
    if name in promising("put_timeout"):
        writer, _reader = full(ENDS[name])
        for call in (lambda: writer.put_nowait(1), lambda: writer.put(1, False), lambda: writer.put(1, False, 1000)):
            with pytest.raises(queue.Full):
                call()


@each_end("get_async")
def test_get_async_waits_or_raises_empty(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()

    async def main() -> Any:
        with pytest.raises(queue.Empty):
            await end.get_async(reader, timeout=0.01)
        waiting = asyncio.ensure_future(end.get_async(reader, timeout=LONG_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        cancelled = asyncio.ensure_future(end.get_async(reader))
        await asyncio.sleep(0)
        cancelled.cancel()
        end.put(writer, "x")
        return await waiting

    assert asyncio.run(main()) == "x"


@each_end("put_async")
def test_put_async_waits_or_raises_full(name: str) -> None:
    end = ENDS[name]
    limited = name in promising("put_timeout")
    writer, reader = full(end) if limited else end.make()

    async def main() -> list[Any]:
        if not limited:
            await writer.put_async("first")
        else:
            for timeout in (0, 0.01):
                with pytest.raises(queue.Full):
                    await writer.put_async("late", timeout=timeout)
            cancelled = asyncio.ensure_future(writer.put_async("cancelled"))
            await asyncio.sleep(0)
            cancelled.cancel()
        putting = asyncio.ensure_future(writer.put_async("second", timeout=LONG_S))
        await asyncio.sleep(0)
        return [await reader.get_async(timeout=LONG_S), await putting and None, await reader.get_async(timeout=LONG_S)]

    assert asyncio.run(main()) == ["first", None, "second"]
    assert reader.empty()


# --- close -----------------------------------------------------------------------------------------------------------


@each_end()
def test_with_block_closes_an_end_once_and_for_all(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    for made in (writer, reader) if writer is not reader else (writer,):
        assert not repr(made).endswith("closed>")
        with made as same:
            assert same is made
        made.close()
        assert repr(made) == f"<{type(made).__name__}, closed>"
        assert getattr(made, "closed", True)


CALLS_WITHOUT_ARGUMENTS = (
    "stats fileno has_space empty get_nowait wait_for_all_ack poll recv_bytes join task_done".split()
)


@each_end()
def test_calls_of_a_closed_end_raise_channel_closed(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    reader.close()
    writer.close()
    calls: list[Callable[[], Any]] = [lambda: end.put(writer, 1), lambda: end.get(reader)]
    for method in CALLS_WITHOUT_ARGUMENTS:
        calls += [getattr(made, method) for made in (writer, reader) if hasattr(type(made), method)]
    for attribute in ("capacity", "pending_acks", "version"):
        if hasattr(type(writer), attribute):
            calls.append(lambda attribute=attribute: getattr(writer, attribute))
    if name in promising("size") and writer is not reader:  # a closed queue keeps its size
        calls.append(reader.qsize)
    for made, method, arguments in (
        (reader, "get_many", (1,)),
        (reader, "take", ()),
        (writer, "put_nowait", (1,)),
        (writer, "put_many", ([1],)),
        (writer, "new_empty", (3,)),
        (writer, "call", (1,)),
    ):
        if hasattr(made, method):
            calls.append(functools.partial(getattr(made, method), *arguments))
    if name in promising("poll"):
        calls.append(lambda: shmtree.wait([reader], timeout=0))
    for call in calls:
        with pytest.raises(shmtree.ChannelClosed, match="closed"):
            call()
    if name in promising("loop"):
        assert list(reader) == []
    if name != "service":
        for made in (writer, reader):
            with pytest.raises(shmtree.ChannelClosed, match="closed"):
                pickle.dumps(made)


@contextlib.contextmanager
def blocked(call: Callable[[], Any]) -> Iterator[None]:
    """Runs a call in a thread, which must raise ChannelClosed in the block."""
    raised: list[type[Exception]] = []

    def wait() -> None:
        try:
            call()
        except Exception as error:
            raised.append(type(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    wait_until_all_sleep(1)
    assert not raised
    yield
    thread.join(LONG_S)
    assert raised == [shmtree.ChannelClosed]


@pytest.mark.guarantee("close-ends-waits")
@each_end()
def test_close_by_another_thread_ends_a_waiting_get(name: str) -> None:
    end = ENDS[name]
    _writer, reader = end.make()
    with blocked(lambda: end.get(reader)):
        reader.close()


@pytest.mark.guarantee("close-ends-waits")
@each_end("put_timeout")
def test_close_by_another_thread_ends_a_waiting_put(name: str) -> None:
    end = ENDS[name]
    writer, reader = full(end)
    with blocked(lambda: end.put(writer, "second")):
        writer.close()
    del reader


@pytest.mark.guarantee("close-ends-waits")
@pytest.mark.parametrize("copies", [0, 1])
@each_end("get_async")
def test_close_ends_waiting_coroutines_without_polling(name: str, copies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wake_hub, "SLICE_S", 3600.0)
    end = ENDS[name]

    async def main() -> None:
        _writer, reader = end.make()
        waiting = [asyncio.ensure_future(end.get_async(reader)) for _ in range(2)]
        closed = [reader]
        if name in promising("put_async") and name in promising("put_timeout"):
            writer, _reader = full(end)
            waiting += [asyncio.ensure_future(writer.put_async(1)) for _ in range(2)]
            closed.append(writer)
        others = [] if name == "service" else [pickle.loads(pickle.dumps(each)) for each in closed * copies]
        await asyncio.sleep(0)
        for each in closed:
            threading.Thread(target=each.close).start()
        for each in waiting:
            with pytest.raises(shmtree.ChannelClosed):
                await asyncio.wait_for(each, LONG_S)
        assert not any(other.closed for other in others)

    asyncio.run(main())
    assert not wake_hub._places


# --- the end of a stream ---------------------------------------------------------------------------------------------


@each_end("loop")
@pytest.mark.parametrize("promise", ["loop", "loop_async"])
def test_loop_ends_with_the_stream_or_at_close(name: str, promise: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()

    async def main() -> list[Any]:
        return [item async for item in reader]

    if name in promising("stream_end"):
        for number in range(3):
            end.put(writer, number)
        end.end(writer)
        expected = [0, 1, 2]
    else:
        reader.close()
        expected = []
    assert (list(reader) if promise == "loop" else asyncio.run(main())) == expected


@pytest.mark.guarantee("broadcast-poll")
@pytest.mark.parametrize("name", [each for each in promising("stream_end") if each != "latest"])
def test_get_drains_the_stream_and_raises_at_its_end_each_time(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    end.put(writer, 1)
    end.end(writer)
    assert end.get(reader) == 1
    if name != "pipe":
        with pytest.raises(end.ended):
            end.put(writer, 2)
    for _ in range(2):
        if name in promising("poll"):
            assert select.select([reader], [], [], LONG_S)[0] == [reader]
            assert shmtree.wait([reader], timeout=LONG_S) == [reader]
        with pytest.raises(end.ended):
            end.get(reader, timeout=LONG_S)


@pytest.mark.guarantee("latest-dead-publisher")
@pytest.mark.parametrize("name", ["pair", "pipe", "broadcast", "latest"])
@pytest.mark.parametrize("method", START_METHODS)
def test_stream_ends_when_the_writing_child_exits(name: str, method: str, start: Any) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    process = start(promises.put_one, name, writer, method=method)
    if name != "latest":
        writer.close()
    assert end.get(reader, timeout=LONG_S) == 1
    process.join(LONG_S)
    with pytest.raises(end.ended):
        end.get(reader, timeout=LONG_S)


# --- other processes -------------------------------------------------------------------------------------------------


@each_end()
@pytest.mark.parametrize("method", START_METHODS)
def test_child_gets_and_puts(name: str, method: str, start: Any) -> None:
    end = ENDS[name]
    told, theirs = end.pipe(method)
    (writer, given_reader), (given_writer, reader) = end.make(), end.make()
    start(promises.pass_on, name, given_reader, given_writer, theirs, method=method)
    value = {"number": 7, "array": np.arange(10_000)}
    end.put(writer, value)
    got = end.get(reader, timeout=LONG_S)
    assert got["number"] == 7
    assert (got["array"] == value["array"]).all()
    assert told.recv() == "passed on"
    told.send("go")


@each_end()
def test_plain_fork_shares_the_end(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    if name == "service":
        child = fork(lambda: end.get(reader, timeout=LONG_S))
        assert end.put(writer, "x").result(LONG_S) is None
    else:
        child = fork(lambda: end.put(writer, "x"))
        assert end.get(reader, timeout=LONG_S) == "x"
    join(child)


@each_end("message")
def test_end_in_a_message_without_pickle_arrives_usable(name: str) -> None:
    end = ENDS[name]
    sender, receiver = shmtree.create_pair(allow_pickle=False)
    for made in ({"ends": end.make()}, {"ends": pickle.loads(pickle.dumps(end.make()))}):
        sender.put(made)
        arrived = receiver.get()["ends"]
        assert [type(each) for each in arrived] == [type(each) for each in made["ends"]]
        end.put(arrived[0], "x")
        assert end.get(arrived[1], timeout=LONG_S) == "x"


@pytest.mark.guarantee("peer-died", "pipe", "queue-peer-died", "broadcast-processes")
@each_end("writer_death")
@pytest.mark.parametrize("method", START_METHODS)
def test_get_reports_a_killed_writer_after_its_last_message(name: str, method: str, start: Any) -> None:
    end = ENDS[name]
    told, theirs = end.pipe(method)
    (writer, given_reader), (given_writer, reader) = end.make(**end.death_options), end.make(**end.death_options)
    process = start(promises.pass_on, name, given_reader, given_writer, theirs, method=method)
    end.put(writer, "last words")
    assert told.recv() == "passed on"
    if end.ends_with_death:
        given_writer.close()
    process.kill()
    assert end.get(reader, timeout=LONG_S) == "last words"
    if name in promising("poll"):
        assert shmtree.wait([reader], timeout=LONG_S) == [reader]
    with pytest.raises(end.dead) as died:
        end.get(reader, timeout=LONG_S)
    assert died.value.pids == (process.pid,)
    if end.ends_with_death:
        with pytest.raises(shmtree.ChannelClosed):
            end.get(reader, timeout=LONG_S)
    else:
        end.put(given_writer, "again")
        assert end.get(reader, timeout=LONG_S) == "again"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pair", {"on_peer_death": "wait"}),
        ("pair", {"keep_open": True}),
        ("queue", {}),
        ("queue", {"on_peer_death": "wait"}),
        ("broadcast", {"on_peer_death": "wait"}),
        ("broadcast", {"keep_open": True}),
    ],
)
def test_get_with_the_wait_option_waits_after_a_kill(name: str, options: dict[str, Any], start: Any) -> None:
    end = ENDS[name]
    told, theirs = end.pipe()
    (writer, given_reader), (given_writer, reader) = end.make(), end.make(**options)
    process = start(promises.pass_on, name, given_reader, given_writer, theirs)
    end.put(writer, 1)
    assert told.recv() == "passed on"
    process.kill()
    process.join(LONG_S)
    assert end.get(reader, timeout=LONG_S) == 1
    with pytest.raises(queue.Empty):
        end.get(reader, timeout=0.5)
    start(end.put, given_writer, 2)
    assert end.get(reader, timeout=LONG_S) == 2


def put_until_refused(end: End, writer: Any) -> None:
    while True:  # a pipe has no limit, so that its first messages may be accepted before the death is found
        asked = end.put(writer, 2, timeout=LONG_S)
        if isinstance(asked, futures.Future):
            asked.result(LONG_S)


@pytest.mark.guarantee("peer-died")
@each_end("reader_death")
def test_put_reports_a_killed_reader_or_continues(name: str, start: Any) -> None:
    end = ENDS[name]
    told, theirs = end.pipe()
    limit = {end.capacity: 1} if name in promising("put_timeout") else {}
    writer, reader = end.make(**limit, **end.death_options)
    process = start(promises.get_and_stay, name, reader, theirs)
    end.put(writer, 1, timeout=LONG_S)
    assert told.recv() == 1
    if writer is not reader:
        reader.close()
    process.kill()
    if cells(end.row)["reader_death"] == "no effect":
        for number in range(3):
            end.put(writer, number, timeout=LONG_S)
        return
    with pytest.raises(end.dead) as died:
        put_until_refused(end, writer)
    assert died.value.pids == (process.pid,)


# Not Latest: its reader could publish in the same process. test_worker_failures.py has the test with two processes.
@pytest.mark.parametrize("name", [name for name in promising("failure") if name != "latest"])
def test_failed_with_block_of_a_writer_is_reported(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    end.put(writer, 1)
    with pytest.raises(KeyError), writer:
        raise KeyError
    assert end.get(reader) == 1
    with pytest.raises(getattr(shmtree, cells(end.row)["failure"])):
        end.get(reader, timeout=LONG_S)


# --- what arrives ----------------------------------------------------------------------------------------------------


def is_view(array: Any) -> bool:
    while isinstance(array, np.ndarray):
        array = array.base
    return type(array).__name__ == "ViewOwner"


@each_end()
def test_large_arrays_arrive_as_promised(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    array = np.arange(100_000)
    end.put(writer, array)
    array[:] = 7  # after put, the writer may change it
    got = end.get(reader, timeout=LONG_S)
    said = cells(end.row)["arrays"]
    assert (is_view(got), got.flags.writeable) == (True, said == "writable views")
    if said == "read-only views":
        with pytest.raises(ValueError, match="WRITEABLE"):
            got.flags.writeable = True
    reader.close()
    writer.close()
    assert (got == np.arange(100_000)).all()


@pytest.mark.parametrize("name", ["pair", "broadcast", "latest"])
def test_array_made_in_place_arrives_in_place(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    made = writer.new_zeros((1000, 100))
    made[:] = 3
    end.put(writer, {"made": made})
    assert not made.flags.writeable
    got = end.get(reader, timeout=LONG_S)["made"]
    assert got.ctypes.data == made.ctypes.data
    assert (got == 3).all()


@pytest.mark.parametrize("name", [each for each in ENDS if each not in ("pipe", "service")])
def test_copy_option_selects_views_or_copies(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    for copy in (True, False):
        end.put(writer, {"large": np.arange(10_000), "small": np.zeros(5000, np.uint8)})
        got = end.get(reader, timeout=LONG_S, copy=copy)
        assert [is_view(each) for each in got.values()] == [not copy] * 2


@each_end("poll")
def test_descriptor_is_readable_while_messages_are_queued(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()

    def readable(timeout: float = 0) -> bool:
        return bool(select.select([reader], [], [], timeout)[0])

    assert not readable()
    assert shmtree.wait([reader], timeout=0) == []
    end.put(writer, 1)
    end.put(writer, 2)
    for number in (1, 2):
        assert readable(LONG_S)
        assert shmtree.wait([reader], timeout=LONG_S) == [reader]
        assert end.get(reader) == number
    assert not readable()
    end.put(writer, 3)
    assert readable(LONG_S)


@each_end("size")
def test_size_is_the_number_of_queued_messages(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    for number in range(3):
        assert (reader.qsize(), reader.empty()) == (number, not number)
        end.put(writer, number)
    end.get(reader)
    assert reader.qsize() == 2
    assert reader.qsize() == 2


@each_end()
def test_end_has_no_length_and_contains_nothing(name: str) -> None:
    end = ENDS[name]
    writer, reader = end.make()
    end.put(writer, 1)
    for each in (writer, reader):
        assert each
        with pytest.raises(TypeError):
            len(each)
        with pytest.raises(TypeError):
            1 in each  # noqa: B015
    assert end.get(reader, timeout=0) == 1 if name != "pipe" else reader.poll()


@each_end()
def test_closed_is_true_after_close(name: str) -> None:
    for each in set(ENDS[name].make()):
        assert not each.closed
        each.close()
        each.close()
        assert each.closed


# --- options ---------------------------------------------------------------------------------------------------------

REFUSED: list[tuple[str, Any, type[Exception], str]] = [
    ("capacity", -1, ValueError, "capacity is -1; it must "),
    ("capacity", 1.5, TypeError, "is 1.5; it must be an int"),
    ("capacity", 1 << 70, OverflowError, f"is {1 << 70}; it must be below 2..63"),
    ("max_bytes", -1, ValueError, "max_bytes is -1; it must be "),
    ("max_bytes", "x", TypeError, "max_bytes is 'x'; it must be an int"),
    ("history", -1, ValueError, "history is -1; it must "),
    ("arena", 5, TypeError, "arena is 5; it must be an Arena, or None"),
    ("name", 5, TypeError, "name is 5; it must be a str"),
    ("name", "a//b", ValueError, 'the name "a//b": a name must have 1 to 200 bytes'),
    ("on_peer_death", "never", ValueError, "on_peer_death is 'never'; it must be "),
    ("keep_open", "x", ValueError, "keep_open is 'x'; it must be False, True or 'both'"),
]


def accepted() -> Iterator[Any]:
    """Yields each refused value with each end that has the option."""
    for name, end in ENDS.items():
        for option, value, error, said in REFUSED:
            option = end.capacity if option == "capacity" else option
            # A maxsize of less than 1 means no limit, as in the standard library.
            if (option, value) != ("maxsize", -1) and option in inspect.signature(end.constructor).parameters:
                yield pytest.param(name, option, value, error, said, id=f"{name}-{option}-{str(value)[:8]}")


@pytest.mark.parametrize(("name", "option", "value", "error", "said"), list(accepted()))
def test_invalid_option_raises_with_its_name_and_value(
    name: str, option: str, value: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said) as raised:
        ENDS[name].make(**{option: value})
    assert option in str(raised.value)


@each_end("name")
def test_name_in_use_needs_exist_ok(name: str) -> None:
    end = ENDS[name]
    known = f"promised-{os.getpid()}-{name}"
    first = end.make(name=known)
    if name != "service":
        end.put(first[0], "x")
        with pytest.raises(shmtree.PickleRefused):
            end.put(first[0], threading.Thread)
    with pytest.raises(FileExistsError):
        end.make(name=known, exist_ok=False)
    again = end.make(name=known, exist_ok=True)
    for made in (*first, *again):
        made.close()
