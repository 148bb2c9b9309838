"""Compares what `shmtree run --profile` predicts with what `shmtree run` saves, for programs of public kinds.

    python -m bench.profile_accuracy [--rounds 3] [names]

Each round runs each program plainly, with `shmtree run` and with `shmtree run --profile`, in turns. Prints a table: the
wall and CPU time of the plain command, the predicted saving and the real one. Times are the least of the rounds, since
other programs only add to them; predictions are medians. The last column compares the CPU times: wall times depend on
the load of the machine. Programs that need pandas, joblib or torch are left out where
these are missing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from bench import markdown

STREAM = """
import multiprocessing as mp, numpy as np, pickle
from dataclasses import dataclass, field

class Job:
    def __init__(self, number):
        self.number, self.matrix = number, np.full((700, 700), float(number))

@dataclass
class Sample:
    number: int
    image: np.ndarray = field(repr=False)
    label: str = "cat"

def work(source, results):
    while (item := source.get()) is not None:
        results.put(CONSUME(item))
        if hasattr(source, "task_done"):
            source.task_done()

if __name__ == "__main__":
    source, results = KIND(maxsize=8), mp.Queue()
    worker = mp.Process(target=work, args=(source, results))
    worker.start()
    for number in range(COUNT):
        source.put(ITEM)
    source.put(None)
    for _ in range(COUNT):
        results.get()
    worker.join()
"""


def stream(kind: str, count: int, item: str, consume: str) -> str:
    """Returns a program that sends items to a worker, which sends back a small result for each."""
    text = STREAM.replace("KIND", f"mp.{kind}").replace("COUNT", str(count))
    return text.replace("ITEM", item).replace("CONSUME", f"(lambda item: {consume})")


POOL = """
import multiprocessing as mp, numpy as np

def work(item):
    return WORK

if __name__ == "__main__":
    with mp.Pool(2) as pool:
        print(len(RUN))
"""

PROGRAMS = {
    "Queue: 300 arrays of 8 MB": stream("Queue", 300, "np.full((1080, 1920), number, np.float32)", "float(item[0, 0])"),
    "JoinableQueue: 400 objects of a class, 3.9 MB": stream("JoinableQueue", 400, "Job(number)", "item.number"),
    "Queue: 400 dataclass instances, 3.1 MB": stream(
        "Queue", 400, "Sample(number, np.zeros((1024, 1024, 3), np.uint8))", "item.number"
    ),
    "Queue: 60 bytes objects of 10 MB": stream("Queue", 60, "bytes(10_000_000)", "len(item)"),
    "Queue: 60 texts of 10 MB": stream("Queue", 60, "'x' * 10_000_000", "len(item)"),
    "Queue: 100 lists of 100,000 numbers": stream("Queue", 100, "[float(number)] * 100_000", "len(item)"),
    "Queue: 60,000 small tuples": stream("Queue", 60_000, "(number, 'job', 0.5)", "item[0]"),
    "Queue: 1500 small tuples": stream("Queue", 1500, "(number, 'job', 0.5)", "item[0]"),
    "Pipe: 20,000 dicts, there and back": """
import multiprocessing as mp

def work(connection):
    while (message := connection.recv()) is not None:
        connection.send({"step": message["step"], "reward": 1.0, "done": False, "info": {}})

if __name__ == "__main__":
    here, there = mp.Pipe()
    worker = mp.Process(target=work, args=(there,))
    worker.start()
    for number in range(20_000):
        here.send({"step": number, "action": [0.1, 0.2, 0.3]})
        here.recv()
    here.send(None)
    worker.join()
""",
    "Pool.map: 120 arrays of 4 MB": POOL.replace("WORK", "item * 2").replace(
        "RUN", "pool.map(work, [np.ones(500_000) for _ in range(120)], chunksize=1)"
    ),
    "Pool.imap: 2000 small ints": POOL.replace("WORK", "item * item").replace(
        "RUN", "list(pool.imap(work, range(2000)))"
    ),
    "ProcessPoolExecutor: 40 DataFrames of 8 MB": """
import numpy as np, pandas as pd
from concurrent.futures import ProcessPoolExecutor

def work(frame):
    return frame.assign(total=frame.sum(axis=1))

if __name__ == "__main__":
    frame = pd.DataFrame(np.random.default_rng(0).random((100_000, 10)), columns=list("abcdefghij"))
    with ProcessPoolExecutor(2) as executor:
        print(sum(len(each) for each in executor.map(work, [frame] * 40)))
""",
    "Manager queue: 3000 small tuples": """
import multiprocessing as mp

def work(queue, results):
    while (item := queue.get()) is not None:
        results.put(item[0])

if __name__ == "__main__":
    with mp.Manager() as manager:
        queue, results = manager.Queue(), manager.Queue()
        worker = mp.Process(target=work, args=(queue, results))
        worker.start()
        for number in range(3000):
            queue.put((number, "job"))
        queue.put(None)
        print(sum(results.get() for _ in range(3000)))
        worker.join()
""",
    "joblib, multiprocessing: 240 arrays of 4 MB": """
import numpy as np
from joblib import Parallel, delayed

def work(array):
    return array + 1

if __name__ == "__main__":
    tasks = (delayed(work)(np.ones(500_000)) for _ in range(240))
    print(len(Parallel(2, backend="multiprocessing", max_nbytes=None)(tasks)))
""",
    "CPU-bound, 4 processes without a queue": """
import multiprocessing as mp

def work(number):
    total = 0
    for each in range(3_000_000):
        total += each % 7

if __name__ == "__main__":
    workers = [mp.Process(target=work, args=(number,)) for number in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
""",
    "a short script: a Queue of 10 ints": """
import multiprocessing as mp

def work(queue):
    for number in range(10):
        queue.put(number)

if __name__ == "__main__":
    queue = mp.Queue()
    worker = mp.Process(target=work, args=(queue,))
    worker.start()
    print(sum(queue.get() for _ in range(10)))
    worker.join()
""",
    "torch DataLoader: 200 batches of 2.4 MB": """
import torch
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __len__(self):
        return 3200

    def __getitem__(self, number):
        return torch.full((3, 112, 112), float(number)), number

if __name__ == "__main__":
    print(sum(len(labels) for images, labels in DataLoader(Images(), batch_size=16, num_workers=2)))
""",
}
NEEDS = ("pandas", "joblib", "torch")


class Measured(NamedTuple):
    seconds: float
    cpu_seconds: float


def measured(command: list[str]) -> Measured:
    """Runs a command that must succeed. Its CPU time includes that of its children."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        messages = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{command} failed: {messages.decode()}")
    return Measured(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)


def compared(folder: Path, rounds: int) -> tuple[Measured, Measured, Measured]:
    """Returns the least times of the plain program, the medians of its predicted savings, and its real ones."""
    program, report = str(folder / "program.py"), folder / "report.json"
    run = [sys.executable, "-m", "shmtree", "run"]
    plain, replaced, predicted = [], [], []
    for _ in range(rounds):
        plain.append(measured([sys.executable, program]))
        replaced.append(measured([*run, program]))
        measured([*run, "--profile", "--report", str(report), program])
        savings = json.loads(report.read_text())["savings"]
        predicted.append(Measured(savings["seconds"], savings["cpu_seconds"]))
    least, ours = (Measured(*map(min, zip(*each))) for each in (plain, replaced))
    return (
        least,
        Measured(*map(statistics.median, zip(*predicted))),
        Measured(*(a - b for a, b in zip(least, ours))),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("names", nargs="*", help="parts of the programs' names; default: all")
    options = parser.parse_args()
    rows = []
    for name, text in PROGRAMS.items():
        if any(
            f"import {each}" in text or f"from {each}" in text for each in NEEDS if not importlib.util.find_spec(each)
        ):
            continue
        if options.names and not any(each.lower() in name.lower() for each in options.names):
            continue
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "program.py").write_text(text)
            plain, predicted, real = compared(Path(folder), options.rounds)
        is_right = (predicted.cpu_seconds > 0) == (real.cpu_seconds > 0)
        cells = [f"{plain.seconds:.2f}", *(f"{each:+.2f}" for each in (predicted.seconds, real.seconds))]
        cells += [f"{plain.cpu_seconds:.2f}", *(f"{each:+.2f}" for each in (predicted.cpu_seconds, real.cpu_seconds))]
        rows.append([name, *cells, "yes" if is_right else "NO"])
        print(rows[-1], file=sys.stderr, flush=True)
    head = ("program", "plain", "predicted", "real", "plain CPU", "predicted", "real", "same sign of CPU")
    print(markdown.table(head, rows))


if __name__ == "__main__":
    main()
