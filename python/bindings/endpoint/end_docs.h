#pragma once

// Docstrings of the ends and queues in Google style. Lines have at most 112 columns, because `tools/stub_docs.py`
// copies them to the stub, with more indent.
namespace shmtree::python {

inline constexpr const char* kPutDoc = R"(put($self, obj, block=True, timeout=None, *, move=False)
--

Sends an object.

When `put` returns, every process sees the message in the channel, and you may change the object. Arrays from
`new_empty` are the exception. A sender gives a whole one away without a copy, and it becomes read-only here. A
sender copies a part of one. Views that were made of such an array before the put (rows, slices) stay writable;
do not use them any more.

Args:
    obj: Object to send.
    block: If False, raises ``queue.Full`` at once when the channel is full.
    timeout: Seconds to wait while the channel is full; None waits indefinitely, 0 and less does not wait.
    move: If True, also gives away parts of arrays from `new_empty`, and arrays that were received. Without it,
        a queue copies all arrays except those that `shmtree.torch.collate` made.

Returns:
    The ticket of the message for `wait_for_ack`, an int; None from a queue.

Raises:
    queue.Full: The channel is still full after `timeout` seconds.
    ChannelClosed: This end is closed, or the channel is a full pair and no receiver is attached. Also if all
        processes that have one are blocked and never used it (a deadlock).
    shmtree.PeerDied: The channel is a full pair, no receiver is attached any more, and one died or failed.
        A full queue with ``on_peer_death="raise"`` raises it if no other process is left that could get.
    ShutDown: The queue was shut down.
    MessageTooLarge: The message exceeds `max_bytes` or the arena's budget.
    OutOfSharedMemory: Pinned views, or the machine, leave no memory for the message.
    PickleRefused: A part of the object needs pickle, and this end or the channel refuses it.
    NotPortable: The channel is portable and a part of the object is not.
    ValueError: The object is nested deeper than 1,000 levels.

An exception from the object's own code is raised as it is. After any error the object was not sent.

Example::

    ticket = sender.put({"obs": np.zeros((64, 8), np.float32), "reward": 1.0}, timeout=5)
    sender.wait_for_ack(ticket, timeout=5)
)";

inline constexpr const char* kPutNowaitDoc = R"(put_nowait($self, obj, *, move=False)
--

Sends an object like `put` if the channel is not full.

Args:
    obj: Object to send.
    move: As in `put`.

Returns:
    The ticket of the message, an int; None from a queue.

Raises:
    queue.Full: The channel is full. The other errors are those of `put`.

Example::

    with contextlib.suppress(queue.Full):
        sender.put_nowait({"frame": frame})  # skips the frame if the receiver lags
)";

inline constexpr const char* kPutManyDoc = R"(put_many($self, iterable, timeout=None)
--

Sends the items of an iterable in order.

Args:
    iterable: Objects to send.
    timeout: Seconds to wait for space, for all items together; None waits indefinitely.

Returns:
    The number of items that were sent.

Raises:
    queue.Full: Not all items were sent within `timeout` seconds. This and every other error (those of `put`,
        and those of the iterable) has the number of items that were sent as its attribute `sent`.
)";

inline constexpr const char* kPutFrameDoc = R"(put_frame($self, buffer, block=True, timeout=None)
--

Sends the value in a frame without building it.

The bytes are checked first. Bytes behind the frame are not sent.

Args:
    buffer: A `Frame`, or any contiguous buffer with the bytes of one.
    block: If False, raises ``queue.Full`` at once when the channel is full.
    timeout: Seconds to wait while the channel is full; None waits indefinitely.

Returns:
    The ticket of the message, an int; None from a queue.

Raises:
    CorruptMessage: The buffer has no valid frame. The text says what is wrong, and at which node.
    ValueError: The frame has a handle: an end, a shared array or device memory. Only its receiver may load
        that. The text has the path.
    PickleRefused: The frame has a pickle, and this end or the channel refuses it.
    queue.Full: The channel is still full after `timeout` seconds. The other errors are those of `put`.
)";

inline constexpr const char* kHasSpaceDoc = R"(has_space($self)
--

Returns True if a small message could be put without waiting.

Raises:
    ChannelClosed: This end is closed.
)";

inline constexpr const char* kWaitForAllAckDoc = R"(wait_for_all_ack($self, timeout=None)
--

Blocks until every message that this process has put was received or, if it was taken, acked.

Args:
    timeout: Seconds to wait; None waits indefinitely.

Raises:
    TimeoutError: Some messages are still unacked after `timeout` seconds.
    shmtree.PeerDied: No receiver is attached that could receive the rest, and one was killed or failed.
    ChannelClosed: No receiver is attached that could receive the rest, or another thread has closed this
        object. A call after `close` waits as long as this process has another object of the channel.
)";

inline constexpr const char* kWaitForAckDoc = R"(wait_for_ack($self, ticket, timeout=None)
--

Blocks until the message with this ticket was received or, if it was taken, acked.

Args:
    ticket: Result of `put`.
    timeout: Seconds to wait; None waits indefinitely.

Raises:
    TimeoutError: The message is still unacked after `timeout` seconds.
    ValueError: `put` has returned no such ticket.
    shmtree.PeerDied: No receiver is attached that could receive it, and one was killed or failed.
    ChannelClosed: No receiver is attached that could receive it, or another thread has closed this object. A
        call after `close` waits as long as this process has another object of the channel.
)";

inline constexpr const char* kNewEmptyDoc = R"(new_empty($self, shape, dtype='float64', order='C')
--

Returns an uninitialised array in the channel's arena, which `put` gives away instead of copying it.

After the put the array is read-only here. Views that were made of it before (rows, slices) stay writable, and
what they write appears in the receiver's array; do not use them any more. The call waits while undelivered
messages occupy the memory, until the end is closed.

Args:
    shape: Dimensions: an int or a sequence of ints.
    dtype: Type of the elements; with a dtype of torch the result is a tensor.
    order: Memory order, "C" or "F".

Returns:
    A writable ndarray, or a tensor.

Raises:
    TypeError: Elements of `dtype` contain Python objects.
    MessageTooLarge: The array exceeds the arena's budget.
    OutOfSharedMemory: Pinned views leave no memory for the array.
)";

inline constexpr const char* kNewZerosDoc = R"(new_zeros($self, shape, dtype='float64', order='C')
--

Returns an array like `new_empty`, filled with zeros.

Args:
    shape: Dimensions: an int or a sequence of ints.
    dtype: Type of the elements; with a dtype of torch the result is a tensor.
    order: Memory order, "C" or "F".

Returns:
    A writable ndarray, or a tensor.
)";

inline constexpr const char* kPendingAcksDoc =
    "Number of messages of this process that are still in the channel, or were taken and are unacked.";

inline constexpr const char* kGetDoc = R"(get($self, block=True, timeout=None, *, copy=None)
--

Receives the next object.

Args:
    block: If False, raises ``queue.Empty`` at once when there is no message.
    timeout: Seconds to wait for a message; None waits indefinitely, 0 and less does not wait.
    copy: None (default) views arrays of 4 KiB and more in messages over 16 KiB and copies the rest. It copies
        everything while more than half of the arena's budget is pinned. True copies all arrays, False views
        all, except in messages of up to about 1 KiB, which the channel itself stores. A view is writable
        unless the array was sent read-only, and pins its block until the last view of it is gone.

Returns:
    The object that was sent.

Raises:
    queue.Empty: There is no message after `timeout` seconds.
    ChannelClosed: This end is closed, or the stream has ended: every message is received and no sender is
        attached. Also if all processes that have one are blocked and never used it (a deadlock). A queue has no
        end of the stream.
    shmtree.PeerDied: The stream has ended and a sender was killed or failed. Raised once, then ChannelClosed.
        An empty queue with ``on_peer_death="raise"`` raises it if no other process is left that could put.
    ShutDown: The queue was shut down and is empty.
    MemoryError: This process has no memory or no addresses for the object (OutOfSharedMemory is one kind of
        it). The message stays in the channel, or returns to it. After the eighth failure in a row it moves to
        `dead_letters`, so that receivers reach the next message. The same holds for SystemExit and
        GeneratorExit from code that unpickles.
    CorruptMessage: The message has bytes that no sender writes. It is consumed; the error has its `ticket`.
    PickleRefused: The message needs pickle, and this end or the channel refuses it. It is consumed.

Example::

    sample = receiver.get(timeout=3)  # arrays in it may be views of shared memory
    mean = sample["obs"].mean()
)";

inline constexpr const char* kGetNowaitDoc = R"(get_nowait($self, *, copy=None)
--

Receives the next object like `get` if there is one.

Args:
    copy: As in `get`.

Returns:
    The object that was sent.

Raises:
    queue.Empty: There is no message. The other errors are those of `get`.
)";

inline constexpr const char* kGetManyDoc = R"(get_many($self, n, timeout=None, *, copy=None)
--

Receives up to `n` objects: waits for the first as `get` does, and takes the others that are there.

Args:
    n: Maximum number of objects, at least 1.
    timeout: Seconds to wait for the first one; None waits indefinitely.
    copy: As in `get`.

Returns:
    A list of 1 to `n` objects.

Raises:
    queue.Empty: There is no message after `timeout` seconds. The other errors are those of `get`. An error
        after the first object is kept, and the next call raises it.
)";

inline constexpr const char* kTakeDoc = R"(take($self, block=True, timeout=None, *, copy=None)
--

Receives the next object as a `Delivery`, which counts as received when it is acked.

If this process nacks it, drops the Delivery or dies before the ack, another receiver gets the message. After
`max_attempts` deliveries it moves to `dead_letters`. `take` also waits while `max_unacked` messages are in
flight.

Args:
    block: If False, raises ``queue.Empty`` at once when there is no message.
    timeout: Seconds to wait for a message; None waits indefinitely.
    copy: As in `get`.

Returns:
    A Delivery.

Raises:
    queue.Empty: There is no message after `timeout` seconds. The other errors are those of `get`.

Example::

    with receiver.take() as delivery:  # acks at the end of the block, nacks after an exception
        train_on(delivery.item)
)";

inline constexpr const char* kTakeFramesDoc = R"(take_frames($self, n, timeout=None)
--

Receives up to `n` messages as frames, without building their objects.

It waits for the first as `take` does, and takes the others that are there. A message returns to the channel
unless its frame is acked: at `Frame.nack`, when the frame and all views of it are gone, or when this process
dies. Arrays in other memory are copied into the frame. A large frame without such arrays is in the memory of
the message.

Args:
    n: Maximum number of messages, at least 1.
    timeout: Seconds to wait for the first one; None waits indefinitely.

Returns:
    A list of 1 to `n` Frames.

Raises:
    queue.Empty: There is no message after `timeout` seconds. The other errors are those of `take`.
    CorruptMessage: The message has no valid frame. It is consumed.
)";

inline constexpr const char* kDeadLettersDoc = R"(dead_letters($self)
--

Returns the dead letters: messages that no call of `get` or `take` delivers any more.

A message becomes one after `max_attempts` deliveries, or if receivers had no memory for it eight times in a
row. `Delivery.item` is loaded, as a copy, when it is read. `ack` removes the message, and `requeue` returns it
to the channel. `nack`, or dropping the Delivery, leaves it a dead letter.

The call does not count as use of this end. `JoinableQueue.join` counts dead letters as done until `requeue`.

Returns:
    A list of Deliveries, the oldest first, without those that another process has open.

Raises:
    ChannelClosed: This end is closed.
)";

inline constexpr const char* kQsizeDoc = R"(qsize($self)
--

Returns the number of messages that can be received now. The number is exact.

A closed queue of which this process has no other object returns the number at the time of `close`.

Raises:
    ChannelClosed: This end is closed, and not a queue.
)";

inline constexpr const char* kEmptyDoc = R"(empty($self)
--

Returns True if no message can be received now. The result is exact.

Raises:
    ChannelClosed: This end is closed.
)";

inline constexpr const char* kFullDoc = R"(full($self)
--

Returns True if a put would have to wait now; of a queue, if it has `maxsize` objects. The result is exact.

A closed queue returns what it was at the time of `close`, as with `qsize`.

Raises:
    ChannelClosed: This end is closed, and not a queue.
)";

inline constexpr const char* kFilenoDoc = R"(fileno($self)
--

Returns a file descriptor for poll loops, readable while there is a message or the stream has ended.

The descriptor belongs to this object, and `close` closes it. The death of the last sender makes it readable if
that process had the end when this was called, or when something was last received. See docs/limits.md for the
processes that can make it readable.

Raises:
    ChannelClosed: This end is closed.
    shmtree.Error: This process already watches 4,096 ends of channels of the arena.
)";

inline constexpr const char* kCloseDoc = R"(close($self)
--

Detaches this object from the channel. Later calls do nothing.

The object releases the channel when no other thread is in a call of it. With the process's last object of the
channel its name, memory and descriptors are released. Messages that were put stay in the channel, and views
stay valid. `close` does not wait for a put in another thread: that message is delivered before the end of the
stream, or the put fails.
)";

inline constexpr const char* kClosedDoc = "True if `close` was called on this object.";

inline constexpr const char* kAllowPickleDoc = "True if this object may send and load pickles.";

inline constexpr const char* kShutdownDoc = R"(shutdown($self, immediate=False)
--

Shuts the queue down in all processes: `put` raises ShutDown from now on, `get` once the queue is empty.

Args:
    immediate: If True, drops the messages in the queue; `JoinableQueue.join` counts them as done.

Raises:
    ChannelClosed: This process has closed the queue.
)";

}  // namespace shmtree::python
