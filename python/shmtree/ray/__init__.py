"""Pairs between the nodes of a cluster of Ray; see docs/ray.md. Needs ``shmtree[ray]``."""
