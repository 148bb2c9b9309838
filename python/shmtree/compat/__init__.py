"""Other packages' modules, made of shmtree."""
