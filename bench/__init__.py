"""Measures how fast data moves between processes: workloads times competitors. See `python -m bench --help`."""
