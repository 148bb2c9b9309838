"""Replay buffers with the interfaces of other libraries: a program changes one import."""

from __future__ import annotations

import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shmtree.replay import cpprb

ENV = {"obs": {"shape": (15, 15)}, "act": {"shape": 5}, "rew": {}, "next_obs": {"shape": (15, 15)}, "done": {}}


def step(number: float) -> dict[str, Any]:
    obs = np.full((15, 15), number)
    return {"obs": obs, "act": np.full(5, number), "rew": number, "next_obs": obs + 1, "done": 0}


def add_100(buffer: Any) -> None:
    for number in range(100):
        buffer.add(obs=number)


@pytest.mark.parametrize("kind", [cpprb.ReplayBuffer, cpprb.MPReplayBuffer, cpprb.MPPrioritizedReplayBuffer])
def test_cpprb_add_accepts_one_step_or_several(kind):
    buffer = kind(256, ENV)

    assert buffer.add(**step(7)) == 0
    with pytest.raises(KeyError):
        buffer.add(obs=np.zeros((15, 15)))
    several = {name: np.stack([np.asarray(value)] * 2) for name, value in step(7).items()}
    assert buffer.add(**several) == 1

    assert (buffer.get_next_index(), buffer.get_stored_size(), buffer.get_buffer_size()) == (3, 3, 256)
    drawn = buffer.sample(32)
    assert (drawn["obs"].shape, drawn["rew"].shape, drawn["act"].dtype) == ((32, 15, 15), (32, 1), np.float32)
    assert (drawn["next_obs"] == 8).all()


def test_processes_add_to_one_cpprb_buffer():
    context = multiprocessing.get_context("spawn")
    buffer = cpprb.MPReplayBuffer(256, {"obs": {"dtype": int}}, ctx=context)
    adding = [context.Process(target=add_100, args=(buffer,)) for _ in range(2)]
    for process in adding:
        process.start()
    for process in adding:
        process.join(100)

    assert (buffer.get_next_index(), buffer.get_stored_size()) == (200, 200)
    assert sorted(buffer.get_all_transitions()["obs"].ravel()) == sorted([*range(100)] * 2)


def test_cpprb_weights_and_priorities_follow_its_formula():
    buffer = cpprb.MPPrioritizedReplayBuffer(64, {"obs": {}}, alpha=0.7)
    for number in range(4):
        buffer.add(obs=number, priorities=number + 1.0)
    assert buffer.get_max_priority() == 4.0

    drawn = buffer.sample(1000, beta=0.5)

    chances = (np.arange(1, 5) + 1e-4) ** 0.7
    expected = (chances / chances.min()) ** -0.5
    assert np.allclose(drawn["weights"], expected[drawn["obs"].ravel().astype(int)], rtol=1e-5)
    assert np.array_equal(drawn["indexes"], drawn["obs"].ravel())
    buffer.update_priorities([3, 0], [50.0, 1e9])
    assert buffer.get_max_priority() == 1e9
    assert np.count_nonzero(buffer.sample(1000)["indexes"]) < 10
    with pytest.raises(TypeError):
        buffer.update_priorities(None, [1.0])


def test_cpprb_rejects_unknown_backend_and_unsupported_mmap():
    with pytest.raises(ValueError, match="Unknown backend"):
        cpprb.MPReplayBuffer(1, {"done": {}}, backend="NONE")
    with pytest.raises(NotImplementedError, match="save_transitions"):
        cpprb.ReplayBuffer(1, {"done": {}}, mmap_prefix="rows")


def test_cpprb_nstep_is_refused_if_cpprb_is_not_installed(monkeypatch):
    monkeypatch.setitem(sys.modules, "cpprb", None)
    monkeypatch.setitem(sys.modules, "cpprb.PyReplayBuffer", None)
    with pytest.raises(NotImplementedError, match="n_step"):
        cpprb.ReplayBuffer(1, {"done": {}}, Nstep={"size": 3})


def test_stable_baselines3_dqn_runs_on_our_buffer():
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    import gymnasium
    from stable_baselines3 import DQN

    from shmtree.replay.sb3 import ReplayBuffer

    model = DQN(
        "MlpPolicy",
        gymnasium.make("CartPole-v1"),
        replay_buffer_class=ReplayBuffer,
        buffer_size=300,
        learning_starts=100,
        device="cpu",
    )
    model.learn(600)

    buffer: Any = model.replay_buffer
    assert (buffer.size(), len(buffer.shared)) == (300, 300)
    batch = buffer.sample(32)
    assert (batch.observations.shape, batch.actions.shape, batch.rewards.shape) == ((32, 4), (32, 1), (32, 1))


def test_sb3_buffer_survives_pickling_and_samples_by_seed(tmp_path):
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    from gymnasium import spaces
    from stable_baselines3.common.save_util import load_from_pkl, save_to_pkl

    from shmtree.replay.sb3 import ReplayBuffer

    def filled() -> Any:
        np.random.seed(7)
        buffer = ReplayBuffer(50, spaces.Box(-1, 1, (3,)), spaces.Discrete(3), device="cpu")
        for step in range(60):
            obs = np.full((1, 3), step, np.float32)
            buffer.add(obs, obs + 1, np.array([1]), np.array([float(step)]), np.array([False]), [{}])
        return buffer

    buffer, drawn = filled(), []
    for each in (buffer, filled()):
        np.random.seed(7)
        drawn.append(each.sample(20).rewards)
    assert bool((drawn[0] == drawn[1]).all())

    save_to_pkl(tmp_path / "buffer", buffer)
    buffer.shared.close()
    kept: Any = load_from_pkl(tmp_path / "buffer")
    assert (kept.size(), len(kept.shared)) == (50, 50)
    assert set(kept.sample(5000).rewards[:, 0].tolist()) == set(range(10, 60))


def test_sb3_dict_observations_match_stable_baselines3():
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    from gymnasium import spaces
    from stable_baselines3.common.buffers import DictReplayBuffer as Standard

    from shmtree.replay.sb3 import DictReplayBuffer

    space = spaces.Dict({"image": spaces.Box(0, 255, (1, 8, 8), np.uint8), "state": spaces.Box(-1, 1, (3,))})
    drawn = []
    for kind in (Standard, DictReplayBuffer):
        buffer = kind(100, space, spaces.Discrete(3), device="cpu", n_envs=2)
        obs = {"image": np.full((2, 1, 8, 8), 7, np.uint8), "state": np.full((2, 3), 0.5, np.float32)}
        infos: list[Any] = [{"TimeLimit.truncated": True}, {}]
        buffer.add(obs, obs, np.array([1, 1]), np.array([2.0, 2.0]), np.array([True, False]), infos)
        drawn.append(buffer.sample(4))
    ours, standard = drawn
    for mine, its in zip(ours, standard, strict=True):
        if mine is None and its is None:
            continue
        for key in mine if isinstance(mine, dict) else [None]:
            one, other = (mine, its) if key is None else (mine[key], its[key])
            assert one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())


def test_torchrl_buffer_works_with_our_storage_and_samplers():
    torchrl_data = pytest.importorskip("torchrl.data", exc_type=ImportError)
    import torch
    from tensordict import TensorDict

    from shmtree.replay.torchrl import PrioritizedSampler, SharedStorage, UniformSampler

    for sampler in (UniformSampler(), PrioritizedSampler()):
        storage = SharedStorage(100)
        buffer = torchrl_data.ReplayBuffer(storage=storage, sampler=sampler, batch_size=16)
        numbers = torch.arange(30)
        nested = {"obs": numbers[:, None] * torch.ones(4), "next": TensorDict({"obs": numbers + 1}, [30])}
        buffer.extend(TensorDict(nested, [30]))
        buffer.add(TensorDict({"obs": torch.full((4,), 30.0), "next": TensorDict({"obs": torch.tensor(31)}, [])}, []))
        assert len(buffer) == 31

        data, about = buffer.sample(return_info=True)

        assert data["obs"].shape == (16, 4)
        assert torch.equal(data["obs"][:, 0] + 1, data["next", "obs"].float())
        if isinstance(sampler, PrioritizedSampler):
            buffer.update_priority(about["index"], torch.full((16,), 9.0))
            assert about["priority_weight"].shape == (16,)
            assert storage.shared.max_priority == 9.0


def test_sb3_buffers_reject_other_kinds_of_spaces():
    spaces = pytest.importorskip("gymnasium").spaces
    sb3 = pytest.importorskip("shmtree.replay.sb3")
    box, action = spaces.Box(0, 1, (3,)), spaces.Discrete(2)
    with pytest.raises(TypeError, match="observation_space is Dict.*; use DictReplayBuffer for it"):
        sb3.ReplayBuffer(10, spaces.Dict({"a": box}), action)
    with pytest.raises(AssertionError, match="must be used with Dict obs space only"):
        sb3.DictReplayBuffer(10, box, action)
    with pytest.raises(ValueError, match="optimize_memory_usage"):
        sb3.ReplayBuffer(10, box, action, optimize_memory_usage=True)


def sb3_buffer(size: int, **options: Any) -> Any:
    pytest.importorskip("stable_baselines3", exc_type=ImportError)
    from gymnasium import spaces

    from shmtree.replay import sb3

    return sb3.ReplayBuffer(size, spaces.Box(-1e3, 1e3, (1,)), spaces.Discrete(2), device="cpu", **options)


def add_to_sb3(buffer: Any, values: range) -> None:
    for value in values:
        obs = np.full((1, 1), value, np.float32)
        buffer.add(obs, obs + 1, np.zeros(1, int), np.full(1, float(value)), np.zeros(1), [{}])


def test_sb3_reset_drops_all_rows():
    buffer = sb3_buffer(10)
    add_to_sb3(buffer, range(15))

    buffer.reset()
    assert (buffer.size(), buffer.pos, buffer.full, len(buffer.shared)) == (0, 0, False, 0)
    with pytest.raises(ValueError, match="high <= 0"):
        buffer.sample(1)
    add_to_sb3(buffer, range(77, 78))

    assert set(buffer.sample(50).rewards.ravel().tolist()) == {77.0}
    assert buffer.observations[0, 0, 0] == 77


def test_sb3_rows_cannot_be_assigned():
    buffer = sb3_buffer(10)
    add_to_sb3(buffer, range(3))
    with pytest.raises(TypeError, match="cannot be changed"):
        buffer.rewards[0] = 1.0
    with pytest.raises(AttributeError, match="reset"):
        buffer.pos = 2


def test_sb3_repr_shows_steps_until_the_buffer_is_closed():
    buffer = sb3_buffer(10)
    name = type(buffer).__name__
    places, environments = buffer.buffer_size, buffer.n_envs
    add_to_sb3(buffer, range(3))
    assert repr(buffer) == f"<{name}, 3 of {places} steps of {environments} environments>"
    buffer.shared.close()
    assert repr(buffer) == f"<{name}, closed>"


def fill_and_reset_sb3(buffer: Any) -> None:
    add_to_sb3(buffer, range(20))
    buffer.reset()
    add_to_sb3(buffer, range(100, 104))


def test_sb3_positions_are_the_same_in_all_processes():
    buffer = sb3_buffer(8)
    add_to_sb3(buffer, range(3))
    process = multiprocessing.get_context("spawn").Process(target=fill_and_reset_sb3, args=(buffer,))
    process.start()
    process.join(60)

    assert (process.exitcode, buffer.size(), buffer.pos) == (0, 4, 4)
    assert buffer.rewards[:4, 0].tolist() == [100, 101, 102, 103]


def sampled_by_sb3(buffer: Any) -> set[tuple[float, float]]:
    batch = buffer.sample(200)
    return set(zip(batch.observations.ravel().tolist(), batch.next_observations.ravel().tolist(), strict=True))


@pytest.mark.parametrize("size", [8, 4])  # not full, and full
def test_sb3_add_raises_if_another_process_has_added(size: int) -> None:
    buffer = sb3_buffer(size, optimize_memory_usage=True, handle_timeout_termination=False)
    add_to_sb3(buffer, range(3))
    assert {(0, 1), (2, 3)} <= sampled_by_sb3(buffer)
    process = multiprocessing.get_context("spawn").Process(target=add_to_sb3, args=(buffer, range(3, 6)))
    process.start()
    process.join(60)
    assert process.exitcode == 0

    found = sampled_by_sb3(buffer)
    assert (4, 5) in found and all(after == obs + 1 and obs < 5 for obs, after in found)
    with pytest.raises(RuntimeError, match="another process has added"):
        add_to_sb3(buffer, range(6, 7))
    assert buffer.pos == 6 % size
    buffer.reset()
    add_to_sb3(buffer, range(10, 12))
    assert sampled_by_sb3(buffer) == {(10, 11), (11, 12)}


def save_copy(buffer: Any, path: Path) -> None:
    path.write_bytes(pickle.dumps(buffer))


@pytest.mark.parametrize("size", [8, 4])  # not full, and full
def test_sb3_copy_made_by_another_process_accepts_add(size: int, tmp_path: Path) -> None:
    buffer = sb3_buffer(size, optimize_memory_usage=True, handle_timeout_termination=False)
    add_to_sb3(buffer, range(5))
    process = multiprocessing.get_context("spawn").Process(target=save_copy, args=(buffer, tmp_path / "copy"))
    process.start()
    process.join(60)
    assert process.exitcode == 0

    copy = pickle.loads((tmp_path / "copy").read_bytes())
    assert all(after == obs + 1 for obs, after in sampled_by_sb3(copy))
    add_to_sb3(copy, range(5, 7))
    assert (6, 7) in sampled_by_sb3(copy)


def sample_and_update(buffer: Any) -> None:
    drawn = buffer.sample(100)
    buffer.update_priorities(drawn["indexes"], np.zeros(100))


def test_cpprb_late_priority_update_is_ignored():
    buffer = cpprb.MPPrioritizedReplayBuffer(4, {"obs": {}}, eps=0)
    buffer.add(obs=np.arange(4))
    drawn = buffer.sample(100)
    buffer.add(obs=np.arange(4, 8))  # at the same places

    buffer.update_priorities(drawn["indexes"], np.zeros(100))

    assert set(buffer.sample(300)["obs"].ravel()) == {4, 5, 6, 7}


def test_cpprb_indexes_are_the_same_in_all_processes():
    buffer = cpprb.PrioritizedReplayBuffer(4, {"obs": {}})
    process = multiprocessing.get_context("spawn").Process(target=add_100, args=(buffer,))
    process.start()
    process.join(60)

    assert (process.exitcode, buffer.get_next_index(), buffer.add(obs=7)) == (0, 0, 0)
    buffer.clear()
    assert (buffer.get_stored_size(), buffer.get_max_priority(), buffer.add(obs=[1, 2])) == (0, 1.0, 0)
    assert buffer.get_all_transitions()["obs"].ravel().tolist() == [1, 2]


def test_cpprb_sampling_an_empty_buffer_raises_value_error():
    for kind in (cpprb.ReplayBuffer, cpprb.PrioritizedReplayBuffer, cpprb.MPReplayBuffer):
        with pytest.raises(ValueError, match="high <= 0"):
            kind(4, {"obs": {}}).sample(2)


def test_cpprb_transitions_are_saved_and_loaded(tmp_path):
    buffer = cpprb.ReplayBuffer(4, {"obs": {"shape": 2}, "done": {}}, next_of="obs")
    for number in range(6):
        buffer.add(obs=[number] * 2, next_obs=[number + 1] * 2, done=0)
    buffer.save_transitions(tmp_path / "rows.npz")

    loaded = cpprb.ReplayBuffer(10, {"obs": {"shape": 2}, "done": {}}, next_of="obs")
    loaded.load_transitions(tmp_path / "rows.npz")

    assert loaded.get_all_transitions()["next_obs"][:, 0].tolist() == [5, 6, 3, 4]  # by place


def torchrl_buffer(size: int = 100, **options: Any) -> Any:
    torchrl_data = pytest.importorskip("torchrl.data", exc_type=ImportError)
    from shmtree.replay.torchrl import PrioritizedSampler, SharedStorage

    sampler = PrioritizedSampler(size, alpha=1.0, beta=0.4, **options)
    return torchrl_data.TensorDictReplayBuffer(
        storage=SharedStorage(size), sampler=sampler, priority_key="td", batch_size=8
    )


def torchrl_rows(first: int, priority: float | None = None) -> Any:
    import torch
    from tensordict import TensorDict

    data = TensorDict({"obs": torch.arange(first, first + 10.0)}, [10])
    if priority is not None:
        data["td"] = torch.full((10,), priority)
    return data


def test_torchrl_priority_updates_the_row_at_its_index():
    buffer = torchrl_buffer()
    assert buffer.extend(torchrl_rows(0)).tolist() == list(range(10))
    index = buffer.extend(torchrl_rows(10))

    buffer.update_priority(index[1:2], 1e9)

    assert set(buffer.sample()["obs"].tolist()) == {11}
    assert buffer[11]["obs"] == 11


def test_torchrl_rows_can_contain_their_priorities():
    buffer = torchrl_buffer()
    buffer.extend(torchrl_rows(0, priority=1e-9))
    buffer.extend(torchrl_rows(10, priority=5.0))

    batch = buffer.sample()
    assert (batch["obs"] >= 10).all() and batch["priority_weight"].shape == (8,)
    batch["td"] = batch["td"] * 0
    buffer.update_tensordict_priority(batch)


def test_torchrl_buffer_is_saved_with_its_priorities(tmp_path):
    buffer = torchrl_buffer(15)
    buffer.extend(torchrl_rows(0))
    buffer.extend(torchrl_rows(10))  # at places 10 to 14, then 0 to 4
    buffer.update_priority([3], 1e9)

    buffer.dumps(tmp_path)
    loaded, of_state = torchrl_buffer(15), torchrl_buffer(15)
    loaded.loads(tmp_path)
    of_state.load_state_dict(buffer.state_dict())

    for each in (loaded, of_state):
        assert set(each.sample()["obs"].tolist()) == {18}
        assert each.extend(torchrl_rows(20)).tolist() == [*range(5, 15)]
        assert each[:]["obs"].tolist() == [15, 16, 17, 18, 19, *range(20, 30)]


def test_torchrl_repr_shows_rows_until_the_storage_is_closed():
    buffer = torchrl_buffer()
    storage = buffer._storage
    assert repr(storage) == f"<SharedStorage, 0 of {storage.max_size} rows>"
    buffer.extend(torchrl_rows(0))
    assert repr(storage) == f"<SharedStorage, 10 of {storage.max_size} rows>"
    storage.shared.close()
    assert repr(storage) == "<SharedStorage, closed>"


def test_torchrl_accepts_equal_non_tensors_and_rejects_changes():
    torchrl_data = pytest.importorskip("torchrl.data", exc_type=ImportError)
    from tensordict import NonTensorData

    buffer, rows = torchrl_buffer(), torchrl_rows(0)
    rows["prompt"] = NonTensorData("hello", batch_size=[10])
    buffer.extend(rows)
    assert list(buffer.sample()["prompt"]) == ["hello"] * 8
    rows["prompt"] = NonTensorData("other", batch_size=[10])
    with pytest.raises(ValueError, match="'other'.*'hello'"):
        buffer.extend(rows)
    values = rows["obs"].clone()
    for change in (
        lambda: buffer.__setitem__(0, rows[0]),
        lambda: buffer.set_("obs", values),
        lambda: buffer.set_at_("obs", values[:1], [0]),
        lambda: buffer.update_({"obs": values}),
    ):
        with pytest.raises(NotImplementedError, match="cannot be changed"):
            change()

    from shmtree.replay.torchrl import SharedStorage

    writer = torchrl_data.replay_buffers.TensorDictMaxValueWriter(rank_key="td")
    with pytest.raises(TypeError, match="RoundRobinWriter"):
        torchrl_data.TensorDictReplayBuffer(storage=SharedStorage(5), writer=writer, batch_size=1)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_priority_within_buffer": True}, "max_priority_within_buffer"),
        ({"device": "cuda"}, "device is 'cuda'"),
    ],
)
def test_torchrl_unsupported_options_are_refused(options, text):
    with pytest.raises(NotImplementedError, match=text):
        torchrl_buffer(**options)


def test_torchrl_sampling_an_empty_storage_raises():
    buffer = torchrl_buffer()
    for _ in range(2):
        with pytest.raises(RuntimeError, match="empty storage"):
            buffer.sample()
        buffer.extend(torchrl_rows(0))
        buffer.empty()


def add_to_storage(storage: Any) -> None:
    torchrl_data = pytest.importorskip("torchrl.data", exc_type=ImportError)
    buffer = torchrl_data.TensorDictReplayBuffer(storage=storage, batch_size=4)
    assert buffer.extend(torchrl_rows(100)).tolist() == list(range(10, 20))


def test_torchrl_indices_continue_in_another_process():
    buffer = torchrl_buffer()
    buffer.extend(torchrl_rows(0))
    process = multiprocessing.get_context("spawn").Process(target=add_to_storage, args=(buffer._storage,))
    process.start()
    process.join(120)

    assert (process.exitcode, len(buffer), buffer[15]["obs"]) == (0, 20, 105)
    assert buffer.extend(torchrl_rows(200)).tolist() == list(range(20, 30))


def test_torchrl_weights_follow_its_formula():
    buffer = torchrl_buffer(eps=0.01)
    buffer.extend(torchrl_rows(0))
    priorities = np.arange(1.0, 11.0)
    buffer.update_priority(list(range(10)), priorities)
    assert (buffer._sampler.alpha, buffer._sampler.beta, buffer._sampler.default_priority) == (1.0, 0.4, 10.0)

    batch = buffer.sample()

    expected = ((priorities + 0.01) / 1.01) ** -0.4
    assert np.allclose(batch["priority_weight"], expected[batch["index"]], rtol=1e-5)
    assert (batch["obs"].long() == batch["index"]).all()
    buffer.empty()
    assert buffer._sampler.default_priority == 1.0


def test_torchrl_second_buffer_keeps_the_priorities():
    torchrl_data = pytest.importorskip("torchrl.data", exc_type=ImportError)
    buffer = torchrl_buffer()
    buffer.extend(torchrl_rows(0))
    buffer.update_priority([7], 1e9)

    from shmtree.replay.torchrl import PrioritizedSampler

    second = torchrl_data.TensorDictReplayBuffer(storage=buffer._storage, sampler=PrioritizedSampler(), batch_size=8)
    assert set(second.sample()["obs"].tolist()) == {7}
    second.update_priority(list(range(10)), 1.0)
    drawn = [buffer.sample()["obs"] for _ in range(30)]
    assert len(set(np.concatenate(drawn).tolist())) > 5
    with pytest.raises(ValueError, match="alpha is 0.3"):
        torchrl_data.ReplayBuffer(storage=buffer._storage, sampler=PrioritizedSampler(100, 0.3, 0.4), batch_size=8)
