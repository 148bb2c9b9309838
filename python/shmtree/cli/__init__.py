"""The commands of ``python -m shmtree``."""
