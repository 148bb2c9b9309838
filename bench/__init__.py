"""Workloads times competitors: how fast data goes from process to process. `python -m bench --help` tells the rest."""
