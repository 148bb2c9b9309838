"""Values as frames: what Python adds to the encoder and decoder of the core."""
