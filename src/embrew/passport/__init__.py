"""A file that any endpoint can be compared with: texts, their vectors, and those that each fault would give."""
