"""What belongs to a process: its default arena, names, the handles that it gives to others, forks, and its exit."""
