"""Tests. Importing openvino sends a usage event if this module is there, so it is hidden before any test imports it."""

import sys

sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
