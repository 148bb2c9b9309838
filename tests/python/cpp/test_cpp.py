"""A C++ program and Python exchange data through the same channels and frames."""

import os
import pathlib
import shutil
import subprocess
import uuid

import numpy as np
import pytest

import shmtree
from shmtree.recording import Recording
from shmtree.recording._mcap import Writer
from shmtree.replay import Episodes, Limits, Prioritized, ReplayBuffer, Sampling

PROGRAMS = os.environ.get("SHMTREE_PROGRAMS")


needs_programs = pytest.mark.skipif(
    not PROGRAMS, reason="SHMTREE_PROGRAMS does not say where the C++ programs were built"
)


@needs_programs
def test_a_cpp_simulator_feeds_a_python_learner_and_back() -> None:
    key = uuid.uuid4().hex
    actions, their_actions = shmtree.create_pair(capacity=4, name=f"actions-{key}")
    their_transitions, transitions = shmtree.create_pair(capacity=4, name=f"transitions-{key}")
    program = pathlib.Path(PROGRAMS or "") / "simulator"
    with subprocess.Popen([program, f"actions-{key}", f"transitions-{key}"]) as simulator:
        received = []
        for step in range(3):
            actions.put({"values": np.arange(5.0) + step, "label": f"step {step}"}, timeout=60)
            received.append(transitions.get(timeout=60))
        actions.close()
        assert simulator.wait(timeout=60) == 0
    their_actions.close()
    their_transitions.close()

    for step, got in enumerate(received):
        assert list(got) == ["step", "frame", "doubled", "info", "list"]
        assert got["step"] == step
        assert type(got["step"]) is int
        expected = (np.arange(64 * 64 * 3) + step).astype(np.uint8).reshape(64, 64, 3)
        np.testing.assert_array_equal(got["frame"], expected)
        assert got["frame"].dtype == np.uint8
        np.testing.assert_array_equal(got["doubled"], (np.arange(5.0) + step) * 2)
        assert got["info"] == {"label": f"step {step}", "done": step == 2, "none": None}
        assert got["list"] == [1, 2.5, "three", b"four", (True, None)]


@pytest.mark.guarantee("service-requests-only")
@needs_programs
def test_cpp_cannot_open_the_sender_of_a_service() -> None:
    key = uuid.uuid4().hex
    kept = shmtree.Service(f"service-{key}"), shmtree.create_pair(name=f"actions-{key}")
    command = [pathlib.Path(PROGRAMS or "") / "simulator", f"actions-{key}", f"service-{key}"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert refused.returncode == 1
    assert "takes requests of a shmtree::Client" in refused.stderr
    del kept


@pytest.mark.guarantee("allow-pickle")
@needs_programs
@pytest.mark.parametrize(("said", "allowed"), [([], False), (["no"], False), (["yes"], True)])
def test_named_cpp_channel_allows_pickle_only_if_both_sides_do(said: list[str], allowed: bool) -> None:
    name = f"pickles-{uuid.uuid4().hex}"
    program = pathlib.Path(PROGRAMS or "") / "named_pair"
    with subprocess.Popen([program, name, *said], stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"made\n"
        with shmtree.open_sender(name, allow_pickle=True) as sender:
            if allowed:
                sender.put(uuid.UUID)
            else:
                with pytest.raises(shmtree.PickleRefused):
                    sender.put(uuid.UUID)
                sender.put("plain")
            assert maker.wait(timeout=60) == 0


@needs_programs
def test_a_name_with_parts_is_the_same_in_both_languages() -> None:
    robot = f"robot-{uuid.uuid4().hex}"
    program = pathlib.Path(PROGRAMS or "") / "named_pair"
    with subprocess.Popen([program, f"{robot}/lidar/front"], stdout=subprocess.PIPE) as maker:
        assert maker.stdout is not None
        assert maker.stdout.readline() == b"made\n"
        assert f"{robot}/lidar/front" in [each.name for each in shmtree.list_names()]
        with pytest.raises(FileNotFoundError):
            shmtree.open_sender(f"{robot}/lidar")
        shmtree.open_sender(f"{robot}/lidar/front").put("from Python")
        assert maker.wait(timeout=60) == 0


@needs_programs
def test_stream_continues_until_cpp_opens_its_sender() -> None:
    """C++ copies a small message, and opens the end in it later."""
    name = f"ends-{uuid.uuid4().hex}"
    requests, kept = shmtree.create_pair(name=name)  # in an arena of its own
    with subprocess.Popen([pathlib.Path(PROGRAMS or "") / "answers", name]) as answering, requests, kept:
        for _ in range(500):
            sender, receiver = shmtree.create_pair()
            requests.put({"kind": "sender", "end": sender})
            sender.close()
            assert receiver.get(timeout=60) == "from C++"
            receiver.close()
        requests.close()
        assert answering.wait(60) == 0


@needs_programs
def test_cpp_uses_the_ends_that_python_puts_into_messages() -> None:
    name = f"ends-{uuid.uuid4().hex}"
    program = pathlib.Path(PROGRAMS or "") / "answers"
    requests, kept = shmtree.create_pair(name=name)
    replies, questions = shmtree.create_pair(), shmtree.create_pair()
    queues = [shmtree.Queue(), shmtree.JoinableQueue(), shmtree.SimpleQueue()]
    with subprocess.Popen([program, name]) as answering:
        requests.put({"kind": "sender", "end": replies[0]})
        assert replies[1].get(timeout=60) == "from C++"
        requests.put({"kind": "receiver", "end": questions[1]})
        questions[0].put("to C++")
        for each in queues:
            requests.put({"kind": "queue", "end": each})
            assert each.get(timeout=60) == "from C++"
        for no_end in (7, (b"", True), questions[1], shmtree.Arena()):
            requests.put({"kind": "none", "end": no_end})
        requests.close()
        assert answering.wait(60) == 0
    kept.close()


@needs_programs
def test_cpp_and_python_share_each_others_replay_buffers() -> None:
    key = uuid.uuid4().hex
    example = {
        "obs": {"image": np.zeros((2, 3), np.uint8), "pair": (0, np.float64(0))},
        "reward": 0.0,
        "done": False,
    }
    ours = ReplayBuffer(
        100,
        example=example,
        sampling=Sampling(Prioritized(alpha=1.0), seed=3),
        episodes=Episodes(next="obs"),
        limits=Limits(chunk=1),
        name=f"ours-{key}",
    )
    program = pathlib.Path(PROGRAMS or "") / "replay_peer"
    command = [program, f"ours-{key}", f"theirs-{key}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as peer:
        assert peer.stdout is not None
        assert peer.stdin is not None
        assert peer.stdout.readline() == b"made\n"
        assert len(ours) == 10
        assert ours.max_priority == 10
        batch = ours.sample(200)
        numbers = batch.data["obs"]["pair"][0]
        assert set(numbers) <= set(range(10))
        np.testing.assert_array_equal(batch.data["obs"]["image"][:, 1, 2], numbers)
        np.testing.assert_array_equal(batch.data["obs"]["pair"][1], numbers * 0.5)
        np.testing.assert_array_equal(
            batch.data["next"]["obs"]["image"][:, 0, 0], np.where(numbers == 9, 200, numbers + 1)
        )
        assert set(batch.version) == {7}
        assert 4.0 in batch.priority

        theirs = ReplayBuffer.open(f"theirs-{key}")
        assert (theirs.capacity, len(theirs)) == (100, 20)
        drawn = theirs.sample(20, sampler="all")
        assert drawn.data["obs"].shape == (20, 2, 2)
        np.testing.assert_array_equal(drawn.data["obs"][:, 1, 0] * 2.5, drawn.data["info"]["speed"])
        np.testing.assert_array_equal(theirs.sample(3).data["info"]["speed"], [0.0, 2.5, 5.0])
        for _ in range(5):
            theirs.add({"info": {"speed": 1.0}, "obs": np.zeros(2, np.float32)})
        with pytest.raises(ValueError, match="speed"):
            theirs.add({"info": {}, "obs": np.zeros(2, np.float32)})
        peer.stdin.close()
        assert peer.wait(60) == 0


@needs_programs
def test_cpp_reads_a_python_recording_with_arrays_as_views(tmp_path: pathlib.Path) -> None:
    path, names = tmp_path / "run.mcap", ("a", "grün")
    with Writer(path) as writer:
        channels = [writer.add_channel(name) for name in names]
        for step in range(4):
            frame = shmtree.pack({"step": step, "obs": np.full(5000, float(step))})
            writer.write(channels[step % 2], [(step, 10 + step, frame)])
        writer.note_missed("a", 3)

    def read() -> list[str]:
        program = [pathlib.Path(PROGRAMS or "") / "recorded", path]
        done = subprocess.run(program, capture_output=True, timeout=60, check=False)
        return (done.stdout if done.returncode == 0 else done.stderr).decode().splitlines()

    messages = [f"{names[step % 2]} {10 + step} {step} {5000 * step} a view" for step in range(4)]
    assert read() == [*messages, "a: 3 missed", "whole"]
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"shmtree.missed") - 1000])
    assert read() == [*messages[:3], "cut off"]
    path.write_bytes(whole[:8] + b"\0" + whole[9:])
    with pytest.raises(shmtree.CorruptMessage) as error:
        Recording(path)
    assert read() == [str(error.value)]


@needs_programs
def test_cpp_reads_a_python_list_with_arrays_as_views(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "list.smt"
    items = shmtree.SharedList({"id": number, "x": np.full(1000, float(number))} for number in range(5))
    items[1:].dump(path)

    def read() -> list[str]:
        program = [pathlib.Path(PROGRAMS or "") / "shared_list_reader", path]
        done = subprocess.run(program, capture_output=True, timeout=60, check=False)
        return (done.stdout if done.returncode == 0 else done.stderr).decode().splitlines()

    assert read() == ["4 items", *(f"{number} {1000 * number} a view" for number in range(1, 5))]
    path.write_bytes(path.read_bytes()[:-8])
    assert "is truncated" in read()[0]


@needs_programs
@pytest.mark.parametrize(("options", "links"), [([], True), (["-D_GLIBCXX_DEBUG"], False)])
def test_program_with_debug_containers_does_not_link(options: list[str], links: bool, tmp_path: pathlib.Path) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("there is no compiler")
    build = pathlib.Path(PROGRAMS or "").parents[1]
    include = pathlib.Path(__file__).resolve().parents[3] / "include"
    source = tmp_path / "a.cpp"
    source.write_text("#include <shmtree/base/result.h>\nint main() { return shmtree::success().ok() ? 0 : 1; }\n")
    command = [compiler, "-std=c++20", *options, f"-I{include}", source, build / "libshmtree_platform.a", "-o"]
    done = subprocess.run([*command, tmp_path / "a"], capture_output=True, text=True)
    if links:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert "library_compiled_with_GLIBCXX_DEBUG" in done.stderr
