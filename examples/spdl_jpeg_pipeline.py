"""Feeds JPEG files to a model: threads in a subprocess decode them with SPDL, and shmtree transfers the batches.

    pip install '.[spdl]' pillow    # in a checkout
    python examples/spdl_jpeg_pipeline.py

The program first makes pictures of discs and squares in a temporary folder. A small classifier learns to distinguish
them. Decoding and training run at the same time, in two processes, and a batch is copied once between them.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess

import shmtree.spdl

SIDE = 64
CLASSES = ("disc", "square")


def make_pictures(folder: Path, count: int) -> None:
    """Writes `count` JPEG files, half of each class. Their names contain the class."""
    chance = random.Random(1)
    for number in range(count):
        kind = CLASSES[number % 2]
        picture = Image.new("RGB", (2 * SIDE, 2 * SIDE), tuple(chance.randrange(0, 120) for _ in range(3)))
        size = chance.randrange(70, 100)
        left, top = chance.randrange(2 * SIDE - size), chance.randrange(2 * SIDE - size)
        draw = ImageDraw.Draw(picture)
        shape = draw.ellipse if kind == "disc" else draw.rectangle
        shape((left, top, left + size, top + size), fill=tuple(chance.randrange(150, 256) for _ in range(3)))
        picture.save(folder / f"{number:05d}-{kind}.jpeg", quality=90)


class Shuffled:
    """The pipeline's source: the files, in a new order for each pass."""

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.jpeg"))
        self.epoch = 0

    def __iter__(self) -> Iterator[Path]:
        self.epoch += 1
        return iter(random.Random(self.epoch).sample(self.files, len(self.files)))


def decode(file: Path) -> tuple[np.ndarray[Any, Any], int]:
    """Decodes a file, in a thread of the subprocess. Pillow decodes without the GIL."""
    with Image.open(file) as picture:
        picture.draft("RGB", (SIDE, SIDE))  # decodes at reduced size
        small = np.asarray(picture.resize((SIDE, SIDE)), np.float32) / 255
    return small, CLASSES.index(file.stem.partition("-")[2])


def collate(samples: list[tuple[np.ndarray[Any, Any], int]]) -> dict[str, Any]:
    return {"images": np.stack([image for image, _ in samples]), "labels": np.array([label for _, label in samples])}


class Model:
    """Logistic regression on the number of bright pixels in each row and column."""

    def __init__(self) -> None:
        self.weights = np.zeros(2 * SIDE + 1)

    @staticmethod
    def features(images: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        light = images.mean(axis=3)
        bright = light > light.mean(axis=(1, 2), keepdims=True)
        sides = [np.sort(bright.sum(axis=axis), axis=1) for axis in (1, 2)]  # sorted, to be independent of the position
        shapes = [side / side[:, -1:] - 0.5 for side in sides]  # and of the size
        return np.concatenate([*shapes, np.ones((len(images), 1))], axis=1)

    def train(self, images: np.ndarray[Any, Any], labels: np.ndarray[Any, Any], rate: float = 1.0) -> float:
        """Makes one step. Returns the share of the batch that the model classified correctly before it."""
        features = self.features(images)
        likely = 1 / (1 + np.exp(-features @ self.weights))
        self.weights -= rate * features.T @ (likely - labels) / len(labels)
        return float(((likely > 0.5) == labels).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=4)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        make_pictures(Path(folder), options.pictures)
        config = (
            PipelineBuilder()
            .add_source(Shuffled(Path(folder)))
            .pipe(decode, concurrency=4)
            .aggregate(32)
            .pipe(collate)
            .add_sink(3)
            .get_config()
        )
        arena = shmtree.spdl.SegmentPool()  # instead of SharedMemorySegmentPool(segment_size, count)
        batches = run_pipeline_in_subprocess(config, num_threads=4, arena=arena, mp_context="spawn")
        model = Model()
        for epoch in range(options.epochs):
            right = [model.train(batch["images"], batch["labels"]) for batch in batches]
            print(f"epoch {epoch}: {len(right)} batches, {np.mean(right):.0%} right")


if __name__ == "__main__":
    main()
