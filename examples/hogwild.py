"""Three processes train one model at the same time, without a lock. Its parameters are in shared memory.

    python examples/hogwild.py

Niu, Recht, Re, Wright: Hogwild! A Lock-Free Approach to Parallelizing Stochastic Gradient Descent, 2011.
Each process also counts its work in an array that all of them share.
"""

from __future__ import annotations

import multiprocessing
from typing import Any

import numpy as np
import torch
from torch import nn

import shmtree
import shmtree.torch

WORKERS = 3
STEPS = 300


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))


def samples(generator: torch.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    points = torch.rand(count, 2, generator=generator) * 2 - 1
    return points, (points[:, :1] * points[:, 1:]).sign()


def error_of(model: nn.Module) -> float:
    points, wanted = samples(torch.Generator().manual_seed(99), 1000)
    with torch.no_grad():
        return float((model(points).sign() != wanted).float().mean())


def train(number: int, model: nn.Module, counts: Any) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(number)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        points, wanted = samples(generator, 64)
        loss = nn.functional.mse_loss(model(points), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        counts.array[number] += len(points)


def main() -> None:
    model = shmtree.torch.share_(make_model())
    counts = shmtree.Arena().array(WORKERS, np.int64)
    print(f"{error_of(model):.0%} wrong before")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=train, args=(number, model, counts)) for number in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"{error_of(model):.0%} wrong after {counts.array.tolist()} samples")


if __name__ == "__main__":
    main()
