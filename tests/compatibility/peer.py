"""One side of tests/compatibility/run.py: makes one object of each kind, or reads one that the other version made.

- `python peer.py make FOLDER` makes all objects, prints "ready", and keeps them until stdin is closed.
- `python peer.py read FOLDER CASE` prints the outcome as one line of JSON.
- `python peer.py cases` prints the names of the cases, one a line.

It makes only calls that both versions have.
"""

from __future__ import annotations

import contextlib
import io
import json
import pathlib
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import shmtree
from shmtree.recording import Recording
from shmtree.replay import ReplayBuffer

try:
    from shmtree.recording._mcap import Writer
    from shmtree.recording._tap import record
except ImportError:  # the module of 0.2
    from shmtree._mcap import Writer
    from shmtree._recorders import record

TIMEOUT = 20.0
VALUE = {"n": [1, 2], "text": "abc", "array": np.arange(5)}
BYTES = b"b" * 5000


def shown(value: Any) -> str:
    """Returns a text that is equal for equal values."""
    return repr(value.tolist()) if isinstance(value, np.ndarray) else repr(value)


def make(folder: pathlib.Path) -> list[object]:
    """Makes an object of each kind. Returns the objects to keep alive while other processes read them."""
    arena = shmtree.Arena(64 << 20)
    kept: list[object] = [arena, shmtree.Arena(64 << 20, name="v-arena")]
    (folder / "packed").write_bytes(shmtree.pack(VALUE))
    (folder / "flat").write_bytes(shmtree.pack(BYTES))
    shmtree.dump(VALUE, folder / "dumped")

    for name in ("v-pair", "v-taken"):
        ends = shmtree.create_pair(8, name=name)
        ends[0].put(VALUE)
        kept.append(ends)
    queue: Any = shmtree.Queue(8, name="v-queue")
    for _ in range(4):
        queue.put(VALUE)
    latest = shmtree.Latest(name="v-latest")
    latest.publish(VALUE)
    broadcast = shmtree.Broadcast(name="v-broadcast", history=4)
    broadcast.put(VALUE)
    array = arena.array(5, int, name="v-array")
    array.array[:] = range(5)
    buffer = ReplayBuffer(100, example={"x": 0}, name="v-replay")
    with buffer.writer() as writer:
        for x in range(5):
            writer.add({"x": x})
    buffer.save(folder / "saved")
    service: Any = shmtree.Service("v-service")
    threading.Thread(target=answer, args=(service,), daemon=True).start()

    pair = arena.create_pair()
    pair[0].put(VALUE)
    handed = {
        "arena": arena,
        "sender": pair[0],
        "receiver": pair[1],
        "queue": queue,
        "latest": latest,
        "broadcast": broadcast,
        "subscriber": broadcast.subscribe(),
        "array": array,
        "replay": buffer,
    }
    for name, thing in handed.items():
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(thing))
    (folder / "queue.handle").write_text(queue.handle())
    kept += [queue, latest, broadcast, array, buffer, service, pair, handed]

    sender, receiver = shmtree.create_pair(8, name="v-recorded")

    def put() -> None:
        sender.put(VALUE)
        sender.close()
        receiver.get(timeout=TIMEOUT)

    with Writer(str(folder / "recording")) as out:
        record(out, ["v-recorded"], threading.Thread(target=put).start, lambda: False)
    return kept


def answer(service: Any) -> None:
    for request in service:
        request.reply(request.value)


def loaded(folder: pathlib.Path, name: str) -> Any:
    return pickle.loads((folder / f"{name}.pickle").read_bytes())


def first_message(folder: pathlib.Path) -> Any:
    recording = Recording(folder / "recording")
    assert recording.channels == {"v-recorded": 1}
    return next(iter(recording)).load(copy=True)


def put_frame(folder: pathlib.Path, name: str) -> Any:
    sender, receiver = shmtree.create_pair()
    sender.put_frame((folder / name).read_bytes())
    return receiver.get(timeout=0)


def described(folder: pathlib.Path) -> str:
    out = io.StringIO()
    shmtree.describe((folder / "packed").read_bytes(), file=out)
    return out.getvalue()


def sampled(buffer: Any) -> bool:
    drawn: list[int] = buffer.sample(50, timeout=TIMEOUT).data["x"].tolist()
    return set(drawn) <= set(range(5))


def run_shmtree(*arguments: str) -> str:
    """Returns the output of `python -m shmtree`. If it fails, raises RuntimeError with all of its output."""
    command = [sys.executable, "-m", "shmtree", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    if done.returncode != 0 or "Traceback" in done.stderr:
        raise RuntimeError(f"status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def is_taken(name: str) -> bool:
    try:
        shmtree.create_pair(name=name)
    except FileExistsError:
        return True
    return False


CASES: dict[str, Callable[[pathlib.Path], Any]] = {
    "unpack": lambda folder: shmtree.unpack((folder / "packed").read_bytes(), copy=True),
    "unpack bytes": lambda folder: shmtree.unpack((folder / "flat").read_bytes(), copy=True) == BYTES,
    "load": lambda folder: shmtree.load(folder / "dumped"),
    "describe": described,
    "put_frame": lambda folder: put_frame(folder, "packed"),
    "put_frame of bytes": lambda folder: put_frame(folder, "flat") == BYTES,
    "recording": first_message,
    "saved replay buffer": lambda folder: sampled(ReplayBuffer.load(folder / "saved")),
    "name of a pair, to send": lambda folder: shmtree.open_sender("v-pair").put(1, timeout=TIMEOUT),
    "name of a pair, to receive": lambda folder: shmtree.open_receiver("v-pair").get(timeout=TIMEOUT),
    "name of a queue": lambda folder: shmtree.Queue.open("v-queue").get(timeout=TIMEOUT),
    "name of a Latest": lambda folder: shmtree.Latest.open("v-latest").get(timeout=TIMEOUT),
    "name of a Broadcast": lambda folder: shmtree.Broadcast.open("v-broadcast").subscribe("oldest").get(timeout=5),
    "name of an array": lambda folder: shmtree.SharedArray.open("v-array").array.copy(),
    "name of a replay buffer": lambda folder: sampled(ReplayBuffer.open("v-replay")),
    "name of a service": lambda folder: shmtree.Client("v-service").call(VALUE, timeout=TIMEOUT),
    "name of an arena": lambda folder: shmtree.Arena.open("v-arena").stats()["max_bytes"],
    "name that is in use": lambda folder: is_taken("v-taken"),
    "name that is in use, with exist_ok": lambda folder: shmtree.create_pair(name="v-taken", exist_ok=True)[0].put(1),
    "handle of a queue": lambda folder: shmtree.Queue.open_handle((folder / "queue.handle").read_text()).get(timeout=5),
    "pickled arena": lambda folder: loaded(folder, "arena").stats()["max_bytes"],
    "pickled sender": lambda folder: loaded(folder, "sender").put(1, timeout=TIMEOUT),
    "pickled receiver": lambda folder: loaded(folder, "receiver").get(timeout=TIMEOUT),
    "pickled queue": lambda folder: loaded(folder, "queue").get(timeout=TIMEOUT),
    "pickled Latest": lambda folder: loaded(folder, "latest").get(timeout=TIMEOUT),
    "pickled Broadcast": lambda folder: loaded(folder, "broadcast").put(1, timeout=TIMEOUT),
    "pickled subscriber": lambda folder: loaded(folder, "subscriber").qsize(),
    "pickled array": lambda folder: loaded(folder, "array").array.copy(),
    "pickled replay buffer": lambda folder: sampled(loaded(folder, "replay")),
    "shmtree record": lambda folder: run_shmtree("record", "v-pair", "--seconds", "1", "--out", str(folder / "other")),
    "shmtree trace": lambda folder: run_shmtree("trace", "v-pair", "--seconds", "1", "--out", str(folder / "trace")),
    "shmtree ls": lambda folder: run_shmtree("ls"),
    "shmtree inspect": lambda folder: run_shmtree("inspect", "v-pair"),
    "shmtree top": lambda folder: run_shmtree("top", "--once"),
    "shmtree why": lambda folder: run_shmtree("why", "v-service"),
    "name that a kill left": lambda folder: not is_taken("v-taken"),
    "other names that it left": lambda folder: not any((shmtree.clean_names(), shmtree.list_names())[1:]),
}
#: The first case that run.py reads after it has killed the process that made the objects.
AFTER_KILL = "name that a kill left"
#: Commands that succeed for arenas of any version. All but "ls" report the arenas that they cannot read.
OBSERVERS = ("shmtree ls", "shmtree inspect", "shmtree top", "shmtree why")


def read(folder: pathlib.Path, case: str) -> dict[str, str]:
    try:
        return {"value": shown(CASES[case](folder))}
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}


def main(verb: str, *arguments: str) -> None:
    if verb == "cases":
        print(*CASES, sep="\n")
        return
    folder = pathlib.Path(arguments[0])
    if verb == "make":
        kept = make(folder)
        print("ready", flush=True)
        sys.stdin.read()
        del kept
    else:
        print(json.dumps(read(folder, arguments[1])), flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(*sys.argv[1:])
