"""State of this process: its default arena, names, handles for other processes, forks, and its exit."""
