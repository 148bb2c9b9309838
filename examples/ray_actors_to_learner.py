"""Ray actors on any nodes play CartPole and send transitions to a learner, which publishes its weights to all.

    pip install 'shmtree[ray]' 'gymnasium[classic-control]'

    python examples/ray_actors_to_learner.py --actors 4
    python examples/ray_actors_to_learner.py --address auto     # in a running cluster
    python examples/ray_actors_to_learner.py --nodes 2          # simulates two nodes on this machine

An actor on the learner's node puts into memory that the learner reads. An actor on another node puts into its own
node's memory, and the gateway there sends many transitions at once. New weights are sent to each node once, for all its
actors.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import ray
from numpy_policy import Trainer, choose, new_weights
from ray.cluster_utils import Cluster

import shmtree
import shmtree.ray


@ray.remote(num_cpus=0, scheduling_strategy="SPREAD")
def act(number: int, samples: Any, weights: Any) -> int:
    """Steps the environment with the newest weights until the learner closes. Returns the number of transitions."""
    import gymnasium

    rng = np.random.default_rng(number)
    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset(seed=number)
    _, policy = weights.get()
    sent, score = 0, 0.0
    while True:
        action, log_prob = choose(policy, obs, rng)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        score += float(reward)
        transition = {"obs": obs, "action": action, "log_prob": log_prob, "reward": float(reward)}
        transition |= {"next_obs": next_obs, "terminated": terminated, "truncated": truncated}
        try:
            samples.put({"actor": number, "transition": transition, "score": score})
        except shmtree.ChannelClosed:  # the learner has enough transitions
            return sent
        sent += 1
        obs = next_obs
        if terminated or truncated:
            obs, _ = env.reset()
            score = 0.0
        if sent % 16 == 0:
            _, policy = weights.get()


@ray.remote(num_cpus=0)
class Learner:
    def train(self, samples: Any, weights: Any, actors: int, count: int) -> tuple[float, int]:
        """Returns the mean score of the last episodes, and the number of versions of the weights."""
        rng = np.random.default_rng(0)
        trainer = Trainer(new_weights(rng, inputs=4, actions=2), actors, rng)
        version = weights.publish(trainer.weights)
        scores: deque[float] = deque([0.0], maxlen=30)
        for _ in range(count):
            item = samples.get(timeout=300)
            transition = item["transition"]
            if transition["terminated"] or transition["truncated"]:
                scores.append(item["score"])
            if trainer.add(item["actor"], transition):
                version = weights.publish(trainer.weights)
        samples.close()
        return float(np.mean(scores)), version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--address", help="address of a cluster (default: start one here)")
    parser.add_argument("--nodes", type=int, default=1, help="nodes of the cluster that is started here")
    options = parser.parse_args()

    here = str(Path(__file__).parent)  # lets workers import numpy_policy
    os.environ["PYTHONPATH"] = os.pathsep.join([here, os.environ.get("PYTHONPATH", "")])
    cluster = None
    if options.address is None and options.nodes > 1:
        os.environ["SHMTREE_RAY_LOCAL"] = "0"  # treat nodes on one machine as separate machines
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        for _ in range(options.nodes - 1):
            cluster.add_node(num_cpus=2)
    ray.init(address=options.address if cluster is None else cluster.address)
    try:
        learner = Learner.remote()
        sender, receiver = shmtree.ray.create_pair(capacity=256, home=learner)
        weights = shmtree.ray.Latest(home=learner)
        began = time.monotonic()
        training = learner.train.remote(receiver, weights, options.actors, options.samples)
        actors = [act.remote(number, sender, weights) for number in range(options.actors)]
        sender.close()
        receiver.close()
        score, versions = ray.get(training)
        seconds = time.monotonic() - began
        print(
            f"{options.samples} samples in {seconds:.1f} s, {versions} versions of the weights, mean score {score:.0f}"
        )
        print("sent by each actor:", ray.get(actors))
    finally:
        ray.shutdown()
        if cluster is not None:
            cluster.shutdown()


if __name__ == "__main__":
    main()
