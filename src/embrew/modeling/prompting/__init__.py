"""Demonstrations of a task in a prompt, as text or as vectors."""
