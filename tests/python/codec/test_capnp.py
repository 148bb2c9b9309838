"""Cap'n Proto messages: sent, received, packed and recorded, with and without pycapnp."""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import subprocess
import sys
import uuid
from typing import Any

import frame_writer
import numpy as np
import pytest

import shmtree

PROGRAMS = os.environ.get("SHMTREE_PROGRAMS")
SCHEMA = pathlib.Path(__file__).parents[2] / "cpp" / "support" / "messages.capnp"
POSE = 0xD8A1B2C3D4E5F607

# A struct of one data word and four pointers. Only seq is set, to 7.
WORDS = np.array([0x0004_0001_0000_0000, 7, 0, 0, 0, 0], np.uint64).tobytes()


@pytest.fixture(scope="module")
def schema() -> Any:
    capnp = pytest.importorskip("capnp", reason="pycapnp is not installed")
    return capnp.load(str(SCHEMA))


def pose_of(schema: Any, image: bytes = b"", seq: int = 7) -> Any:
    pose = schema.Pose.new_message(seq=seq, frame="map", image=image)
    pose.position = [0.0, 0.5, 1.0]
    return pose


def check(pose: Any, image: bytes, seq: int = 7) -> None:
    assert (pose.seq, pose.frame, list(pose.position), pose.image) == (seq, "map", [0.0, 0.5, 1.0], image)


def bytes_of(message: shmtree.CapnpMessage) -> list[bytes]:
    return [segment.tobytes() for segment in message.segments]


@pytest.mark.parametrize("size", [0, 300, 100_000])
def test_pycapnp_message_round_trip(schema: Any, size: int) -> None:
    image = os.urandom(size)
    message = shmtree.CapnpMessage.from_builder(pose_of(schema, image))
    assert message.schema_id == POSE
    sender, receiver = shmtree.create_pair(allow_pickle=False)
    sender.put(message)
    sender.put({"seq": 1, "poses": [message, message]})
    got = receiver.get(timeout=60)
    assert got == message
    check(got.reader(schema.Pose), image)
    inside = receiver.get(timeout=60)
    assert inside["poses"][0] is inside["poses"][1]
    check(inside["poses"][0].reader(schema.Pose), image)


def test_pycapnp_reader_reads_in_place_and_keeps_the_memory(schema: Any) -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(shmtree.CapnpMessage.from_builder(pose_of(schema, b"x" * 100_000)))
    message = receiver.get(timeout=60)
    segment = max(message.segments, key=len)
    assert not segment.flags.owndata and not segment.flags.writeable
    before = sys.getrefcount(segment)
    reader = message.reader(schema.Pose)
    assert sys.getrefcount(segment) > before  # pycapnp references the buffer itself
    del message, segment
    for _ in range(20):
        sender.put(np.zeros(100_000, np.uint8))
        receiver.get(timeout=60)
    check(reader, b"x" * 100_000)


def test_copied_message_owns_its_memory(schema: Any) -> None:
    sender, receiver = shmtree.create_pair()
    sender.put(shmtree.CapnpMessage.from_builder(pose_of(schema, b"x" * 100_000)))
    message = receiver.get(timeout=60, copy=True)
    assert all(segment.flags.owndata for segment in message.segments)
    check(message.reader(schema.Pose), b"x" * 100_000)


def test_message_of_another_type_is_refused(schema: Any) -> None:
    message = shmtree.CapnpMessage.from_builder(schema.Other.new_message(seq=1))
    with pytest.raises(TypeError, match="expected a Cap'n Proto message of type @0xd8a1b2c3d4e5f607, found type"):
        message.reader(schema.Pose)


def test_traversal_limit_override(schema: Any) -> None:
    message = shmtree.CapnpMessage.from_builder(pose_of(schema, bytes(1 << 20)))
    reader = message.reader(schema.Pose, traversal_limit_in_words=200_000)
    assert len(reader.image) == 1 << 20
    with pytest.raises(Exception, match="traversal limit"):
        len(reader.image)


def test_message_survives_a_frame_a_pickle_and_a_pickled_message() -> None:
    message = shmtree.CapnpMessage(POSE, [WORDS, b"", bytes(8000)])
    packed = shmtree.pack({"a": message}, allow_pickle=False, portable=True)
    assert shmtree.unpack(packed)["a"] == message
    assert shmtree.unpack(packed, copy=True)["a"] == message
    assert pickle.loads(pickle.dumps(message, 5)) == message
    needs_pickle = {"a": message, "b": complex}
    assert shmtree.unpack(shmtree.pack(needs_pickle), allow_pickle=True) == needs_pickle
    queue = shmtree.Queue()
    queue.put(message)
    assert queue.get(timeout=60) == message


def test_received_message_is_forwarded_without_a_copy() -> None:
    arena = shmtree.Arena(16 << 20)
    sender, receiver = shmtree.create_pair(arena=arena)
    sender.put(shmtree.CapnpMessage(POSE, [WORDS, bytes(100_000)]))
    message = receiver.get(timeout=60)
    position = message.segments[1].ctypes.data
    sender.put([message], move=True)
    assert receiver.get(timeout=60)[0].segments[1].ctypes.data == position


def test_segments_may_be_any_buffer() -> None:
    twice = bytes(a for byte in WORDS for a in (byte, 0))
    shifted = memoryview(b"x" + WORDS)[1:]
    for segment in (WORDS, bytearray(WORDS), memoryview(twice)[::2], shifted, np.frombuffer(WORDS, np.uint64)):
        message = shmtree.CapnpMessage(POSE, [segment])
        assert bytes_of(message) == [WORDS]
        assert message.segments[0].ctypes.data % 8 == 0
        assert shmtree.unpack(shmtree.pack(message)) == message


@pytest.mark.parametrize(
    ("schema_id", "segments", "error"),
    [
        (POSE, [], "1 to 512 segments, not 0"),
        (POSE, [b"12345678"] * 513, "1 to 512 segments, not 513"),
        (POSE, [b"1234567"], "7 bytes"),
        (1 << 64, [b"12345678"], r"2\*\*64"),
        (-1, [b"12345678"], "schema_id is -1"),
    ],
)
def test_invalid_message_raises(schema_id: int, segments: list[bytes], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        shmtree.CapnpMessage(schema_id, segments)


def test_refused_builder_names_from_builder(schema: Any) -> None:
    sender, receiver = shmtree.create_pair(allow_pickle=False)
    builder = pose_of(schema)
    with pytest.raises(shmtree.PickleRefused, match=r'at \["pose"\].*CapnpMessage\.from_builder\(builder\)') as refused:
        sender.put({"pose": builder})
    assert refused.value.path == '["pose"]'
    with pytest.raises(shmtree.PickleRefused, match=r"CapnpMessage\.from_builder\(reader\.as_builder\(\)\)"):
        shmtree.pack(builder.as_reader(), allow_pickle=False)
    with pytest.raises(shmtree.PickleRefused) as other:
        sender.put(object())
    assert "Capnp" not in str(other.value)
    sender.put(shmtree.CapnpMessage.from_builder(builder.as_reader().as_builder()))
    check(receiver.get(timeout=60).reader(schema.Pose), b"")


def test_wrong_argument_types_raise_with_their_name() -> None:
    with pytest.raises(TypeError, match="schema_id is 'x'"):
        shmtree.CapnpMessage("x", [WORDS])
    with pytest.raises(TypeError, match="sequence of buffers"):
        shmtree.CapnpMessage(POSE, WORDS)


def test_changed_private_attributes_raise_instead_of_crashing() -> None:
    def changed(**attributes: Any) -> shmtree.CapnpMessage:
        message = shmtree.CapnpMessage(POSE, [WORDS])
        for name, value in attributes.items():
            setattr(message, name, value)
        return message

    good = shmtree.CapnpMessage(POSE, [WORDS]).segments[0]
    for segments in ((), (good,) * 513, (WORDS,), (good[1:],), (good.reshape(2, -1),), (good[::8],), [good]):
        with pytest.raises((ValueError, TypeError)):
            shmtree.pack(changed(_segments=segments))
    for schema_id in (-1, 1 << 64, "x", None):
        with pytest.raises((OverflowError, TypeError)):
            shmtree.pack(changed(_schema_id=schema_id))


def test_frames_with_overlapping_segments_are_refused() -> None:
    memory = np.arange(6000, dtype=np.uint8)
    message = shmtree.CapnpMessage(POSE, [memory[:8]])
    message._segments = (memory[:4000], memory[4000:4800], memory[2000:])
    frame = bytes(shmtree.pack([1, {"pose": message}]))
    with pytest.raises(shmtree.CorruptMessage, match="segments of a Cap'n Proto message overlap"):
        shmtree.unpack(frame)
    sender, receiver = shmtree.create_pair()
    sender.put(message)
    sender.put(shmtree.CapnpMessage(POSE, [memory[:4000], memory[4000:]]))
    with pytest.raises(shmtree.CorruptMessage, match="overlap"):
        receiver.get(timeout=60)
    assert [segment.nbytes for segment in receiver.get(timeout=60).segments] == [4000, 2000]


def test_segments_that_overlap_are_copied() -> None:
    memory = np.arange(6000, dtype=np.uint8)
    message = shmtree.CapnpMessage(POSE, [memory[:4000], b"", memory[2000:], memory[2000:]])
    got = shmtree.unpack(shmtree.pack(message))
    assert got == message and not got.segments[0].flags.writeable
    np.testing.assert_array_equal(got.segments[2], memory[2000:])


def test_messages_are_equal_by_type_and_words() -> None:
    message = shmtree.CapnpMessage(POSE, [WORDS])
    assert message == shmtree.CapnpMessage(POSE, [bytearray(WORDS)])
    assert message != shmtree.CapnpMessage(POSE + 1, [WORDS])
    assert message != shmtree.CapnpMessage(POSE, [WORDS, b""])
    assert message != shmtree.CapnpMessage(POSE, [WORDS[:8]])
    assert message != WORDS
    assert message.nbytes == 48
    assert repr(message) == "<CapnpMessage @0xd8a1b2c3d4e5f607, 1 segment, 48 bytes>"
    with pytest.raises(TypeError, match="unhashable"):
        hash(message)


def test_describe_summarises_a_message_in_one_line() -> None:
    many = shmtree.CapnpMessage(POSE, [WORDS, b"", *[bytes(8)] * 500])
    frame = shmtree.pack({"pose": shmtree.CapnpMessage(POSE, [WORDS]), "many": many, "n": 1})
    out = io.StringIO()
    shmtree.describe(frame, file=out)
    assert out.getvalue().splitlines()[1:] == [
        "str_dict of 3",
        "  'pose': capnp @0xd8a1b2c3d4e5f607 of 1 segment, 48 bytes",
        "  'many': capnp @0xd8a1b2c3d4e5f607 of 502 segments, 4048 bytes",
        "  'n': int 1",
    ]


def test_overlapping_array_keeps_alignment() -> None:
    memory = np.arange(8000, dtype=np.uint8)
    value = [memory[3:], shmtree.CapnpMessage(POSE, [memory[8:4000]]), memory[1:100]]
    got = shmtree.unpack(shmtree.pack(value))
    assert got[1] == value[1] and got[1].segments[0].ctypes.data % 8 == 0
    np.testing.assert_array_equal(got[0], value[0])


def test_queue_arrays_do_not_share_memory() -> None:
    memory = np.arange(8000, dtype=np.uint8)
    queue = shmtree.Queue()
    queue.put([memory, memory[1:], shmtree.CapnpMessage(POSE, [memory[:4000]])])
    first, second, message = queue.get(timeout=60)
    assert not np.shares_memory(first, second) and not np.shares_memory(first, message.segments[0])
    assert first.flags.writeable and second.flags.writeable
    np.testing.assert_array_equal(message.segments[0], memory[:4000])


def test_frame_at_an_odd_address_gives_aligned_segments() -> None:
    message = shmtree.CapnpMessage(POSE, [WORDS, bytes(100_000)])
    frame = bytes(shmtree.pack(message))
    shifted = memoryview(b"x" + frame)[1:]
    for copy in (None, True, False):
        got = shmtree.unpack(shifted, copy=copy)
        assert got == message
        assert all(segment.ctypes.data % 8 == 0 for segment in got.segments)


def hostile(count: int, *segments: tuple[int, int, tuple[int, ...]], offset: int | None = None) -> bytes:
    """Returns a frame that claims `count` segments, of these dtypes, flags and shapes, all in one 64-byte buffer."""
    writer = frame_writer.Writer().kind(frame_writer.CAPNP).int(POSE - (1 << 64)).length(count).buffer(bytes(64))
    for dtype, flags, shape in segments:
        writer.descriptor(dtype, flags, len(shape), 0).lengths(shape)
        if flags & 8:
            writer.view(offset or 0)
        if flags & 4:
            writer.view(8)
    return writer.frame()


@pytest.mark.guarantee("capnp-item")
@pytest.mark.parametrize(
    "frame",
    [
        hostile(0),
        hostile(513, *[(3, 1, (64,))] * 513),
        hostile(2, (3, 1, (64,))),
        hostile(1, (3, 1, (64,)), (3, 1, (64,))),
        hostile(1, (3, 1, (60,))),
        hostile(1, (9, 1, (8,))),
        hostile(1, (3, 1, (8, 8))),
        hostile(1, (3, 1, ())),
        hostile(1, (3, 5, (8,))),
        hostile(1, (3, 9, (8,)), offset=4),
        hostile(1, (3, 9, (8,)), offset=-8),
        hostile(1, (3, 1, (72,))),
        hostile(1, (3, 17, (64,))),
    ],
)
def test_hostile_message_is_corrupt(frame: bytes) -> None:
    for act in (shmtree.unpack, shmtree.describe):
        with pytest.raises(shmtree.CorruptMessage):
            act(frame)
    sender, _receiver = shmtree.create_pair()
    with pytest.raises(shmtree.CorruptMessage):
        sender.put_frame(frame)


def test_sound_handwritten_message_arrives() -> None:
    got = shmtree.unpack(hostile(2, (3, 1, (16,)), (3, 9, (32,)), offset=16))
    assert [segment.size for segment in got.segments] == [16, 32]


@pytest.mark.skipif(not PROGRAMS, reason="SHMTREE_PROGRAMS does not say where the C++ programs were built")
def test_cpp_reads_pycapnp_messages_and_replies(schema: Any) -> None:
    key = uuid.uuid4().hex
    requests, theirs = shmtree.create_pair(name=f"capnp-requests-{key}")
    their_replies, replies = shmtree.create_pair(name=f"capnp-replies-{key}")
    program = pathlib.Path(PROGRAMS or "") / "capnp_peer"
    with subprocess.Popen([program, f"capnp-requests-{key}", f"capnp-replies-{key}"]) as peer:
        for seq, size in enumerate((0, 1000, 200_000)):
            image = os.urandom(size)
            requests.put({"pose": shmtree.CapnpMessage.from_builder(pose_of(schema, image, seq))}, timeout=60)
            check(replies.get(timeout=60).reader(schema.Pose), image, seq + 1)
        requests.close()
        assert peer.wait(timeout=60) == 0
    theirs.close()
    their_replies.close()


def test_package_does_not_import_pycapnp() -> None:
    program = "import sys, shmtree; shmtree.CapnpMessage(0, [bytes(8)]); assert 'capnp' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
