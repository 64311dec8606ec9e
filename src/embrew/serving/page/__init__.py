"""The page of the server."""


def page() -> tuple[bytes, dict[str, str]]:
    """Return the page and its headers."""
    return b"<!doctype html><title>embrew</title>", {}
