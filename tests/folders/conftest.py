"""Fixtures of tests of formats."""

from tests.folders.written import written

__all__ = ["written"]
