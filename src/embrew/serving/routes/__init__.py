"""The routes, by whose API they belong to."""
