"""Random programs that fork: pipelines, fan-in, fan-out, pools, bare os.fork, kills, and slow workers.

    python tests/forked_programs.py --count 1000 --seed 0 --jobs 12

A program is a launcher and its stages. A pair leads from each stage to the next, and one from the last stage back to
the launcher. A stage is one or several processes. They get their ends in one of the ways in which programs pass them
on. The launcher starts all stages, closes the ends that it does not use, and receives until the stream ends. Checks:

- every program ends, and so do all of its processes, even if the launcher or a stage is killed;
- if no process was killed, every message arrives once;
- nothing is left over: no processes, and so no memory, and no names.

Each program is made from its seed alone. On a failure the script prints the seed, and `--only SEED` runs that program.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import multiprocessing as mp
import os
import random
import select
import signal
import sys
import time
import traceback
import types
from typing import Any

import shmtree

MAX_S = 180.0  # limit for one program, also on a loaded machine
GIVEN_BY = ("args", "kwargs", "closure", "default", "global", "attribute", "method", "partial", "bare_fork", "pool")
SLOW_S = 10.0

FORK = mp.get_context("fork")


@dataclasses.dataclass
class Stage:
    """Some processes that receive from `takes` (None: they make messages) and put into `puts`."""

    given_by: str
    processes: int
    slow: bool
    takes: shmtree.Receiver | None = None
    puts: shmtree.Sender | None = None


def work(takes: Any, puts: Any, first: int, count: int, slow: bool = False) -> None:
    """Forwards messages from `takes`, or makes `count` messages. Stops if another process was killed."""
    if slow:
        time.sleep(SLOW_S)
    with contextlib.suppress(shmtree.PeerDied, shmtree.ChannelClosed):
        if takes is None:
            for number in range(first, first + count):
                puts.put(number)
        else:
            for message in takes:
                puts.put(message)


class Worker(FORK.Process):  # type: ignore[name-defined, misc]
    """Has its ends as attributes."""

    def __init__(self, *job: Any) -> None:
        super().__init__()
        self.job = job

    def run(self) -> None:
        work(*self.job)


class Job:
    """Has its ends in an attribute. The target of the process is the bound method `do`."""

    def __init__(self, *job: Any) -> None:
        self.job = {"parts": [job]}

    def do(self) -> None:
        work(*self.job["parts"][0])


def in_closure(*job: Any) -> Any:
    def run() -> None:
        work(*job)

    return run


def in_default(*job: Any) -> Any:
    def run(job: Any = job) -> None:
        work(*job)

    return run


def in_globals(*job: Any) -> Any:
    """Returns a function that reaches its ends through globals of its module, and through another function."""
    module = types.ModuleType("a_program")
    vars(module).update(job=job, work=work)
    exec("def run():\n    go_on()\ndef go_on():\n    (lambda: work(*job))()", vars(module))
    return vars(module)["run"]


def begin_in_pool(kept: list[Any], takes: Any, puts: Any, slow: bool) -> None:
    """Initializes a pool worker. It calls keep_only() because its tasks come later."""
    global of_pool
    shmtree.keep_only(*kept)
    of_pool = takes, puts, slow


def task_of_pool(first: int, count: int) -> None:
    takes, puts, slow = of_pool
    work(takes, puts, first, count, slow)


of_pool: tuple[Any, Any, bool] = (None, None, False)


class Program:
    """A program, as determined by its seed."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.chance = chance
        self.count = chance.choice((0, 1, 5, 40, 200))  # messages of each process that makes messages
        depth = chance.randint(2, 5)
        ways = chance.sample(GIVEN_BY, k=len(GIVEN_BY))
        self.stages = [
            Stage(ways[number], chance.choice((1, 1, 2, 3)), slow=chance.random() < 0.04) for number in range(depth)
        ]
        self.killed = chance.choice((None, None, None, None, None, "stage", "launcher"))
        self.named = chance.random() < 0.2
        self.closes_early = chance.random() < 0.3  # closes each end as soon as its stage has started
        self.capacity = chance.choice((1, 8, None))
        self.name = f"forked-{os.getpid()}-{seed}"
        self.pids: list[int] = []  # without pools: if a worker is killed, a pool waits forever for its result
        self.pools: list[Any] = []
        self.kept: list[Any] = []  # keeps objects alive, so that garbage collection closes no end

    def describe(self) -> str:
        stages = " -> ".join(f"{s.processes} by {s.given_by}{' (slow)' if s.slow else ''}" for s in self.stages)
        return f"{stages}; {self.count} messages each, killed: {self.killed}, named: {self.named}"

    def start(self, stage: Stage, number: int) -> None:
        job = (stage.takes, stage.puts, number * self.count, self.count, stage.slow)
        if stage.given_by == "bare_fork":
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    shmtree.keep_only(*[end for end in (stage.takes, stage.puts) if end is not None])
                    work(*job)
                    status = 0
                finally:
                    os._exit(status)
            self.pids.append(pid)
            return
        makers: dict[str, Any] = {
            "args": lambda: FORK.Process(target=work, args=job),
            "kwargs": lambda: FORK.Process(
                target=work, kwargs=dict(zip(("takes", "puts", "first", "count", "slow"), job, strict=True))
            ),
            "closure": lambda: FORK.Process(target=in_closure(*job)),
            "default": lambda: FORK.Process(target=in_default(*job)),
            "global": lambda: FORK.Process(target=in_globals(*job)),
            "attribute": lambda: Worker(*job),
            "method": lambda: FORK.Process(target=Job(*job).do),
            "partial": lambda: FORK.Process(target=functools.partial(work, *job)),
        }
        process = makers[stage.given_by]()
        process.start()
        self.kept.append(process)
        self.pids.append(process.pid)

    def start_pool(self, stage: Stage) -> None:
        kept = [end for end in (stage.takes, stage.puts) if end is not None]
        pool = FORK.Pool(stage.processes, begin_in_pool, (kept, stage.takes, stage.puts, stage.slow))
        self.pools.append(pool)
        for number in range(stage.processes):
            self.kept.append(pool.apply_async(task_of_pool, (number * self.count, self.count)))
        pool.close()

    def run(self) -> dict[str, Any]:
        """Runs in the launcher. Returns which messages it received."""
        options = [{"name": f"{self.name}-{i}"} if self.named else {} for i in range(len(self.stages))]
        pairs = [shmtree.create_pair(self.capacity, allow_pickle=True, **each) for each in options]
        for number, stage in enumerate(self.stages):
            stage.puts = pairs[number][0]
            stage.takes = pairs[number - 1][1] if number else None
        # Start the pools last. They start threads, and a later fork could inherit a lock that such a thread holds.
        order = sorted(range(len(self.stages)), key=lambda i: (self.stages[i].given_by == "pool", self.chance.random()))
        for i in order:
            stage = self.stages[i]
            if stage.given_by == "pool":
                self.start_pool(stage)
            else:
                for number in range(stage.processes):
                    self.start(stage, number)
            if self.closes_early:
                self.close_ends_of(stage)
        for stage in self.stages:
            self.close_ends_of(stage)
        sink = pairs[-1][1]
        if self.killed == "launcher":
            time.sleep(self.chance.random() * 0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        if self.killed == "stage" and self.pids:
            time.sleep(self.chance.random() * 0.3)
            with contextlib.suppress(ProcessLookupError):  # it has exited already
                os.kill(self.chance.choice(self.pids), signal.SIGKILL)
        received: list[int] = []
        with contextlib.suppress(shmtree.PeerDied):
            received += sink
        for pool in self.pools:
            pool.join()
        sink.close()
        for process in self.kept:
            if hasattr(process, "exitcode"):
                process.join()
        stage = self.stages[0]
        sent = [i * self.count + each for i in range(stage.processes) for each in range(self.count)]
        return {"lost": sorted(set(sent) - set(received)), "twice": len(received) - len(set(received))}

    @staticmethod
    def close_ends_of(stage: Stage) -> None:
        for end in (stage.takes, stage.puts):
            if end is not None:
                end.close()


def launch(seed: int, results: int, quiet: bool) -> None:
    """Body of the launcher, forked by the runner. It has its own session, by which its processes are found."""
    os.setsid()
    if quiet:  # pool workers report the kill of their process
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    verdict: dict[str, Any]
    try:
        verdict = Program(seed).run()
    except BaseException:
        verdict = {"error": traceback.format_exc()}
    os.write(results, json.dumps(verdict).encode())
    mp.util._exit_function()  # as at a normal exit
    os._exit(0)


def processes_of_session(session: int) -> list[int]:
    """Returns the live processes of a session."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
                if fields[0] not in "ZX" and int(fields[3]) == session:
                    found.append(int(entry))
    return found


def stacks(pids: list[int]) -> str:
    texts = []
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/wchan") as file:
            texts.append(f"{pid} in {file.read()}")
    return ", ".join(texts)


@dataclasses.dataclass
class Running:
    seed: int
    pid: int
    results: int
    began: float = dataclasses.field(default_factory=time.monotonic)
    said: bytes = b""
    has_ended: bool = False


def begin(seed: int, quiet: bool) -> Running:
    results, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(results)
        launch(seed, theirs, quiet)
    os.close(theirs)
    return Running(seed, pid, results)


def look(one: Running) -> str | None:
    """Returns None while the program runs, then the error, or "" if there is none."""
    if select.select([one.results], [], [], 0)[0]:
        one.said += os.read(one.results, 65536)
    if not one.has_ended:
        one.has_ended = os.waitpid(one.pid, os.WNOHANG)[0] != 0
    left = processes_of_session(one.pid)
    if not one.has_ended or left:
        if time.monotonic() - one.began < MAX_S:
            return None
        wrong = f"not over after {MAX_S} s, still there: {stacks(left)}"
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if not one.has_ended:
            os.waitpid(one.pid, 0)
        return wrong
    one.said += os.read(one.results, 65536)
    killed = Program(one.seed).killed
    if killed == "launcher":
        return ""
    verdict = json.loads(one.said) if one.said else {"error": "the launcher ended without a word"}
    if "error" in verdict:
        return str(verdict["error"])
    if killed is None and (verdict["lost"] or verdict["twice"]):
        return f"lost {verdict['lost'][:10]} ({len(verdict['lost'])}), twice {verdict['twice']}"
    return ""


def run(seeds: list[int], jobs: int, verbose: bool = True) -> list[str]:
    """Returns the errors, with their seeds."""
    wrong: list[str] = []
    waiting, running, ended = iter(seeds), [], 0
    while True:
        for seed in itertools.islice(waiting, jobs - len(running)):
            running.append(begin(seed, quiet=len(seeds) > 1))
        if not running:
            break
        for one in list(running):
            found = look(one)
            if found is None:
                continue
            running.remove(one)
            os.close(one.results)
            ended += 1
            if found:
                wrong.append(f"seed {one.seed}: {Program(one.seed).describe()}: {found}")
                print(wrong[-1], flush=True)
            if verbose and ended % 100 == 0:
                print(f"{ended} of {len(seeds)} programs, {len(wrong)} wrong", flush=True)
        time.sleep(0.02)
    names = [known.name for known in shmtree.list_names() if known.name.startswith("forked-") and known.pids]
    if names:
        wrong.append(f"names are left: {names}")
        print(wrong[-1], flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="number of programs")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first program")
    parser.add_argument("--only", type=int, help="run only the program with this seed")
    parser.add_argument("--jobs", type=int, default=12, help="programs that run at the same time")
    args = parser.parse_args()
    seeds = [args.only] if args.only is not None else list(range(args.seed, args.seed + args.count))
    if args.only is not None:
        print(Program(args.only).describe(), flush=True)
    began = time.monotonic()
    wrong = run(seeds, args.jobs)
    print(f"{len(seeds)} programs in {time.monotonic() - began:.0f} s, {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
