"""A small world: a language in which every fact and every probability is known. See benchmarks/small-models.md."""
