"""The OpenVINO library, imported where it is used, without its telemetry."""

from __future__ import annotations

import sys
from typing import Any


def nncf() -> Any:
    """Return the module `nncf`, which quantises models of OpenVINO.

    Raises:
        ValueError: it is not installed; names the extra.
    """
    openvino()  # hides the telemetry of both
    try:
        import nncf as library
    except ImportError as error:
        raise ValueError('NNCF is not installed; install it with: pip install "embrew[openvino]"') from error
    return library


def openvino() -> Any:
    """Return the module `openvino`.

    Importing it sends a usage event over the network, unless `openvino_telemetry` cannot be imported; so that module is
    hidden from it first, and from NNCF.

    Raises:
        ValueError: it is not installed; names the extra.
    """
    if "openvino_telemetry" not in sys.modules:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    try:
        import openvino as library
    except ImportError as error:
        raise ValueError('OpenVINO is not installed; install it with: pip install "embrew[openvino]"') from error
    return library
