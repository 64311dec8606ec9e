"""YAML files that users write: reading, overrides, checks of keys, messages; recipes, suites and sweeps share them."""
