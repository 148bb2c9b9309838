"""`shmtree run`: an unmodified program with shmtree's queues and pipes in place of the standard ones.

`launch` starts the program with `hook` on PYTHONPATH, so that each Python process of the program executes
`hook/sitecustomize.py`. It waits until the program imports a module that has something to replace, and then calls
`install`. `counters` has what each process counts, in one file per process; `results` merges the files.
"""
