"""Fixtures of tests of inspection."""

from tests.folders.written import written

__all__ = ["written"]
