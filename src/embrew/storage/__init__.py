"""Encoders on disk: opened, saved, verified, described."""
