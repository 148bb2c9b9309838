"""State of this process: its default arena, its names, handles for other processes, and what happens at a fork and at
exit."""
