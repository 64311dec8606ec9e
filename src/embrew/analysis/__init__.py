"""Figures about an encoder: dimensions, memory tokens, uniformity, attention, layers and dimensions, domains."""
