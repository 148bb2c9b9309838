"""Measures how fast data goes from process to process: workloads times competitors. See `python -m bench --help`."""
