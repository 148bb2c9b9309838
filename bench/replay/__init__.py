"""Compares replay buffers: the same rows and the same samples, with each buffer in its own process.

    python -m bench.replay ['add-*' 'sample-*' ...] [--peers cpprb TorchRL] [--rounds 5] [--scale 1.0]

All buffers of a workload are filled first. Then they take turns, so that a slow moment of the machine affects all of
them. `--python NAME=PATH` runs a peer with another interpreter (Reverb installs all of TensorFlow). Writes a table to
stdout and the figures to bench/results/replay.json.
"""
