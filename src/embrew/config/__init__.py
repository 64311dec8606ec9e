"""YAML files that users write (recipes, suites, sweeps): reading, overrides, checks of keys, error messages."""
