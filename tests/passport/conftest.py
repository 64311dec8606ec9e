"""Exports of tiny encoders."""

from tests.parity.conftest import exported, exports  # noqa: F401
