"""Encoders outside PyTorch: the computation from token ids to vectors as one graph, and encoders that run it."""
