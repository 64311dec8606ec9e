"""An application of Ray Serve whose model of words waits, and breaks, as texts say."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from ray.serve import Application

from embrew.serving.models import Key
from embrew.serving.ray import deploy, read_arguments
from tests.serving.running import Words, of_words


class Told(Words):
    """A text such as `wait 3` takes 3 seconds; after the text `break`, nothing is computed any more."""

    broken = False

    def compute(self, key: Key, rows: Sequence[Any]) -> list[np.ndarray]:
        self.broken = self.broken or "break" in rows
        if self.broken:
            raise RuntimeError("the device is lost")
        time.sleep(sum(float(row.split()[1]) for row in rows if row.startswith("wait")))
        return super().compute(key, rows)


def app(args: dict[str, Any]) -> Application:
    """Return the application; arguments are those of `embrew.serving.ray:app`."""
    settings = read_arguments({"model": "words", **args})
    limits = ("max_concurrent_requests", "timeout", "drain")
    return deploy(lambda: of_words(Told(), **{name: getattr(settings, name) for name in limits}), settings)
