"""Encoders: template, attention, backbone and pooling. Knows nothing of training, data or recipes."""
