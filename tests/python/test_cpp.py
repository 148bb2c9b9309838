"""A C++ program and Python exchange data through the same channels and frames."""

import os
import pathlib
import subprocess
import uuid

import numpy as np
import pytest

import shmtree

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
            actions.put({"values": np.arange(5.0) + step, "label": f"step {step}"}, timeout=20)
            received.append(transitions.get(timeout=20))
        actions.close()
        assert simulator.wait(timeout=20) == 0
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


@needs_programs
@pytest.mark.parametrize(("said", "allowed"), [([], False), (["no"], False), (["yes"], True)])
def test_a_named_channel_of_cpp_takes_pickles_only_where_both_sides_say_so(said: list[str], allowed: bool) -> None:
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
