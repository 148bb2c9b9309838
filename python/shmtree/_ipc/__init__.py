"""What processes share and send each other: channels, queues, pipes, services, Latest, Broadcast, arenas, arrays."""
