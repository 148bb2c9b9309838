"""Vector environments with several environments per worker. Their results equal those of one process."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gymnasium")

from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError
from gymnasium.vector import AsyncVectorEnv as Standard
from gymnasium.vector import SyncVectorEnv
from sampled_env import ACTIONS, OBSERVATIONS, makers, same

from shmtree.gymnasium import AsyncVectorEnv, PooledVectorEnv

COUNT, STEPS = 5, 12


def both(*arguments: str, workers: int = 2, **options: Any) -> tuple[Any, Any]:
    """Returns our environments and those of one process."""
    ours = AsyncVectorEnv(makers(COUNT, *arguments), workers=workers, **options)
    return ours, SyncVectorEnv(makers(COUNT, *arguments), **options)


def compare_steps(ours: Any, theirs: Any, mode: str) -> None:
    """Checks that results are the same, and that results with ``copy=True`` do not change later."""
    kept = [(ours.reset(seed=3, options={"key": 1}), theirs.reset(seed=3, options={"key": 1}))]
    ours.action_space.seed(5)
    ended = np.zeros(COUNT, bool)
    for _ in range(STEPS):
        if mode == "Disabled" and ended.any():
            results = [each.reset(seed=list(range(COUNT)), options={"reset_mask": ended}) for each in (ours, theirs)]
            assert same(*results), results
        actions = ours.action_space.sample()
        results = [each.step(actions) for each in (ours, theirs)]
        assert same(*results), results
        kept.append((results[0], results[1]))
        ended = results[0][2] | results[0][3]
    assert same(ours.call("last_action"), theirs.call("last_action"))
    if ours.copy:
        assert all(same(one, other) for one, other in kept)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("workers", [1, 2, 3, 5])
def test_results_are_those_of_sync_vector_env(mode: str, workers: int):
    ours, theirs = both(workers=workers, autoreset_mode=mode)
    compare_steps(ours, theirs, mode)
    assert ours.metadata == theirs.metadata
    assert len(ours.processes) == workers
    assert isinstance(ours, PooledVectorEnv)
    assert isinstance(ours, Standard)
    ours.close()
    assert [process.exitcode for process in ours.processes] == [0] * workers


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("space", OBSERVATIONS)
def test_observations_of_every_space_are_those_of_sync(space: str, copy: bool, mode: str):
    ours, theirs = both(space, autoreset_mode=mode, copy=copy)
    compare_steps(ours, theirs, mode)
    ours.close()


@pytest.mark.parametrize("space", ACTIONS)
def test_environments_get_actions_with_their_dtypes(space: str):
    ours, theirs = both("box", space)
    compare_steps(ours, theirs, "NextStep")
    ours.close()


@pytest.mark.parametrize("kind", [np.int8, np.float64, list, tuple])
def test_actions_of_another_dtype_keep_their_dtype(kind: Any):
    ours, theirs = both()
    actions: Any = [2, 3, 4, 5, 6] if kind in (list, tuple) else np.array([2, 3, 4, 5, 6], kind)
    actions = tuple(actions) if kind is tuple else actions
    for each in (ours, theirs):
        each.reset(seed=1)
    assert same(ours.step(actions), theirs.step(actions))
    assert same(ours.call("last_action"), theirs.call("last_action"))
    ours.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_of_any_start_method_return_the_same(method: str):
    ours = AsyncVectorEnv(makers(COUNT, "mixed", "dict"), workers=2, context=method)
    compare_steps(ours, SyncVectorEnv(makers(COUNT, "mixed", "dict")), "NextStep")
    ours.close()


def test_call_get_attr_set_attr_and_render_return_the_same():
    ours, theirs = both()
    for each in (ours, theirs):
        each.reset(seed=2)
        each.step(np.full(COUNT, 3))
        each.set_attr("bonus", 7)
        each.set_attr("number", list(range(10, 10 + COUNT)))
    for name in ("bonus", "number", "last_action", "actions"):
        assert same(ours.get_attr(name), theirs.get_attr(name))
    assert same(ours.render(), theirs.render())
    assert same(ours.step(np.full(COUNT, 3)), theirs.step(np.full(COUNT, 3)))
    with pytest.raises(ValueError, match="Got `1` values for 5 environments"):
        ours.set_attr("bonus", [1])
    ours.close()


def test_failed_call_raises_and_leaves_the_environments_usable():
    ours, theirs = both()
    for each in (ours, theirs):
        each.reset(seed=2)
    with pytest.raises(AttributeError, match="no_such_name"):
        ours.get_attr("no_such_name")
    with pytest.raises(ValueError, match="use `step` directly"):
        ours.call("step")
    assert same(ours.step(np.full(COUNT, 3)), theirs.step(np.full(COUNT, 3)))
    ours.close()


def test_step_of_an_ended_episode_is_refused_without_autoreset():
    ours, theirs = both(autoreset_mode="Disabled")
    for each in (ours, theirs):
        each.reset(seed=2)
        each.step(np.full(COUNT, 3))  # ends the episodes of environments 0 and 4
        with pytest.raises(AssertionError):
            each.step(np.full(COUNT, 3))
    mask = np.array([True, False, False, False, True])
    results = [each.reset(options={"reset_mask": mask.copy()}) for each in (ours, theirs)]
    assert results[0][1].keys() == results[1][1].keys()
    assert not (ours.step(np.full(COUNT, 3))[3] & ~mask).all()
    ours.close()


@pytest.mark.parametrize("mask", [[True] * COUNT, np.ones(3, bool), np.ones(COUNT, int), np.zeros(COUNT, bool)])
def test_wrong_reset_mask_raises_the_error_of_gymnasium(mask: Any):
    ours, theirs = both()
    errors = []
    for each in (ours, theirs):
        with pytest.raises((TypeError, ValueError)) as caught:
            each.reset(options={"reset_mask": mask})
        errors.append((caught.type, str(caught.value)))
    assert errors[0] == errors[1]
    ours.close()


def test_wrong_number_of_actions_is_refused():
    made = AsyncVectorEnv(makers(COUNT), workers=2)
    made.reset()
    with pytest.raises(ValueError, match="there are 4 actions for 5 environments"):
        made.step(np.zeros(4, int))
    made.step(np.zeros(COUNT, int))
    made.close()


def test_views_are_overwritten_two_steps_later():
    made = AsyncVectorEnv(makers(COUNT, "image"), workers=2, copy=False)
    made.reset(seed=1)
    first = made.step(np.zeros(COUNT, int))[0]
    bytes_then = first.tobytes()
    second = made.step(np.zeros(COUNT, int))[0]
    assert first.tobytes() == bytes_then
    third = made.step(np.zeros(COUNT, int))[0]
    assert np.shares_memory(first, third)
    assert not np.shares_memory(first, second)
    made.close()
    assert third.tobytes() == first.tobytes()  # a view outlives the environments


@pytest.mark.parametrize("space", ["box", "mixed", "text"])
@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_send_and_recv_return_the_results_of_step(space: str, mode: str):
    ours, theirs = both(space, autoreset_mode=mode, workers=3)
    for each in (ours, theirs):
        each.reset(seed=4)
    steps = [theirs.step(np.full(COUNT, 3)) for _ in range(STEPS)]
    done = np.zeros(COUNT, int)
    ours.send(np.full(COUNT, 3), range(COUNT))
    while done.min() < STEPS:
        observations, rewards, terminations, truncations, infos = ours.recv(1)
        (number,) = infos["env_id"]
        expected = steps[done[number]]
        assert same(list(leaves_of(observations, 0)), list(leaves_of(expected[0], number)))
        assert (rewards[0], terminations[0], truncations[0]) == tuple(each[number] for each in expected[1:4])
        if "at" in infos:
            assert infos["at"][0] == expected[4]["at"][number]
        done[number] += 1
        if done[number] < STEPS:
            ours.send(np.array([3]), [number])
    with pytest.raises(NoAsyncCallError):
        ours.recv()
    ours.close()


def leaves_of(value: Any, row: int) -> Any:
    if isinstance(value, dict):
        for inner in value.values():
            yield from leaves_of(inner, row)
    elif isinstance(value, tuple) and not all(isinstance(each, str) for each in value):
        for inner in value:
            yield from leaves_of(inner, row)
    else:
        yield value[row]


def test_recv_returns_batches_with_the_numbers_of_environments():
    made = AsyncVectorEnv(makers(COUNT), workers=2, batch_size=2)
    made.reset(seed=1)
    made.send(np.zeros(COUNT, int), range(COUNT))
    batches = [made.recv(), made.recv(), made.recv(1)]
    assert [batch[0].shape for batch in batches] == [(2, 3), (2, 3), (1, 3)]
    assert sorted(np.concatenate([batch[4]["env_id"] for batch in batches])) == list(range(COUNT))
    text = [batch[4]["text"][row] for batch in batches for row in range(len(batch[1])) if batch[4]["env_id"][row] == 1]
    assert text == ["step 1 with int64"]
    made.step(np.zeros(COUNT, int))
    made.close()


def test_wrong_calls_of_send_and_recv_are_refused():
    made = AsyncVectorEnv(makers(COUNT), workers=2)
    made.reset(seed=1)
    with pytest.raises(NoAsyncCallError):
        made.recv()
    for ids in ([0, 0], [-1], [5]):
        with pytest.raises(ValueError, match="different numbers from 0 to 4"):
            made.send(np.zeros(len(ids), int), ids)
    for wrong in ([0.5, 1.5], np.array([True, False]), ["0", "1"]):
        with pytest.raises(TypeError, match="ids"):
            made.send(np.zeros(2, int), wrong)
    with pytest.raises(ValueError, match="there are 3 actions for 2 environments"):
        made.send(np.zeros(3, int), [0, 1])
    made.send(np.zeros(2, int), [3, 1])
    with pytest.raises(ValueError, match=r"environments \[3\] have to be received first"):
        made.send(np.zeros(1, int), [3])
    with pytest.raises(ValueError, match="cannot receive 3 environments: only 2"):
        made.recv(3)
    for call in (lambda: made.step_async(np.zeros(COUNT, int)), made.reset, lambda: made.get_attr("bonus")):
        with pytest.raises(AlreadyPendingCallError):
            call()
    with pytest.raises(NoAsyncCallError):
        made.step_wait()
    for n, error in ((-1, ValueError), (1.5, TypeError), ("1", TypeError)):
        with pytest.raises(error, match="n is"):
            made.recv(n)
    made.recv()
    made.step(np.zeros(COUNT, int))
    made.step_async(np.zeros(COUNT, int))
    with pytest.raises(AlreadyPendingCallError):
        made.send(np.zeros(1, int), [3])
    made.step_wait()
    made.close()


def test_send_to_no_environment_does_nothing():
    made = AsyncVectorEnv(makers(COUNT), workers=2)
    made.reset(seed=1)
    made.send(np.zeros(0, int), [])
    made.step(np.zeros(COUNT, int))
    made.close()


def test_close_ends_a_pending_step():
    made = AsyncVectorEnv(makers(COUNT), workers=2)
    made.reset(seed=1)
    made.step_async(np.zeros(COUNT, int))
    with pytest.warns(UserWarning, match="while waiting for a pending call to `step`"):
        made.close()
    assert [process.exitcode for process in made.processes] == [0, 0]


def test_signature_is_that_of_gymnasium_and_options_of_workers():
    ours, theirs = inspect.signature(AsyncVectorEnv), inspect.signature(Standard)
    added = ["workers", "batch_size", "restart"]
    assert list(ours.parameters.values())[: -len(added)] == list(theirs.parameters.values())
    assert list(ours.parameters)[-len(added) :] == added


@pytest.mark.parametrize("workers", [0, COUNT + 1, -1])
def test_wrong_number_of_workers_is_refused(workers: int):
    with pytest.raises(ValueError, match=f"workers is {workers}; it must be from 1 to 5"):
        AsyncVectorEnv(makers(COUNT), workers=workers)


def test_options_that_exclude_each_other_are_refused():
    with pytest.raises(ValueError, match="max_concurrency cannot be combined with workers=2"):
        AsyncVectorEnv(makers(COUNT), workers=2, max_concurrency=1)
    with pytest.raises(ValueError, match="batch_size is 6"):
        AsyncVectorEnv(makers(COUNT), workers=2, batch_size=6)
    with pytest.raises(ValueError, match="is not a valid AutoresetMode"):
        AsyncVectorEnv(makers(COUNT), workers=2, autoreset_mode="never")


class Derived(AsyncVectorEnv):
    pass


def test_derived_class_without_workers_names_the_base_class():
    with pytest.raises(TypeError, match="Derived has no workers=; derive it from shmtree.gymnasium.PooledVectorEnv"):
        Derived(makers(COUNT), workers=2)


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_environments_with_other_spaces_are_refused():
    mixed = [*makers(2, "box"), *makers(1, "image")]
    errors = []
    for options in ({}, {"workers": 2}):
        with pytest.raises(RuntimeError) as caught:
            AsyncVectorEnv(mixed, **options)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
