"""Actors play CartPole and send each transition, with the rendered frame, to a learner that trains a policy.

The same program runs twice, with the same seeds: over shmtree and over multiprocessing.Queue. Only `make_channel`
depends on the transport. Then the actors write into a replay buffer (actors_to_buffer.py), which a learner samples.
`./dev demo` installs the requirements and runs it. By hand, in a checkout:

    pip install . rich 'gymnasium[classic-control]'
    python examples/actors_to_learner.py --help
"""

from __future__ import annotations

import os

# Set before the imports that read them: no window, no greeting, and no thread pools that compete with the actors.
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import collections
import itertools
import json
import multiprocessing
import queue
import time
from pathlib import Path
from typing import Any, NamedTuple

import actors_to_buffer
import numpy as np
from numpy_policy import PixelReader, Trainer, choose, new_weights
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

TRANSPORTS = ("shmtree", "multiprocessing.Queue")


def make_channel(transport: str, capacity: int, context: Any) -> tuple[Any, Any]:
    """Returns a sending and a receiving end; `capacity` 0 is unlimited. Only this function depends on the transport."""
    if transport == "shmtree":
        import shmtree

        return shmtree.create_pair(capacity=capacity)
    both = context.Queue(capacity)
    return both, both


# ---------------------------------------------------------------- actors


def newest(weights: Any, wait: bool) -> tuple[Any, bool]:
    """Returns the newest received weights (None if there are none), and whether the learner asked to stop."""
    latest, item = None, weights.get(timeout=60) if wait else latest_or_nothing(weights)
    while item is not None:
        if "stop" in item:
            return latest, True
        latest, item = item, latest_or_nothing(weights)
    return latest, False


def latest_or_nothing(weights: Any) -> Any:
    try:
        return weights.get_nowait()
    except queue.Empty:
        return None


def act(number: int, seed: int, samples: Any, incoming: Any) -> None:
    """Runs one actor process: steps and renders the environment, and sends the transitions."""
    import gymnasium

    rng = np.random.default_rng((seed, number))
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    obs, _ = env.reset(seed=seed + number)
    samples.put({"actor": number, "ready": True})
    weights, stop = newest(incoming, wait=True)
    cpu_before = time.process_time()

    episode, score = 0, 0.0
    for step in itertools.count():
        if stop:
            break
        frame = env.render()
        action, log_prob = choose(weights, obs, rng)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        score += float(reward)
        transition = {
            "obs": obs,
            "action": action,
            "log_prob": log_prob,
            "reward": float(reward),
            "next_obs": next_obs,
            "terminated": terminated,
            "truncated": truncated,
        }
        info = {"episode": f"{number}-{episode}", "step": step, "score": score}
        samples.put({"actor": number, "transition": transition, "frame": frame, "info": info})
        obs = next_obs
        if terminated or truncated:
            obs, _ = env.reset()
            episode, score = episode + 1, 0.0
        if step % 16 == 0:
            fresh, stop = newest(incoming, wait=False)
            weights = fresh or weights
    samples.put({"actor": number, "cpu": time.process_time() - cpu_before})
    env.close()


# ---------------------------------------------------------------- learner


class Outcome(NamedTuple):
    transport: str
    samples: int
    nbytes: int
    seconds: float
    cpu_seconds: float
    mean_return: float
    pixel_error: float


def learn(transport: str, options: argparse.Namespace, console: Console) -> Outcome:
    """Starts the actors, trains until enough samples or seconds have passed, and counts."""
    context = multiprocessing.get_context("spawn")
    sample_sender, samples = make_channel(transport, options.capacity, context)
    controls = [make_channel(transport, 0, context) for _ in range(options.actors)]
    actors = [
        context.Process(target=act, args=(number, options.seed, sample_sender, receiver), daemon=True)
        for number, (_, receiver) in enumerate(controls)
    ]
    for process in actors:
        process.start()
    for _ in actors:
        assert samples.get(timeout=60)["ready"]

    rng = np.random.default_rng(options.seed)
    trainer = Trainer(new_weights(rng, inputs=4, actions=2), options.actors, rng)
    reader = PixelReader()
    scores: collections.deque[float] = collections.deque([0.0], maxlen=30)
    count, nbytes = 0, 0
    started, cpu_before = time.monotonic(), time.process_time()
    tell(controls, trainer.weights)
    with ProgressLine(console, transport, options.samples) as show:
        while count < options.samples and time.monotonic() - started < options.seconds:
            item = samples.get(timeout=60)
            transition, frame = item["transition"], item["frame"]
            reader.learn(frame, float(transition["obs"][0]))
            count, nbytes = count + 1, nbytes + frame.nbytes
            if transition["terminated"] or transition["truncated"]:
                scores.append(item["info"]["score"])
            if trainer.add(item["actor"], transition):
                tell(controls, trainer.weights)
            show(count, nbytes, time.monotonic() - started, float(np.mean(scores)), reader.error)
    seconds, cpu = time.monotonic() - started, time.process_time() - cpu_before

    tell(controls, {"stop": {}})
    remaining = len(actors)
    while remaining:
        item = samples.get(timeout=60)
        if "cpu" in item:
            cpu, remaining = cpu + item["cpu"], remaining - 1
    for process in actors:
        process.join(30)
    return Outcome(transport, count, nbytes, seconds, cpu, float(np.mean(scores)), reader.error)


def tell(controls: list[tuple[Any, Any]], what: dict[str, Any]) -> None:
    for sender, _ in controls:
        sender.put(what)


class ProgressLine:
    """A live line on a terminal; otherwise a new line every few seconds."""

    def __init__(self, console: Console, transport: str, total: int) -> None:
        self._console, self._transport = console, transport
        self._next = 0.25
        self._bar = Progress(
            TextColumn("{task.description:>21}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[text]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(transport, total=total, text="")

    def __enter__(self) -> Any:
        self._bar.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def _show(self, count: int, nbytes: int, seconds: float, mean_return: float, error: float) -> None:
        if seconds < self._next:
            return
        self._next = seconds + (0.25 if self._console.is_terminal else 5.0)
        text = (
            f"{count:6d} samples {count / seconds:5.0f}/s {nbytes / seconds / 1e9:5.2f} GB/s"
            f"  mean return {mean_return:5.1f}  cart read from pixels within {error:.2f} m"
        )
        self._bar.update(self._task, completed=count, text=text)
        if not self._console.is_terminal:
            self._console.print(f"{self._transport:>21} {text}", soft_wrap=True, highlight=False)


# ---------------------------------------------------------------- comparison


def compare(outcomes: list[Outcome], console: Console) -> None:
    table = Table(title="The same program, the same seeds, another transport", box=None, padding=(0, 1, 0, 0))
    for heading in ("transport", "samples", "seconds", "samples/s", "GB/s", "CPU s", "CPU ms each", "mean return"):
        table.add_column(heading, justify="left" if heading == "transport" else "right", no_wrap=heading == "transport")
    for o in outcomes:
        table.add_row(
            o.transport,
            f"{o.samples:,}",
            f"{o.seconds:.1f}",
            f"{o.samples / o.seconds:,.0f}",
            f"{o.nbytes / o.seconds / 1e9:.2f}",
            f"{o.cpu_seconds:.1f}",
            f"{1000 * o.cpu_seconds / o.samples:.2f}",
            f"{o.mean_return:.0f}",
        )
    console.print(table)
    if len(outcomes) == 2:
        ours, theirs = outcomes
        speed = ours.samples / ours.seconds / (theirs.samples / theirs.seconds)
        cpu = ours.cpu_seconds / ours.samples / (theirs.cpu_seconds / theirs.samples)
        console.print(
            f"{ours.transport}: {speed:.1f} times the samples per second, {cpu:.2f} times the CPU per sample "
            "(rendering and training included, which are the same work in both).",
            highlight=False,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transport", action="append", choices=TRANSPORTS, help="default: each of them in turn")
    parser.add_argument("--actors", type=int, default=max(2, os.cpu_count() or 2))
    parser.add_argument("--samples", type=int, default=20_000, help="samples per run")
    parser.add_argument("--seconds", type=float, default=45, help="maximum seconds per run")
    parser.add_argument("--capacity", type=int, default=16, help="samples that may wait in the channel")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--replay-seconds", type=float, default=60, help="seconds of the run with a replay buffer; 0: no such run"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures of the comparison to FILE as well")
    options = parser.parse_args()

    console = Console()
    console.print(
        f"{options.actors} actors play CartPole; every sample carries a frame of 400 x 600 x 3 bytes. "
        f"Each run ends after {options.samples:,} samples or {options.seconds:.0f} s.",
        highlight=False,
    )
    outcomes = [learn(transport, options, console) for transport in options.transport or TRANSPORTS]
    compare(outcomes, console)
    if options.json:
        options.json.write_text(json.dumps([outcome._asdict() for outcome in outcomes], indent=1))
    if options.replay_seconds > 0:
        console.print(
            f"\nThe same actors write rows with frames of 100 x 150 x 3 bytes into a replay buffer, and a learner "
            f"draws by priority as often as it can, for {options.replay_seconds:.0f} s.",
            highlight=False,
        )
        actors_to_buffer.run(options.actors, options.replay_seconds)


if __name__ == "__main__":
    main()
