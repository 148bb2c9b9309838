"""Replay buffers side by side: the same rows, the same draws, each buffer in a process of its own.

    python -m bench.replay ['add-*' 'sample-*' ...] [--peers cpprb TorchRL] [--rounds 5] [--scale 1.0]

All buffers of a workload are filled first, then they take turns, so that a slow moment of the machine meets all of
them. `--python NAME=PATH` runs a peer with an interpreter of its own (Reverb brings the whole of TensorFlow). Writes a
table to stdout and the figures to bench/results/replay.json.
"""
