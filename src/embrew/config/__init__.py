"""YAML files that users write (recipes, suites, sweeps): reading, checks of keys, error messages."""
