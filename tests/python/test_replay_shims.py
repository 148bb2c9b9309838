"""Replay buffers of others' signatures: one changed import."""

from __future__ import annotations

import multiprocessing
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
def test_steps_are_added_one_by_one_and_several_at_once_as_to_cpprb(kind):
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


def test_processes_add_to_one_buffer_of_cpprbs_signature():
    context = multiprocessing.get_context("spawn")
    buffer = cpprb.MPReplayBuffer(256, {"obs": {"dtype": int}}, ctx=context)
    adding = [context.Process(target=add_100, args=(buffer,)) for _ in range(2)]
    for process in adding:
        process.start()
    for process in adding:
        process.join(100)

    assert (buffer.get_next_index(), buffer.get_stored_size()) == (200, 200)
    assert sorted(buffer.get_all_transitions()["obs"].ravel()) == sorted([*range(100)] * 2)


def test_priorities_have_the_weights_of_cpprb():
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


def test_a_backend_that_cpprb_has_not_is_a_value_error():
    with pytest.raises(ValueError, match="Unknown backend"):
        cpprb.MPReplayBuffer(1, {"done": {}}, backend="NONE")
    with pytest.raises(NotImplementedError, match="n_step"):
        cpprb.ReplayBuffer(1, {"done": {}}, Nstep={"size": 3})


def test_dqn_of_stable_baselines3_runs_on_ours():
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


def test_stable_baselines3_keeps_the_rows_in_its_files_and_draws_the_same_by_a_seed(tmp_path):
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

    buffer, again = filled(), filled()
    assert bool((buffer.sample(20).rewards == again.sample(20).rewards).all())

    save_to_pkl(tmp_path / "buffer", buffer)
    buffer.shared.close()
    kept: Any = load_from_pkl(tmp_path / "buffer")
    assert (kept.size(), len(kept.shared)) == (50, 50)
    assert set(kept.sample(5000).rewards[:, 0].tolist()) == set(range(10, 60))


def test_observations_of_several_parts_are_drawn_as_stable_baselines3_has_them():
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


def test_a_replay_buffer_of_torchrl_has_our_storage_and_samplers():
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


def test_stable_baselines_buffers_are_for_their_own_kind_of_spaces():
    spaces = pytest.importorskip("gymnasium").spaces
    sb3 = pytest.importorskip("shmtree.replay.sb3")
    box, action = spaces.Box(0, 1, (3,)), spaces.Discrete(2)
    with pytest.raises(TypeError, match="observation_space is Dict.*: DictReplayBuffer is for spaces of that kind"):
        sb3.ReplayBuffer(10, spaces.Dict({"a": box}), action)
    with pytest.raises(TypeError, match="observation_space is Box.*, no Dict: ReplayBuffer is for others"):
        sb3.DictReplayBuffer(10, box, action)
