"""A DataLoader feeds a small network. Its workers write each batch once, where the training loop reads it.

    python examples/dataloader_training.py

The data is synthetic: images with a bright square on the left or on the right, and a label for the side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import shmtree.torch
from shmtree import multiprocessing as mp


class Squares(Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 1024

    def __getitem__(self, index: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(index)
        pixels = torch.rand(3, 64, 64, generator=generator)
        side = index % 2
        pixels[:, 16:48, 8 + 32 * side : 24 + 32 * side] += 1
        return {"image": {"pixels": pixels, "index": index}, "side": side}


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    loader = DataLoader(
        Squares(),
        batch_size=64,
        shuffle=True,
        num_workers=2,
        persistent_workers=True,
        collate_fn=shmtree.torch.collate,
        multiprocessing_context=mp.get_context("spawn"),
    )
    model = nn.Sequential(nn.AvgPool2d(8), nn.Flatten(), nn.Linear(3 * 8 * 8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(3):
        right = 0
        for batch in loader:
            scores = model(batch["image"]["pixels"])
            loss = nn.functional.cross_entropy(scores, batch["side"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((scores.argmax(1) == batch["side"]).sum())
        print(f"epoch {epoch}: {right * 100 // len(loader.dataset)} % right")


if __name__ == "__main__":
    main()
