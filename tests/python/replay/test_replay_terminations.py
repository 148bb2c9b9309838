"""Compares episodes that terminate or are truncated by Gymnasium's keys with lists of episodes."""

from __future__ import annotations

import uuid
from typing import Any

import numpy as np
import pytest
from replay_options import grouped

from shmtree.replay import Episodes, ReplayBuffer

GAMMA = 0.5
GYMNASIUM = ("terminated", "truncated")
FINISHED = {"terminated": (True, False), "truncated": (False, True), "both": (True, True)}


class Episode:
    """One environment from its reset on. It has one observation more than rewards."""

    def __init__(self, first: int) -> None:
        self.obs = [first]
        self.rows: list[int] = []
        self.rewards: list[float] = []
        self.kind = ""  # "": the episode has not ended


class Environment:
    """Makes episodes of random lengths with random ends. Every observation is a new number."""

    def __init__(self, number: int, seed: int, kinds: tuple[str, ...]) -> None:
        self.rng = np.random.default_rng([seed, number])
        self.kinds = kinds
        self.next_number = 10_000 * (number + 1)
        self.next_row = 10_000 * (number + 1)
        self.episodes: list[Episode] = []

    def _new_obs(self) -> int:
        self.next_number += 1
        return self.next_number

    def reset(self) -> int:
        self.episodes.append(Episode(self._new_obs()))
        return self.episodes[-1].obs[0]

    def step(self) -> tuple[int, float, bool, bool]:
        episode = self.episodes[-1]
        episode.rewards.append(float(self.rng.integers(8)))
        episode.rows.append(self.next_row)
        self.next_row += 1
        episode.obs.append(self._new_obs())
        if self.rng.random() < 0.3:
            episode.kind = str(self.rng.choice(self.kinds))
        return episode.obs[-1], episode.rewards[-1], *FINISHED.get(episode.kind, (False, False))


class Vector:
    """Vector environment in both of Gymnasium's reset modes."""

    def __init__(self, environments: list[Environment], mode: str) -> None:
        self.environments, self.mode = environments, mode
        self.ended = np.zeros(len(environments), bool)

    def reset(self) -> np.ndarray[Any, Any]:
        return np.array([each.reset() for each in self.environments])

    def step(self) -> tuple[Any, ...]:
        """Returns observations, rewards, both flags, and in SAME_STEP the last observations of ended episodes."""
        count = len(self.environments)
        obs, rewards = np.zeros(count, int), np.zeros(count)
        terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
        final = np.full(count, -1)
        for i, each in enumerate(self.environments):
            if self.mode == "next_step" and self.ended[i]:
                obs[i] = each.reset()
                continue
            obs[i], rewards[i], terminated[i], truncated[i] = each.step()
            if self.mode == "same_step" and (terminated[i] or truncated[i]):
                final[i], obs[i] = obs[i], each.reset()
        self.ended = terminated | truncated
        return obs, rewards, terminated, truncated, final


def frames(episode: Episode, at: int, count: int, padding: str) -> list[int]:
    before = episode.obs[0] if padding == "first" else 0
    return [episode.obs[i] if i >= 0 else before for i in range(at - count + 1, at + 1)]


def expected(environments: list[Environment], options: dict[str, Any]) -> dict[int, Any]:
    """Returns for each row that can be sampled: sum of rewards, discount, observation, and that of the successor."""
    n, count = options.get("n_step", 1), options.get("stack", {}).get("obs", 1)
    ahead = n if "next" in options else n - 1
    padding = options.get("stack_padding", "zeros")
    found: dict[int, Any] = {}
    for episode in (each for environment in environments for each in environment.episodes):
        rows = len(episode.rows)
        for at in range(rows if episode.kind else max(rows - ahead, 0)):
            steps = min(n, rows - at)
            is_last = episode.kind and at + n >= rows
            terminates = is_last and episode.kind != "truncated"
            found[episode.rows[at]] = (
                sum(GAMMA**i * episode.rewards[at + i] for i in range(steps)),
                0.0 if terminates else GAMMA**steps,
                frames(episode, at, count, padding),
                frames(episode, at + steps, count, padding),
            )
    return found


def drawn(buffer: ReplayBuffer, options: dict[str, Any]) -> dict[int, Any]:
    rows = len(buffer)
    batch = buffer.sample(rows, replace=False)

    def numbers(obs: Any) -> Any:
        return [part if isinstance(part, list) else [part] for part in obs[..., 0].astype(int).tolist()]

    data, here = batch.data, numbers(batch.data["obs"])
    after = numbers(data["next"]["obs"]) if "next" in options else [None] * rows
    discounts = batch.discount.tolist() if buffer._spec.has_discount else [None] * rows
    found = zip(data["n"].tolist(), data["reward"].tolist(), discounts, here, after, strict=True)
    result = {n: tuple(rest) for n, *rest in found}
    assert len(result) == rows
    return result


def row_of(keys: tuple[str, ...], obs: Any, reward: Any, terminated: Any, truncated: Any, n: Any) -> dict[str, Any]:
    """Returns one row, or many, with those of the keys that tell how the episode ended."""
    obs = np.repeat(np.asarray(obs, np.float64)[..., None], 2, -1)
    flags = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
    return {"obs": obs, "reward": reward, "n": n, **{key: flags[key] for key in keys}}


def final_of(obs: Any) -> dict[str, Any]:
    return {"obs": np.repeat(np.asarray(obs, np.float64)[..., None], 2, -1)}


def buffer_with(keys: tuple[str, ...], options: dict[str, Any], capacity: int = 4096, chunk: int = 8) -> ReplayBuffer:
    example = row_of(keys, np.zeros((), np.float64), np.float64(0), np.False_, np.False_, 0)
    return ReplayBuffer(capacity, example=example, **grouped(gamma=GAMMA, chunk=chunk, **options))


def compare(buffer: ReplayBuffer, environments: list[Environment], options: dict[str, Any]) -> None:
    found, wanted = drawn(buffer, options), expected(environments, options)
    assert found.keys() == wanted.keys()
    for n, row in wanted.items():
        parts = [part for part, there in zip(row, found[n], strict=True) if there is not None]
        assert (n, [part for part in found[n] if part is not None]) == (n, parts)


def compare_sequences(buffer: ReplayBuffer, environments: list[Environment], options: dict[str, Any]) -> None:
    ready = expected(environments, options).keys()
    episodes = [[row for row in each.rows if row in ready] for one in environments for each in one.episodes]
    follows = {row: rows[at : at + 5] for rows in episodes for at, row in enumerate(rows)}
    batch = buffer.sample_sequences(200, 5)
    for rows, mask in zip(batch.data["n"], batch.mask, strict=True):
        assert rows[mask].tolist() == follows[rows[0]]


# --- Ways to add


def add_one_by_one(buffer: ReplayBuffer, environment: Environment, keys: tuple[str, ...], how: str, steps: int) -> None:
    with_final = bool(buffer._spec.core.next)
    writer = buffer.writer()
    obs = environment.reset()
    for _ in range(steps):
        n = environment.next_row
        after, reward, terminated, truncated = environment.step()
        row = row_of(keys, obs, reward, np.bool_(terminated), np.bool_(truncated), n)
        if how == "add":
            writer.add(row, final=final_of(after) if with_final else None)
        else:
            writer.add(row)
        obs = after
        if terminated or truncated:
            if how == "end":
                writer.end(final=final_of(after) if with_final else None, truncated=truncated)
            obs = environment.reset()
    buffer._kept = [*getattr(buffer, "_kept", []), writer]  # type: ignore[attr-defined]


def extend(buffer: ReplayBuffer, environment: Environment, keys: tuple[str, ...], finals: str, steps: int) -> None:
    writer = buffer.writer()
    obs = environment.reset()
    rows, afters, over = [], [], []
    for _ in range(steps):
        n = environment.next_row
        after, reward, terminated, truncated = environment.step()
        rows.append(row_of(keys, obs, reward, np.bool_(terminated), np.bool_(truncated), n))
        afters.append(after)
        over.append(terminated or truncated)
        obs = environment.reset() if over[-1] else after
    at = 0
    while at < steps:
        to = min(steps, at + int(environment.rng.integers(1, 30)))
        columns = {key: np.stack([row[key] for row in rows[at:to]]) for key in rows[0]}
        given = np.array(afters[at:to])
        if finals == "ends":
            given = given[over[at:to]]
        writer.extend(columns, final=final_of(given) if buffer._spec.core.next else None)
        at = to
    buffer._kept = [*getattr(buffer, "_kept", []), writer]  # type: ignore[attr-defined]


def add_vectors(buffer: ReplayBuffer, vector: Vector, keys: tuple[str, ...], with_mask: bool, steps: int) -> None:
    count = len(vector.environments)
    writer = buffer.vector_writer(count, autoreset=None if with_mask else vector.mode)
    obs = vector.reset()
    for _ in range(steps):
        reset = vector.ended.copy()
        numbers = np.array([each.next_row for each in vector.environments])
        after, reward, terminated, truncated, final = vector.step()
        final = after if vector.mode == "next_step" else final[terminated | truncated]
        rows = row_of(keys, obs, reward, terminated, truncated, numbers)
        index = writer.add(
            rows,
            final=final_of(final) if buffer._spec.core.next and len(final) else None,
            reset=reset if with_mask and vector.mode == "next_step" else None,
        )
        left_out = reset if vector.mode == "next_step" else np.zeros(count, bool)
        assert ((index == -1) == left_out).all()
        obs = after
    buffer._kept = [writer]  # type: ignore[attr-defined]


HOW = ["add", "end", "extend each", "extend ends", "next_step", "next_step masked", "same_step"]
OPTIONS: list[dict[str, Any]] = [
    {"next": "obs"},
    {"n_step": 3},
    {"next": "obs", "n_step": 4},
    {"stack": {"obs": 3}},
    {"next": "obs", "n_step": 2, "stack": {"obs": 3}, "stack_padding": "first"},
]
KEYS = [GYMNASIUM, (*GYMNASIUM, "done"), ("terminated", "done"), ("truncated", "done")]


def fill(buffer: ReplayBuffer, environments: list[Environment], keys: tuple[str, ...], how: str, steps: int) -> None:
    name, _, more = how.partition(" ")
    for environment in environments:
        if how in ("add", "end"):
            add_one_by_one(buffer, environment, keys, how, steps)
        elif name == "extend":
            extend(buffer, environment, keys, more, steps)
    if name in ("next_step", "same_step"):
        add_vectors(buffer, Vector(environments, name), keys, more == "masked", steps)


@pytest.mark.guarantee("replay-gymnasium")
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "+".join(options))
@pytest.mark.parametrize("keys", KEYS, ids="+".join)
def test_episodes_are_those_of_the_environments(how, options, keys):
    kinds = ("terminated", "truncated") if keys == ("truncated", "done") else tuple(FINISHED)
    for seed in range(3):
        environments = [Environment(number, seed, kinds) for number in range(4)]
        buffer = buffer_with(keys, options, chunk=(1, 8, 64)[seed])
        fill(buffer, environments, keys, how, 120)
        assert sum(len(each.episodes) for each in environments) > 60
        compare(buffer, environments, options)
        compare_sequences(buffer, environments, options)


@pytest.mark.parametrize("how", ["add", "next_step", "same_step"])
def test_episodes_are_right_while_old_rows_are_overwritten(how):
    options = OPTIONS[-1]
    environments = [Environment(number, 7, tuple(FINISHED)) for number in range(4)]
    buffer = buffer_with(GYMNASIUM, options, capacity=100, chunk=4)
    fill(buffer, environments, GYMNASIUM, how, 200)
    found, wanted = drawn(buffer, options), expected(environments, options)
    assert len(found) > 20
    assert {n: wanted[n] for n in found} == found


def test_done_alone_terminates():
    options = {"next": "obs", "n_step": 3}
    environments = [Environment(number, 3, ("terminated",)) for number in range(3)]
    buffer = buffer_with(("done",), options)
    fill(buffer, environments, ("done",), "same_step", 100)
    compare(buffer, environments, options)


@pytest.mark.guarantee("replay-gymnasium")
@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_gymnasium_vectors_are_recorded_in_both_reset_modes(mode):
    gymnasium = pytest.importorskip("gymnasium")
    modes = pytest.importorskip("gymnasium.vector").AutoresetMode

    class Counting(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, environment: Environment) -> None:
            self.of = environment

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return np.full(2, self.of.reset(), np.float64), {}

        def step(self, action: Any) -> Any:
            obs, reward, terminated, truncated = self.of.step()
            return np.full(2, obs, np.float64), reward, terminated, truncated, {}

    environments = [Environment(number, 5, tuple(FINISHED)) for number in range(3)]
    vector = gymnasium.vector.SyncVectorEnv(
        [lambda each=each: Counting(each) for each in environments], autoreset_mode=modes[mode]
    )
    options = {"next": "obs", "n_step": 3}
    buffer = buffer_with(GYMNASIUM, options)
    obs, _ = vector.reset()
    with buffer.vector_writer(3, autoreset=vector.metadata["autoreset_mode"]) as writer:
        for _ in range(150):
            numbers = np.array([each.next_row for each in environments])
            after, reward, terminated, truncated, info = vector.step(np.zeros(3, int))
            final: Any = {"obs": after}
            if mode == "SAME_STEP":
                final = None
                if "final_obs" in info:
                    final = {"obs": np.stack(list(info["final_obs"][info["_final_obs"]]))}
            rows = {"obs": obs, "reward": reward, "terminated": terminated, "truncated": truncated, "n": numbers}
            writer.add(rows, final=final)
            obs = after
        assert sum(len(each.episodes) for each in environments) > 60
        compare(buffer, environments, options)


# --- What is refused


def one(terminated: bool = False, truncated: bool = False, **more: Any) -> dict[str, Any]:
    return {"obs": np.zeros(2), "reward": 0.0, "n": 0, "terminated": terminated, "truncated": truncated, **more}


@pytest.mark.guarantee("replay-truncated-rows")
def test_truncated_row_without_final_blocks_the_next_row():
    buffer = buffer_with(GYMNASIUM, {"next": "obs"})
    with buffer.writer() as writer:
        writer.add(one())
        writer.add(one(truncated=True))
        for _ in range(2):
            with pytest.raises(ValueError, match=r"the last row of this stream is truncated.*final="):
                writer.add(one())
        with pytest.raises(ValueError, match="the last row of this stream is truncated"):
            writer.extend({key: np.array([value]) for key, value in one().items()})
        with pytest.raises(ValueError, match="final"):
            writer.end()
        assert (writer.added, len(buffer)) == (2, 1)
        writer.end(final=final_of(7))
        writer.add(one())
        batch = buffer.sample(2, replace=False)
    assert sorted(zip(batch.data["next"]["obs"][:, 0], batch.discount, strict=True)) == [(0, GAMMA * 1), (7, GAMMA)]


def test_extend_adds_nothing_if_a_truncated_row_lacks_final():
    buffer = buffer_with(GYMNASIUM, {"next": "obs"})
    rows = {key: np.array([value] * 3) for key, value in one().items()}
    rows["truncated"] = np.array([False, True, False])
    with buffer.vector_writer(3) as vector, buffer.writer() as writer:
        for add in (vector.add, writer.extend):
            with pytest.raises(ValueError, match="row 1 is truncated.*needs final"):
                add(rows)
        assert [each.added for each in (*vector.writers, writer)] == [0] * 4


def test_terminated_takes_precedence_over_truncated():
    buffer = buffer_with(GYMNASIUM, {"next": "obs"})
    with buffer.writer() as writer:
        writer.add(one(terminated=True, truncated=True))  # needs no final
        writer.end(final=final_of(3), truncated=True)
        writer.add(one(terminated=True, truncated=True))
        writer.add(one(truncated=True), final=final_of(5))
    assert sorted(buffer.sample(3, replace=False).discount.tolist()) == [0, 0, GAMMA]


@pytest.mark.guarantee("replay-truncated-rows")
@pytest.mark.parametrize(
    ("keys", "flags", "text"),
    [
        ((*GYMNASIUM, "done"), (True, False, False), "terminated = true, truncated = false, done = false"),
        ((*GYMNASIUM, "done"), (False, False, True), "terminated = false, truncated = false, done = true"),
        (("terminated", "done"), (True, False, False), "terminated = true, done = false"),
        (("truncated", "done"), (False, True, False), "truncated = true, done = false"),
    ],
)
def test_error_names_the_row_with_a_contradictory_done(keys, flags, text):
    buffer = buffer_with(keys, {"n_step": 2})
    good = {**one(done=False)}
    bad = {**good, **dict(zip((*GYMNASIUM, "done"), flags, strict=True))}
    good, bad = ({key: row[key] for key in ("obs", "reward", "n", *keys)} for row in (good, bad))
    with pytest.raises(ValueError, match=f"the row has {text}"):
        buffer.add(bad)
    many = {key: np.stack([good[key], bad[key]]) for key in good}
    with pytest.raises(ValueError, match=f"row 1 has {text}"):
        buffer.extend(many)
    with buffer.vector_writer(2) as writer:
        with pytest.raises(ValueError, match=f"row 1 has {text}"):
            writer.add(many)
        assert writer.add(many, reset=[False, True])[1] == -1  # a row that is not a step is not checked
    assert buffer.stats()["added"] == 1


@pytest.mark.guarantee("replay-end-keys")
@pytest.mark.parametrize("options", [{"next": "obs"}, {"n_step": 2}, {"stack": {"obs": 2}}])
def test_rows_without_an_end_key_need_done_none(options):
    (what,) = options
    with pytest.raises(ValueError, match=f"{what} needs to know where episodes end.*done.*None"):
        buffer_with((), options)
    buffer = buffer_with((), {**options, "done": None})
    with buffer.writer() as writer:
        writer.add({"obs": np.zeros(2), "reward": 0.0, "n": 0})
        writer.end()
    assert len(buffer) == 1


@pytest.mark.guarantee("replay-end-keys")
def test_sequences_without_an_end_key_need_done_none():
    row = {"obs": np.zeros(2), "reward": 0.0, "n": 0}
    buffer = buffer_with((), {})
    buffer.add(row)
    assert len(buffer.sample(3)) == 3
    with pytest.raises(ValueError, match="sample_sequences needs to know where episodes end"):
        buffer.sample_sequences(1, 2)
    buffer = buffer_with((), {"done": None})
    buffer.add(row)
    assert buffer.sample_sequences(1, 2).mask.tolist() == [[True, False]]


def test_with_done_none_no_key_ends_an_episode():
    buffer = buffer_with(GYMNASIUM, {"n_step": 2, "done": None})
    with buffer.writer() as writer:
        writer.add(one(terminated=True))
        assert len(buffer) == 0
        writer.add(one(truncated=True))
        assert (len(buffer), buffer.sample(1).discount.tolist()) == (1, [GAMMA**2])


def test_keys_that_cannot_end_an_episode_are_refused():
    example = {"obs": np.zeros(2), "terminated": np.zeros(3, bool)}
    with pytest.raises(ValueError, match='"terminated" ends episodes.*None'):
        ReplayBuffer(8, example=example, episodes=Episodes(next="obs"))
    example = {"obs": np.zeros(2), "truncated": {"a": False, "b": False}}
    with pytest.raises(ValueError, match='truncated is "truncated", which has 2 columns.*`done` of Episodes to None'):
        ReplayBuffer(8, example=example, episodes=Episodes(next="obs"))
    ReplayBuffer(8, example=example, episodes=Episodes(next="obs", done=None))


def test_loaded_buffer_keeps_its_end_keys(tmp_path):
    options = {"next": "obs"}
    environments = [Environment(0, 1, tuple(FINISHED))]
    buffer = buffer_with(GYMNASIUM, options)
    fill(buffer, environments, GYMNASIUM, "add", 50)
    buffer.save(tmp_path)
    loaded = ReplayBuffer.load(tmp_path, episodes=Episodes(next="obs", gamma=GAMMA))
    with loaded.writer() as writer:
        writer.add(one(truncated=True, n=1), final=final_of(9))
        writer.add(one(terminated=True, n=2))
    found = drawn(loaded, options)
    assert (found.pop(1)[1:], found.pop(2)[1]) == ((GAMMA, [0], [9]), 0.0)
    ready = expected(environments, options)
    assert found == {n: ready[n] for n in found}
    with pytest.raises(
        ValueError, match=r"done is None, but the saved buffer has .*\['terminated'\].* and .*\['truncated'\]"
    ):
        ReplayBuffer.load(tmp_path, episodes=Episodes(next="obs", done=None))


def test_unknown_autoreset_is_refused():
    buffer = buffer_with(GYMNASIUM, {})
    with pytest.raises(ValueError, match="autoreset is 'sometimes'; it must be 'next_step', 'same_step'"):
        buffer.vector_writer(2, autoreset="sometimes")


def test_next_step_autoreset_skips_the_row_after_end_call():
    buffer = buffer_with(GYMNASIUM, {"next": "obs"})
    rows = {key: np.array([value] * 2) for key, value in one().items()}
    with buffer.vector_writer(2, autoreset="next_step") as writer:
        writer.add(rows)
        writer.writers[1].end(final=final_of(4), truncated=True)
        assert (writer.add(rows) == -1).tolist() == [False, True]
        assert (writer.add(rows, reset=[True, False]) == -1).tolist() == [True, False]


def test_exist_ok_refuses_other_end_keys():
    name = f"ends-{uuid.uuid4().hex}"
    buffer = ReplayBuffer(8, example=one(), name=name)
    assert len(ReplayBuffer(8, example=one(), name=name, exist_ok=True)) == len(buffer) == 0
    with pytest.raises(ValueError, match="done"):
        ReplayBuffer(8, example=one(), name=name, exist_ok=True, episodes=Episodes(done=None))
