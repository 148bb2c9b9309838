"""`shmtree run`: an unmodified program with shmtree's queues and pipes in place of the standard ones.

`launch` starts the program with `hook` on PYTHONPATH, so that each Python process of the program executes
`hook/sitecustomize.py`. The hook waits until the program imports a module with classes to replace, and then calls
`install`. `counters` stores the counts of each process in a file of its own; `results` merges the files.
"""
