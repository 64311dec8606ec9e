"""Software that computes an encoder's vectors from exported files: one file per runtime, listed in `registry`."""
