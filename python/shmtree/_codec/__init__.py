"""Conversion of values to frames: the parts of the encoder and decoder that are written in Python."""
