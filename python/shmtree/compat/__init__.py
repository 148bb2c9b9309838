"""Interfaces of other packages, implemented with shmtree."""
