"""Behaviour of an end in any language: cases, each with calls and their expected results."""

CASES = {
    "messages come in the order they were put": """
        pair
        put 1 = ticket 0
        put 2 = ticket 1
        size = 2
        get = 1
        get = 2
        get = empty
    """,
    "a full channel takes nothing, and what was received makes room": """
        pair capacity=1
        put 1 = ticket 0
        space = no
        put 2 = full
        get = 1
        space = yes
        put 2 = ticket 1
    """,
    "a message over the limit of bytes is refused, full or not": """
        pair max_bytes=100000
        put big 200000 = message too large
        put 1 = ticket 0
        put big 200000 = message too large
        get = 1
    """,
    "several are received at once, up to as many as were asked for": """
        pair
        get_many 3 = empty
        put 1 = ticket 0
        put 2 = ticket 1
        put 3 = ticket 2
        get_many 2 = 1 2
        get_many 2 = 3
        get_many 0 = invalid
    """,
    "a closed end says so, as often as it is asked": """
        pair
        put 1 = ticket 0
        closed sender = no
        close sender
        close sender
        closed sender = yes
        put 2 = closed
        get = 1
        get = closed
        close receiver
        get = closed
        get_many 2 = closed
        take = closed
        dead_letters = closed
    """,
    "without receivers a channel is put into until it is full": """
        pair capacity=1
        close receiver
        put 1 = ticket 0
        put 2 = closed
    """,
    "a message is pending until it was received": """
        pair
        acked = ok
        put 1 = ticket 0
        put 2 = ticket 1
        pending = 2
        acked 0 = timeout
        get = 1
        acked 0 = ok
        acked = timeout
        get = 2
        acked = ok
        pending = 0
    """,
    "a ticket that was never given is invalid": """
        pair
        put 1 = ticket 0
        acked 1 = invalid
    """,
    "a taken message is pending until it is acknowledged": """
        pair
        put 1 = ticket 0
        take = 1 attempt 1
        stats taken = 1
        pending = 1
        ack 0 = ok
        acked = ok
        ack 0 = invalid
        nack 0 = invalid
        requeue 0 = invalid
        get = empty
    """,
    "what is returned comes again, before the rest": """
        pair
        put 1 = ticket 0
        put 2 = ticket 1
        take = 1 attempt 1
        nack 0 = ok
        take = 1 attempt 2
        requeue 1 = ok
        take = 1 attempt 1
        ack 2 = ok
        get = 2
    """,
    "what is dropped comes again": """
        pair
        put 1 = ticket 0
        take = 1 attempt 1
        drop
        take = 1 attempt 2
    """,
    "no more is taken than may be unacked": """
        pair max_unacked=1
        put 1 = ticket 0
        put 2 = ticket 1
        take = 1 attempt 1
        take = empty
        ack 0 = ok
        take = 2 attempt 1
    """,
    "what was taken too often is rejected, and can be had again": """
        pair max_attempts=2
        put 1 = ticket 0
        put 2 = ticket 1
        take = 1 attempt 1
        nack 0 = ok
        take = 1 attempt 2
        nack 1 = ok
        get = 2
        acked = ok
        dead_letters = 1
        requeue 2 = ok
        take = 1 attempt 1
        ack 3 = ok
        dead_letters = 0
    """,
    "an array of the arena is given away once": """
        pair
        new_array a
        put a = ticket 0
        put a = ticket 1
        get = given
        get = copied
    """,
    "a sender still owns an array after a failed put": """
        pair capacity=1
        new_array a
        put 1 = ticket 0
        put a = full
        get = 1
        put a = ticket 1
        get = given
    """,
    "a part of an array is copied": """
        pair
        new_array a
        put part a = ticket 0
        put a = ticket 1
        get = copied
        get = given
    """,
    "close() ends a get that waits": """
        pair
        put 1 = ticket 0
        get = 1
        start get
        close receiver
        join = closed
    """,
    "close() ends a take that waits": """
        pair
        put 1 = ticket 0
        get = 1
        start take
        close receiver
        join = closed
    """,
    "close() ends a put that waits": """
        pair capacity=1
        put 1 = ticket 0
        get = 1
        put 2 = ticket 1
        start put
        close sender
        join = closed
        get = 2
        get = closed
    """,
    "a wait for acks ends when the process has left the channel": """
        pair
        put 1 = ticket 0
        start acks
        close sender
        close receiver
        join = closed
    """,
    "a channel that drops its oldest messages takes a put at any time": """
        pair capacity=2 drop_oldest
        put 1 = ticket 0
        put 2 = ticket 1
        space = yes
        dropped = 0
        put 3 = ticket 2
        put 4 = ticket 3
        dropped = 2
        stats dropped = 2
        stats received = 0
        acked 1 = ok
        get = 3
        get = 4
        get = empty
        pending = 0
    """,
    "what was taken is not dropped": """
        pair capacity=1 drop_oldest
        put 1 = ticket 0
        take = 1 attempt 1
        put 2 = ticket 1
        put 3 = ticket 2
        nack 0 = ok
        get = 1
        get = 3
    """,
    "a kept-open stream does not end without senders": """
        pair keep_open
        put 1 = ticket 0
        close sender
        get = 1
        get = empty
    """,
    "stats count": """
        pair
        put 1 = ticket 0
        put 2 = ticket 1
        get = 1
        stats put = 2
        stats received = 1
        stats senders = 1
    """,
}
